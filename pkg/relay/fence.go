package relay

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// fence tracks the numbers that are written to the checkpoint row and come back
// through the binlog: what was committed before a fence was written has been
// read when it returns.
type fence struct {
	write sync.Mutex // held while writing, so that the row's number only grows

	mu      sync.Mutex
	next    uint64
	seen    uint64               // newest that came back
	due     uint64               // look rows up until this one is back; 0: do not
	verify  int                  // counts the calls of Verify: the newest one's fence is due
	sentAt  map[uint64]time.Time // for the round trip
	changed chan struct{}        // closed and replaced when seen grows
	closed  bool
}

func (f *fence) init(last uint64) {
	f.next = last + 1
	f.sentAt = map[uint64]time.Time{}
	f.changed = make(chan struct{})
}

// outstanding reports whether rows must be looked up before they are sent.
func (f *fence) outstanding() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.due != 0
}

// returned notes that the stream has passed a fence.
func (f *fence) returned(n uint64, roundTrip func(time.Duration)) {
	f.mu.Lock()
	at, ours := f.sentAt[n]
	for old := range f.sentAt {
		if old <= n {
			delete(f.sentAt, old)
		}
	}
	if n >= f.due {
		f.due = 0
	}
	if n > f.seen {
		f.seen = n
		close(f.changed)
		f.changed = make(chan struct{})
	}
	f.mu.Unlock()
	if ours {
		roundTrip(time.Since(at))
	}
}

func (f *fence) await() (seen uint64, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen, f.changed
}

func (f *fence) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

// writeFence writes the next fence and returns its number.
func (e *Engine) writeFence(ctx context.Context) (uint64, error) {
	f := &e.fence
	f.write.Lock()
	defer f.write.Unlock()
	f.mu.Lock()
	n := f.next
	f.next++
	f.sentAt[n] = time.Now()
	f.mu.Unlock()
	if err := e.cfg.Fences.WriteFence(ctx, n); err != nil {
		f.mu.Lock()
		delete(f.sentAt, n)
		f.mu.Unlock()
		return 0, fmt.Errorf("writing a fence: %w", err)
	}
	return n, nil
}

// Verify has every row looked up before it is sent until a fence written now has
// come back. It is called at the start of each connection of the source, before
// its first event, and by a sweep that takes rows without waiting for a fence: what
// comes up to the fence may have been sent by somebody else. It returns at once.
func (e *Engine) Verify() {
	if e.cfg.Ledger == nil || e.cfg.Source == nil {
		return
	}
	f := &e.fence
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.due = math.MaxUint64 // until the fence has its number
	f.verify++
	call := f.verify
	e.group.Go(func() error {
		var n uint64
		err := e.insist(e.work, "writing a fence", func() (err error) {
			n, err = e.writeFence(e.work)
			return err
		})
		if err != nil {
			return nil // stopping, or fenced: then the marker says so
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.verify == call {
			f.due = n
			if f.seen >= n { // it came back before we got here
				f.due = 0
			}
		}
		return nil
	})
}

// disconnected reports whether the source has had no stream for Grace. With a Grace
// of 0 a stream that is there still counts as one.
func (e *Engine) disconnected() bool {
	if e.cfg.Disconnected == nil {
		return false
	}
	without := e.cfg.Disconnected()
	return without > 0 && without >= e.cfg.Grace
}

// Fence writes a fence and returns when the tail has read it: then everything
// committed before the call has been seen by the tail. [outbox.ErrTailDown] when the
// source has had no stream for Grace, or the fence is not back within
// SourceLagMax; the time during which a full budget holds the reader up does not
// count. Without a source it returns outbox.ErrTailDown at once.
func (e *Engine) Fence(ctx context.Context) error {
	if e.cfg.Source == nil {
		return outbox.ErrTailDown
	}
	n, err := e.writeFence(ctx)
	if err != nil {
		return err
	}
	start, blocked := time.Now(), e.budget.blockedFor()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		seen, changed := e.fence.await()
		if seen >= n {
			return nil
		}
		if e.disconnected() {
			return fmt.Errorf("%w: no stream for %s", outbox.ErrTailDown, e.cfg.Grace)
		}
		if time.Since(start)-(e.budget.blockedFor()-blocked) > e.cfg.SourceLagMax {
			return fmt.Errorf("%w: a fence is not back after %s", outbox.ErrTailDown, e.cfg.SourceLagMax)
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.work.Done():
			return context.Cause(e.work)
		}
	}
}
