package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

var orders = outbox.Table{Schema: "shop", Name: "outbox"}

// scriptedSink is a broker whose answers a test decides.
type scriptedSink struct {
	mu     sync.Mutex
	lanes  int
	stored map[string][]string // topic/lane -> ids in the order of storing
	sends  int
	answer func(topic string, lane int, ids []string) error // nil: store
}

func newSink(lanes int) *scriptedSink {
	return &scriptedSink{lanes: lanes, stored: map[string][]string{}}
}

func (s *scriptedSink) Lanes(context.Context, string) (int, error) { return s.lanes, nil }
func (s *scriptedSink) Check(*outbox.Message) error                { return nil }

func (s *scriptedSink) Send(_ context.Context, topic string, lane int, msgs []*outbox.Message) error {
	ids := make([]string, len(msgs))
	for i, m := range msgs {
		ids[i] = string(m.Body)
	}
	s.mu.Lock()
	answer := s.answer
	s.sends++
	s.mu.Unlock()
	if answer != nil {
		if err := answer(topic, lane, ids); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("%s/%d", topic, lane)
	s.stored[name] = append(s.stored[name], ids...)
	return nil
}

func (s *scriptedSink) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, lane := range s.stored {
		ids = append(ids, lane...)
	}
	return ids
}

// plainRouter sends an event's id as the body, keyed by its aggregate.
type plainRouter struct{}

func (plainRouter) Route(e *outbox.Event) (*outbox.Message, error) {
	if e.Type == "drop" {
		return nil, outbox.ErrDropped
	}
	if e.Type == "refuse" {
		return nil, &outbox.SendError{Class: outbox.Refused, Reason: "too_large"}
	}
	return &outbox.Message{Topic: "orders", Key: e.AggregateID, Body: []byte(e.ID)}, nil
}

// memoryLedger keeps statuses and the position committed with them.
type memoryLedger struct {
	mu       sync.Mutex
	rows     map[string]outbox.Status
	reasons  map[string]string
	attempts map[string]int
	fail     error                  // answer of Record
	hold     chan struct{}          // Record waits until it is closed
	locked   map[string]bool        // rows that somebody keeps locked
	onRecord func([]outbox.Outcome) // called inside, before the commit

	payloadBytes int // of every row
	loaded       int // rows that Load has returned
}

func newLedger() *memoryLedger {
	return &memoryLedger{
		rows: map[string]outbox.Status{}, reasons: map[string]string{},
		attempts: map[string]int{}, locked: map[string]bool{},
	}
}

func (l *memoryLedger) Record(ctx context.Context, outcomes []outbox.Outcome, also func(context.Context, *sql.Tx) error) ([]outbox.Outcome, error) {
	l.mu.Lock()
	hold := l.hold
	l.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return nil, l.fail
	}
	if l.onRecord != nil {
		l.onRecord(outcomes)
	}
	var locked []outbox.Outcome
	for _, o := range outcomes {
		if l.locked[o.Key.ID] {
			locked = append(locked, o)
			continue
		}
		l.write(o)
	}
	if also != nil {
		return locked, also(ctx, nil)
	}
	return locked, nil
}

func (l *memoryLedger) write(o outbox.Outcome) {
	switch o.Kind {
	case outbox.OutcomeSent:
		l.rows[o.Key.ID] = outbox.Sent
	case outbox.OutcomeFailed:
		l.rows[o.Key.ID] = outbox.Failed
		l.reasons[o.Key.ID] = o.Reason
	case outbox.OutcomeAttempt:
		l.attempts[o.Key.ID]++
	case outbox.OutcomeReleased:
		l.rows[o.Key.ID] = outbox.Pending
	}
}

func (l *memoryLedger) Statuses(_ context.Context, _ outbox.Table, ids []string) (map[string]outbox.RowState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	got := map[string]outbox.RowState{}
	for _, id := range ids {
		st, ok := l.rows[id]
		if !ok {
			st = outbox.Missing
		}
		got[id] = outbox.RowState{Status: st}
	}
	return got, nil
}

