package binlog

import (
	"github.com/rowferry/rowferry/pkg/outbox"
)

// moment orders what happens within a transaction: the number of the rows event
// among those of outbox tables, and of the row within it. It is the same whenever
// the transaction is read.
type moment uint64

func momentOf(event uint32, row int) moment { return moment(event)<<32 | moment(row) }

// changes is what becomes of rows after their insertion, in the transaction that
// inserted them: there the last form counts. It is kept beside the rows, not in them,
// so that it also serves a transaction whose rows are too many to be kept and are read
// a second time.
//
// It is bounded. What does not fit, or does not tell its row, becomes a doubt: the rows
// of that table inserted before are then read by key.
type changes struct {
	bytesMax int64
	bytes    int64
	byKey    map[outbox.Key][]change // in order; by the key before the change
	doubts   map[outbox.Table]doubt
}

// change is one update or deletion of a row.
type change struct {
	at      moment
	to      outbox.Key    // its key from now on
	event   *outbox.Event // its form from now on; nil: as before
	status  statusChange
	deleted bool
	kept    bool // deleted, and an event all the same: the table has no status
}

// statusChange is what an update said of the status.
type statusChange uint8

const (
	statusUnchanged statusChange = iota
	statusPending
	statusNotPending
)

// doubt is until when rows of a table may have been changed without our knowing how.
type doubt struct {
	updated moment // they are to be read by key
	deleted moment // they may be gone, in a table without a status: published as inserted
}

// add notes a change of the row with that key.
func (c *changes) add(key outbox.Key, ch change) {
	size := ch.sizeBytes(key)
	if c.bytes+size > c.bytesMax {
		c.giveUp()
		c.doubt(key.Table, ch)
		return
	}
	if list := c.byKey[key]; len(list) > 0 && list[len(list)-1].absorbs(key, ch) {
		list[len(list)-1].absorb(ch)
	} else {
		if c.byKey == nil {
			c.byKey = map[outbox.Key][]change{}
		}
		c.byKey[key] = append(list, ch)
	}
	c.bytes += size // what was absorbed stays counted: a bound, not a measurement
}

func (ch *change) sizeBytes(key outbox.Key) int64 {
	const overhead = 160
	n := int64(overhead + len(key.ID) + len(ch.to.ID))
	if ch.event != nil {
		n += ch.event.SizeBytes()
	}
	return n
}

// absorbs tells whether a later change of the same key can be folded into this one:
// the row was not renamed or deleted in between, so no other can have had its key.
func (ch *change) absorbs(key outbox.Key, later change) bool {
	return !ch.deleted && ch.to == key && !later.deleted && later.to == key
}

func (ch *change) absorb(later change) {
	if later.event != nil {
		ch.event = later.event
	}
	if later.status != statusUnchanged {
		ch.status = later.status
	}
}

// doubt notes a change that does not tell which row it is of, or finds no more room.
func (c *changes) doubt(t outbox.Table, ch change) {
	if c.doubts == nil {
		c.doubts = map[outbox.Table]doubt{}
	}
	d := c.doubts[t]
	if ch.deleted && ch.kept {
		d.deleted = max(d.deleted, ch.at)
	} else {
		d.updated = max(d.updated, ch.at)
	}
	c.doubts[t] = d
}

// giveUp turns every change into a doubt.
func (c *changes) giveUp() {
	for key, list := range c.byKey {
		for _, ch := range list {
			c.doubt(key.Table, ch)
		}
	}
	c.byKey, c.bytes = nil, c.bytesMax // and nothing fits any more
}

// last returns the last form of a row: as it was inserted at a moment, and what
// followed. pending says whether it is to be emitted.
//
// Only what came after the insertion is of this row: an older row may have had its key
// before (shown by TestChangesAgree).
func (c *changes) last(e *outbox.Event, pending bool, at moment) (*outbox.Event, bool) {
	if c.byKey == nil && c.doubts == nil {
		return e, pending
	}
	key, inserted := e.Key(), at
	for ch := next(c.byKey[key], at); ch != nil; ch = next(c.byKey[key], at) {
		if ch.deleted {
			return deletedForm(e), pending && ch.kept
		}
		if ch.event != nil {
			e = ch.event
		}
		if ch.status != statusUnchanged {
			pending = ch.status == statusPending
		}
		key, at = ch.to, ch.at
		e = withID(e, key.ID)
	}
	switch d := c.doubts[e.Table]; {
	case inserted < d.updated:
		e = &outbox.Event{Table: e.Table, ID: e.ID, Unread: unreadImage}
	case inserted < d.deleted:
		e = deletedForm(e)
	}
	return e, pending
}

// deletedForm marks a row of a table without a status, where it is an event still.
// Nobody can read it by key any more, so its image is taken by the layout that fits,
// even where that is not known to be the table's at that place.
func deletedForm(e *outbox.Event) *outbox.Event {
	gone := *e
	gone.Deleted = true
	if gone.Unread == unreadNames {
		gone.Unread = ""
	}
	return &gone
}

func withID(e *outbox.Event, id string) *outbox.Event {
	if e.ID == id {
		return e
	}
	renamed := *e
	renamed.ID = id
	return &renamed
}

// next is the first change after a moment.
func next(list []change, at moment) *change {
	for i := range list {
		if list[i].at > at {
			return &list[i]
		}
	}
	return nil
}
