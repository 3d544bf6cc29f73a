package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"golang.org/x/sync/errgroup"

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
		admin.WithWriteQueueNums(queues), admin.WithBrokerAddrCreate(b.servers.broker))
	return name, err
}

// drain has rowferry carry waiting rows and returns rows per second, from process
// start to the last row published and, with the status ledger, marked.
func (b *bench) drain(ctx context.Context, ledger string) (float64, error) {
	schema, err := b.schema("bench_" + ledger)
	if err != nil {
		return 0, err
	}
	topic, err := b.topic(fmt.Sprintf("drain_%s_%d", ledger, rand.Uint32()))
	if err != nil {
		return 0, err
	}
	var before string
	if err := b.servers.db.QueryRowContext(ctx, "SELECT @@GLOBAL.gtid_executed").Scan(&before); err != nil {
		return 0, err
	}
	if err := b.fill(ctx, schema, b.o.rows); err != nil {
		return 0, err
	}
	database, broker, err := b.servers.cpu()
	if err != nil {
		return 0, err
	}
	r, err := b.startRelay(ctx, schema, "ROWFERRY_LEDGER="+ledger, "ROWFERRY_ROUTE_TOPIC="+topic,
		"ROWFERRY_START_AT="+strings.ReplaceAll(before, "\n", ""))
	if err != nil {
		return 0, err
	}
	defer r.stop() //nolint:errcheck // measured already
	if b.o.profile != "" {
		go r.profile(filepath.Join(b.o.profile, ledger+".pprof")) //nolint:errcheck // an aid: it may come too late
	}
	first, err := r.await(ctx, b.o.rows, 50*time.Millisecond)
	if err != nil {
		return 0, err
	}
	if ledger == "status" {
		if err := b.awaitMarked(ctx, schema); err != nil {
			return 0, err
		}
	}
	took := time.Since(r.started)
	_, peak, cpu, err := r.usage()
	if err != nil {
		return 0, err
	}
	database2, broker2, err := b.servers.cpu()
	if err != nil {
		return 0, err
	}
	b.results.add("  CPU a message of the database, "+ledger, float64((database2-database).Microseconds())/float64(b.o.rows), "us")
	b.results.add("  CPU a message of the broker, "+ledger, float64((broker2-broker).Microseconds())/float64(b.o.rows), "us")
	for name, prefix := range map[string]string{"send": "rowferry_send_duration_seconds", "mark": "rowferry_mark_duration_seconds"} {
		sum, err := r.metric(prefix + "_sum")
		if err != nil {
			return 0, err
		}
		count, err := r.metric(prefix + "_count")
		if err != nil {
			return 0, err
		}
		if count > 0 {
			b.results.add(fmt.Sprintf("  mean %s of %.0f rows, %s", name, float64(b.o.rows)/count, ledger), sum/count*1000, "ms")
		}
	}
	b.results.add("  first message after start, "+ledger, float64(first.Sub(r.started).Milliseconds()), "ms")
	b.results.add("  peak memory draining, "+ledger, peak, "MiB")
	b.results.add("  CPU a message, "+ledger, float64(cpu.Microseconds())/float64(b.o.rows), "us")
	return float64(b.o.rows) / took.Seconds(), err
}

func (b *bench) awaitMarked(ctx context.Context, schema string) error {
	for {
		var one int
		err := b.servers.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM "+schema+".outbox WHERE status='PENDING' LIMIT 1) x").Scan(&one)
		if err != nil || one == 0 {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// latency commits single-row transactions at a steady rate and measures, for each
// row, the time from COMMIT returning to the consumer having the message.
func (b *bench) latency(ctx context.Context) error {
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
	defer r.stop() //nolint:errcheck // measured already
	if err := r.awaitReady(ctx); err != nil {
		return err
	}
	c, err := consumer.Open(ctx, b.servers.nameServer, topic)
	if err != nil {
		return err
	}
	got := &arrivals{at: map[string]time.Time{}}
	consuming, stopConsuming := context.WithCancel(ctx)
	defer stopConsuming()
	go c.Run(consuming, got.record) //nolint:errcheck // ends with its context
	committed, err := b.commitSteadily(ctx, schema)
	if err != nil {
		return err
	}
	if _, err := r.await(ctx, len(committed), 50*time.Millisecond); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond) // the consumer's last pull
	return b.report(r, committed, got)
}

func (b *bench) report(r *relay, committed map[string]time.Time, got *arrivals) error {
	got.mu.Lock()
	defer got.mu.Unlock()
	var took []float64
	for uid, at := range committed {
		arrived, ok := got.at[uid]
		if !ok {
			return fmt.Errorf("%s was committed and never arrived", uid)
		}
		took = append(took, max(0, float64(arrived.Sub(at).Microseconds())/1000))
	}
	slices.Sort(took)
	n := len(took)
	name := fmt.Sprintf("latency at %d tx/s", b.o.rate)
	b.results.add(name+", p50", took[n/2], "ms")
	b.results.add(name+", p95", took[n*95/100], "ms")
	b.results.add(name+", p99", took[n*99/100], "ms")
	b.results.add(name+", max", took[n-1], "ms")
	time.Sleep(2 * time.Second)
	rss, _, cpu, err := r.usage()
	b.results.add("memory idle after the latency run", rss, "MiB")
	b.results.add("CPU a message in the latency run", float64(cpu.Microseconds())/float64(n), "us")
	return err
}

type arrivals struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (a *arrivals) record(m consumer.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, again := a.at[m.UID]; !again {
		a.at[m.UID] = m.At
	}
}

// commitSteadily returns when each row was committed, by outbox_uid.
func (b *bench) commitSteadily(ctx context.Context, schema string) (map[string]time.Time, error) {
	const writers = 4
	var mu sync.Mutex
	committed := map[string]time.Time{}
	var g errgroup.Group
	n := int(b.o.duration.Seconds()*float64(b.o.rate)) / writers
	gap := time.Second * writers / time.Duration(b.o.rate)
	payload := payloadOf(b.o.payload)
	for w := range writers {
		g.Go(func() error {
			tick := time.NewTicker(gap)
			defer tick.Stop()
			for i := range n {
				<-tick.C
				res, err := b.servers.db.ExecContext(ctx, "INSERT INTO "+schema+".outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (?,?,?,?)",
					"orders", fmt.Sprintf("order-%d-%d", w, i%50), "OrderPlaced", payload)
				at := time.Now()
				if err != nil {
					return err
				}
				id, err := res.LastInsertId()
				if err != nil {
					return err
				}
				mu.Lock()
				committed[fmt.Sprintf("%s.outbox:%d", schema, id)] = at
				mu.Unlock()
			}
			return nil
		})
	}
	return committed, g.Wait()
}
