package binlog

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// emitFunc hands one batch to the engine; it blocks while there is no room.
type emitFunc func(context.Context, outbox.Batch) error

// stream is one connection: it turns events into batches. Nothing of it survives
// the connection, so a transaction that was cut off is simply gone, and read again
// from its start by the next one.
type stream struct {
	r      *Reader
	ctx    context.Context
	emit   emitFunc
	server string
	flavor string

	file    string
	offset  uint64   // 64 bits, while the stream counts modulo 4 GiB
	log     *logFile // of file
	newFile bool     // file began within this stream, and its description is still to come
	// fromHead: file is read from its start, so that its first events are seen.
	fromHead bool
	head     func(ctx context.Context, file string) (fileHead, error)
	started  bool // something arrived
	goesOn   bool // nothing can come a second time: the one before ended only to read a giant again

	plans        map[uint64]*plan // by table id; absent: not watched
	fenceColumns []outbox.Column
	tx           txn
	reader       rowReader
	payload      payloadReader
	prover

	unpacking bool         // inside a compressed transaction
	ended     func() error // what its end does, once all of it is known to be sound

	emitErr error // what emit returned
}

// handle takes one event off the wire.
func (s *stream) handle(event []byte) error {
	h := parseHeader(event)
	return s.guarded(h, func() error {
		switch h.kind {
		case replication.FORMAT_DESCRIPTION_EVENT:
			return s.describe(h)
		case replication.ROTATE_EVENT:
			return s.rotate(event)
		}
		if isHeartbeat(h.kind) {
			s.r.lagNanos.Store(0) // sent only when there is nothing else to send
			return s.idle(heartbeatPlace(s.place(), h, event))
		}
		s.noticeFirst(h, event)
		s.lastSeen(h)
		return s.event(h, event[replication.EventHeaderSize:])
	})
}

// unpack takes a compressed transaction while it arrives.
func (s *stream) unpack(h header, body io.Reader) error {
	return s.guarded(h, func() error {
		s.lastSeen(h)
		return s.payloadEvents(body)
	})
}

// passesOver declines rows of tables that are not watched, and what says nothing.
func (s *stream) passesOver(h header, tableID uint64) bool {
	if s.wantInner(h, tableID) {
		return false
	}
	s.r.bytesRead.Add(uint64(h.size))
	s.lastSeen(h)
	return true
}

// guarded does what is to be done with an event. A panic becomes an error that says
// where.
func (s *stream) guarded(h header, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &fatalError{fmt.Errorf("internal error at %s:%d, event type %d: %v", s.file, s.offset, h.kind, p)}
		}
	}()
	s.r.lastEventNanos.Store(time.Now().UnixNano())
	s.r.bytesRead.Add(uint64(h.size))
	if !s.started {
		s.start()
	}
	return do()
}

// start tells the engine of the new connection before anything of it is emitted.
func (s *stream) start() {
	s.started = true
	if s.r.cfg.Reload != nil {
		s.startLook()
	}
	s.r.setState(func(st *State) { st.Connected, st.LastError = true, "" })
	s.r.cfg.Logger.Info().Str("flavor", s.flavor).Str("server", s.server).Msg("reading the binlog")
	if s.r.cfg.OnConnect != nil && !s.goesOn {
		s.r.blocked.Store(true)
		s.r.cfg.OnConnect()
		s.r.blocked.Store(false)
	}
}

// idle is for when the server has nothing more to send than what stands before a place.
// Layouts that are known since the last position was given out make another one, which
// says so: else a restart would have to find them out again.
func (s *stream) idle(at logPlace) error {
	if s.tx.open {
		return nil
	}
	s.tend(at)
	if !s.unsaid || s.log == nil {
		return nil
	}
	return s.send(outbox.Batch{End: s.next(gtid{}, at.offset)})
}

// lastSeen follows time and position of an event.
func (s *stream) lastSeen(h header) {
	if h.timestamp != 0 {
		s.r.lastTimestamp.Store(h.timestamp)
	}
	s.advance(h)
}

