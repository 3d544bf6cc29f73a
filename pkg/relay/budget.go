package relay

import (
	"context"
	"sync"
	"time"
)

// budget bounds what is read but not settled, in events and in bytes. Something
// larger than the whole budget is admitted alone, or it could never pass.
//
// Once it was full, nothing is admitted until a quarter is free. Otherwise a relay that
// reads faster than it marks would go on by the small steps in which rows are marked,
// and its lanes, never with anything to do, would send small batches: 50 events instead of
// 200 were measured.
type budget struct {
	eventsMax, bytesMax int64

	mu      sync.Mutex
	events  int64
	bytes   int64
	free    chan struct{} // closed and replaced whenever something is released
	blocked time.Duration // how long acquirers have waited, all told
	waiting time.Time     // since when one waits now; zero: none does
}

func newBudget(eventsMax, bytesMax int64) *budget {
	return &budget{eventsMax: eventsMax, bytesMax: bytesMax, free: make(chan struct{})}
}

// acquire waits until the events fit, or until ctx ends. One goroutine acquires.
func (b *budget) acquire(ctx context.Context, events, bytes int64) error {
	defer b.stopWaiting()
	for {
		free, ok := b.try(events, bytes)
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-free:
		}
	}
}

func (b *budget) try(events, bytes int64) (<-chan struct{}, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fits := b.events+events <= b.eventsMax && b.bytes+bytes <= b.bytesMax
	if full := !b.waiting.IsZero(); full { // so far
		fits = fits && b.events <= threeQuarters(b.eventsMax) && b.bytes <= threeQuarters(b.bytesMax)
	}
	if !fits && b.events > 0 {
		if b.waiting.IsZero() {
			b.waiting = time.Now()
		}
		return b.free, false
	}
	b.events += events
	b.bytes += bytes
	return nil, true
}

func threeQuarters(n int64) int64 { return n - n/4 }

func (b *budget) stopWaiting() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.waiting.IsZero() {
		b.blocked += time.Since(b.waiting)
		b.waiting = time.Time{}
	}
}

// add counts bytes of an event that was admitted when its size was not known; they may
// go beyond the limit, and then nothing more is admitted until there is room again.
func (b *budget) add(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes += bytes
}

func (b *budget) release(events, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events -= events
	b.bytes -= bytes
	close(b.free)
	b.free = make(chan struct{})
}

// use returns what is in flight.
func (b *budget) use() (events, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events, b.bytes
}

// blockedFor returns for how long the reader has been held up by a full budget
// since the start; the fence's clock leaves that time out.
func (b *budget) blockedFor() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting.IsZero() {
		return b.blocked
	}
	return b.blocked + time.Since(b.waiting)
}
