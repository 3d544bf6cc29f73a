package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func (e *Engine) stateOf(p *place) parkState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return p.state
}

// parkFailing parks a lane after a failed attempt if that is due; groups are the
// events of the tail that the lane has in hand. A lane that was about to reopen is
// parked again at once, and probed with the row that failed.
func (e *Engine) parkFailing(l *lane, failed outbox.Key, groups [][]*item, err error) bool {
	p := &l.place
	e.mu.Lock()
	if p.state != placeOpen {
		var left leftover
		e.unhold(p, &left)
		p.state, p.scan, p.head = placeParked, 0, failed
		e.mu.Unlock()
		e.finish(left, DeferredParked)
		return true
	}
	if len(groups) == 0 {
		e.eventsGone(p)
	}
	if len(groups) == 0 || !e.parkingDue(p, p.failing, outbox.ClassOf(err)) {
		e.mu.Unlock()
		return false
	}
	left := e.parkLane(l, outbox.ReasonOf(err), groups)
	e.mu.Unlock()
	e.nowParked(p, left, err)
	return true
}

// parkSlow parks a lane that takes so long for a batch that it holds the others up.
func (e *Engine) parkSlow(l *lane, groups [][]*item) bool {
	p := &l.place
	e.mu.Lock()
	if p.events == 0 || !e.parkingDue(p, l.began, outbox.Transient) {
		e.mu.Unlock()
		return false
	}
	left := e.parkLane(l, errSlow.Reason, groups)
	e.mu.Unlock()
	e.nowParked(p, left, errSlow)
	return true
}

var errSlow = &outbox.SendError{Class: outbox.Transient, Reason: "slow"}

// parkLane parks a lane with what it has in hand and in its queue.
func (e *Engine) parkLane(l *lane, reason string, groups [][]*item) leftover {
	var items []*item
	for _, g := range groups {
		items = append(items, g...)
	}
	items = append(items, l.queue.remove(func(*item) bool { return true })...)
	l.failure = ""
	return e.park(&l.place, reason, items)
}

// parkTopic parks a topic whose lanes are not known, if that is due.
func (e *Engine) parkTopic(t *topic, err error) {
	e.mu.Lock()
	if len(t.waiting) == 0 || !e.parkingDue(&t.place, t.failing, outbox.ClassOf(err)) {
		e.mu.Unlock()
		return
	}
	waiting := t.waiting
	t.waiting = nil
	left := e.park(&t.place, outbox.ReasonOf(err), waiting)
	e.mu.Unlock()
	e.nowParked(&t.place, left, err)
}

func (e *Engine) nowParked(p *place, left leftover, err error) {
	e.log.Warn().Err(err).Str("lane", p.name).Str("class", outbox.ClassOf(err).String()).Int("events", len(left.deferred)).
		Msg("parked: its events are left PENDING until it takes messages again; the others go on")
	e.finish(left, DeferredParked)
}

// unpark makes a place open and returns what was held there.
func (e *Engine) unpark(p *place) []*item {
	held := p.held
	p.held, p.state, p.scan = nil, placeOpen, 0
	delete(e.parked, p)
	for _, it := range held {
		e.heldEvents, e.heldBytes = e.heldEvents-1, e.heldBytes-it.admitted
	}
	return held
}

// probeUntilTaken sends the oldest row of a parked lane from time to time, until the
// broker takes it. It reports false if the lane ends.
func (e *Engine) probeUntilTaken(l *lane) bool {
	pause := newBackOff(500*time.Millisecond, 5*time.Second)
	for {
		if !e.rest(l.work, pause.NextBackOff()) || isClosed(e.drainStarted) {
			return false
		}
		if e.probe(l) {
			break
		}
	}
	e.mu.Lock()
	l.state, l.scan = placeDraining, 0
	e.mu.Unlock()
	e.hooks.Recovered(l.topic)
	return true
}

// probe makes one attempt. Without a row to try it with it reports true: then the pass
// that drains the lane is the probe.
//
// What must hold: the probe is the oldest row that the lane has left to the sweep.
// Otherwise it overtakes those of its key that are older.
func (e *Engine) probe(l *lane) bool {
	if e.cfg.MaySend != nil && !e.cfg.MaySend() {
		return false
	}
	if l.head == (outbox.Key{}) {
		return true
	}
	it := e.borrow(l.head)
	if it == nil {
		return false
	}
	events, states, err := e.cfg.Rows.Load(l.work, l.head.Table, []string{l.head.ID})
	if err != nil {
		e.returnProbe(it)
		return false
	}
	if len(events) == 0 || states[l.head.ID] != outbox.Pending {
		e.returnProbe(it)
		return true
	}
	it.event = events[0]
	if err := e.address(it); err != nil || it.msg.Topic != l.topic || e.laneIndex(it.msg) != l.index {
		e.returnProbe(it)
		return true
	}
	if err = e.send(l.work, l, []*item{it}); err == nil {
		return true
	}
	if errors.Is(err, errPaused) {
		e.returnProbe(it)
		return false
	}
	e.setFailing(&l.place, err, time.Time{}) // only the reason
	e.returnProbe(it)
	class := outbox.ClassOf(err)
	return class == outbox.Refused || class == outbox.Unknown // the drain finds out about this row
}

