package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/rowferry/rowferry/demo/consumer"
)

// topic creates a topic and returns its name.
func (b *bench) topic(name string) (string, error) {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{b.servers.nameServer})))
	if err != nil {
		return "", err
	}
	defer a.Close() //nolint:errcheck // always nil
	err = a.CreateTopic(context.Background(), admin.WithTopicCreate(name), admin.WithReadQueueNums(queues),
		admin.WithWriteQueueNums(queues), admin.WithBrokerAddrCreate(b.servers.broker.Addr()))
	return name, err
}

// latencies measures the time from commit to consumer at several rates; the rival's
// at the first of them, which it can follow.
func (b *bench) latencies(ctx context.Context) error {
	for i, text := range strings.Split(b.o.rates, ",") {
		rate, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("the rates: %w", err)
		}
		if err := b.latencyOfRowferry(ctx, rate); err != nil {
			return fmt.Errorf("rowferry at %d tx/s: %w", rate, err)
		}
		if b.o.rival && i == 0 {
			if err := b.latencyOfRival(ctx, rate); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) latencyOfRowferry(ctx context.Context, rate int) (err error) {
	schema, err := b.schema("bench_latency")
	if err != nil {
		return err
	}
	topic, err := b.topic(fmt.Sprintf("latency_%d", rand.Uint32()))
	if err != nil {
		return err
	}
	r, err := b.startRelay(ctx, schema, "ROWFERRY_ROUTE_TOPIC="+topic)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.awaitReady(ctx); err != nil {
		return err
	}
	_, _, before, err := usage(r.cmd.Process.Pid)
	if err != nil {
		return err
	}
	l := steadyLoad{rate: rate, duration: b.o.duration, rows: 1}
	n, err := b.follow(ctx, fmt.Sprintf("rowferry at %d tx/s", rate), schema, topic, l)
	if err != nil {
		return err
	}
	_, _, after, err := usage(r.cmd.Process.Pid)
	b.results.add(fmt.Sprintf("rowferry at %d tx/s, CPU a message", rate), float64((after-before).Microseconds())/float64(n), "us")
	return err
}

// follow puts a load on a schema that somebody relays to a topic, and keeps how long
// the rows took from COMMIT returning to the consumer having the message. It returns
// how many rows there were.
func (b *bench) follow(ctx context.Context, name, schema, topic string, l steadyLoad) (int, error) {
	c, err := consumer.Open(ctx, b.servers.nameServer, topic)
	if err != nil {
		return 0, err
	}
	got := &arrivals{at: map[int64]time.Time{}, more: make(chan struct{}, 1)}
	consuming, stopConsuming := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(consuming, got.record) }()
	start := time.Now()
	w, err := b.commitSteadily(ctx, schema, l)
	if err == nil {
		b.results.add(name+", rate reached", float64(len(w.committed))/time.Since(start).Seconds(), "rows/s")
		err = got.await(ctx, w.committed)
	}
	stopConsuming()
	if err = errors.Join(err, <-ended); err != nil {
		return 0, err
	}
	took := got.latencies(w.committed)
	n := len(took)
	b.results.add(name+", commit to consumer p50", took[n/2], "ms")
	b.results.add(name+", commit to consumer p95", took[n*95/100], "ms")
	b.results.add(name+", commit to consumer p99", took[n*99/100], "ms")
	b.results.add(name+", commit to consumer max", took[n-1], "ms")
	return n, nil
}

// arrivals are the first copies of messages, by the id of their row.
type arrivals struct {
	mu   sync.Mutex
	at   map[int64]time.Time
	more chan struct{} // something has come
}

func (a *arrivals) record(m consumer.Message) {
	id, err := strconv.ParseInt(m.UID[strings.LastIndexByte(m.UID, ':')+1:], 10, 64)
	if err != nil {
		return // then the row is missed, and await says so
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, again := a.at[id]; !again {
		a.at[id] = m.At
	}
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// await returns once every committed row has arrived. A minute in which nothing comes
// ends the wait.
func (a *arrivals) await(ctx context.Context, committed map[int64]time.Time) error {
	for {
		a.mu.Lock()
		missing, example := 0, int64(0)
		for id := range committed {
			if _, ok := a.at[id]; !ok {
				missing, example = missing+1, id
			}
		}
		a.mu.Unlock()
		if missing == 0 {
			return nil
		}
		select {
		case <-a.more:
			time.Sleep(5 * time.Millisecond) // others are on their way
		case <-time.After(time.Minute):
			return fmt.Errorf("%d of %d rows were committed and never arrived, id %d among them", missing, len(committed), example)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// latencies returns the times in ms, sorted.
func (a *arrivals) latencies(committed map[int64]time.Time) []float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	took := make([]float64, 0, len(committed))
	for id, at := range committed {
		took = append(took, max(0, float64(a.at[id].Sub(at).Microseconds())/1000))
	}
	slices.Sort(took)
	return took
}
