package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// insertersRate is how many rows a second the application inserts meanwhile.
const insertersRate = 300

// beside is what goes on while the application inserts.
type beside struct {
	name    string
	relay   []string // environment of rowferry; nil: there is none
	backlog bool
}

// inserters measures what the application feels of a relay: how long its inserts take
// without one, with one that keeps up, and with one that has a backlog to carry, which
// it does gently or fast.
func (b *bench) inserters(ctx context.Context) error {
	cases := []beside{
		{name: "no relay"}, {name: "rowferry keeping up", relay: []string{}},
		{"rowferry draining", []string{"ROWFERRY_CATCH_UP=gentle"}, true},
		{"rowferry draining fast", []string{"ROWFERRY_CATCH_UP=fast"}, true},
	}
	for round := range b.o.rounds {
		for i := range cases {
			c := cases[(i+round)%len(cases)] // no case always comes first
			if err := b.insertBeside(ctx, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if err := b.tidy(ctx); err != nil {
				return err
			}
		}
	}
	alone := insertsName(cases[0].name)
	for i, goal := range []string{"<= 1.5", "<= 2", ""} {
		who := insertsName(cases[i+1].name)
		b.results.ratio(who+"p50", alone+"p50", "")
		b.results.ratio(who+"p95", alone+"p95", "")
		b.results.ratio(who+"p99", alone+"p99", goal)
	}
	return nil
}

func insertsName(who string) string {
	return fmt.Sprintf("inserts at %d tx/s, %s, ", insertersRate, who)
}

// insertBeside inserts at a steady rate for the duration, or as long as the relay has
// some of the backlog to carry.
func (b *bench) insertBeside(ctx context.Context, c beside) (err error) {
	rows := 0
	if c.backlog {
		rows = b.o.rows
	}
	l, err := b.newBacklog(ctx, "bench_inserters", rows)
	if err != nil {
		return err
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	load := steadyLoad{rate: insertersRate, rows: 1, duration: b.o.duration}
	r := (*relay)(nil)
	if c.relay != nil {
		if r, err = b.relayBeside(ctx, l, c.relay); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
	}
	marked := func() (float64, error) { return 0, nil }
	if c.backlog {
		marked = func() (float64, error) { return r.metric(`rowferry_marked_total{outcome="sent"}`) }
		load.until = b.drained(ctx, r, rows)
	}
	before, err := marked()
	if err != nil {
		return err
	}
	began := time.Now()
	w, err := b.commitSteadily(ctx, l.schema, load)
	if err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	after, err := marked()
	if err != nil {
		return err
	}
	name := insertsName(c.name)
	if c.backlog {
		b.results.add(name+"rows carried", (after-before)/seconds, "rows/s")
	}
	for _, q := range []int{50, 95, 99} {
		b.results.add(fmt.Sprint(name, "p", q), w.percentile(q), "ms")
	}
	return nil
}

// relayBeside starts a relay over a backlog and returns when it has begun to carry it.
func (b *bench) relayBeside(ctx context.Context, l backlog, env []string) (*relay, error) {
	topic, err := b.topic("inserters")
	if err != nil {
		return nil, err
	}
	r, err := b.startRelay(ctx, l.schema, append([]string{"ROWFERRY_ROUTE_TOPIC=" + topic, "ROWFERRY_START_AT=" + l.from}, env...)...)
	if err != nil {
		return nil, err
	}
	err = r.awaitReady(ctx)
	if err == nil {
		_, err = r.await(ctx, min(l.rows, 1), 5*time.Millisecond)
	}
	if err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

// drained is closed when a relay has published all of a backlog, or cannot be asked.
func (b *bench) drained(ctx context.Context, r *relay, rows int) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			if n, err := r.published(); err != nil || n >= float64(rows) {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return over
}

// settle waits until the database has written out what filling the table left in
// memory, so that this work is not taken for somebody else's.
func (b *bench) settle(ctx context.Context) error {
	const few = 500 // pages
	for range 600 {
		var name string
		var dirty int
		if err := b.servers.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'").Scan(&name, &dirty); err != nil {
			return err
		}
		if dirty < few {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.results.note("the database had not written out its pages after a minute; the figures after that suffer from it")
	return nil
}
