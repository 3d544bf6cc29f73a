package main

import (
	"context"
	"errors"
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
