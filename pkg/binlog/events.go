package binlog

import (
	"bytes"
	"io"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// event is the dispatch over everything that can stand in a binlog, whether it
// came by itself or inside a compressed transaction.
func (s *stream) event(h header, body []byte) error {
	if f, ok := formatOf(h.kind); ok {
		return s.rows(f, body)
	}
	switch h.kind {
	case replication.TABLE_MAP_EVENT:
		return s.tableMap(body)
	case replication.XID_EVENT:
		return s.commit(h)
	case replication.QUERY_EVENT:
		return s.query(h, body, false)
	case replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return s.query(h, body, true)
	case replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT:
		return s.gtidEvent(h, body)
	case replication.GTID_TAGGED_LOG_EVENT:
		return s.taggedGTID(body)
	case replication.MARIADB_GTID_EVENT:
		return s.mariadbGTID(h, body)
	case replication.XA_PREPARE_LOG_EVENT:
		return s.prepare(h, body)
	case replication.TRANSACTION_PAYLOAD_EVENT:
		return s.payloadEvents(bytes.NewReader(body))
	case replication.EXECUTE_LOAD_QUERY_EVENT:
		return s.loadData(body)
	case replication.LOAD_EVENT, replication.NEW_LOAD_EVENT: // of servers before 5.0
		return s.statementRows(statement{text: body})
	case replication.INCIDENT_EVENT:
		return gap("the server says at %s:%d that it lost events", s.file, s.offset)
	}
	if h.flags&replication.LOG_EVENT_IGNORABLE_F == 0 && !isHarmless(h.kind) {
		return gap("event of unknown type %d at %s:%d; it may hold rows", h.kind, s.file, s.offset)
	}
	return nil
}

// isHarmless lists events that say nothing about rows or transactions.
func isHarmless(t replication.EventType) bool {
	switch t {
	case replication.STOP_EVENT, replication.INTVAR_EVENT, replication.RAND_EVENT, replication.USER_VAR_EVENT,
		replication.IGNORABLE_EVENT, replication.ROWS_QUERY_EVENT, replication.PREVIOUS_GTIDS_EVENT,
		replication.TRANSACTION_CONTEXT_EVENT, replication.VIEW_CHANGE_EVENT,
		replication.BEGIN_LOAD_QUERY_EVENT, replication.APPEND_BLOCK_EVENT, replication.DELETE_FILE_EVENT,
		replication.CREATE_FILE_EVENT, replication.EXEC_LOAD_EVENT, replication.SLAVE_EVENT, replication.START_EVENT_V3,
		replication.MARIADB_ANNOTATE_ROWS_EVENT, replication.MARIADB_BINLOG_CHECKPOINT_EVENT,
		replication.MARIADB_GTID_LIST_EVENT, replication.MARIADB_START_ENCRYPTION_EVENT:
		return true
	}
	return false
}

// wantInner declines rows of tables that are not watched, before they are unpacked, and
// what says nothing, such as the text of a statement beside its rows.
func (s *stream) wantInner(h header, tableID uint64) bool {
	if _, isRows := formatOf(h.kind); isRows {
		return s.plans[tableID] != nil
	}
	return !isHarmless(h.kind)
}

// tableMap notes whether the rows under a table id matter. Ids are given again
// after a restart of the server, so a table that is not watched clears its id.
func (s *stream) tableMap(body []byte) error {
	id, schema, name, ok := tableMapName(body)
	if !ok {
		return errShort
	}
	w := s.r.watch.find(schema, name)
	if w == nil {
		delete(s.plans, id)
		return nil
	}
	var p *plan
	var err error
	if w.fence {
		p, err = s.fencePlan(w, body)
	} else {
		p, err = s.outboxPlan(w, body)
	}
	if err != nil {
		return err
	}
	if p == nil {
		delete(s.plans, id)
		return nil
	}
	s.plans[id] = p
	return nil
}

// outboxPlan says how to read rows of an outbox table, here.
func (s *stream) outboxPlan(w *watched, body []byte) (*plan, error) {
	p, err := s.r.planFor(s.ctx, w, body, s.flavor)
	if err != nil || !p.byPlace {
		return p, err
	}
	changed, err := s.confirm(w)
	if err != nil || !changed {
		return p, err
	}
	return s.r.planFor(s.ctx, w, body, s.flavor)
}

// gtidEvent opens a transaction of MySQL. An anonymous one has no number.
func (s *stream) gtidEvent(h header, body []byte) error {
	c := cursor{b: body}
	c.skip(1)
	var g gtid
	copy(g.source.uuid[:], c.take(16))
	g.gno = c.little(8)
	if err := c.err(); err != nil {
		return err
	}
	if h.kind == replication.ANONYMOUS_GTID_EVENT {
		g = gtid{}
	} else if g.gno == 0 || g.gno > gnoMax { // saved, it could not be read again
		return malformed("GTID with the number %d", g.gno)
	}
	s.begin(g, false)
	const clockType = 2
	if c.little(1) == clockType && len(c.b) >= 16+7 { // since 8.0.1 microseconds follow
		c.skip(16)
		s.tx.commit = microseconds(c.little(7) &^ (1 << 55))
	}
	return nil
}

func microseconds(n uint64) time.Time { return time.UnixMicro(int64(n)).UTC() }

// taggedGTID opens a transaction of MySQL 8.3 and later whose GTID has a tag.
func (s *stream) taggedGTID(body []byte) error {
	var e replication.GtidTaggedLogEvent
	if err := decodeTagged(&e, body); err != nil {
		return err
	}
	g := gtid{gno: uint64(e.GNO), source: source{tag: e.Tag.String()}}
	copy(g.source.uuid[:], e.SID)
	s.begin(g, false)
	s.tx.commit = microseconds(e.ImmediateCommitTimestamp)
	return nil
}

// decodeTagged guards the library's decoder, which trusts its input.
func decodeTagged(e *replication.GtidTaggedLogEvent, body []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = malformed("tagged GTID")
		}
	}()
	if err := e.Decode(body); err != nil {
		return malformed("tagged GTID: %s", brief(err))
	}
	if e.GNO <= 0 || e.GNO > gnoMax || len(e.SID) != 16 {
		return malformed("tagged GTID with the number %d", e.GNO)
	}
	if tag := e.Tag.String(); tag != "" {
		if _, ok := parseTag(tag); !ok {
			return malformed("tagged GTID with a tag that is none")
		}
	}
	return nil
}

