package relay

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// lane is one queue of one topic.
//
// What must hold: one batch of a lane is in flight at a time, and a batch is
// repeated until it is settled before the next one goes. Otherwise a retried
// event arrives behind its successors. Shown by TestLaneKeepsOrderThroughFailures.
type lane struct {
	topic string
	index int
	queue *queue[*item]

	failure  string        // reason of the newest failed attempt; for the lane's goroutine only
	gaveBack atomic.Uint64 // the pass of the sweep in which a row went back last; written by the lane's goroutine
}

func (l *lane) String() string { return l.topic + "/" + strconv.Itoa(l.index) }

// runLane sends what is in the lane until the engine stops. There is no linger:
// while one batch is away the next one gathers, so an idle lane sends at once
// and a busy one sends large batches.
func (e *Engine) runLane(l *lane) {
	for {
		items, err := l.queue.takeSome(e.work, e.batchLen)
		if err != nil {
			return
		}
		e.deliver(e.work, l, items)
	}
}

// batchLen returns how many of the items fit into one batch: at least one.
func (e *Engine) batchLen(items []*item) int {
	bytes := 0
	for i, it := range items {
		bytes += it.msg.SizeBytes()
		if i > 0 && (i >= e.cfg.SendBatchMax || bytes > e.cfg.SendBatchBytesMax) {
			return i
		}
	}
	return len(items)
}

// deliver sends items, in order, until each is settled or the engine stops.
func (e *Engine) deliver(ctx context.Context, l *lane, items []*item) {
	pause := newBackOff(50*time.Millisecond, 5*time.Second)
	for len(items) > 0 && ctx.Err() == nil {
		if items = e.dropStale(l, items); len(items) == 0 {
			return
		}
		err := e.trySend(ctx, l, items)
		if err == nil {
			e.laneWorks(l)
			return
		}
		if class := outbox.ClassOf(err); class == outbox.Refused || class == outbox.Unknown {
			if items = e.isolate(ctx, l, items, err); len(items) == 0 {
				return
			}
		}
		e.laneFails(l, err)
		items = e.keepWaiting(l, items, err)
		if !e.rest(ctx, retryAfter(err, items, pause.NextBackOff())) {
			return
		}
	}
}

// retryAfter stretches a pause where that matters: after an answer that leaves
// open whether the batch is stored, because a copy still in the broker's queue
// must not overtake its successors; after a mistake of configuration, which
// nobody mends in milliseconds; and between the counted attempts on one event.
func retryAfter(err error, items []*item, pause time.Duration) time.Duration {
	const unknownSecondsMax = 30
	switch {
	case outbox.ClassOf(err) == outbox.Unknown && len(items) == 1:
		return time.Duration(min(backoffSeconds(items[0].attempts), unknownSecondsMax)) * time.Second
	case outbox.ClassOf(err) == outbox.Configuration, outbox.ReasonOf(err) == "send_timeout":
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
	start := time.Now()
	if err := e.cfg.Sink.Send(ctx, l.topic, l.index, msgs); err != nil {
		return err
	}
	now := time.Now()
	e.acknowledged(now)
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

func (e *Engine) acknowledged(now time.Time) {
	e.mu.Lock()
	e.lastAck = now
	e.mu.Unlock()
}

func (e *Engine) laneFails(l *lane, err error) {
	l.failure = outbox.ReasonOf(err)
	e.setFailing(l.String(), err)
}

func (e *Engine) laneWorks(l *lane) {
	if l.failure != "" {
		l.failure = ""
		e.clearFailing(l.String(), l.topic)
	}
}

// isolate handles an error that may be one message's own fault: it halves the
// batch until the message stands alone, and settles that one. It returns what is
// to be tried again.
func (e *Engine) isolate(ctx context.Context, l *lane, items []*item, err error) []*item {
	if n := len(items); n > 1 {
		e.deliver(ctx, l, items[:n/2])
		e.deliver(ctx, l, items[n/2:])
		return nil
	}
	it := items[0]
	if outbox.ClassOf(err) == outbox.Refused {
		e.settle(it, failure(err))
		return nil
	}
	it.attempts++
	reason := describe(err)
	switch {
	case it.attempts >= e.cfg.MaxAttempts:
		// Where the table counts attempts the first outcome makes the row FAILED and
		// the second finds nothing to do; elsewhere the second one does it.
		e.recordOnly(it, outbox.OutcomeAttempt, reason)
		e.settle(it, settlement{kind: outbox.OutcomeFailed, write: true, reason: reason, label: "attempts_used_up"})
		return nil
	case it.origin == outbox.FromSweep:
		e.settle(it, settlement{kind: outbox.OutcomeAttempt, write: true, reason: reason})
		return nil
	default:
		e.recordOnly(it, outbox.OutcomeAttempt, reason)
		return items
	}
}

// keepWaiting returns the items that stay in the lane through a failure. Rows of
// the sweep go back at once, those behind these items too; during a drain
// everything does.
func (e *Engine) keepWaiting(l *lane, items []*item, err error) []*item {
	reason := outbox.ReasonOf(err)
	e.mu.Lock()
	draining := e.draining
	e.mu.Unlock()
	goes := func(it *item) bool { return draining || it.origin == outbox.FromSweep }
	kept := items[:0]
	for _, it := range items {
		if goes(it) {
			e.noteAway(it, err)
			e.giveBack(l, it, reason)
		} else {
			kept = append(kept, it)
		}
	}
	for _, it := range l.queue.remove(goes) {
		e.giveBack(l, it, reason)
	}
	return kept
}

// giveUp leaves a row PENDING without counting an attempt. The position stays
// before a tail item that is given up.
func (e *Engine) giveUp(it *item, reason string) {
	e.settle(it, settlement{kind: outbox.OutcomeReleased, write: it.token != "", reason: reason, abandoned: it.slot != nil})
}
