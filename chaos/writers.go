package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	writersPerTable = 2
	keysPerWriter   = 20
)

// fact is a row that is committed.
type fact struct {
	tx      int64
	at      time.Time // after the commit
	refused bool      // it can never be sent
	skewed  bool      // created_at is in another hour than it was
}

// writers commit rows. The rows of a key come from one of them, in transactions one after
// the other, so their order is known.
type writers struct {
	w         *world
	committed atomic.Int64
	pace      pace
	nextTx    atomic.Int64
	skewed    atomic.Int64
	refused   atomic.Int64
	gone      atomic.Int64 // rows rolled back
	unsure    atomic.Int64 // commits whose answer was lost

	mu    sync.Mutex
	facts map[string]map[string][]fact // by table and key; the index is the row's number
}

// allow lets them go on until so many rows are committed, at a pace that leaves rows on
// their way most of the time: what finds nothing in flight breaks nothing.
func (ws *writers) allow(rows int) { ws.pace.towards(int64(rows), time.Now()) }

// paceOver is how long a new allowance takes until all of it may be used.
const paceOver = 2 * time.Second

// pace is a number of rows that grows.
type pace struct {
	mu       sync.Mutex
	from, to int64
	since    time.Time
}

func (p *pace) towards(rows int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.to, p.since = p.at(now), rows, now
}

func (p *pace) at(now time.Time) int64 {
	share := min(1, float64(now.Sub(p.since))/float64(paceOver))
	return p.from + int64(share*float64(p.to-p.from))
}

// allowed returns how many rows may be committed by now.
func (p *pace) allowed(now time.Time) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at(now)
}

// await returns when so many rows are committed, or ctx ends.
func (ws *writers) await(ctx context.Context, rows int) {
	for ctx.Err() == nil && ws.committed.Load() < int64(rows) {
		pause(ctx, 20*time.Millisecond)
	}
}

// startWriters lets them write until all rows are committed or ctx ends.
func (w *world) startWriters(ctx context.Context) (wait func() error) {
	ws := &writers{w: w, facts: map[string]map[string][]fact{}}
	w.writers = ws
	var g errgroup.Group
	for i, t := range w.tables {
		ws.facts[t.name] = map[string][]fact{}
		for j := range writersPerTable {
			number := i*writersPerTable + j
			wr := &writer{ws: ws, table: t, number: number, rng: rand.New(rand.NewPCG(w.o.seed, uint64(100+number))), own: map[string][]fact{}}
			g.Go(func() error { return wr.write(ctx) })
		}
	}
	return g.Wait
}

// writer is one session of an application.
type writer struct {
	ws     *writers
	table  *table
	number int
	rng    *rand.Rand
	own    map[string][]fact
	conn   *sql.Conn
}

// write does not give up a transaction half way: what became of it must be known.
func (wr *writer) write(ctx context.Context) error {
	defer wr.publish()
	defer wr.hangUp()
	for ctx.Err() == nil {
		n := wr.ws.committed.Load()
		if n >= int64(wr.ws.w.o.rows) {
			return nil
		}
		if n >= wr.ws.pace.allowed(time.Now()) {
			pause(ctx, 5*time.Millisecond)
			continue
		}
		t := wr.plan()
		for !wr.attempt(t) {
			if ctx.Err() != nil {
				return nil
			}
		}
		if t.ending != endRollback {
			wr.ws.committed.Add(int64(len(t.rows)))
		}
	}
	return nil
}

func (wr *writer) publish() {
	wr.ws.mu.Lock()
	defer wr.ws.mu.Unlock()
	for key, facts := range wr.own {
		wr.ws.facts[wr.table.name][key] = facts
	}
}

func (wr *writer) hangUp() {
	if wr.conn != nil {
		// The session may hold settings of its own, so the pool must not keep it.
		_ = wr.conn.Raw(func(any) error { return errBadSession })
		_ = wr.conn.Close()
		wr.conn = nil
	}
}

// plan chooses a transaction.
func (wr *writer) plan() transaction {
	t := transaction{ending: endCommit, size: 20}
	count := 1
	switch n := wr.rng.IntN(200); {
	case n == 0: // larger than what a relay keeps of one transaction
		count, t.size = 500+wr.rng.IntN(400), 2000
	case n < 6:
		count = 50 + wr.rng.IntN(250)
	case n < 100:
		count = 2 + wr.rng.IntN(9)
	}
	switch wr.rng.IntN(12) {
	case 0:
		t.ending = endRollback
	case 1:
		t.savepoint = 1 + wr.rng.IntN(3)
	}
	if wr.rng.IntN(15) == 0 {
		t.skewHours = wr.rng.IntN(25) - 12
		t.zone = wr.rng.IntN(2) == 0
	}
	for range count {
		t.rows = append(t.rows, planned{key: wr.key()})
	}
	if wr.rng.IntN(40) == 0 {
		r := wr.table.refused[wr.rng.IntN(len(wr.table.refused))]
		t.rows[wr.rng.IntN(count)].refusal = &r
	}
	return t
}

// key is the writer's hot key nearly half of the time.
func (wr *writer) key() string {
	k := 0
	if wr.rng.IntN(10) >= 4 {
		k = wr.rng.IntN(keysPerWriter)
	}
	return fmt.Sprintf("w%d-k%d", wr.number, k)
}
