package relay

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// lane is one queue of one topic.
//
// What must hold: one batch of a lane is in flight at a time, and a batch is
// repeated until it is settled before the next one goes. Otherwise a retried
// event arrives behind its successors. Shown by TestLaneKeepsOrderThroughFailures.
type lane struct {
	place
	index int
	queue *queue[*item]
	work  context.Context // ends with the engine's, or when the topic gets other lanes
	end   context.CancelFunc
	ended chan struct{} // closed when its goroutine has ended: what it has not sent is in the queue

	// For the lane's goroutine only:
	failure string    // reason of the newest failed attempt
	began   time.Time // when the newest attempt began
}

func newLane(topic string, index int) *lane {
	l := &lane{index: index, queue: newQueue[*item]()}
	l.place.topic, l.name, l.lane = topic, topic+"/"+strconv.Itoa(index), l
	return l
}

// startLane starts a lane, under the mutex.
func (e *Engine) startLane(l *lane) {
	l.work, l.end = context.WithCancel(e.work)
	l.ended = make(chan struct{})
	e.group.Go(func() error {
		defer close(l.ended)
		e.runLane(l)
		return nil
	})
}

// runLane sends what is in the lane until it is to end. There is no linger:
// while one batch is away the next one gathers, so an idle lane sends at once
// and a busy one sends large batches.
func (e *Engine) runLane(l *lane) {
	for l.work.Err() == nil {
		if e.stateOf(&l.place) == placeParked && !e.probeUntilTaken(l) {
			return
		}
		items, err := l.queue.takeSome(l.work, e.batchLen)
		if err != nil {
			return
		}
		e.pacer.wait(l.work, len(items))
		for _, group := range slices.Backward(e.deliver(l.work, l, items)) {
			l.queue.putBack(group)
		}
	}
}

// batchLen returns how many of the items fit into one batch: at least one.
func (e *Engine) batchLen(items []*item) int {
	bytes, most := 0, e.pacer.batchMax(e.cfg.SendBatchMax)
	for i, it := range items {
		bytes += it.msg.SizeBytes()
		if i > 0 && (i >= most || bytes > e.cfg.SendBatchBytesMax) {
			return i
		}
	}
	return len(items)
}

// deliver sends items, in order, until each is settled, the lane is parked or ctx
// ends; then it returns what is left. A batch that is taken apart is a list of groups.
func (e *Engine) deliver(ctx context.Context, l *lane, items []*item) (groups [][]*item) {
	groups = [][]*item{items}
	pause := newBackOff(50*time.Millisecond, 5*time.Second)
	for len(groups) > 0 && ctx.Err() == nil {
		head := e.dropStale(l, groups[0])
		if len(head) == 0 {
			groups = groups[1:]
			continue
		}
		err := e.trySend(ctx, l, head)
		if errors.Is(err, errPaused) {
			groups = e.waitForValve(ctx, l, append([][]*item{head}, groups[1:]...))
			continue
		}
		if err == nil {
			e.laneWorks(l)
			groups = groups[1:]
			if e.parkSlow(l, groups) {
				return nil
			}
			pause.Reset()
			continue
		}
		rest, wait := e.afterFailure(ctx, l, append([][]*item{head}, groups[1:]...), err)
		if groups = rest; wait && !e.rest(ctx, retryAfter(err, groups, pause.NextBackOff())) {
			break
		}
	}
	return groups
}

// afterFailure decides what becomes of the groups whose first one could not be sent.
// It returns what is left to be sent, and whether to wait before that.
func (e *Engine) afterFailure(ctx context.Context, l *lane, groups [][]*item, err error) (rest [][]*item, wait bool) {
	head := groups[0]
	if class := outbox.ClassOf(err); class == outbox.Refused || class == outbox.Unknown {
		if n := len(head); n > 1 {
			return append([][]*item{head[:n/2], head[n/2:]}, groups[1:]...), false
		}
		rest, settled, again := e.isolate(l, head[0], err, groups[1:])
		if settled {
			return rest, false
		}
		if again {
			e.rest(ctx, e.betweenAttempts())
			return groups, false
		}
	}
	first := head[0].event.Key()
	e.laneFails(l, err)
	groups = e.keepWaiting(l, groups, err)
	if e.parkFailing(l, first, groups, err) {
		return nil, false
	}
	return groups, len(groups) > 0
}

