package binlog

import (
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// txn is the transaction being read. It is held back until its end: what is in it
// may still be rolled back, or turn out torn by a crash of the server, whose GTID
// MariaDB then gives to another transaction (test: TestTornTransaction).
//
// One that outgrows HoldBytesMax is not held: it is read to its end, keeping only what
// becomes of its rows later (changes), and if it committed, it is read a second time
// (giant), now emitting its rows as they come.
type txn struct {
	number   uint64 // tells which tables the present transaction inserted into
	open     bool
	explicit bool // BEGIN or XA START was read, or MariaDB says that an end follows
	gtid     gtid
	place    uint64    // offset in its file at which it was opened
	commit   time.Time // from the GTID event, where it says so

	rows     []heldRow // on the second reading: the next piece
	bytes    int64     // of rows
	outgrown bool      // rows are no longer kept
	second   *giant    // this is the second reading
	emitted  bool      // it was emitted before, and comes again in front of a giant
	skipped  int       // on the second reading: rows of earlier pieces that are no events
	events   uint32    // rows events of outbox tables so far
	changes  changes
	unseen   []unseen

	fence uint64
	own   bool
}

// heldRow is a row as the transaction inserted it.
type heldRow struct {
	event   *outbox.Event
	pending bool // to be emitted
	at      moment
}

// unseen are rows of an outbox table that cannot be read, not even their keys.
type unseen struct {
	table  outbox.Table
	reason string
	rows   int
}

// giant is a committed transaction that is to be read again from its start.
type giant struct {
	server    string // another one may divide its rows into other events
	gtid      gtid
	file      string
	place     uint64
	changes   changes
	committed time.Time
}

// is tells whether the transaction just opened is g: by its GTID, or where there are
// none by its place.
//
// What must hold: it is of the server of the first reading. A replica divides rows into
// events by its own settings, and then changes holds other moments: a row is published
// that its transaction deleted. Shown by TestGiantIsNotMistaken.
func (g *giant) is(server string, opened gtid, file string, place uint64) bool {
	if g.server != server {
		return false
	}
	if g.gtid.gno != 0 {
		return g.gtid == opened
	}
	return opened.gno == 0 && g.file == file && g.place == place
}

// follows tells whether the transaction just opened stands before g in its file, and so
// has been emitted already: beyond 4 GiB of a file nothing can begin, but at the last place
// before that. Without this, g would be read for the first time for ever (test:
// TestGiantBeyond4GiB).
func (g *giant) follows(server string, opened gtid, file string, place uint64) bool {
	return g.server == server && g.gtid.gno == 0 && opened.gno == 0 && g.file == file && place < g.place
}

// begin forgets whatever was held and opens a transaction.
func (t *txn) begin(g gtid, explicit bool, holdBytesMax int64) {
	t.reset()
	t.open, t.explicit, t.gtid = true, explicit, g
	t.changes.bytesMax = holdBytesMax
}

// reset forgets the transaction: it ended, or it turned out torn.
func (t *txn) reset() {
	t.dropRows()
	*t = txn{number: t.number + 1, rows: t.rows}
}

// dropRows forgets the rows; the memory of many is given back.
func (t *txn) dropRows() {
	const keepMax = 4096 // rows
	clear(t.rows)
	t.rows, t.bytes = t.rows[:0], 0
	if cap(t.rows) > keepMax {
		t.rows = nil
	}
}

// hasRows tells whether the transaction has inserted rows, kept or not.
func (t *txn) hasRows() bool { return len(t.rows) > 0 || t.outgrown || t.second != nil }

// hold keeps a row until the transaction ends.
func (t *txn) hold(e *outbox.Event, pending bool, at moment) {
	if !pending {
		e.Payload, e.Headers = nil, nil // only the key is needed, should the row become pending yet
	}
	t.rows = append(t.rows, heldRow{e, pending, at})
	t.bytes += heldBytes(e)
}

// heldBytes is what a row held counts for.
func heldBytes(e *outbox.Event) int64 {
	const overhead = 96 // its place in the list, and the allocator's rounding up
	return e.SizeBytes() + overhead
}

// take returns what is to be emitted of the rows held, each in its last form and in
// the order of insertion, and how many are no events. They are held no longer.
func (t *txn) take(c *changes) (events []*outbox.Event, skipped int) {
	for _, r := range t.rows {
		e, pending := c.last(r.event, r.pending, r.at)
		if !pending {
			skipped++
			continue
		}
		events = append(events, e)
	}
	t.dropRows()
	return events, skipped
}

// parkedXA is what is kept of a prepared XA transaction until it is decided: keys
// only, because that may take days. Rows deleted again in the same transaction
// are kept whole, for nobody can read them later.
type parkedXA struct {
	events   []*outbox.Event
	skipped  int
	unseen   []unseen
	outgrown bool // there were too many rows to keep any
}

// hasRows tells whether any row is to be published when the transaction commits.
func (p *parkedXA) hasRows() bool { return len(p.events) > 0 || p.outgrown }

func (t *txn) park() *parkedXA {
	if t.outgrown {
		return &parkedXA{outgrown: true, unseen: t.unseen}
	}
	events, skipped := t.take(&t.changes)
	if len(events) == 0 && skipped == 0 && len(t.unseen) == 0 {
		return nil
	}
	for i, e := range events {
		if !e.Deleted {
			events[i] = &outbox.Event{Table: e.Table, ID: e.ID, Unread: unreadXA}
		}
	}
	return &parkedXA{events: events, skipped: skipped, unseen: t.unseen}
}
