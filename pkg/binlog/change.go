package binlog

import (
	"strconv"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// rows takes one rows event. All but inserts into outbox tables, later changes of
// rows that the same transaction inserted, and writes to our checkpoint row are
// passed over by their table id.
func (s *stream) rows(f rowsFormat, body []byte) error {
	if len(body) < 6 {
		return errShort
	}
	if !s.tx.open { // the description of their table may stand before the position too
		return gap("rows stand outside a transaction at %s:%d: the position was inside one", s.file, s.offset)
	}
	p := s.plans[littleEndian(body[:6])]
	if p == nil {
		return nil
	}
	if !p.watched.fence {
		s.tx.events++
		if s.ignores(p, f.kind) {
			return nil
		}
	}
	if err := s.reader.open(p, f, body); err != nil {
		return err
	}
	for n := 0; s.reader.more(); n++ {
		if err := s.row(p, f.kind, momentOf(s.tx.events, n)); err != nil {
			return err
		}
	}
	return s.reader.rows.err()
}

// ignores tells whether nothing needs to be known of the rows of an event. Changes
// matter only to a table that the transaction inserted into, and were all seen when a
// giant is read for the second time; once it has outgrown, only changes matter.
func (s *stream) ignores(p *plan, kind rowsKind) bool {
	if kind == rowsInserted {
		p.watched.insertedIn = s.tx.number
		return s.tx.outgrown
	}
	return p.watched.insertedIn != s.tx.number || s.tx.second != nil
}

func (s *stream) row(p *plan, kind rowsKind, at moment) error {
	if err := s.reader.readBefore(); err != nil {
		return err
	}
	switch {
	case p.watched.fence:
		return s.fenceRow(kind)
	case kind == rowsInserted:
		return s.inserted(at)
	case kind == rowsUpdated:
		return s.updated(p, at)
	}
	s.deleted(p, at)
	return nil
}

func (s *stream) inserted(at moment) error {
	if s.tx.outgrown { // within this event
		return nil
	}
	if why := s.reader.unidentified(); why != "" && s.r.cfg.Unseen != nil {
		return s.unseenRows(s.reader.plan.watched, why, 1)
	}
	e, err := s.reader.event()
	if err != nil {
		return err
	}
	if e.Unread == unreadNames {
		s.byKey++
	}
	pending, _ := s.reader.status()
	s.tx.hold(e, pending, at)
	if s.tx.second != nil {
		return s.emitPiece()
	}
	if s.tx.bytes > s.r.cfg.HoldBytesMax && len(s.tx.rows) > 1 { // a single row has to be held anyway
		s.outgrow()
	}
	return nil
}

// updated notes an update of a row that this transaction may have inserted: the last
// form is what counts.
func (s *stream) updated(p *plan, at moment) error {
	rd := &s.reader
	before, ok := rd.id()
	if err := rd.readAfter(); err != nil {
		return err
	}
	if !ok {
		s.tx.changes.doubt(p.watched.table, change{at: at})
		return nil
	}
	ch := change{at: at, to: before.Key()}
	if after, ok := rd.id(); ok {
		ch.to = after.Key()
	}
	if err := s.lastForm(&ch); err != nil {
		return err
	}
	s.tx.changes.add(before.Key(), ch)
	return nil
}

// lastForm reads the row's form from the second image. What an image does not name has
// not changed; if it lacks columns and those it names matter, the row is left to be
// read by key.
func (s *stream) lastForm(ch *change) (err error) {
	rd := &s.reader
	if pending, known := rd.status(); known && pending {
		ch.status = statusPending
	} else if known {
		ch.status = statusNotPending
	}
	switch why := rd.unreadable(); {
	case why == "", why == unreadNames:
		ch.event, err = rd.event()
	case rd.touchesEvent(rd.after):
		ch.event = &outbox.Event{Table: ch.to.Table, ID: ch.to.ID, Unread: unreadImage}
	}
	return err
}

// deleted notes a deletion. With a status the row is no event: nothing was meant to
// stay. Without, inserting and deleting at once is how such tables are used.
func (s *stream) deleted(p *plan, at moment) {
	ch := change{at: at, deleted: true, kept: !p.layout.Has(outbox.RoleStatus)}
	e, ok := s.reader.id()
	if !ok {
		s.tx.changes.doubt(p.watched.table, ch)
		return
	}
	s.tx.changes.add(e.Key(), ch)
}

// Roles under which the two columns of the checkpoint table that matter are read.
const (
	roleFenceName  = outbox.RoleID
	roleFenceValue = outbox.RoleAttempts
)

// fenceRow looks for our own row of the checkpoint table. With a minimal row image
// the name stands in the first image only, and the fence in the second only if it
// was changed.
func (s *stream) fenceRow(kind rowsKind) error {
	ours := string(s.reader.image.values[roleFenceName]) == s.r.cfg.FenceName
	if kind == rowsUpdated {
		if err := s.reader.readAfter(); err != nil {
			return err
		}
		if name := s.reader.image.values[roleFenceName]; name != nil {
			ours = string(name) == s.r.cfg.FenceName
		}
	}
	if !ours || kind == rowsDeleted {
		return nil
	}
	s.tx.own = true
	if v := s.reader.image.values[roleFenceValue]; v != nil {
		n, err := strconv.ParseUint(string(v), 10, 64)
		if err != nil {
			return malformed("fence %.20q is no number", v)
		}
		s.tx.fence = max(s.tx.fence, n)
	}
	return nil
}