// mariadbGTID opens a transaction of MariaDB. A standalone one is a single
// statement without an end of its own.
func (s *stream) mariadbGTID(h header, body []byte) error {
	const standalone = 1
	c := cursor{b: body}
	g := gtid{gno: c.little(8), domain: uint32(c.little(4)), server: h.serverID}
	flags := c.little(1)
	if err := c.err(); err != nil {
		return err
	}
	s.begin(g, flags&standalone == 0)
	return nil
}

func (s *stream) begin(g gtid, explicit bool) {
	s.tx.begin(g, explicit, s.r.cfg.HoldBytesMax)
	s.tx.place = s.offset
	s.recogniseGiant()
	s.r.inside.Store(true)
}

// query moves the state machine by one statement. Only the statement right behind
// a GTID can be the whole transaction; BEGIN says that an end follows, and until
// then anything else (SAVEPOINT, XA END, the CREATE of a CREATE ... SELECT) is
// inside.
func (s *stream) query(h header, body []byte, compressed bool) error {
	st, err := readQuery(body, compressed)
	if err != nil {
		return err
	}
	switch q := classifyQuery(st.text); {
	case q.kind == queryBegin || q.kind == queryXAStart:
		s.opened()
		return nil
	case q.kind == queryDML, q.kind == queryUnclear && s.tx.explicit:
		return s.statementRows(st.classified())
	case q.kind == queryXACommit:
		return s.decideXA(h, q.xid, true)
	case q.kind == queryXARollback:
		return s.decideXA(h, q.xid, false)
	case s.tx.explicit && q.kind == queryCommit:
		return s.commit(h)
	case s.tx.explicit && q.kind == queryRollback:
		return s.rollback(h)
	case s.tx.explicit && q.kind == queryRollbackTo:
		s.rollbackTo()
		return nil
	}
	if err := s.noteDDL(st.classified()); err != nil || s.tx.explicit {
		return err
	}
	return s.commit(h)
}

// rollbackTo is in the log only where some table's rows stay in spite of it. Which rows
// of ours stayed is not said, so all are read by key.
func (s *stream) rollbackTo() {
	for _, w := range s.r.watch.tables {
		if !w.fence {
			s.doubtRows(w, statement{})
		}
	}
}

// opened is BEGIN: of a transaction whose GTID was read, or, before MySQL 5.7
// without GTIDs, the start of one.
func (s *stream) opened() {
	if !s.tx.open || s.tx.explicit && s.tx.hasRows() {
		s.begin(gtid{}, true)
	}
	s.tx.explicit = true
}

// noteDDL has the layout of a table read again before its next rows, when a statement
// may have changed it.
func (s *stream) noteDDL(st statement) error {
	created, _ := s.r.watch.target(st)
	for _, w := range s.r.watch.mayChange(st) {
		s.forget(w)
		if created != w || !fillsNewTable(st.text) {
			continue
		}
		if err := s.unseenRows(w, unseenStatement, 1); err != nil {
			return err
		}
	}
	return nil
}

