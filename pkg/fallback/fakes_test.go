package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

var (
	orders   = outbox.Table{Schema: "shop", Name: "outbox"}
	invoices = outbox.Table{Schema: "shop", Name: "invoices"}
)

// world is table, engine and tail at once, and a list of what was asked of them.
type world struct {
	mu       sync.Mutex
	rows     map[outbox.Table][]string // PENDING ids, oldest first
	status   map[string]outbox.Status  // of rows that are not PENDING any more
	claims   bool
	claimed  map[string]string // id -> token
	reserved map[string]bool
	inFlight map[string]bool // the tail has them
	gaveBack map[string]bool // topics that gave a row back in this pass
	away     bool
	parked   map[string]bool // topics that are parked
	reopens  bool            // BeginPass says so
	later    [][]outbox.Key  // what Reopen gives, call by call
	passed   []string        // ids given to PassOver
	locked   map[string]bool // rows that cannot be claimed
	graces   []time.Duration // given to Pages
	steps    []string
	sent     []string

	pagesErr  map[outbox.Table]error
	claimErr  error
	loadErr   error
	fenceErr  error
	transient map[string]bool // topics whose broker is away
	dead      map[string]bool // topics that do not exist
	onFence   func()
}

func newWorld() *world {
	return &world{
		rows: map[outbox.Table][]string{}, status: map[string]outbox.Status{}, claimed: map[string]string{},
		reserved: map[string]bool{}, inFlight: map[string]bool{}, pagesErr: map[outbox.Table]error{},
		transient: map[string]bool{}, dead: map[string]bool{},
	}
}

func (w *world) step(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf(format, args...))
}

// pending adds n rows of a topic; ids are topic-number.
func (w *world) pending(t outbox.Table, topic string, n int) {
	for range n {
		w.rows[t] = append(w.rows[t], fmt.Sprintf("%s-%d", topic, len(w.rows[t])))
	}
}

func topicOf(id string) string { topic, _, _ := strings.Cut(id, "-"); return topic }

func (w *world) Pages(t outbox.Table, grace time.Duration, limit int) func(context.Context) ([]string, error) {
	w.mu.Lock()
	w.graces = append(w.graces, grace)
	left := slices.Clone(w.rows[t])
	w.mu.Unlock()
	return func(ctx context.Context) ([]string, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.step("candidates")
		if err := errors.Join(ctx.Err(), w.pagesErr[t]); err != nil {
			return nil, err
		}
		n := min(limit, len(left))
		page := left[:n:n]
		left = left[n:]
		return page, nil
	}
}

// Claim gives what it got in reverse, as a server may.
func (w *world) Claim(_ context.Context, _ outbox.Table, ids []string, token string) ([]string, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claimErr != nil {
		return nil, false, w.claimErr
	}
	if !w.claims {
		return ids, false, nil
	}
	w.step("claim %d", len(ids))
	var got []string
	for _, id := range slices.Backward(ids) {
		if _, gone := w.status[id]; !gone && !w.locked[id] {
			w.claimed[id] = token
			got = append(got, id)
		}
	}
	return got, true, nil
}

func (w *world) Load(_ context.Context, t outbox.Table, ids []string) ([]*outbox.Event, map[string]outbox.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step("load %d", len(ids))
	if w.loadErr != nil {
		return nil, nil, w.loadErr
	}
	states := map[string]outbox.Status{}
	var events []*outbox.Event
	for _, id := range ids {
		st, changed := w.status[id]
		if !changed {
			st = outbox.Pending
			if w.claimed[id] != "" {
				st = outbox.Processing
			}
		}
		states[id] = st
		events = append(events, &outbox.Event{Table: t, ID: id, Topic: topicOf(id)})
	}
	return events, states, nil
}

func (w *world) BeginPass(context.Context) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gaveBack, w.away = map[string]bool{}, false
	return w.reopens, nil
}

func (w *world) BeginRows(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step("begin rows")
	w.gaveBack, w.away = map[string]bool{}, false
	return nil
}

func (w *world) Reopen(context.Context) ([]outbox.Key, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step("reopen")
	if len(w.later) == 0 {
		return nil, false, nil
	}
	rows := w.later[0]
	w.later = w.later[1:]
	return rows, true, nil
}

func (w *world) HasParked() bool { return len(w.parked) > 0 }

func (w *world) PassOver(ev *outbox.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed = append(w.passed, ev.ID)
}

func (w *world) Passable(events []*outbox.Event) (passable []*outbox.Event, parked int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range events {
		switch {
		case w.parked[ev.Topic]:
			parked++
		case !w.gaveBack[ev.Topic]:
			passable = append(passable, ev)
		}
	}
	return passable, parked
}

func (w *world) Away() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.away
}

func (w *world) Reserve(_ outbox.Table, ids []string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step("reserve")
	var free []string
	for _, id := range ids {
		if !w.inFlight[id] && !w.reserved[id] {
			w.reserved[id] = true
			free = append(free, id)
		}
	}
	return free
}

func (w *world) Unreserve(_ outbox.Table, ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		delete(w.reserved, id)
	}
}

func (w *world) Submit(_ context.Context, events []*outbox.Event, token string) (t outbox.Tally, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range events {
		if !w.reserved[ev.ID] {
			return t, fmt.Errorf("%s was not reserved", ev.ID)
		}
		if w.claimed[ev.ID] != token {
			return t, fmt.Errorf("%s submitted under %q, claimed under %q", ev.ID, token, w.claimed[ev.ID])
		}
		delete(w.reserved, ev.ID)
		delete(w.claimed, ev.ID)
		if topic := topicOf(ev.ID); w.transient[topic] || w.dead[topic] {
			w.gaveBack[topic], w.away = true, w.away || w.transient[topic]
			t.Released++
			continue
		}
		w.status[ev.ID] = outbox.Sent
		w.sent = append(w.sent, ev.ID)
		t.Sent++
	}
	w.step("sent %d", t.Sent)
	return t, nil
}

func (w *world) Fence(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step("fence")
	if w.onFence != nil {
		w.onFence()
	}
	return w.fenceErr
}

func (w *world) Verify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step("verify")
}

func (w *world) count(step string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.steps {
		if strings.HasPrefix(s, step) {
			n++
		}
	}
	return n
}

// balanced fails the test if a reservation or claim was kept.
func (w *world) balanced(t *testing.T) {
	t.Helper()
	if len(w.reserved) != 0 || len(w.claimed) != 0 {
		t.Errorf("left behind: reserved %v, claimed %v", w.reserved, w.claimed)
	}
}

func (w *world) sweeper(change func(*Config)) *Sweeper {
	cfg := Config{
		Rows: w, Engine: w, Tail: w, Tables: []outbox.Table{orders}, TokenPrefix: "me",
		PollInterval: 5 * time.Minute, Grace: 30 * time.Second, BatchSize: 3, Logger: zerolog.Nop(),
	}
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}
