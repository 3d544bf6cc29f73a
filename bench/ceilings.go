package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"golang.org/x/sync/errgroup"
)

const (
	batchMax = 256  // messages
	markMax  = 1000 // ids of one UPDATE
	queues   = 8
)

// pinned sends each message to the queue that it names.
type pinned struct{}

func (pinned) Select(m *primitive.Message, _ []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	return m.Queue
}

func newProducer(nameServer, instance string) (rocketmq.Producer, error) {
	p, err := producer.NewDefaultProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})),
		producer.WithGroupName("bench"), producer.WithInstanceName(instance), producer.WithRetry(0),
		producer.WithQueueSelector(pinned{}), producer.WithSendMsgTimeout(8*time.Second))
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

// sendAll sends one batch until the broker has taken it.
func sendAll(ctx context.Context, p rocketmq.Producer, messages []*primitive.Message) error {
	for {
		res, err := p.SendSync(ctx, messages...)
		if err == nil && res.Status != primitive.SendOK {
			err = fmt.Errorf("broker answered %v", res.Status)
		}
		// Busy: any broker may say so. The route: the first sends of a process race for it.
		if err == nil || !strings.HasPrefix(err.Error(), "CODE: 2,") && !strings.Contains(err.Error(), "route info not found") {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// brokerCeiling sends as many messages as there are rows, of the same size and
// with the same properties, in batches over the same number of queues, with
// nothing around it.
func (b *bench) brokerCeiling(ctx context.Context) (float64, error) {
	topic, err := b.topic("ceiling")
	if err != nil {
		return 0, err
	}
	p, err := newProducer(b.servers.nameServer, topic)
	if err != nil {
		return 0, err
	}
	defer p.Shutdown() //nolint:errcheck // always nil
	payload := []byte(payloadOf(b.o.payload))
	send := func(queue, n, first int) error {
		messages := make([]*primitive.Message, n)
		for i := range messages {
			messages[i] = newMessage(topic, queue, ceilingRow(first+i, payload))
		}
		return sendAll(ctx, p, messages)
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
	err = g.Wait()
	return float64(b.o.rows) / time.Since(start).Seconds(), err
}

func ceilingRow(id int, payload []byte) bareRow {
	return bareRow{
		id: strconv.Itoa(id), kind: "orders", aggregate: "order-" + strconv.Itoa(id%1000), event: "OrderPlaced",
		payload: payload, created: "2026-01-02T03:04:05.678901Z",
	}
}

// newMessage gives a row the properties that rowferry gives it.
func newMessage(topic string, queue int, r bareRow) *primitive.Message {
	m := primitive.NewMessage(topic, r.payload)
	m.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: brokerName, QueueId: queue}
	m.WithTag(r.event).WithKeys([]string{r.id, r.aggregate})
	m.WithShardingKey(r.aggregate)
	for _, p := range [...][2]string{
		{"UNIQ_KEY", fmt.Sprintf("%032s", r.id)}, {"outbox_uid", "bench.outbox:" + r.id}, {"outbox_id", r.id},
		{"outbox_table", "bench.outbox"}, {"aggregate_id", r.aggregate}, {"aggregate_type", r.kind},
		{"event_type", r.event}, {"created_at", r.created}, {"outbox_seq", "00000001-00000000000a"},
		{"__SHARDINGKEY", r.aggregate},
	} {
		m.WithProperty(p[0], p[1])
	}
	return m
}

// marker marks rows over one connection, with a minimal row image.
type marker struct {
	db    *sql.DB
	conn  *sql.Conn
	table string
}

func newMarker(ctx context.Context, dsn, schema string) (*marker, error) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	m := &marker{db: db, table: schema + ".outbox"}
	if m.conn, err = db.Conn(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	for _, q := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET SESSION binlog_row_image=MINIMAL"} {
		if _, err := m.conn.ExecContext(ctx, q); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	return m, nil
}

func (m *marker) mark(ctx context.Context, ids []string) error {
	_, err := m.conn.ExecContext(ctx, "UPDATE "+m.table+" FORCE INDEX (PRIMARY) SET status='SENT', sent_at=NOW(6) WHERE id IN ("+
		strings.Join(ids, ",")+") AND status IN ('PENDING','PROCESSING')")
	return err
}

func (m *marker) close() error { return errors.Join(m.conn.Close(), m.db.Close()) }

// ledgerCeiling marks as many rows as there are, with nothing around it.
func (b *bench) ledgerCeiling(ctx context.Context) (rate float64, err error) {
	schema, err := b.schema("bench_ceiling")
	if err != nil {
		return 0, err
	}
	if err := b.fill(ctx, schema, b.o.rows); err != nil {
		return 0, err
	}
	m, err := newMarker(ctx, b.servers.dsn, schema)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	start := time.Now()
	for first := 1; first <= b.o.rows; first += markMax {
		ids := make([]string, 0, markMax)
		for id := first; id < first+markMax && id <= b.o.rows; id++ {
			ids = append(ids, strconv.Itoa(id))
		}
		if err := m.mark(ctx, ids); err != nil {
			return 0, err
		}
	}
	return float64(b.o.rows) / time.Since(start).Seconds(), nil
}