// statementRows takes a statement that stands in the log instead of the rows it wrote.
// What it inserted is unseen; rows that the transaction inserted before may have changed.
func (s *stream) statementRows(q statement) error {
	inserts := q.inserts()
	target, known := s.r.watch.target(q)
	for _, w := range s.r.watch.mentioned(q.text) {
		if w.fence {
			continue
		}
		s.doubtRows(w, q)
		if !inserts || known && target != w {
			continue
		}
		if err := s.unseenRows(w, unseenStatement, 1); err != nil {
			return err
		}
	}
	if !known || target == nil {
		s.tellStatements()
	}
	return nil
}

// loadData is LOAD DATA in statement format.
func (s *stream) loadData(body []byte) error {
	st, err := parseLoad(body)
	if err != nil {
		return err
	}
	return s.statementRows(st.classified())
}

// doubtRows has the rows of a table that the transaction has inserted so far read by key.
func (s *stream) doubtRows(w *watched, q statement) {
	if w.insertedIn != s.tx.number {
		return
	}
	at := momentOf(s.tx.events+1, 0) // after everything so far, before anything to come
	hasStatus := w.layouts[0].Has(outbox.RoleStatus)
	s.tx.changes.doubt(w.table, change{at: at, deleted: q.first == "DELETE", kept: !hasStatus})
}

// Reasons for rows of which nothing can be read; unreadLayout is another.
const unseenStatement = "statement" // written in statement format

// unseenRows notes rows that cannot be read. Where nobody else finds them, they are a gap.
func (s *stream) unseenRows(w *watched, reason string, rows int) error {
	if s.r.cfg.Unseen == nil && reason == unseenStatement {
		return gap("a session with binlog_format=STATEMENT or MIXED wrote to %s at %s:%d: its rows are not in the binlog", w.table, s.file, s.offset)
	}
	if n := len(s.tx.unseen); n > 0 && s.tx.unseen[n-1].table == w.table && s.tx.unseen[n-1].reason == reason {
		s.tx.unseen[n-1].rows += rows
		return nil
	}
	s.tx.unseen = append(s.tx.unseen, unseen{w.table, reason, rows})
	return nil
}

// tellUnseen reports the rows of a transaction that has committed.
func (s *stream) tellUnseen(list []unseen) {
	for _, u := range list {
		s.r.watch.outbox(u.table).tell(s.r.cfg.Logger, u.reason, "rows cannot be read from the binlog; they are left PENDING")
		s.r.cfg.Unseen(u.table, u.reason, u.rows)
	}
}

// prepare is the end of the first phase of an XA transaction: its rows are decided
// later, maybe never.
func (s *stream) prepare(h header, body []byte) error {
	x, onePhase, err := parsePrepare(body)
	if err != nil {
		return err
	}
	if onePhase {
		return s.commit(h)
	}
	if parked := s.tx.park(); parked != nil {
		s.r.parked[x] = parked
	}
	return s.rollback(h)
}

// decideXA is the second phase. Rows prepared before this process began to read
// are unknown; the sweep finds them, and where there is none, HoldPrepared lets no
// process begin behind them.
func (s *stream) decideXA(h header, text string, commit bool) error {
	x, ok := parseXID(text)
	if !ok {
		return malformed("XA statement with the id %.60q", text)
	}
	parked := s.r.parked[x]
	if parked != nil && commit && parked.outgrown { // kept: the next source says the same
		return gap("the XA transaction decided at %s:%d was prepared with more outbox rows than are held (%d bytes): they are the sweep's", s.file, s.offset, s.r.cfg.HoldBytesMax)
	}
	delete(s.r.parked, x)
	if parked == nil || !commit {
		return s.rollback(h)
	}
	s.tellUnseen(parked.unseen)
	return s.finish(h, parked.events, parked.skipped)
}

// commit emits what the transaction holds, or begins it anew if it was too large to be
// held.
func (s *stream) commit(h header) error {
	if s.unpacking {
		s.ended = func() error { return s.commit(h) }
		return nil
	}
	if s.tx.emitted {
		return s.finish(h, nil, 0)
	}
	if s.tx.outgrown {
		return s.readAgain(h)
	}
	s.tellUnseen(s.tx.unseen)
	events, skipped := s.tx.take(s.lastForms())
	return s.finish(h, events, skipped+s.tx.skipped)
}

// rollback drops what the transaction holds, and moves on: it ended.
func (s *stream) rollback(h header) error {
	if s.unpacking {
		s.ended = func() error { return s.rollback(h) }
		return nil
	}
	return s.finish(h, nil, 0)
}

// payloadEvents takes the events of a compressed transaction. Its end comes into force
// when the last byte has been read, and with it the checksum.
func (s *stream) payloadEvents(body io.Reader) error {
	s.unpacking, s.ended = true, nil
	err := s.payload.each(body, s.wantInner, s.event)
	s.unpacking = false
	if err != nil || s.ended == nil {
		return err
	}
	return s.ended()
}
