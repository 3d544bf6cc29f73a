package relay

import (
	"slices"
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

// enterLanes puts items at the end of their lanes, or sets them aside or gives them back
// where the lane is not open. The lanes are woken when all are in: woken by the first
// one, a lane that has nothing else to do would send a batch of one.
func (e *Engine) enterLanes(items ...*item) {
	var left leftover
	var woken []*lane
	var refused []settlement
	e.mu.Lock()
	for _, it := range items {
		l, refusal := e.enterLane(it, &left)
		if refusal != "" {
			refused = append(refused, settlement{item: it, reason: refusal})
		}
		if l != nil && !slices.Contains(woken, l) {
			woken = append(woken, l)
		}
	}
	e.mu.Unlock()
	for _, l := range woken {
		l.queue.signal()
	}
	for _, r := range refused {
		e.giveUp(r.item, r.reason)
	}
	e.finish(left, "")
}

// enterLane is enterLanes for one item, under the mutex. It returns the lane to be woken, or
// why the item is to be given back.
func (e *Engine) enterLane(it *item, left *leftover) (wake *lane, refusal string) {
	if e.blocks() {
		if entered, refusal := e.enterBlocked(it, left); entered {
			return nil, refusal
		}
	}
	t := e.topicOf(it.msg.Topic)
	p := t.placeOf(it.msg.Key)
	if it.origin == outbox.FromSweep {
		refusal = p.refusal(t, it.pass)
		if e.valve.isClosed() {
			refusal = paused
			p.gaveBack.Store(it.pass) // once it is open again, what follows in this pass must not overtake
		}
	}
	switch {
	case it.taken || e.stopped: // taken: the tail has this row now; the sweep's page goes on without it
		refusal = "taken_over"
		if p.state != placeOpen && it.origin == outbox.FromSweep {
			p.gaveBack.Store(it.pass) // the rows behind it must not overtake it
		}
	case refusal != "":
	case p.gaveUp && it.origin == outbox.FromBinlog:
		refusal = "draining"
	case it.origin == outbox.FromBinlog && p.state != placeOpen:
		e.setAside(p, it, left)
	default:
		wake = e.queueUp(t, p, it)
	}
	return wake, refusal
}

// queueUp puts an item into the queue of its place, under the mutex: two events of a
// key must not change places. It returns the lane that is to be woken then, if any.
func (e *Engine) queueUp(t *topic, p *place, it *item) (wake *lane) {
	it.state = inLane
	e.countIn(p, it)
	if p.lane != nil {
		p.lane.queue.add(it)
		return p.lane
	}
	t.waiting = append(t.waiting, it)
	if !t.resolving {
		t.resolving = true
		e.group.Go(func() error { e.resolve(t); return nil })
	}
	return nil
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
	t.gaveUp = t.gaveUp || draining && len(waiting) > 0
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
	if refused {
		e.dieAll(gone, failure(err))
		return over
	}
	for _, it := range gone {
		e.giveUp(it, outbox.ReasonOf(err))
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
		e.queueUp(t, t.placeOf(it.msg.Key), it) // the lane is yet to be started
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
