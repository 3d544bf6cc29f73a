package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"golang.org/x/sync/errgroup"
)

const (
	batchMax = 256
	queues   = 8
)

// pinned sends each message to the queue that it names.
type pinned struct{}

func (pinned) Select(m *primitive.Message, _ []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	return m.Queue
}

// brokerCeiling sends as many messages as there are rows, of the same size and
// with the same properties, in batches over the same number of queues, with
// nothing around it.
func (b *bench) brokerCeiling(ctx context.Context) (float64, error) {
	topic, err := b.topic(fmt.Sprintf("ceiling%d", rand.Uint32()))
	if err != nil {
		return 0, err
	}
	p, err := producer.NewDefaultProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{b.servers.nameServer})),
		producer.WithGroupName("bench"), producer.WithInstanceName(topic), producer.WithRetry(0),
		producer.WithQueueSelector(pinned{}), producer.WithSendMsgTimeout(8*time.Second))
	if err != nil {
		return 0, err
	}
	if err := p.Start(); err != nil {
		return 0, err
	}
	defer p.Shutdown() //nolint:errcheck // always nil
	body := []byte(payloadOf(b.o.payload))
	send := func(queue, n, first int) error {
		msgs := make([]*primitive.Message, n)
		for i := range msgs {
			msgs[i] = ceilingMessage(topic, body, queue, first+i)
		}
		for {
			res, err := p.SendSync(ctx, msgs...)
			if err == nil && res.Status != primitive.SendOK {
				err = fmt.Errorf("broker answered %v", res.Status)
			}
			if err == nil || !strings.HasPrefix(err.Error(), "CODE: 2,") { // busy: any broker may say so
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	if err := send(0, 1, 0); err != nil { // fetches the route
		return 0, err
	}
	var next atomic.Int64
	var g errgroup.Group
	start := time.Now()
	for q := range queues {
		g.Go(func() error {
			for {
				first := int(next.Add(batchMax)) - batchMax
				if first >= b.o.rows {
					return nil
				}
				if err := send(q, min(batchMax, b.o.rows-first), first); err != nil {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return float64(b.o.rows) / time.Since(start).Seconds(), nil
}

func ceilingMessage(topic string, body []byte, queue, id int) *primitive.Message {
	m := primitive.NewMessage(topic, body)
	m.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: "testbroker", QueueId: queue}
	m.WithTag("OrderPlaced").WithKeys([]string{fmt.Sprint(id), fmt.Sprint("order-", id%1000)})
	m.WithShardingKey(fmt.Sprint("order-", id%1000))
	for name, value := range map[string]string{
		"UNIQ_KEY": fmt.Sprintf("%032x", id), "outbox_uid": fmt.Sprint("bench.outbox:", id), "outbox_id": fmt.Sprint(id),
		"outbox_table": "bench.outbox", "aggregate_id": fmt.Sprint("order-", id%1000), "aggregate_type": "orders",
		"event_type": "OrderPlaced", "created_at": "2026-01-02T03:04:05.678901Z", "outbox_seq": "00000001-00000000000a",
		"__SHARDINGKEY": fmt.Sprint("order-", id%1000),
	} {
		m.WithProperty(name, value)
	}
	return m
}

// ledgerCeiling marks as many rows as there are, 1,000 a statement with a minimal
// row image, over one connection with nothing around it.
func (b *bench) ledgerCeiling(ctx context.Context) (float64, error) {
	schema, err := b.schema("bench_ceiling")
	if err != nil {
		return 0, err
	}
	if err := b.fill(ctx, schema, b.o.rows); err != nil {
		return 0, err
	}
	conn, err := b.servers.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()                                               //nolint:errcheck // scratch
	defer conn.ExecContext(ctx, "SET SESSION binlog_row_image=FULL") //nolint:errcheck // the connection goes back to the pool
	for _, q := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET SESSION binlog_row_image=MINIMAL"} {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			return 0, err
		}
	}
	const ids = 1000
	start := time.Now()
	for first := 1; first <= b.o.rows; first += ids {
		list := make([]string, 0, ids)
		for id := first; id < first+ids && id <= b.o.rows; id++ {
			list = append(list, fmt.Sprint(id))
		}
		_, err := conn.ExecContext(ctx, "UPDATE "+schema+".outbox FORCE INDEX (PRIMARY) SET status='SENT', sent_at=NOW(6) WHERE id IN ("+
			strings.Join(list, ",")+") AND status IN ('PENDING','PROCESSING')")
		if err != nil {
			return 0, err
		}
	}
	return float64(b.o.rows) / time.Since(start).Seconds(), nil
}

// fill inserts n rows, 200 a transaction.
func (b *bench) fill(ctx context.Context, schema string, n int) error {
	const perTransaction = 200
	payload := payloadOf(b.o.payload)
	for first := 0; first < n; first += perTransaction {
		var values []string
		for i := first; i < first+perTransaction && i < n; i++ {
			values = append(values, fmt.Sprintf("('orders','order-%d','OrderPlaced','%s')", i%b.o.keys, payload))
		}
		q := "INSERT INTO " + schema + ".outbox (aggregate_type, aggregate_id, event_type, payload) VALUES " + strings.Join(values, ",")
		if _, err := b.servers.db.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("inserting rows: %w", err)
		}
	}
	return nil
}

// payloadOf returns a JSON text of about n bytes.
func payloadOf(n int) string {
	return `{"sku":"` + strings.Repeat("x", max(1, n-12)) + `"}`
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
