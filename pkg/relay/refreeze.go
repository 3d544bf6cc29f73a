package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// refreezing is why rows of the sweep go back while the lanes of their topic change.
const refreezing = "refreezing"

// swapMax is how long the list of a topic may take to be replaced. Its events wait.
const swapMax = 15 * time.Second

// quietEvery is how often lanes that are being drained are looked at.
const quietEvery = 5 * time.Millisecond

var (
	// ErrNotDrained says that a topic kept its lanes, because they could not be drained.
	ErrNotDrained = errors.New("nothing was changed")
	// ErrRefreezing says that the lanes of this topic are being changed already.
	ErrRefreezing = errors.New("this topic is being refrozen already")
)

// Change is another list of lanes for a topic.
type Change struct {
	Topic string
	// Lost are the lanes whose queue is not in the new list. They cannot be waited for:
	// what they have not sent goes to the new lanes.
	Lost []int
	// Within is how long the other lanes may take to send what they hold; a tenth of it
	// once what comes in meanwhile fills a quarter of the budget.
	Within time.Duration
	// Swap replaces the list that the sink goes by. It is called once the lanes are
	// drained. changed must be true unless the old list surely still holds.
	Swap func(context.Context) (changed bool, err error)
}

// move is a Change in progress.
type move struct {
	topic    *topic
	lanes    []*lane // those of the old list; none: they were not known
	lost     []int
	within   time.Duration
	began    time.Time
	resolves bool // nobody else asks the sink for the number of lanes
}

// Refreeze gives a topic other lanes while events flow. It returns when the list is
// replaced; the new lanes open when there is something to be sent. When it fails with [ErrNotDrained] or
// [ErrRefreezing], the topic has the lanes that it had. After another error, of Swap,
// the lanes are those of whatever list the sink reports.
//
// What must hold: no event of a key is sent to its new queue before all earlier ones of
// that key that were sent at all are acknowledged on the old. So, from the first step to
// the last, events of the tail wait in the topic, in order, and rows of the sweep go
// back; the lanes send what they hold and end; only then does the list change. What a
// lost lane has not sent goes before what has waited. Where a lost lane is parked, its
// rows are in the table, so the new lanes begin as those of a topic that was parked: the
// sweep sends the rows first. Shown by TestRefreezeKeepsOrderAndLosesNothing.
func (e *Engine) Refreeze(ctx context.Context, c Change) error {
	m, err := e.beginMove(c)
	if err != nil {
		return err
	}
	e.log.Info().Str("topic", c.Topic).Msg("refreezing: the lanes are being drained")
	if err := e.awaitQuiet(ctx, m); err != nil {
		e.resume(m, false)
		return err
	}
	e.endLanes(m)
	swapping, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), swapMax, errors.New("the queue list took too long to be replaced"))
	defer cancel()
	changed, err := c.Swap(swapping)
	if !changed {
		e.resume(m, true)
		return err
	}
	e.unresolve(m)
	return err
}

// beginMove has the events of a topic wait from now on.
func (e *Engine) beginMove(c Change) (*move, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.topicOf(c.Topic)
	m := &move{topic: t, lanes: t.lanes, lost: c.Lost, within: c.Within, began: time.Now(), resolves: !t.resolving}
	switch {
	case e.draining || e.stopped:
		return nil, fmt.Errorf("the relay is stopping: %w", ErrNotDrained)
	case t.moving != nil:
		return nil, ErrRefreezing
	case e.valve.isClosed():
		return nil, fmt.Errorf("publishing is paused: %w", ErrNotDrained)
	}
	if err := m.parkedLane(); err != nil {
		return nil, err
	}
	t.moving, t.lanes, t.resolving = m, nil, true // resolving: for queueUp
	t.gaveBack.Store(e.pass.Load())               // rows that go back now must not be overtaken in this pass
	return m, nil
}

// parkedLane returns an error if a lane that stays is parked: what it has left in the
// table has partly been tried on its queue, and belongs there first.
func (m *move) parkedLane() error {
	for i, l := range m.lanes {
		if l.state != placeOpen && !slices.Contains(m.lost, i) {
			return fmt.Errorf("lane %s is parked (%s), or the sweep is still catching up with it: mend the reason and wait until nothing of this topic is parked: %w",
				l.name, l.reason, ErrNotDrained)
		}
	}
	return nil
}

