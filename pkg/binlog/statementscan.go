package binlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// statementScan looks through a stretch of a log, over a replication stream of its own,
// for statements that name outbox tables. Rows are passed over.
//
// What must hold: it judges a statement as the reading does (mayChange), and sees all
// that stand in the stretch. So the stream is asked for by file and offset also where
// there are GTIDs, for with these a server leaves out what was read elsewhere; it must
// be of the same server and file; compressed transactions are unpacked; and an event of
// unknown type, or one that says that events were lost, ends it without a result.
// Shown by TestScanFindsWhatTheReadingFinds and TestScanWithoutResult.
type statementScan struct {
	from  logPlace
	fde   uint32 // creation time of the file it begins in
	until logPlace
	watch *watchList // its own: a watchList serves one goroutine

	at         logPlace
	recognised bool // the file it begins in is the one that the stream reads
	done       bool
	heartbeats int
	payload    payloadReader
	last       map[outbox.Table]logPlace // the last statement of each table; absent: none
}

// errScanned ends the stream of a scan that is done.
var errScanned = errors.New("the stretch has been looked through")

// scanStatements returns where the last statements stand that name each outbox table.
func (r *Reader) scanStatements(ctx context.Context, flavor, server string, v *sight, sc *statementScan) (map[outbox.Table]logPlace, error) {
	defer sc.payload.close()
	c := r.dumpConfig(flavor)
	// Another replica than our own, whose stream the server would end.
	c.serverID, c.uuid, c.heartbeatPeriod = 1<<31|rand.Uint32(), newReplicaUUID(), headHeartbeatPeriod
	c.server = server
	err := c.run(ctx, v.cfg, &position{flavor: flavor, file: sc.from.file, offset: sc.from.offset}, sc)
	if !sc.done {
		return nil, fmt.Errorf("looking through the binlog from %s:%d for statements: %w", sc.from.file, sc.from.offset, err)
	}
	return sc.last, nil
}

func newStatementScan(from logPlace, fde uint32, until logPlace, l *watchList) *statementScan {
	return &statementScan{from: from, fde: fde, until: until, at: from, watch: l.names(), last: map[outbox.Table]logPlace{}}
}

// names is a list of the same tables, without what is known of them.
func (l *watchList) names() *watchList {
	names := &watchList{}
	for _, w := range l.tables {
		names.tables = append(names.tables, &watched{table: w.table, fence: w.fence})
	}
	names.index(l.lower)
	return names
}

// passesOver declines all rows.
func (sc *statementScan) passesOver(h header, _ uint64) bool {
	sc.advance(h)
	return true
}

func (sc *statementScan) advance(h header) {
	if saysPlace(h) {
		sc.at.offset = offsetBehind(sc.at.offset, h.logPos)
	}
}

func (sc *statementScan) handle(event []byte) error {
	h := parseHeader(event)
	switch {
	case h.kind == replication.FORMAT_DESCRIPTION_EVENT:
		return sc.describe(h)
	case h.kind == replication.ROTATE_EVENT:
		name, offset, err := parseRotate(event)
		if err != nil {
			return err
		}
		sc.at = logPlace{name, offset}
	case isHeartbeat(h.kind):
		return sc.heartbeat(h, event)
	default:
		sc.advance(h)
		if err := sc.event(h, event[replication.EventHeaderSize:]); err != nil {
			return err
		}
	}
	return sc.reached()
}

func (sc *statementScan) reached() error {
	if sc.recognised && sc.at.reaches(sc.until) {
		sc.done = true
		return errScanned
	}
	return nil
}

// describe is the first event of every file.
func (sc *statementScan) describe(h header) error {
	if !sc.recognised && (sc.at.file != sc.from.file || h.timestamp != sc.fde) {
		return fmt.Errorf("the file %s, created at %s, is not the one that is read", sc.at.file, unix(h.timestamp))
	}
	sc.recognised = true
	return nil
}

// heartbeat says that the server has sent all up to a place.
func (sc *statementScan) heartbeat(h header, event []byte) error {
	sc.at = heartbeatPlace(sc.at, h, event)
	const heartbeatsMax = 50 // where nothing else comes, the end does not either
	if sc.heartbeats++; sc.heartbeats > heartbeatsMax {
		return errors.New("the server sends nothing more")
	}
	return sc.reached()
}

// heartbeatPlace is where the server stands that has sent a heartbeat, not before at.
func heartbeatPlace(at logPlace, h header, event []byte) logPlace {
	if h.kind == replication.HEARTBEAT_EVENT && h.logPos != 0 && string(event[replication.EventHeaderSize:]) == at.file {
		at.offset = max(at.offset, at.offset&^math.MaxUint32|uint64(h.logPos))
	}
	return at
}

func (sc *statementScan) unpack(h header, body io.Reader) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v", p)
		}
	}()
	sc.advance(h)
	return sc.payload.each(body, sc.wants, sc.event)
}

func (sc *statementScan) wants(h header, _ uint64) bool { return !isRowsKind(h.kind) }

func isRowsKind(t replication.EventType) bool {
	_, ok := formatOf(t)
	return ok
}

// event looks at an event, which may be one of a compressed transaction.
func (sc *statementScan) event(h header, body []byte) error {
	switch h.kind {
	case replication.QUERY_EVENT:
		return sc.query(body, false)
	case replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return sc.query(body, true)
	case replication.TRANSACTION_PAYLOAD_EVENT:
		return sc.payload.each(bytes.NewReader(body), sc.wants, sc.event)
	case replication.TABLE_MAP_EVENT, replication.XID_EVENT, replication.XA_PREPARE_LOG_EVENT,
		replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT, replication.MARIADB_GTID_EVENT,
		replication.EXECUTE_LOAD_QUERY_EVENT, replication.LOAD_EVENT, replication.NEW_LOAD_EVENT:
		return nil
	}
	if isRowsKind(h.kind) || isHarmless(h.kind) || h.flags&replication.LOG_EVENT_IGNORABLE_F != 0 && h.kind != replication.INCIDENT_EVENT {
		return nil
	}
	return fmt.Errorf("event of type %d", h.kind)
}

func (sc *statementScan) query(body []byte, compressed bool) error {
	st, err := readQuery(body, compressed)
	if err != nil {
		return err
	}
	switch classifyQuery(st.text).kind {
	case queryBegin, queryXAStart, queryXACommit, queryXARollback, queryDML:
		return nil
	}
	for _, w := range sc.watch.mayChange(st.classified()) {
		sc.last[w.table] = sc.at
	}
	return nil
}
