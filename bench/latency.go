package main

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// topic creates a topic, fresh for every call, and returns its name.
func (b *bench) topic(part string) (string, error) {
	name := fmt.Sprintf("%s_%d", part, rand.Uint32())
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{b.servers.nameServer})))
	if err != nil {
		return "", err
	}
	defer a.Close() //nolint:errcheck // always nil
	err = a.CreateTopic(context.Background(), admin.WithTopicCreate(name), admin.WithReadQueueNums(queues),
		admin.WithWriteQueueNums(queues), admin.WithBrokerAddrCreate(b.servers.broker.Addr()))
	return name, err
}

// warmUpTime is how long a load runs before it is measured: a JVM is slow at first,
// and rowferry looks every row up until its first fence has come back.
const warmUpTime = 5 * time.Second

// follower is somebody who relays a schema's rows to a topic.
type follower struct {
	pid   int
	alive func() error // what it died of
	stop  func() error
}

// subject is a kind of follower.
type subject struct {
	name  string
	start func(ctx context.Context, schema, topic string) (follower, error)
}

// latencies measures the time from commit to consumer at several rates, interleaved;
// the rival's at the first of them, which it can follow.
func (b *bench) latencies(ctx context.Context) error {
	subjects := []subject{{"bare loop", b.followBare}, {"rowferry", b.followRowferry}}
	for range b.o.rounds {
		for i, text := range strings.Split(b.o.rates, ",") {
			rate, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("the rates: %w", err)
			}
			all := subjects
			if b.o.rival && i == 0 {
				all = append(slices.Clone(subjects), b.rivalSubject(rivalTuned), b.rivalSubject(rivalDefaults))
			}
			for _, s := range all {
				if err := b.latencyOf(ctx, s, rate); err != nil {
					return fmt.Errorf("%s at %d tx/s: %w", s.name, rate, err)
				}
			}
		}
	}
	b.latencyRatios()
	return nil
}

func (b *bench) latencyRatios() {
	for rate := range strings.SplitSeq(b.o.rates, ",") {
		for _, other := range []struct{ name, p50, p99 string }{{"bare loop", "", ""}, {rivalTuned, "<= 0.4", "<= 0.1"}, {rivalDefaults, "", ""}} {
			of, to := latencyName("rowferry", rate), latencyName(other.name, rate)
			b.results.ratio(of+"p50", to+"p50", other.p50)
			b.results.ratio(of+"p99", to+"p99", other.p99)
		}
	}
}

func latencyName(who, rate string) string { return who + " at " + rate + " tx/s, commit to consumer " }

func (b *bench) latencyOf(ctx context.Context, s subject, rate int) (err error) {
	schema, topic, err := b.ground("latency")
	if err != nil {
		return err
	}
	f, err := s.start(ctx, schema, topic)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	if err := b.awaitFollowing(ctx, f, schema, topic); err != nil {
		return err
	}
	load := steadyLoad{rate: rate, rows: 1, duration: min(warmUpTime, b.o.duration)}
	if _, err := b.commitSteadily(ctx, schema, load); err != nil {
		return err
	}
	_, _, before, err := usage(f.pid)
	if err != nil {
		return err
	}
	load.duration = b.o.duration
	name := fmt.Sprintf("%s at %d tx/s", s.name, rate)
	n, err := b.follow(ctx, name, schema, topic, load)
	if err != nil {
		return err
	}
	_, _, after, err := usage(f.pid)
	b.results.add(name+", CPU a message", float64((after-before).Microseconds())/float64(n), "us")
	return err
}

// awaitFollowing inserts rows until one has come through.
func (b *bench) awaitFollowing(ctx context.Context, f follower, schema, topic string) error {
	for range 240 {
		if err := b.fillPayload(ctx, schema, 1, 1, b.o.payload); err != nil {
			return err
		}
		time.Sleep(250 * time.Millisecond)
		if err := f.alive(); err != nil {
			return err
		}
		stored, err := b.servers.broker.Stored(topic)
		if err != nil || stored > 0 {
			return err
		}
	}
	return errors.New("nothing came through within a minute")
}

func (b *bench) followRowferry(ctx context.Context, schema, topic string) (follower, error) {
	r, err := b.startRelay(ctx, schema, "ROWFERRY_ROUTE_TOPIC="+topic)
	if err != nil {
		return follower{}, err
	}
	f := follower{pid: r.cmd.Process.Pid, stop: r.stop, alive: func() error { return nil }} // it waits rather than dies
	if err := r.awaitReady(ctx); err != nil {
		return follower{}, errors.Join(err, r.stop())
	}
	return f, nil
}

func (b *bench) followBare(ctx context.Context, schema, topic string) (follower, error) {
	from, err := b.gtids(ctx)
	if err != nil {
		return follower{}, err
	}
	cmd, err := b.bareProcess(ctx, bareConfig{Schema: schema, From: from, Topic: topic, Rows: math.MaxInt})
	if err != nil {
		return follower{}, err
	}
	if err := cmd.Start(); err != nil {
		return follower{}, err
	}
	stop := func() error {
		err := cmd.Process.Kill()
		cmd.Wait() //nolint:errcheck // killed
		return err
	}
	return follower{pid: cmd.Process.Pid, stop: stop, alive: func() error { return nil }}, nil // its last words are on stderr
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