// retryAfter stretches a pause where that matters: after an attempt that leaves
// open whether the batch is stored, so that a copy still in the broker's queue lands
// before its successors (TestTheRetryWaitsForAnAttemptThatMayStillLand); after a mistake
// of configuration, which nobody mends in milliseconds; and between the counted attempts
// on one event.
func retryAfter(err error, groups [][]*item, pause time.Duration) time.Duration {
	const unknownSecondsMax = 30
	switch {
	case outbox.ClassOf(err) == outbox.Unknown && len(groups[0]) == 1:
		return time.Duration(min(backoffSeconds(groups[0][0].attempts), unknownSecondsMax)) * time.Second
	case outbox.ClassOf(err) == outbox.Configuration, slices.Contains([]string{"send_timeout", "connection_lost"}, outbox.ReasonOf(err)):
		return max(pause, time.Second)
	default:
		return pause
	}
}

// rest waits before a retry; the start of a drain cuts it short. It reports false
// if the engine has stopped.
func (e *Engine) rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-e.drainStarted: // every retry now is the last one
		return ctx.Err() == nil
	default:
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.drainStarted:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

var errNotLeading = &outbox.SendError{Class: outbox.Transient, Reason: "leadership_uncertain"}

// trySend makes one attempt, unless leadership is in doubt.
func (e *Engine) trySend(ctx context.Context, l *lane, items []*item) error {
	l.began = time.Now()
	if e.cfg.MaySend != nil && !e.cfg.MaySend() {
		return errNotLeading
	}
	return e.send(ctx, l, items)
}

// dropStale gives up claimed rows whose lease is about to end, since another
// poller may take them any moment, and rows of the sweep behind one that went
// back in the same pass.
//
// What must hold: of two rows of a key that one pass found, the second is not sent
// when the first went back. Otherwise a busy broker reorders a backlog. Shown by
// TestSweepKeepsOrderWhenRowsGoBack.
func (e *Engine) dropStale(l *lane, items []*item) []*item {
	// A send that begins must end, and its mark be made, within the lease.
	usable := min(e.cfg.Lease*3/4, e.cfg.Lease-e.cfg.SendTimeout)
	kept := items[:0]
	for _, it := range items {
		switch {
		case it.token != "" && time.Since(it.claimedAt) > usable:
			e.giveBack(l, it, "lease")
		case it.origin == outbox.FromSweep && l.gaveBack.Load() == it.pass:
			e.giveUp(it, "predecessor_released")
		default:
			kept = append(kept, it)
		}
	}
	return kept
}

// giveBack is giveUp for an item of a lane.
func (e *Engine) giveBack(l *lane, it *item, reason string) {
	if it.origin == outbox.FromSweep {
		l.gaveBack.Store(it.pass)
	}
	e.giveUp(it, reason)
}

// send makes one attempt and settles the items if it succeeds.
func (e *Engine) send(ctx context.Context, l *lane, items []*item) error {
	msgs := make([]*outbox.Message, len(items))
	for i, it := range items {
		msgs[i] = it.msg
	}
	if !e.valve.enter() {
		return errPaused
	}
	start := time.Now()
	err := e.cfg.Sink.Send(ctx, l.topic, l.index, msgs)
	e.valve.leave()
	if err != nil {
		return err
	}
	now := time.Now()
	e.acknowledged(start, now)
	e.hooks.Sent(l.topic, len(items), now.Sub(start))
	done := make([]settlement, len(items))
	for i, it := range items {
		var since time.Duration
		if !it.committed.IsZero() {
			since = max(0, now.Sub(it.committed))
		}
		e.hooks.Published(it.event.Table, l.topic, it.origin, since)
		// Most of what is in flight under load waits for its mark, for which the key
		// is enough.
		it.msg, it.event.Payload, it.event.Headers = nil, nil, nil
		done[i] = settlement{item: it, kind: outbox.OutcomeSent, write: true}
	}
	e.marks.push(done...)
	return nil
}

