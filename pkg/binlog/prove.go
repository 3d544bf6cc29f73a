package binlog

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// A stream whose layouts are not known, see known.go, has them found out beside the
// reading: the source is looked at, and when rows come that have to be read by place,
// the log in front of them is looked through, up to the end that it had at the look. If
// no statement there names the table, the table looked like that all along; if one does,
// from behind the last one on.
//
// That costs the server a second reading of the stretch, as fast as it can. A stretch
// that takes no longer than proofWaitMax is waited for, because the rows that would
// otherwise be read by key cost more; a longer one is looked through while rows are read
// by key, and only once they are many. Nothing of this ends the reading: what cannot be
// found out leaves rows to be read by key, and is logged.
//
// What must hold: all of it ends with the connection, so that no place of one server is
// compared with one of another. Shown by TestProofEndsWithTheConnection.

const (
	proofWaitMax      = time.Second
	proofWaitBytesMax = 256 << 20 // what is looked through in proofWaitMax, roughly
	proofRowsMin      = 1000      // read by key, until a longer stretch is looked through
)

// prover is the part of a stream that finds out which layouts are known.
type prover struct {
	beside context.Context // of what runs beside the reading
	jobs   sync.WaitGroup

	look     *job[*sight]                    // nil: none is running
	lookFrom logPlace                        // where the stream was when it began
	scan     *job[map[outbox.Table]logPlace] // the same
	scanOf   *sight                          // what the scan belongs to
	scanFrom logPlace

	patience time.Duration // for how long the stream may still wait for them
	nextLook time.Time     // not before, after one that failed
	byKey    int           // rows left to be read by key so far, because of unknown layouts
	unsaid   bool          // layouts are known and no position says so yet
	scanLong bool          // the scan is not waited for
}

// job is something done beside the reading of a stream.
type job[T any] struct {
	done   chan struct{} // closed at its end
	stop   context.CancelFunc
	result T
	err    error
}

func startJob[T any](p *prover, do func(context.Context) (T, error)) *job[T] {
	ctx, stop := context.WithCancel(p.beside)
	j := &job[T]{done: make(chan struct{}), stop: stop}
	p.jobs.Go(func() {
		defer close(j.done)
		defer stop()
		defer func() {
			if e := recover(); e != nil {
				j.err = fmt.Errorf("internal error: %v", e)
			}
		}()
		j.result, j.err = do(ctx)
	})
	return j
}

// await waits for the end of a job while the stream has patience, and reports whether it
// has ended.
func await[T any](s *stream, j *job[T]) bool {
	began := time.Now()
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	select {
	case <-j.done:
	default:
		select {
		case <-j.done:
		case <-timer.C:
		case <-s.ctx.Done():
		}
	}
	s.patience = max(0, s.patience-time.Since(began))
	return ended(j)
}

func ended[T any](j *job[T]) bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// tend learns what can be learnt without rows, behind a transaction or while there is
// none.
func (s *stream) tend(at logPlace) {
	if s.r.cfg.Reload == nil || s.r.watch.settled() {
		return
	}
	s.startLook()
	if s.look != nil && ended(s.look) {
		s.takeLook()
	}
	if s.scan != nil && ended(s.scan) {
		s.takeScan()
	}
	s.settle(at)
	if s.scan != nil && at.reaches(s.scanOf.end) {
		s.scan.stop() // it has nothing more to say
		s.scan = nil
	}
}

// settled reports whether all layouts are known.
func (l *watchList) settled() bool {
	for _, w := range l.tables {
		if !w.fence && !w.known {
			return false
		}
	}
	return true
}

// prove finds out from where on the layout of a table is known of which rows have come.
func (s *stream) prove(w *watched) error {
	s.startLook()
	if s.look != nil && await(s, s.look) {
		s.takeLook()
	}
	if w.since.file != "" && !s.place().reaches(w.since) {
		s.startScan(w.seen)
	}
	if s.scan != nil && (ended(s.scan) || !s.scanLong && await(s, s.scan)) {
		s.takeScan()
	}
	return s.ctx.Err()
}