// advance follows the position. The stream gives the end of an event modulo 4 GiB,
// and for some events of MariaDB not at all; within a file it only grows, so a
// smaller value means another round (test: TestOffsetBeyond4GiB).
func (s *stream) advance(h header) {
	if !saysPlace(h) {
		return
	}
	s.offset = offsetBehind(s.offset, h.logPos)
	s.r.offset.Store(s.offset)
}

func offsetBehind(offset uint64, logPos uint32) uint64 {
	next := offset&^math.MaxUint32 | uint64(logPos)
	if next < offset {
		next += 1 << 32
	}
	return next
}

// rotate is the change to another file, announced by the old one or by the server
// at the start of each. A transaction that is open is torn: files end between
// transactions.
func (s *stream) rotate(event []byte) error {
	name, position, err := parseRotate(event)
	if err != nil {
		return err
	}
	s.abandon()
	s.newFile = s.file != "" && (s.newFile || name != s.file)
	s.file, s.offset, s.log = name, position, nil
	s.r.offset.Store(s.offset)
	s.r.setState(func(st *State) { st.File = name })
	return nil
}

// parseRotate reads which file follows, and from where on.
func parseRotate(event []byte) (file string, position uint64, err error) {
	c := cursor{b: event[replication.EventHeaderSize:]}
	position = c.little(8)
	return string(c.b), position, c.err()
}

// describe is the first event of every file, sent again when a stream starts
// inside one. Its time stamp is the file's birth, by which a file of the same name
// and another content is told.
func (s *stream) describe(h header) error {
	s.abandon()
	s.log = &logFile{server: s.server, fileHead: fileHead{fde: h.timestamp}, layouts: s.r.watch.layouts()}
	s.fromHead = s.newFile
	from := &s.r.resume
	switch {
	case from.file == s.file && from.server == s.server:
		if from.differs(s.log.fileHead) {
			return reborn(s.file, from.fileHead, s.log.fileHead)
		}
		s.log.first = from.first
		s.fromHead = s.fromHead || from.fde != 0 // without a first, nothing was in it yet
	case !s.newFile: // with GTIDs, a stream begins wherever the server pleases
		head, err := s.head(s.ctx, s.file)
		if err != nil {
			return err
		}
		s.log.first, s.fromHead = head.first, true
	}
	if !s.newFile {
		return nil
	}
	s.newFile = false
	s.offset = max(s.offset, fileHeadSize)
	err := s.deliver(outbox.Batch{End: s.next(gtid{}, s.offset)}, gtid{})
	s.advance(h)
	return err
}

// fileHeadSize is where the first event of every file stands.
const fileHeadSize = 4

// noticeFirst completes what tells the present file from another of its name, if it
// is read from its start. Positions already given out keep what they had.
//
// What must hold: nothing stands before it. A server leaves out transactions that were read
// elsewhere, and what follows them is not the file's first: taken for it, it would be a
// false gap. Shown by TestFileBeginsWithWhatWasRead.
func (s *stream) noticeFirst(h header, raw []byte) {
	if s.log == nil || !s.fromHead || s.log.first != 0 {
		return
	}
	if !s.tx.open && s.leavesOut(h) {
		s.fromHead = false
	}
	if !s.fromHead || !marksFile(s.flavor, h.kind) {
		return
	}
	log := *s.log
	log.first = firstSum(raw)
	s.log = &log
}

// leavesOut reports whether the server has sent nothing of what stands in front of an event.
func (s *stream) leavesOut(h header) bool {
	return saysPlace(h) && !isHeartbeat(h.kind) && h.logPos-h.size != uint32(s.offset)
}

// saysPlace reports whether the head of an event says where it ends in its file.
func saysPlace(h header) bool {
	return h.logPos != 0 && h.flags&replication.LOG_EVENT_ARTIFICIAL_F == 0
}

