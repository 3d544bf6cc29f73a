package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	sustainedRows    = 10   // of one transaction
	sustainedDefault = 3000 // rows a second, where no drain was measured
)

// sustained measures rowferry with ledger status under a load below its ceiling: does
// it keep up, how long do rows take, and what does it cost.
func (b *bench) sustained(ctx context.Context) (err error) {
	rate := b.o.sustained
	if rate == 0 {
		rate = sustainedDefault
		if f := b.results.find("rowferry status"); f != nil {
			rate = int(f.Median * 2 / 5)
		}
	}
	r, schema, topic, err := b.readyRelay(ctx, "sustained")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	name := "rowferry sustained load"
	b.results.add(name+", rate asked for", float64(rate), "rows/s")
	_, _, before, err := usage(r.cmd.Process.Pid)
	if err != nil {
		return err
	}
	n, err := b.follow(ctx, name, schema, topic, steadyLoad{rate: rate / sustainedRows, rows: sustainedRows, duration: b.o.duration})
	if err != nil {
		return err
	}
	_, peak, after, err := usage(r.cmd.Process.Pid)
	if err != nil {
		return err
	}
	b.results.add(name+", peak memory", peak, "MiB")
	b.results.add(name+", CPU for 100,000 messages", (after-before).Seconds()/float64(n)*100_000, "s")
	return nil
}

// inserters measures what the application feels: the 99th percentile of its inserts
// without a relay, with one that keeps up, and with one that drains a backlog.
func (b *bench) inserters(ctx context.Context) error {
	const alone, keepingUp, draining = "inserts at 300 tx/s, no relay, p99", "inserts at 300 tx/s, rowferry keeping up, p99", "inserts at 300 tx/s, rowferry draining, p99"
	for range b.o.rounds {
		for _, step := range []struct {
			name    string
			backlog int
			relay   bool
		}{{alone, 0, false}, {keepingUp, 0, true}, {draining, b.o.rows, true}} {
			p99, err := b.insertBeside(ctx, step.backlog, step.relay)
			if err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
			b.results.add(step.name, p99, "ms")
		}
		if err := b.tidy(ctx); err != nil {
			return err
		}
	}
	b.results.ratio(keepingUp, alone, "<= 1.5")
	b.results.ratio(draining, alone, "<= 2")
	return nil
}

// insertBeside inserts at a steady rate and returns the 99th percentile in ms. With a
// backlog, only while the relay still has some of it to carry.
func (b *bench) insertBeside(ctx context.Context, waiting int, relayed bool) (p99 float64, err error) {
	l, err := b.newBacklog(ctx, "bench_inserters", waiting)
	if err != nil {
		return 0, err
	}
	if err := b.settle(ctx); err != nil {
		return 0, err
	}
	load := steadyLoad{rate: 300, rows: 1, duration: b.o.duration}
	if !relayed {
		w, err := b.commitSteadily(ctx, l.schema, load)
		return w.p99(), err
	}
	topic, err := b.topic("inserters")
	if err != nil {
		return 0, err
	}
	r, err := b.startRelay(ctx, l.schema, "ROWFERRY_ROUTE_TOPIC="+topic, "ROWFERRY_START_AT="+l.from)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.awaitReady(ctx); err != nil {
		return 0, err
	}
	if waiting > 0 {
		drained := make(chan struct{})
		watched := make(chan error, 1)
		go func() {
			defer close(drained)
			_, err := r.await(ctx, waiting, 50*time.Millisecond)
			watched <- err
		}()
		load.until, load.duration = drained, carryTimeout
		defer func() { err = errors.Join(err, <-watched) }()
	}
	w, err := b.commitSteadily(ctx, l.schema, load)
	if err != nil {
		return 0, err
	}
	return w.p99(), nil
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
