package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rowferry/rowferry/pkg/fallback"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// townRow is a row of the table of a town.
type townRow struct {
	id, key, topic string
	number         int // in the order of inserting, which is that of created_at, too
	created        time.Time
	odd            int // so many attempts on it alone are answered by an error that nobody understands
	visible        bool
	status         outbox.Status
	token          string
	claimed        time.Time
}

// town is database and broker at once, for a simulation in which all of it fails.
// Transactions of one key follow each other; those of several keys overlap, are in the
// binlog before others see them, and commit in another order than they were begun in.
type town struct {
	mu     sync.Mutex
	random *rand.Rand
	claims bool
	plain  bool // what is inserted is visible at once, and nobody locks it
	lanes  int
	counts map[string]int // topic -> lanes, where it is not that number
	rows   []*townRow
	byID   map[string]*townRow
	commit map[string][]string // key -> ids in the order of commits
	stored map[string][]string // key -> ids in the order of storing
	broken map[string]error    // topic or topic/lane -> what it answers
	slow   map[string]time.Duration
	bad    map[string]bool // ids that the broker refuses
	binlog chan outbox.Batch
	fence  uint64 // the newest that was written
	verify func() // is called at each connection
	seq    uint64

	history []outbox.Batch // all that was committed
	saved   string
}

func newTown(random *rand.Rand) *town {
	return &town{
		random: random, claims: random.IntN(2) == 0, lanes: 1 + random.IntN(3),
		counts: map[string]int{}, byID: map[string]*townRow{}, commit: map[string][]string{}, stored: map[string][]string{},
		broken: map[string]error{}, slow: map[string]time.Duration{}, bad: map[string]bool{},
		binlog: make(chan outbox.Batch, 100_000),
	}
}

func (w *town) chance(of int) bool { return w.random.IntN(of) == 0 }

func (w *town) happens(of int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chance(of)
}

func copyOf(events []*outbox.Event) []*outbox.Event {
	ev := *events[0]
	return []*outbox.Event{&ev}
}

// outage is the answer of a database that is away for a moment.
func (w *town) outage() error {
	if w.chance(100) {
		return errors.New("database away")
	}
	return nil
}

func (w *town) someTime(most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.chance(3) {
		return 0
	}
	return time.Duration(w.random.Int64N(int64(most)))
}

// write inserts n rows of a key, one transaction after the other.
func (w *town) write(key, topic string, n int, pace time.Duration) {
	for range n {
		w.mu.Lock()
		r := &townRow{key: key, topic: topic, number: len(w.rows), created: time.Now(), status: outbox.Pending, visible: w.plain}
		r.id = fmt.Sprintf("%s-%d", key, r.number)
		w.bad[r.id] = w.chance(40)
		if w.chance(40) {
			r.odd = 1 + w.random.IntN(2)
		}
		w.rows = append(w.rows, r)
		w.byID[r.id] = r
		w.mu.Unlock()
		time.Sleep(w.someTime(pace)) // the transaction is open
		w.mu.Lock()
		w.seq++
		w.commit[key] = append(w.commit[key], r.id)
		b := outbox.Batch{
			Events: []*outbox.Event{{Table: orders, ID: r.id, AggregateID: key, Type: topic, Payload: []byte("{}")}},
			End:    outbox.Position{Seq: w.seq}, CommittedAt: time.Now(),
		}
		w.history = append(w.history, b)
		w.binlog <- outbox.Batch{Events: copyOf(b.Events), End: b.End, CommittedAt: b.CommittedAt}
		w.mu.Unlock()
		time.Sleep(w.someTime(pace / 4)) // nobody sees it yet
		w.mu.Lock()
		r.visible = true
		w.mu.Unlock()
	}
}

// Run is the tail, which lags a little. A connection that breaks within a transaction
// repeats its start.
func (w *town) Run(ctx context.Context, _ string, accept func(context.Context, outbox.Batch) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-w.binlog:
			time.Sleep(w.someTime(2 * time.Millisecond))
			if len(b.Events) > 0 && w.happens(30) {
				if err := accept(ctx, outbox.Batch{Events: copyOf(b.Events), CommittedAt: b.CommittedAt}); err != nil {
					return err
				}
				time.Sleep(w.someTime(20 * time.Millisecond))
				w.verify()
			}
			if err := accept(ctx, b); err != nil {
				return err
			}
		}
	}
}

func (w *town) Encode(p outbox.Position) string { return fmt.Sprint(p.Seq) }

// WriteFence commits: whatever is before it in the binlog is visible when it returns.
func (w *town) WriteFence(_ context.Context, n uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ids := range w.commit {
		for _, id := range ids {
			w.byID[id].visible = true
		}
	}
	w.fence = max(w.fence, n)
	w.binlog <- outbox.Batch{Fence: n}
	return nil
}

func (w *town) Save(_ context.Context, position string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.saved = position
	return nil
}

func (w *town) Route(e *outbox.Event) (*outbox.Message, error) {
	return &outbox.Message{Topic: e.Type, Key: e.AggregateID, Body: []byte(e.ID)}, nil
}

func (w *town) Check(*outbox.Message) error { return nil }

func (w *town) Lanes(_ context.Context, topic string) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lanesOf(topic), w.broken[topic]
}

func (w *town) lanesOf(topic string) int {
	if n := w.counts[topic]; n > 0 {
		return n
	}
	return w.lanes
}

