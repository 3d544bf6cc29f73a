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
	p := s.plans[littleEndian(body[:6])]
	if p == nil {
		return nil
	}
	if f.kind != rowsInserted && !p.watched.fence && p.watched.insertedIn != s.tx.number {
		return nil
	}
	if !s.tx.open {
		return gap("rows of %s stand outside a transaction: the position was inside one", p.watched.table)
	}
	if err := s.reader.open(p, f, body); err != nil {
		return err
	}
	for s.reader.more() {
		if err := s.row(p, f.kind); err != nil {
			return err
		}
	}
	return s.reader.rows.err()
}

func (s *stream) row(p *plan, kind rowsKind) error {
	if err := s.reader.readBefore(); err != nil {
		return err
	}
	switch {
	case p.watched.fence:
		return s.fenceRow(kind)
	case kind == rowsInserted:
		return s.inserted(p)
	case kind == rowsUpdated:
		return s.updated(p)
	}
	s.deleted(p)
	return nil
}

func (s *stream) inserted(p *plan) error {
	e, err := s.reader.event()
	if err != nil {
		return err
	}
	pending, _ := s.reader.status()
	p.watched.insertedIn = s.tx.number
	s.tx.hold(e, pending)
	return nil
}

// updated applies an update to the row, if this transaction inserted it: the last
// form is what counts.
func (s *stream) updated(p *plan) error {
	rd := &s.reader
	before, ok := rd.id()
	var held *heldRow
	if ok {
		held = s.tx.find(before.Key())
	}
	if err := rd.readAfter(); err != nil {
		return err
	}
	if !ok {
		s.doubtAll(p, rowsUpdated)
		return nil
	}
	if held == nil {
		return nil
	}
	key := before.Key()
	if after, ok := rd.id(); ok {
		key = after.Key()
	}
	s.tx.rename(before.Key(), key)
	if rd.unreadable() == "" {
		pending, _ := rd.status()
		e, err := rd.event()
		*held = heldRow{e, pending}
		return err
	}
	s.partlyUpdated(held, key)
	return nil
}

// partlyUpdated applies an image that lacks columns. What it does not name has not
// changed; if what it names matters, the row is left to be read by key.
func (s *stream) partlyUpdated(held *heldRow, key outbox.Key) {
	rd := &s.reader
	if pending, known := rd.status(); known {
		held.pending = pending
	}
	if rd.touchesEvent(rd.after) {
		held.event = &outbox.Event{Table: key.Table, ID: key.ID, Unread: unreadImage}
	}
	held.event.ID = key.ID
}

// deleted applies a deletion. With a status the row is no event: nothing was meant
// to stay. Without, inserting and deleting at once is how such tables are used.
func (s *stream) deleted(p *plan) {
	e, ok := s.reader.id()
	if !ok {
		s.doubtAll(p, rowsDeleted)
		return
	}
	held := s.tx.find(e.Key())
	if held == nil {
		return
	}
	s.tx.forget(e.Key())
	if p.layout.Has(outbox.RoleStatus) {
		held.pending = false
		return
	}
	held.event.Deleted = true
}

// doubtAll serves images that do not tell which row they changed: every row of the
// table is read by key, or, where deleted rows count, taken as it was inserted.
func (s *stream) doubtAll(p *plan, kind rowsKind) {
	for i := range s.tx.rows {
		h := &s.tx.rows[i]
		switch {
		case h.event.Table != p.watched.table || h.event.Deleted:
		case kind == rowsDeleted && !p.layout.Has(outbox.RoleStatus):
			h.event.Deleted = true
		default:
			h.event = &outbox.Event{Table: h.event.Table, ID: h.event.ID, Unread: unreadImage}
		}
	}
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