func (l *memoryLedger) Load(_ context.Context, table outbox.Table, ids []string) ([]*outbox.Event, map[string]outbox.Status, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := map[string]outbox.Status{}
	var events []*outbox.Event
	for _, id := range ids {
		if s, ok := l.rows[id]; ok {
			st[id] = s
			events = append(events, &outbox.Event{Table: table, ID: id, AggregateID: "read by key", Payload: make([]byte, l.payloadBytes)})
			l.loaded++
		}
	}
	return events, st, nil
}

func (l *memoryLedger) status(id string) outbox.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rows[id]
}

// memoryCheckpoints records every saved position.
type memoryCheckpoints struct {
	mu    sync.Mutex
	saved []string
	err   error
}

func (c *memoryCheckpoints) Save(_ context.Context, position string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.saved = append(c.saved, position)
	return nil
}

func (c *memoryCheckpoints) SaveTx(ctx context.Context, _ *sql.Tx, position string) error {
	return c.Save(ctx, position)
}

func (c *memoryCheckpoints) last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.saved) == 0 {
		return ""
	}
	return c.saved[len(c.saved)-1]
}

// script is a source that hands over what a test pushes, and echoes fences.
type script struct {
	batches chan outbox.Batch
	seq     uint64
	onStart func()
}

func newScript() *script { return &script{batches: make(chan outbox.Batch, 10_000)} }

func (s *script) Run(ctx context.Context, _ string, accept func(context.Context, outbox.Batch) error) error {
	if s.onStart != nil {
		s.onStart()
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-s.batches:
			if err := accept(ctx, b); err != nil {
				return err
			}
		}
	}
}

func (s *script) Encode(p outbox.Position) string { return fmt.Sprint(p.Seq) }

// push adds a transaction of events given as "id" or "id:aggregate".
func (s *script) push(events ...string) {
	s.seq++
	b := outbox.Batch{End: outbox.Position{Seq: s.seq}, CommittedAt: time.Now()}
	for _, text := range events {
		b.Events = append(b.Events, event(text))
	}
	s.batches <- b
}

func event(text string) *outbox.Event {
	id, aggregate, _ := strings.Cut(text, ":")
	aggregate, kind, _ := strings.Cut(aggregate, ":")
	return &outbox.Event{Table: orders, ID: id, AggregateID: aggregate, Type: kind, Payload: []byte("{}")}
}

func (s *script) WriteFence(_ context.Context, n uint64) error {
	s.batches <- outbox.Batch{End: outbox.Position{}, Fence: n}
	return nil
}

// rig is a running engine with scripted surroundings.
type rig struct {
	*Engine
	src    *script
	sink   *scriptedSink
	ledger *memoryLedger
	saved  *memoryCheckpoints
	stop   func() error // drains and returns what Run returned
}

func start(t *testing.T, change func(*Config, *rig)) *rig {
	t.Helper()
	r := &rig{src: newScript(), sink: newSink(4), ledger: newLedger(), saved: &memoryCheckpoints{}}
	cfg := Config{
		Source: r.src, Router: plainRouter{}, Sink: r.sink, Rows: r.ledger, Ledger: r.ledger, Checkpoints: r.saved, Fences: r.src,
		TokenPrefix: "me", InflightMax: 1000, InflightBytesMax: 1 << 20, SendBatchMax: 8, SendBatchBytesMax: 1 << 20,
		CheckpointInterval: 5 * time.Millisecond, DrainTimeout: 5 * time.Second, Lease: time.Minute, MaxAttempts: 2,
		SourceLagMax: 10 * time.Second, Grace: time.Second, Logger: zerolog.Nop(),
	}
	if change != nil {
		change(&cfg, r)
	}
	r.Engine = New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, "") }()
	var once sync.Once
	var result error
	r.stop = func() error {
		once.Do(func() { cancel(); result = <-done })
		return result
	}
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// beginPass begins a pass in which no lane reopens.
func (r *rig) beginPass(t *testing.T) {
	t.Helper()
	if reopening, err := r.BeginPass(t.Context()); reopening || err != nil {
		t.Fatalf("beginning a pass: reopening %t, %v", reopening, err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

var errAway = &outbox.SendError{Class: outbox.Transient, Reason: "broker_unreachable", Err: errors.New("connection refused")}