// startLook has the source looked at, if a table is to be looked at.
func (s *stream) startLook() {
	if s.look != nil || time.Now().Before(s.nextLook) {
		return
	}
	var tables []outbox.Table
	for _, w := range s.r.watch.tables {
		if !w.fence && !w.known && !w.asked {
			tables = append(tables, w.table)
		}
	}
	if tables == nil {
		return
	}
	s.patience = s.r.proofWait
	server := s.server
	s.lookFrom = s.place()
	s.look = startJob(&s.prover, func(ctx context.Context) (*sight, error) { return s.r.look(ctx, server, tables) })
}

// takeLook compares what was seen with the newest layouts. A layout itself is read from
// the store, which may be ahead of the source: then nothing is known until the next
// statement or connection.
func (s *stream) takeLook() {
	v, err := s.look.result, s.look.err
	s.look = nil
	if err == nil && s.lookFrom.file != "" && !v.before.reaches(s.lookFrom) {
		err = fmt.Errorf("the log ends at %s:%d, before the place that was read (it was reset)", v.before.file, v.before.offset)
	}
	for _, w := range s.r.watch.tables {
		if err != nil {
			break
		}
		text, looked := "", false
		if !w.fence && !w.known && !w.asked {
			text, looked = v.columns[w.table]
		}
		// A statement that came since may not have been seen yet: it is looked again.
		if !looked || w.forgotten.file != "" && !v.before.reaches(w.forgotten) {
			continue
		}
		if text != columnsText(w.layouts[0].Columns) && text != "" {
			err = s.r.reload(s.ctx, w)
		}
		w.asked = err == nil
		if err == nil && text == columnsText(w.layouts[0].Columns) {
			w.seen, w.since = v, v.end
		}
	}
	if err != nil {
		s.nextLook = time.Now().Add(s.r.cfg.RoleEvery)
		s.tellUnproved(err)
	}
}

// startScan looks through the log from the transaction on that is being read, once for
// each look.
func (s *stream) startScan(v *sight) {
	from := logPlace{s.file, s.tx.place}
	long := v.stretchBytes(from) > proofWaitBytesMax
	if s.scan != nil || v.scanned || long && s.byKey < proofRowsMin {
		return
	}
	v.scanned = true
	if s.log == nil || s.log.fde == 0 || from.offset > math.MaxUint32 {
		return // no stream can begin there
	}
	if s.scanLong = long; long {
		s.r.cfg.Logger.Info().Uint64("bytes", v.stretchBytes(from)).Msg("the binlog is looked through for statements that change outbox tables; rows are read by key meanwhile")
	}
	sc := newStatementScan(from, s.log.fde, v.end, s.r.watch)
	flavor, server := s.flavor, s.server
	s.scanOf, s.scanFrom = v, from
	s.scan = startJob(&s.prover, func(ctx context.Context) (map[outbox.Table]logPlace, error) {
		return s.r.scanStatements(ctx, flavor, server, v, sc)
	})
}

// takeScan notes from where on the tables looked as they were seen.
func (s *stream) takeScan() {
	last, err := s.scan.result, s.scan.err
	s.scan = nil
	if err != nil {
		s.tellUnproved(err)
		return
	}
	for _, w := range s.r.watch.tables {
		if w.fence || w.known || w.seen != s.scanOf {
			continue
		}
		switch at, found := last[w.table]; {
		case !found && (w.forgotten.file == "" || s.scanFrom.reaches(w.forgotten)):
			w.since = s.scanFrom
		case found && s.scanOf.before.reaches(at):
			w.since = at
		}
	}
	if s.scanLong {
		s.r.cfg.Logger.Info().Msg("the binlog has been looked through for statements that change outbox tables")
	}
}

// tellUnproved logs why layouts stay unknown, when that changes.
func (s *stream) tellUnproved(err error) {
	text := brief(err)
	if s.ctx.Err() != nil || text == s.r.toldUnproved {
		return
	}
	s.r.toldUnproved = text
	s.r.cfg.Logger.Warn().Str("reason", text).Str("hint", unreadHints[unreadNames]).
		Msg("it cannot be found out what outbox tables looked like; rows that the binlog does not describe by name are read by key")
}