// awaitQuiet waits until the lanes that stay have sent all they hold.
func (e *Engine) awaitQuiet(ctx context.Context, m *move) error {
	tick := time.NewTicker(quietEvery)
	defer tick.Stop()
	for {
		if quiet, err := e.quiet(m); quiet || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), ErrNotDrained)
		case <-e.drainStarted:
			return fmt.Errorf("the relay is stopping: %w", ErrNotDrained)
		}
	}
}

// quiet reports whether the lanes that stay are drained; an error: they will not be in time.
func (e *Engine) quiet(m *move) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := m.parkedLane(); err != nil {
		return false, err
	}
	i := slices.IndexFunc(m.lanes, func(l *lane) bool {
		return !slices.Contains(m.lost, l.index) && !l.queue.quiet()
	})
	if i < 0 {
		return true, nil
	}
	limit := m.within
	if e.isQuarter(m.topic.events, m.topic.bytes) {
		limit /= 10 // the others need the budget
	}
	if time.Since(m.began) < limit {
		return false, nil
	}
	why := "it is slow"
	if reason := e.failing[m.lanes[i].name]; reason != "" {
		why = reason
	}
	return false, fmt.Errorf("lane %s could not be drained within %s (%s): %w", m.lanes[i].name, limit, why, ErrNotDrained)
}

// endLanes ends the goroutines of the old lanes. It takes no longer than the send that
// one of a lost lane may have begun.
func (e *Engine) endLanes(m *move) {
	for _, l := range m.lanes {
		l.end()
	}
	for _, l := range m.lanes {
		<-l.ended
	}
}

// resume gives the topic its old lanes back, and what has waited to them.
func (e *Engine) resume(m *move, ended bool) {
	var left leftover
	e.mu.Lock()
	t := m.topic
	waiting := t.waiting
	t.moving, t.lanes, t.waiting = nil, m.lanes, nil
	for _, l := range m.lanes { // rows of lanes that a pass drains went back, too: the next one begins anew
		l.gaveBack.Store(e.pass.Load())
	}
	if ended && !e.stopped {
		for _, l := range m.lanes {
			e.startLane(l)
		}
	}
	e.moved(m, waiting, &left)
	e.mu.Unlock()
	e.finish(left, refreezing)
	e.hooks.Recovered(t.name)
}

// unresolve makes the topic one whose lanes are not known, with all events in it that
// the old lanes have not sent.
func (e *Engine) unresolve(m *move) {
	var left leftover
	e.mu.Lock()
	t := m.topic
	items, parked := e.empty(m)
	items = append(items, t.waiting...)
	t.moving, t.waiting = nil, nil
	t.moves++
	if parked != nil && t.state == placeOpen {
		left = e.park(&t.place, parked.reason, nil)
		t.since = parked.since
	}
	e.moved(m, items, &left)
	e.mu.Unlock()
	e.finish(left, refreezing)
	e.hooks.Recovered(t.name) // rows of the sweep went back meanwhile
}

// moved lets items into the lanes of a topic, or has them wait for its lanes; rows of
// the sweep go back. Under the mutex.
func (e *Engine) moved(m *move, items []*item, left *leftover) {
	t := m.topic
	t.gaveBack.Store(e.pass.Load())
	if m.resolves {
		t.resolving = e.stopped // then none may be started
	}
	for _, it := range items {
		p := t.placeOf(it.msg.Key)
		switch {
		case it.origin == outbox.FromSweep:
			left.back = append(left.back, it)
		case p.state != placeOpen:
			e.setAside(p, it, left)
		default:
			e.countOut(it)
			if l := e.queueUp(t, p, it); l != nil {
				l.queue.signal()
			}
		}
	}
	if t.lanes == nil && t.state != placeOpen && !t.resolving { // the sweep waits for the lanes
		t.resolving = true
		e.group.Go(func() error { e.resolve(t); return nil })
	}
}

// empty takes everything out of the old lanes, each in its order, and returns a parked
// one if there is any.
func (e *Engine) empty(m *move) (items []*item, parked *lane) {
	for _, l := range m.lanes {
		e.recovered(&l.place)
		if l.state != placeOpen {
			parked = l
			items = append(items, e.unpark(&l.place)...)
		}
		items = append(items, l.queue.remove(func(*item) bool { return true })...)
	}
	return items, parked
}

func (e *Engine) movesOf(t *topic) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return t.moves
}

// LaneOf returns the lane, of n, to which a key belongs.
func LaneOf(key string, n int) int { return laneOf(key, n) }
