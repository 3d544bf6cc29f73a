package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rowferry/rowferry/demo/consumer"
)

// coldStarts measures the time from the start of the process to the first message in
// the hands of a consumer, with one row waiting.
func (b *bench) coldStarts(ctx context.Context) error {
	for range b.o.rounds {
		took, err := b.coldStart(ctx)
		if err != nil {
			return err
		}
		b.results.add("rowferry cold start to first message", float64(took.Milliseconds()), "ms")
	}
	return nil
}

func (b *bench) coldStart(ctx context.Context) (took time.Duration, err error) {
	l, err := b.newBacklog(ctx, "bench_start", 1)
	if err != nil {
		return 0, err
	}
	topic, err := b.topic("start")
	if err != nil {
		return 0, err
	}
	arrived := make(chan time.Time, 1)
	stop, err := b.consume(ctx, topic, func(m consumer.Message) {
		select {
		case arrived <- m.At:
		default:
		}
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	r, err := b.startRelay(ctx, l.schema, "ROWFERRY_ROUTE_TOPIC="+topic, "ROWFERRY_START_AT="+l.from)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	select {
	case at := <-arrived:
		return at.Sub(r.started), nil
	case <-time.After(time.Minute):
		return 0, errors.New("the waiting row did not arrive within a minute")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// consume hands every message of a topic to handle until stop is called.
func (b *bench) consume(ctx context.Context, topic string, handle func(consumer.Message)) (stop func() error, err error) {
	c, err := consumer.Open(ctx, b.servers.nameServer, topic)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, handle) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

// memory measures the resident memory of an idle relay, and of one whose broker is
// away while a backlog waits.
func (b *bench) memory(ctx context.Context) (err error) {
	r, schema, _, err := b.readyRelay(ctx, "memory")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	time.Sleep(5 * time.Second)
	rss, _, _, err := usage(r.cmd.Process.Pid)
	if err != nil {
		return err
	}
	b.results.add("rowferry idle, memory", rss, "MiB")
	return b.memoryWithoutBroker(ctx, r, schema)
}

// memoryWithoutBroker also sees to it that everything arrives once the broker is back.
func (b *bench) memoryWithoutBroker(ctx context.Context, r *relay, schema string) error {
	if err := b.servers.killBroker(); err != nil {
		return err
	}
	rows := b.o.rows / 5
	if err := b.fill(ctx, schema, rows); err != nil {
		return errors.Join(err, b.servers.startBroker())
	}
	time.Sleep(10 * time.Second) // until the budget is full and the lanes have failed a few times
	rss, peak, _, err := usage(r.cmd.Process.Pid)
	if err := errors.Join(err, b.servers.startBroker()); err != nil {
		return err
	}
	b.results.add("rowferry, broker away, memory", rss, "MiB")
	b.results.add("rowferry, broker away, peak memory", peak, "MiB")
	back := time.Now()
	if _, err := r.await(ctx, rows, 50*time.Millisecond); err != nil {
		return fmt.Errorf("after the broker is back: %w", err)
	}
	b.results.add(fmt.Sprintf("rowferry, %d rows after the broker is back", rows), time.Since(back).Seconds(), "s")
	return nil
}
