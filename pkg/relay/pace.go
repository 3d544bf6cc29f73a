package relay

import (
	"context"
	"sync/atomic"
	"time"
)

// pacer spaces what the lanes send, so that no more than a number of events go in a
// second, whichever path they come by. What was let through is paid for by waiting
// before what comes next, so nothing is saved up while nobody sends.
//
// What must hold: who waits here holds on to its batch and sends it next, and does not
// count as failing. Otherwise a limit reorders events, or parks the lanes that it slows
// down. Shown by TestRateLimitKeepsOrderAndLosesNothing and TestRateLimitParksNothing.
type pacer struct {
	most int             // events a second; 0: no limit
	slow atomic.Int64    // the same, in a catch-up that is slowed down
	lift <-chan struct{} // closed when the limits end: at the beginning of a drain
	turn chan struct{}   // full while a lane waits; the others wait behind it, in order
	next time.Time       // when what went is paid for; for whoever has the turn
}

func newPacer(most int, lift <-chan struct{}) *pacer {
	return &pacer{most: most, lift: lift, turn: make(chan struct{}, 1)}
}

// rate is how many events a second may go; 0: any number.
func (p *pacer) rate() int {
	slow := int(p.slow.Load())
	if p.most > 0 && slow > 0 {
		return min(p.most, slow)
	}
	return max(p.most, slow)
}

// batchMax is how many events of at most most may go at once: with a limit, what it
// allows in a tenth of a second, so that it holds within each second too.
func (p *pacer) batchMax(most int) int {
	rate := p.rate()
	if rate == 0 || isClosed(p.lift) {
		return most
	}
	return min(most, max(1, rate/10))
}

// wait returns when n more events may go, or there is no limit any more, or ctx ends.
func (p *pacer) wait(ctx context.Context, n int) {
	if p.rate() == 0 {
		return
	}
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-p.turn }()
	if now := time.Now(); p.next.Before(now) {
		p.next = now
	}
	if rate := p.rate(); waitUntil(ctx, p.next, p.lift) && rate > 0 {
		p.next = p.next.Add(time.Duration(n) * time.Second / time.Duration(rate))
	}
}

// waitUntil reports false if it was cut short.
func waitUntil(ctx context.Context, at time.Time, lift <-chan struct{}) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-lift:
	case <-ctx.Done():
	}
	return false
}
