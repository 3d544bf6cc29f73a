package binlog

import (
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// txn is the transaction being read. It is held back until its end: what is in it
// may still be rolled back, or turn out torn by a crash of the server, whose GTID
// MariaDB then gives to another transaction (test: TestTornTransaction).
//
// A transaction is kept whole in memory, whatever its size. One that outgrows the
// in-flight budget is to be read to its end without keeping its rows and, if it
// committed, streamed a second time; the place for that is hold.
type txn struct {
	number   uint64 // tells which tables the present transaction inserted into
	open     bool
	explicit bool // BEGIN or XA START was read, or MariaDB says that an end follows
	gtid     gtid
	commit   time.Time // from the GTID event, where it says so
	rows     []heldRow
	index    map[outbox.Key]int // of rows; built when the first row is changed again
	fence    uint64
	own      bool
}

// heldRow is a row inserted by the transaction, in its latest form.
type heldRow struct {
	event   *outbox.Event
	pending bool // to be emitted
}

// begin forgets whatever was held and opens a transaction.
func (t *txn) begin(g gtid, explicit bool) {
	t.reset()
	t.open, t.explicit, t.gtid = true, explicit, g
}

// reset forgets the transaction: it ended, or it turned out torn.
func (t *txn) reset() {
	const keepMax = 4096 // rows; the memory of a giant is given back
	rows := t.rows
	clear(rows)
	if cap(rows) > keepMax {
		rows = nil
	}
	*t = txn{number: t.number + 1, rows: rows[:0]}
}

// hold keeps a row until the transaction ends.
func (t *txn) hold(e *outbox.Event, pending bool) {
	if !pending {
		e.Payload, e.Headers = nil, nil // only the key is needed, should the row become pending yet
	}
	if t.index != nil {
		t.index[e.Key()] = len(t.rows)
	}
	t.rows = append(t.rows, heldRow{e, pending})
}

// find returns the row with that key, nil if this transaction did not insert it.
func (t *txn) find(k outbox.Key) *heldRow {
	if t.index == nil {
		t.index = make(map[outbox.Key]int, len(t.rows))
		for i := range t.rows {
			if !t.rows[i].event.Deleted {
				t.index[t.rows[i].event.Key()] = i
			}
		}
	}
	i, ok := t.index[k]
	if !ok {
		return nil
	}
	return &t.rows[i]
}

// forget takes a row out of the index: it was deleted, and one inserted later
// under its key is another.
func (t *txn) forget(k outbox.Key) { delete(t.index, k) }

// rename files a row under the key it was given by an update.
func (t *txn) rename(from, to outbox.Key) {
	if i := t.index[from]; from != to {
		delete(t.index, from)
		t.index[to] = i
	}
}

// events returns what is to be emitted, in the order of insertion, and how many
// rows are no events. They are the reader's no longer.
func (t *txn) events() (events []*outbox.Event, skipped int) {
	n := 0
	for i := range t.rows {
		if t.rows[i].pending {
			n++
		}
	}
	if n > 0 {
		events = make([]*outbox.Event, 0, n)
	}
	for i := range t.rows {
		if t.rows[i].pending {
			events = append(events, t.rows[i].event)
		}
	}
	return events, len(t.rows) - n
}

// parkedXA is what is kept of a prepared XA transaction until it is decided: keys
// only, because that may take days. Rows deleted again in the same transaction
// are kept whole, for nobody can read them later.
type parkedXA struct {
	events  []*outbox.Event
	skipped int
}

func (t *txn) park() *parkedXA {
	events, skipped := t.events()
	if len(events) == 0 && skipped == 0 {
		return nil
	}
	for i, e := range events {
		if !e.Deleted {
			events[i] = &outbox.Event{Table: e.Table, ID: e.ID, Unread: unreadXA}
		}
	}
	return &parkedXA{events, skipped}
}