func (e *Engine) acknowledged(began, now time.Time) {
	e.mu.Lock()
	e.lastAck = now
	if began.After(e.lastBegan) {
		e.lastBegan = began
	}
	e.mu.Unlock()
}

func (e *Engine) laneFails(l *lane, err error) {
	l.failure = outbox.ReasonOf(err)
	e.setFailing(&l.place, err, l.began)
}

func (e *Engine) laneWorks(l *lane) {
	if l.failure != "" {
		l.failure = ""
		e.clearFailing(&l.place)
	}
}

// betweenAttempts is the pause between the attempts on a row that a reopening lane
// keeps: all of them fit into a quarter of the lease.
func (e *Engine) betweenAttempts() time.Duration {
	return min(time.Second, e.cfg.Lease/time.Duration(4*e.cfg.MaxAttempts))
}

// isolate handles an error that may be one message's own fault, for a message that
// stands alone. It reports whether that settled it, or else whether it is to be tried
// again in its place without any regard to the rest of the lane. behind are the groups
// that follow it, rest what remains of them.
//
// What must hold: in a lane that reopens, or where later events wait for a dead letter, a
// row of the sweep is not put off to a later attempt. Otherwise the rows of its key that
// follow overtake it.
func (e *Engine) isolate(l *lane, it *item, err error, behind [][]*item) (rest [][]*item, settled, again bool) {
	if outbox.ClassOf(err) == outbox.Refused {
		return e.die(l, it, failure(err), behind), true, false
	}
	it.attempts++
	reason := describe(err)
	swept := it.origin == outbox.FromSweep
	inPlace := swept && (e.blocks() || e.stateOf(&l.place) != placeOpen)
	switch {
	case it.attempts >= e.cfg.MaxAttempts:
		if !inPlace {
			// Where the table counts attempts the first outcome makes the row FAILED and
			// the second finds nothing to do; elsewhere the second one does it.
			e.recordOnly(it, outbox.OutcomeAttempt, reason)
		}
		dead := settlement{kind: outbox.OutcomeFailed, write: true, reason: reason, label: "attempts_used_up"}
		return e.die(l, it, dead, behind), true, false
	case inPlace: // not recorded one by one: that would end the claim
		return behind, false, !isClosed(e.drainStarted)
	case swept:
		e.settle(it, settlement{kind: outbox.OutcomeAttempt, write: true, reason: reason})
		return behind, true, false
	default:
		e.recordOnly(it, outbox.OutcomeAttempt, reason)
		return behind, false, false
	}
}

// keepWaiting returns the groups that stay in the lane through a failure. Rows of
// the sweep go back at once, those behind these groups too; during a drain
// everything does.
func (e *Engine) keepWaiting(l *lane, groups [][]*item, err error) [][]*item {
	reason := outbox.ReasonOf(err)
	e.mu.Lock()
	draining := e.draining
	l.gaveUp = l.gaveUp || draining // what is yet to come must not overtake what goes now
	e.mu.Unlock()
	goes := func(it *item) bool { return draining || it.origin == outbox.FromSweep }
	var left [][]*item
	for _, items := range groups {
		kept := items[:0]
		for _, it := range items {
			if goes(it) {
				e.noteAway(it, err)
				e.giveBack(l, it, reason)
			} else {
				kept = append(kept, it)
			}
		}
		if len(kept) > 0 {
			left = append(left, kept)
		}
	}
	for _, it := range l.queue.remove(goes) {
		e.giveBack(l, it, reason)
	}
	return left
}

// giveUp leaves a row PENDING without counting an attempt. The position stays
// before a tail item that is given up.
func (e *Engine) giveUp(it *item, reason string) {
	e.settle(it, settlement{kind: outbox.OutcomeReleased, write: it.token != "", reason: reason, abandoned: it.slot != nil})
}