func (w *town) Send(_ context.Context, topic string, lane int, msgs []*outbox.Message) error {
	name := fmt.Sprintf("%s/%d", topic, lane)
	w.mu.Lock()
	takes := w.slow[name]
	w.mu.Unlock()
	time.Sleep(takes + w.someTime(time.Millisecond))
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.broken[name]; err != nil {
		return err
	}
	if w.broken[topic] != nil {
		return w.broken[topic]
	}
	for _, m := range msgs {
		r := w.byID[string(m.Body)]
		if w.bad[r.id] {
			return &outbox.SendError{Class: outbox.Refused, Reason: "too_large"}
		}
		if r.odd > 0 {
			if len(msgs) == 1 {
				r.odd--
			}
			return errors.New("nobody understands this")
		}
	}
	for _, m := range msgs {
		w.stored[m.Key] = append(w.stored[m.Key], string(m.Body))
	}
	return nil
}

func (w *town) Record(_ context.Context, outcomes []outbox.Outcome, _ func(context.Context, *sql.Tx) error) ([]outbox.Outcome, error) {
	time.Sleep(w.someTime(5 * time.Millisecond))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range outcomes {
		r := w.byID[o.Key.ID]
		switch {
		case o.Kind == outbox.OutcomeSent:
			r.status = outbox.Sent
		case o.Token != r.token || r.status == outbox.Sent:
		case o.Kind == outbox.OutcomeFailed:
			r.status = outbox.Failed
		default:
			r.status, r.token = outbox.Pending, ""
		}
	}
	return nil, nil
}

// Statuses reads with a lock where it must, so that it sees everything.
func (w *town) Statuses(_ context.Context, _ outbox.Table, ids []string) (map[string]outbox.RowState, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	states := map[string]outbox.RowState{}
	for _, id := range ids {
		states[id] = outbox.RowState{Status: w.byID[id].status, Token: w.byID[id].token}
	}
	return states, w.outage()
}

// Pages gives what is PENDING and visible, in the order of created_at.
func (w *town) Pages(_ outbox.Table, grace time.Duration, limit int) func(context.Context) ([]string, error) {
	next := 0
	return func(context.Context) ([]string, error) {
		time.Sleep(w.someTime(time.Millisecond))
		w.mu.Lock()
		defer w.mu.Unlock()
		var ids []string
		for ; next < len(w.rows) && len(ids) < limit; next++ {
			r := w.rows[next]
			if r.visible && r.status == outbox.Pending && (grace == fallback.AnyAge || time.Since(r.created) > grace) {
				ids = append(ids, r.id)
			}
		}
		return ids, w.outage()
	}
}

// Claim now and then finds a row locked.
func (w *town) Claim(_ context.Context, _ outbox.Table, ids []string, token string) ([]string, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.claims {
		return ids, false, nil
	}
	if err := w.outage(); err != nil {
		return nil, false, err
	}
	var got []string
	for _, id := range ids {
		r := w.byID[id]
		if r.status == outbox.Pending && r.visible && (w.plain || !w.chance(100)) {
			r.status, r.token, r.claimed = outbox.Processing, token, time.Now()
			got = append(got, id)
		}
	}
	return got, true, nil
}

func (w *town) Load(_ context.Context, table outbox.Table, ids []string) ([]*outbox.Event, map[string]outbox.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	states := map[string]outbox.Status{}
	var events []*outbox.Event
	for _, id := range ids {
		if r := w.byID[id]; r.visible {
			states[id] = r.status
			events = append(events, &outbox.Event{Table: table, ID: id, AggregateID: r.key, Type: r.topic, Payload: []byte("{}")})
		}
	}
	return events, states, nil
}

// settled reports whether every row is SENT or FAILED.
func (w *town) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.rows, func(r *townRow) bool { return r.status != outbox.Sent && r.status != outbox.Failed })
}

// misfortune breaks a topic, a lane or nothing for a while.
func (w *town) misfortune(topics []string) {
	w.mu.Lock()
	name := topics[w.random.IntN(len(topics))]
	var err error = &outbox.SendError{Class: outbox.Configuration, Reason: "topic_missing"}
	var slow time.Duration
	if w.chance(2) {
		name = fmt.Sprintf("%s/%d", name, w.random.IntN(w.lanesOf(name)))
		if err = errAway; w.chance(4) {
			err, slow = nil, 300*time.Millisecond
		}
	}
	w.broken[name], w.slow[name] = err, slow
	w.mu.Unlock()
	time.Sleep(w.someTime(4 * time.Second))
	w.mu.Lock()
	w.broken[name], w.slow[name] = nil, 0
	w.mu.Unlock()
	time.Sleep(w.someTime(time.Second))
}

// audit compares what was stored with what was committed.
func (w *town) audit() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, committed := range w.commit {
		want := slices.DeleteFunc(slices.Clone(committed), func(id string) bool { return w.bad[id] })
		if got := w.stored[key]; !slices.Equal(got, want) {
			return fmt.Errorf("key %s:\nstored    %v\ncommitted %v", key, got, want)
		}
	}
	if w.saved != fmt.Sprint(w.seq) {
		return fmt.Errorf("position %s saved, want %d", w.saved, w.seq)
	}
	return nil
}

// sweeper is the real one over this town.
func (w *town) sweeper(e *Engine, batch int) *fallback.Sweeper {
	return fallback.New(fallback.Config{
		Rows: w, Engine: e, Tail: e, Tables: []outbox.Table{orders}, TokenPrefix: "me",
		PollInterval: 5 * time.Minute, Grace: time.Second, BatchSize: batch, Logger: e.log,
	})
}
