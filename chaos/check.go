package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// state is the end of a row.
type state int

const (
	stateOpen state = iota // PENDING or PROCESSING
	stateSent
	stateFailed
)

// row is what a table says of one row in the end.
type row struct {
	id, key, payload, reason string
	n                        int
	tx                       int64
	state                    state
	sentAt                   time.Time // zero: never
	claims, wrong            int       // claims by a sweep; changes of a final state
}

// checker compares what was committed to one table with what the table and the topic hold.
type checker struct {
	table  *table
	facts  map[string][]fact
	rows   []row
	stored []testservers.Message // queue by queue, in their order
	strict bool                  // nothing was swept: every row is judged by its order
	grace  time.Duration
	wrong  func(format string, args ...any)
	note   func(format string, args ...any) // what is worth a look

	byID     map[string]*row
	byNumber map[string][]*row // by key
	places   map[*row]place
	tally    tally
}

// tally is what a run prints.
type tally struct {
	rows, sent, failed, messages int
	copies                       int // deliveries of what was delivered before
	late                         int // of those, sent when the row had been SENT
	judged, exempt               int // rows judged by their order, and those that a sweep may have sent
}

func (t *tally) add(o tally) {
	t.rows, t.sent, t.failed, t.messages = t.rows+o.rows, t.sent+o.sent, t.failed+o.failed, t.messages+o.messages
	t.copies, t.late, t.judged, t.exempt = t.copies+o.copies, t.late+o.late, t.judged+o.judged, t.exempt+o.exempt
}

// place is where a row was first delivered.
type place struct {
	queue  int
	offset int64
	stored time.Time
}

func (p place) String() string {
	return fmt.Sprintf("queue %d, offset %d, stored %s", p.queue, p.offset, clock(p.stored))
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

func (r *row) String() string {
	return fmt.Sprintf("row %s (key %s, number %d, transaction %d, SENT at %s, claimed %d times)", r.id, r.key, r.n, r.tx, clock(r.sentAt), r.claims)
}

func (c *checker) check() tally {
	c.byID, c.byNumber, c.places = map[string]*row{}, map[string][]*row{}, map[*row]place{}
	c.checkTable()
	c.checkRows()
	c.checkMessages()
	for _, key := range slices.Sorted(maps.Keys(c.byNumber)) {
		c.checkKey(key, c.byNumber[key])
	}
	return c.tally
}

func (c *checker) complain(format string, args ...any) {
	c.wrong("table %s: %s", c.table.name, fmt.Sprintf(format, args...))
}

// checkTable finds out whether the table holds what was committed, and nothing else: if
// not, it is the writers or the database that is wrong, and the rest says nothing.
func (c *checker) checkTable() {
	for i := range c.rows {
		r := &c.rows[i]
		c.byID[r.id] = r
		c.byNumber[r.key] = append(c.byNumber[r.key], r)
	}
	for key, facts := range c.facts {
		rows := c.byNumber[key]
		slices.SortFunc(rows, func(a, b *row) int { return cmp.Compare(a.n, b.n) })
		if len(rows) != len(facts) {
			c.complain("key %s has %d rows, committed were %d", key, len(rows), len(facts))
			continue
		}
		for n, r := range rows {
			if r.n != n || r.tx != facts[n].tx {
				c.complain("%v is where number %d of transaction %d was committed", r, n, facts[n].tx)
			}
		}
	}
	for key := range c.byNumber {
		if c.facts[key] == nil {
			c.complain("key %s was never committed", key)
		}
	}
}

func (c *checker) fact(r *row) fact {
	if facts := c.facts[r.key]; r.n < len(facts) {
		return facts[r.n]
	}
	return fact{}
}

// checkRows judges the state of every row.
func (c *checker) checkRows() {
	for i := range c.rows {
		r := &c.rows[i]
		refused := c.fact(r).refused
		c.tally.rows++
		switch {
		case r.state == stateOpen:
			c.complain("%v is neither SENT nor FAILED, committed at %s", r, clock(c.fact(r).at))
		case r.state == stateFailed && !refused:
			c.complain("%v is FAILED, though it can be sent: %q", r, r.reason)
		case r.state == stateSent && refused:
			c.complain("%v is SENT, though it cannot be", r)
		case r.state == stateFailed && r.reason == "":
			c.complain("%v is FAILED without a reason", r)
		}
		if r.wrong > 0 {
			c.complain("%v has left a final state %d times", r, r.wrong)
		}
		if r.state == stateSent {
			c.tally.sent++
		} else if r.state == stateFailed {
			c.tally.failed++
		}
	}
}

// lateMargin is between two clocks of one machine, read by processes that are not always
// scheduled.
const lateMargin = 2 * time.Second

// checkMessages holds every message against its row.
func (c *checker) checkMessages() {
	queues := map[string]int{}
	for _, m := range c.stored {
		c.tally.messages++
		id, key := m.Properties["outbox_id"], m.Properties["aggregate_id"]
		r := c.byID[id]
		where := fmt.Sprintf("message of row %s, key %s, queue %d, offset %d, stored %s", id, key, m.Queue, m.Offset, clock(m.StoredAt))
		if r == nil || r.key != key || r.payload != string(m.Body) {
			c.complain("%s: no such row is committed: %.80q", where, m.Body)
			continue
		}
		if q, ok := queues[key]; ok && q != m.Queue {
			c.complain("%s: the key is in queue %d, too", where, q)
		}
		queues[key] = m.Queue
		if _, ok := c.places[r]; !ok {
			c.places[r] = place{m.Queue, m.Offset, m.StoredAt}
			continue
		}
		c.tally.copies++
		if !r.sentAt.IsZero() && m.BornAt.After(r.sentAt.Add(lateMargin)) {
			c.tally.late++
			c.note("table %s: sent when it had been SENT: %v, %s, born %s, outbox_seq %s", c.table.name, r, where, clock(m.BornAt), m.Properties["outbox_seq"])
		}
	}
	for i := range c.rows {
		r := &c.rows[i]
		if _, ok := c.places[r]; r.state == stateSent && !ok {
			c.complain("%v is SENT, but the broker does not have it", r)
		}
	}
}

// checkKey judges the order of a key's first deliveries: those that came by the binlog
// follow each other as they were committed.
func (c *checker) checkKey(key string, rows []*row) {
	var last *row
	for _, r := range rows {
		p, ok := c.places[r]
		if !ok {
			continue
		}
		if c.maySweep(r, p) {
			c.tally.exempt++
			continue
		}
		c.tally.judged++
		if last != nil && p.queue == c.places[last].queue && p.offset < c.places[last].offset {
			c.complain("key %s: %v was delivered (%v) before its predecessor %v (%v)", key, r, p, last, c.places[last])
		}
		last = r
	}
}

// maySweep tells whether a sweep may have sent the row. Where rows can be claimed, a sweep
// claims them; elsewhere their age when they were sent is all there is to go by, and that
// is what a sweep goes by, too.
func (c *checker) maySweep(r *row, p place) bool {
	if c.strict {
		return false
	}
	if c.table.claims {
		return r.claims > 0
	}
	f := c.fact(r)
	return f.skewed || p.stored.Sub(f.at) > c.grace
}