// returnProbe ends a probe that was not sent, at once: there is nothing to be written.
//
// What must hold: its row is not in flight any more when the lane drains. Otherwise the
// pass finds it so, and sends those of its key that are newer. Shown by
// TestProbeIsOverBeforeItsLaneDrains.
func (e *Engine) returnProbe(it *item) {
	e.mu.Lock()
	again := e.release(settlement{item: it, kind: outbox.OutcomeReleased})
	e.mu.Unlock()
	for _, follower := range again {
		e.dispatch(follower)
	}
}

// borrow registers a row as one of the sweep's; nil if it is in flight.
func (e *Engine) borrow(key outbox.Key) *item {
	e.mu.Lock()
	defer e.mu.Unlock()
	it, ok := e.inflight.reserve(key)
	if !ok {
		return nil
	}
	it.state = inLane
	e.count++
	return it
}

func (e *Engine) laneIndex(msg *outbox.Message) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.topics[msg.Topic]
	lanes := t.lanes
	if t.moving != nil {
		lanes = t.moving.lanes
	}
	return laneOf(msg.Key, len(lanes))
}

// HasParked reports whether there are lanes whose rows are passed over.
func (e *Engine) HasParked() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.parked) > 0
}

// BeginPass begins another pass of the sweep. What comes through Submit within one
// pass keeps the order of each key: once a lane has given a row of it back, it
// gives back those that follow. It reports whether lanes are to reopen with this pass:
// then it must take rows of any age, and end with Reopen if it came to the end of every
// table behind fences.
func (e *Engine) BeginPass(ctx context.Context) (reopening bool, err error) {
	if err := e.syncBlocked(ctx); err != nil {
		return false, err
	}
	var left leftover
	e.mu.Lock()
	e.unholdAll(&left) // the pass that held them did not come to its end
	pass := e.pass.Add(1)
	e.later, e.rounds = later{}, 0
	for p := range e.parked {
		if p.state == placeDraining {
			p.scan, reopening = pass, true
		}
	}
	e.mu.Unlock()
	e.finish(left, DeferredParked)
	if reopening && e.cfg.Source != nil { // what was deferred up to here is visible behind this write
		_, err = e.writeFence(ctx)
	}
	return reopening, err
}

// BeginRows begins a pass of rows that somebody asked for. No lane reopens with it: rows
// of those that are not open are given back.
func (e *Engine) BeginRows(ctx context.Context) error {
	err := e.syncBlocked(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pass.Add(1)
	return err
}

// PassOver tells that a row could not be taken that belongs to this pass: the rows of
// its lane that follow must not overtake it.
func (e *Engine) PassOver(ev *outbox.Event) {
	msg, err := e.cfg.Router.Route(ev)
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.blockOf(e.keyOf(ev)); p != nil {
		p.gaveBack.Store(e.pass.Load())
	}
	if err != nil {
		return // it has no successors in a lane
	}
	e.topicOf(msg.Topic).placeOf(msg.Key).gaveBack.Store(e.pass.Load())
}

// Reopen is called at the end of a pass that has reopening lanes, again and again while
// more is true. Each time it returns rows that were deferred meanwhile, in the order of
// the stream; the caller must try to send them, in this order, before the next call.
// Once these are few, the tail's events are held until that is done, and then the lanes
// are open.
func (e *Engine) Reopen(ctx context.Context) (rows []outbox.Key, more bool, err error) {
	if err := e.forget(ctx); err != nil {
		return nil, false, err
	}
	var left leftover
	e.mu.Lock()
	opened, keys, drained := e.reopenable(&left)
	rows = e.later.take(drained)
	e.rounds++
	for p := range drained {
		switch {
		case len(rows) <= holdRowsMax:
			p.state = placeHolding
		case e.rounds > reopenRounds:
			p.gaveBack.Store(e.pass.Load())
		}
	}
	more = len(drained) > 0 && (len(rows) <= holdRowsMax || e.rounds <= reopenRounds)
	e.mu.Unlock()
	e.finish(left, DeferredParked)
	if len(opened) > 0 {
		e.log.Info().Strs("lanes", opened).Msg("open again: what was left PENDING has been sent")
	}
	if keys > 0 {
		e.log.Info().Int("keys", keys).Msg("keys are open again: their dead letters are settled, and what waited for them has been sent")
	}
	if more && e.cfg.Source != nil { // what was deferred up to here is visible behind this write
		_, err = e.writeFence(ctx)
	}
	return rows, more, err
}

// reopenable opens the places whose last rows have been sent, and returns those that
// this pass has drained.
func (e *Engine) reopenable(left *leftover) (opened []string, keys int, drained map[*place]bool) {
	pass := e.pass.Load()
	drained = map[*place]bool{}
	if e.draining {
		return nil, 0, drained
	}
	for p := range e.parked {
		clean := p.scan == pass && p.gaveBack.Load() != pass && (p.block != nil || e.topics[p.topic].moving == nil)
		switch {
		case p.state == placeHolding && clean && p.block != nil:
			keys++
			e.openKey(p, left)
		case p.state == placeHolding && clean:
			opened = append(opened, p.name)
			p.lane.queue.push(e.unpark(p)...)
		case p.state == placeHolding:
			e.unhold(p, left)
		case p.state == placeDraining && clean:
			drained[p] = true
		}
	}
	slices.Sort(opened)
	return opened, keys, drained
}
