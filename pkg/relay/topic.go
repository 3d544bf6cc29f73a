package relay

import (
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// topic knows the lanes of a topic, once the sink has named their number; until
// then its events wait here, in order. Guarded by Engine.mu.
type topic struct {
	name      string
	lanes     []*lane
	waiting   []*item
	resolving bool
	gaveBack  uint64 // the pass of the sweep in which rows that waited here went back
}

// enterLane puts an item at the end of its lane.
func (e *Engine) enterLane(it *item) {
	e.mu.Lock()
	t := e.topics[it.msg.Topic]
	if t == nil {
		t = &topic{name: it.msg.Topic}
		e.topics[t.name] = t
	}
	if it.taken || e.stopped { // taken: the tail has this row now; the sweep's page goes on without it
		e.mu.Unlock()
		e.giveUp(it, "taken_over")
		return
	}
	if it.origin == outbox.FromSweep && t.gaveBack == it.pass {
		e.mu.Unlock()
		e.giveUp(it, "predecessor_released")
		return
	}
	it.state = inLane
	if t.lanes == nil {
		t.waiting = append(t.waiting, it)
		if !t.resolving {
			t.resolving = true
			e.group.Go(func() error { e.resolve(t); return nil })
		}
		e.mu.Unlock()
		return
	}
	l := t.lanes[laneOf(it.msg.Key, len(t.lanes))]
	l.queue.push(it) // under the mutex: two events of a key must not change places
	e.mu.Unlock()
}

// resolve asks the sink for the number of lanes until it knows, then lets the
// waiting events in. A topic that does not exist holds up its own events only.
func (e *Engine) resolve(t *topic) {
	pause := newBackOff(100*time.Millisecond, 5*time.Second)
	for {
		n, err := e.cfg.Sink.Lanes(e.work, t.name)
		if err == nil {
			e.clearFailing(t.name, t.name)
			e.openLanes(t, n)
			return
		}
		e.setFailing(t.name, err)
		if e.giveUpWaiting(t, err) || !e.rest(e.work, pause.NextBackOff()) {
			return
		}
	}
}

// giveUpWaiting settles the waiting events that need not wait on: all of them if
// the topic is refused for good, those of the sweep otherwise (their rows are
// PENDING; the next pass finds them), and all during a drain. It reports whether
// resolving is over.
func (e *Engine) giveUpWaiting(t *topic, err error) bool {
	e.mu.Lock()
	waiting, draining := t.waiting, e.draining
	t.waiting = nil
	refused := outbox.ClassOf(err) == outbox.Refused
	var gone []*item
	for _, it := range waiting {
		if refused || draining || it.origin == outbox.FromSweep {
			gone = append(gone, it)
			if it.origin == outbox.FromSweep && !refused {
				t.gaveBack = it.pass
				e.noteAway(it, err)
			}
		} else {
			t.waiting = append(t.waiting, it)
		}
	}
	over := len(t.waiting) == 0
	if over {
		t.resolving = false
	}
	e.mu.Unlock()
	for _, it := range gone {
		switch {
		case refused:
			e.settle(it, failure(err))
		default:
			e.giveUp(it, outbox.ReasonOf(err))
		}
	}
	return over
}

func (e *Engine) openLanes(t *topic, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t.lanes = make([]*lane, n)
	for i := range t.lanes {
		l := &lane{topic: t.name, index: i, queue: newQueue[*item]()}
		t.lanes[i] = l
		e.group.Go(func() error { e.runLane(l); return nil })
	}
	for _, it := range t.waiting {
		t.lanes[laneOf(it.msg.Key, n)].queue.push(it)
	}
	t.waiting, t.resolving = nil, false
}

// setFailing remembers and logs why a topic or lane cannot be sent to, once per
// change.
func (e *Engine) setFailing(name string, err error) {
	reason := outbox.ReasonOf(err)
	e.mu.Lock()
	changed := e.failing[name] != reason
	e.failing[name] = reason
	e.mu.Unlock()
	if changed {
		e.log.Warn().Err(err).Str("lane", name).Str("class", outbox.ClassOf(err).String()).
			Msg("cannot send; events wait")
	}
}

// clearFailing ends what setFailing began.
func (e *Engine) clearFailing(name, topic string) {
	e.mu.Lock()
	_, failed := e.failing[name]
	delete(e.failing, name)
	e.mu.Unlock()
	if failed {
		e.log.Info().Str("lane", name).Msg("sending works again")
		e.hooks.Recovered(topic)
	}
}
