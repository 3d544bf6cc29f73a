package relay

import (
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// topic knows the lanes of a topic, once the sink has named their number; until
// then its events wait here, in order. Guarded by Engine.mu.
type topic struct {
	place
	lanes     []*lane
	waiting   []*item
	resolving bool
	moving    *move // the lanes are being changed: events wait here meanwhile. See Refreeze
	moves     int   // how often they were
}

// topicOf returns what is known of a topic.
func (e *Engine) topicOf(name string) *topic {
	t := e.topics[name]
	if t == nil {
		t = &topic{}
		t.place.topic, t.name = name, name
		e.topics[name] = t
	}
	return t
}

// placeOf returns where the events of a key queue up.
func (t *topic) placeOf(key string) *place {
	if t.lanes == nil {
		return &t.place
	}
	return &t.lanes[laneOf(key, len(t.lanes))].place
}

// enterLane puts an item at the end of its lane, or sets it aside or gives it back if
// the lane is not open.
func (e *Engine) enterLane(it *item) {
	var left leftover
	refusal := ""
	e.mu.Lock()
	t := e.topicOf(it.msg.Topic)
	p := t.placeOf(it.msg.Key)
	if it.origin == outbox.FromSweep {
		refusal = p.refusal(t, it.pass)
	}
	switch {
	case it.taken || e.stopped: // taken: the tail has this row now; the sweep's page goes on without it
		refusal = "taken_over"
		if p.state != placeOpen && it.origin == outbox.FromSweep {
			p.gaveBack.Store(it.pass) // the rows behind it must not overtake it
		}
	case refusal != "":
	case it.origin == outbox.FromBinlog && p.state != placeOpen:
		e.setAside(p, it, &left)
	default:
		e.queueUp(t, p, it)
	}
	e.mu.Unlock()
	if refusal != "" {
		e.giveUp(it, refusal)
	}
	e.finish(left, "")
}

// queueUp puts an item into the queue of its place, under the mutex: two events of a
// key must not change places.
func (e *Engine) queueUp(t *topic, p *place, it *item) {
	it.state = inLane
	e.countIn(p, it)
	if p.lane != nil {
		p.lane.queue.push(it)
		return
	}
	t.waiting = append(t.waiting, it)
	if !t.resolving {
		t.resolving = true
		e.group.Go(func() error { e.resolve(t); return nil })
	}
}

// resolve asks the sink for the number of lanes until it knows, then lets the
// waiting events in. A topic that does not exist holds up its own events only.
func (e *Engine) resolve(t *topic) {
	pause := newBackOff(100*time.Millisecond, 5*time.Second)
	for {
		began, moves := time.Now(), e.movesOf(t)
		n, err := e.cfg.Sink.Lanes(e.work, t.name)
		if err == nil {
			e.clearFailing(&t.place)
			opened, parked := e.openLanes(t, n, moves)
			if parked {
				e.hooks.Recovered(t.name)
			}
			if opened || !e.rest(e.work, pause.NextBackOff()) {
				return
			}
			continue
		}
		e.setFailing(&t.place, err, began)
		if e.giveUpWaiting(t, err) {
			return
		}
		e.parkTopic(t, err)
		if !e.rest(e.work, pause.NextBackOff()) {
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
				t.gaveBack.Store(it.pass)
				e.noteAway(it, err)
			}
		} else {
			t.waiting = append(t.waiting, it)
		}
	}
	if refused {
		gone = append(gone, e.unpark(&t.place)...)
	}
	over := len(t.waiting) == 0 && (t.state == placeOpen || draining)
	if len(t.waiting) == 0 {
		e.eventsGone(&t.place)
	}
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

// openLanes makes the lanes of a topic, unless the queue list is being changed or was
// since it had been moved so often: then their number may be that of the old list. It
// reports whether the topic was parked; then its lanes are drained first.
func (e *Engine) openLanes(t *topic, n, moves int) (opened, parked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.moving != nil || t.moves != moves {
		return false, false
	}
	lanes := make([]*lane, n)
	for i := range lanes {
		lanes[i] = newLane(t.name, i)
	}
	parked = t.state != placeOpen
	if parked {
		for _, l := range lanes {
			l.state, l.reason, l.since = placeDraining, t.reason, t.since
			e.parked[&l.place] = struct{}{}
		}
	}
	t.lanes = lanes
	for _, it := range e.unpark(&t.place) {
		p := t.placeOf(it.msg.Key)
		e.setAside(p, it, &leftover{}) // it is held: it was held before
	}
	for _, it := range t.waiting {
		e.countOut(it)
		e.queueUp(t, t.placeOf(it.msg.Key), it)
	}
	t.waiting, t.resolving = nil, false
	for _, l := range lanes {
		e.startLane(l)
	}
	return true, parked
}

// setFailing remembers and logs why a topic or lane cannot be sent to, once per
// change; began is when the attempt did. Of a parked one all that has been said already.
func (e *Engine) setFailing(p *place, err error, began time.Time) {
	reason := outbox.ReasonOf(err)
	e.mu.Lock()
	if p.state != placeOpen {
		p.reason = reason
		e.mu.Unlock()
		return
	}
	changed := e.failing[p.name] != reason
	e.failing[p.name] = reason
	if p.failing.IsZero() {
		p.failing = began
	}
	e.fails[p] = struct{}{}
	e.mu.Unlock()
	if changed {
		e.log.Warn().Err(err).Str("lane", p.name).Str("class", outbox.ClassOf(err).String()).
			Msg("cannot send; events wait")
	}
}

// eventsGone notes that no event of the tail waits any more in a place that fails.
func (e *Engine) eventsGone(p *place) {
	p.failing = time.Time{}
	delete(e.fails, p)
}

// clearFailing ends what setFailing began.
func (e *Engine) clearFailing(p *place) {
	e.mu.Lock()
	_, failed := e.failing[p.name]
	e.recovered(p)
	e.mu.Unlock()
	if failed {
		e.log.Info().Str("lane", p.name).Msg("sending works again")
		e.hooks.Recovered(p.topic)
	}
}
