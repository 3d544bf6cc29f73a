package relay

import (
	"context"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// waiter counts the settled rows of one page of the sweep. Guarded by Engine.mu.
type waiter struct {
	left   int
	result outbox.Tally
	done   chan struct{}
}

func (w *waiter) settled(s settlement) {
	switch {
	case s.kind == outbox.OutcomeFailed && s.write:
		w.result.Failed++
	case s.kind == outbox.OutcomeAttempt && s.write:
		w.result.Attempts++
	case s.kind == outbox.OutcomeSent && s.write:
		w.result.Sent++
	default:
		w.result.Released++
	}
	if w.left--; w.left == 0 {
		close(w.done)
	}
}

// Passable returns those of the events that may still go in this pass, and how many
// of the others belong to parked lanes: all others would be given back unsent, because
// their lane or topic is parked or has given a row back.
func (e *Engine) Passable(events []*outbox.Event) (passable []*outbox.Event, parked int) {
	pass := e.pass.Load()
	for _, ev := range events {
		msg, err := e.cfg.Router.Route(ev)
		if err != nil { // there is something to settle
			passable = append(passable, ev)
			continue
		}
		switch e.refusal(msg, pass) {
		case "":
			passable = append(passable, ev)
		case DeferredParked, DeferredBlocked:
			parked++
		}
	}
	return passable, parked
}

// refusal says why the place of a message takes no row in a pass; empty: it does.
func (e *Engine) refusal(msg *outbox.Message, pass uint64) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if refusal := e.blockRefusal(msg.Key, pass); refusal != "" {
		return refusal
	}
	t := e.topics[msg.Topic]
	if t == nil {
		return ""
	}
	return t.placeOf(msg.Key).refusal(t, pass)
}

// Away reports whether rows of this pass went back because no broker took them, for
// a reason that is not the topic's own.
func (e *Engine) Away() bool { return e.away.Load() == e.pass.Load() }

func (e *Engine) noteAway(it *item, err error) {
	if it.origin == outbox.FromSweep && outbox.ClassOf(err) == outbox.Transient {
		e.away.Store(it.pass)
	}
}

// Reserve registers rows for the sweep and returns the ids of those that were
// not in flight and were not deferred while this pass ran. Each reserved row must be
// given to Submit or Unreserve.
func (e *Engine) Reserve(table outbox.Table, ids []string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var free []string
	for _, id := range ids {
		key := outbox.Key{Table: table, ID: id}
		if _, deferred := e.later.has[key]; deferred {
			continue
		}
		if _, ok := e.inflight.reserve(key); ok {
			free = append(free, id)
		}
	}
	return free
}

// Unreserve gives reserved rows back that are not to be sent.
func (e *Engine) Unreserve(table outbox.Table, ids []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		key := outbox.Key{Table: table, ID: id}
		if it := e.inflight[key]; it != nil && it.state == reserved && it.origin == outbox.FromSweep {
			delete(e.inflight, key)
		}
	}
}

// Submit sends reserved rows through their lanes and waits until each is settled
// in the ledger. token is the claim under which the rows are held, empty where
// the table has no claims. During a failure of the broker rows come back as
// Released instead of waiting. It returns early, with what is known, when ctx or
// the engine ends.
func (e *Engine) Submit(ctx context.Context, events []*outbox.Event, token string) (outbox.Tally, error) {
	if len(events) == 0 {
		return outbox.Tally{}, nil
	}
	w := &waiter{left: len(events), done: make(chan struct{})}
	pass := e.pass.Load()
	items := make([]*item, len(events))
	e.mu.Lock()
	for i, ev := range events {
		items[i] = e.reservation(ev)
		items[i].event, items[i].attempts, items[i].pass = ev, ev.Attempts, pass
		items[i].token, items[i].wait = token, w
	}
	e.count += len(items)
	e.mu.Unlock()
	e.dispatch(items...)
	select {
	case <-w.done:
		return w.result, nil
	case <-ctx.Done():
		return e.partial(w), ctx.Err()
	case <-e.work.Done():
		return e.partial(w), context.Cause(e.work)
	}
}

// reservation returns the item that Reserve made for a row. Where the tail has
// taken the row over meanwhile, it is a fresh one that will be released.
func (e *Engine) reservation(ev *outbox.Event) *item {
	it := e.inflight[ev.Key()]
	if it == nil || it.origin != outbox.FromSweep || it.state != reserved {
		return &item{origin: outbox.FromSweep, state: reserved, taken: true}
	}
	return it
}

func (e *Engine) partial(w *waiter) outbox.Tally {
	e.mu.Lock()
	defer e.mu.Unlock()
	return w.result
}