func isHeartbeat(t replication.EventType) bool {
	return t == replication.HEARTBEAT_EVENT || t == replication.HEARTBEAT_LOG_EVENT_V2
}

func unix(seconds uint32) string { return time.Unix(int64(seconds), 0).UTC().Format(time.RFC3339) }

// abandon forgets an open transaction, whose end will not come.
func (s *stream) abandon() {
	s.tx.reset()
	s.r.inside.Store(false)
	clear(s.plans)
}

// finish ends the transaction: its events go out in pieces, the position behind it
// with the last one only, so that none can be saved that is inside.
func (s *stream) finish(h header, events []*outbox.Event, skipped int) error {
	g, second := s.tx.gtid, s.tx.second
	b := outbox.Batch{Origin: outbox.FromBinlog, CommittedAt: s.committed(h), Fence: s.tx.fence, Own: s.tx.own, Skipped: skipped}
	s.tx.reset()
	s.r.inside.Store(false)
	s.r.lagNanos.Store(max(0, int64(time.Since(b.CommittedAt))))
	if s.log == nil {
		s.log = &logFile{server: s.server, layouts: s.r.watch.layouts()} // no description was sent
	}
	for n := s.pieceLen(events); n < len(events); n = s.pieceLen(events) {
		if err := s.send(outbox.Batch{Events: events[:n:n], Origin: b.Origin, CommittedAt: b.CommittedAt}); err != nil {
			return err
		}
		events = events[n:]
	}
	b.Events, b.End = events, s.next(g, s.offset)
	err := s.deliver(b, g)
	if err == nil && second != nil {
		s.r.giant = nil // it is done
	}
	if err == nil {
		s.tend(s.place())
	}
	return err
}

// committed is when the transaction committed, by the server's clock.
func (s *stream) committed(h header) time.Time {
	if !s.tx.commit.IsZero() {
		return s.tx.commit
	}
	return time.Unix(int64(h.timestamp), 0).UTC()
}

// pieceLen returns how many of the events go out together: at least one.
func (s *stream) pieceLen(events []*outbox.Event) int {
	var bytes int64
	for i, e := range events {
		if bytes += heldBytes(e); i > 0 && (i >= s.r.cfg.BatchEvents || bytes > s.pieceBytesMax()) {
			return i
		}
	}
	return len(events)
}

// next is the position behind what was read last, or none where it may not be saved.
//
// What must hold: with HoldPrepared no position covers the PREPARE of rows that are
// undecided. Otherwise a restart never sees them: events lost. Shown by
// TestPositionWaitsForPreparedRows.
func (s *stream) next(g gtid, offset uint64) outbox.Position {
	s.unsaid = false
	seq := s.r.tracker.append(g, s.log)
	if s.r.cfg.HoldPrepared && s.r.undecided() {
		return outbox.Position{}
	}
	return outbox.Position{Seq: seq, File: s.file, Offset: offset}
}

// undecided reports whether outbox rows are prepared and neither committed nor
// rolled back.
func (r *Reader) undecided() bool {
	for _, p := range r.parked {
		if p.hasRows() {
			return true
		}
	}
	return false
}

// deliver emits the last piece of a transaction. Only what emit accepted counts as
// read when the stream has to be started again.
func (s *stream) deliver(b outbox.Batch, g gtid) error {
	if err := s.send(b); err != nil {
		return err
	}
	from := &s.r.resume
	if from.gtids != nil {
		from.gtids.add(g)
	}
	if from.gtids != nil || s.offset <= math.MaxUint32 {
		from.file, from.offset, from.server, from.fileHead = s.file, s.offset, s.log.server, s.log.fileHead
	}
	return nil
}

func (s *stream) send(b outbox.Batch) error {
	s.tellUnread(b.Events)
	s.r.blocked.Store(true)
	err := s.emit(s.ctx, b)
	s.r.blocked.Store(false)
	if err != nil {
		s.emitErr = err
	}
	return err
}
