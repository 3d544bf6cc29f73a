package relay

import (
	"context"
	"sync"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// paused is why rows of the sweep go back during a pause.
const paused = "paused"

var errPaused = &outbox.SendError{Class: outbox.Transient, Reason: paused}

// valve is what every send goes through.
//
// What must hold: who finds it closed holds on to its batch and sends it next, and does
// not count as failing. Otherwise a pause reorders events, or parks lanes. Shown by
// TestPauseKeepsOrderAndLosesNothing.
type valve struct {
	mu      sync.Mutex
	closed  bool
	sending int           // sends under way
	changed chan struct{} // closed and replaced with every change that somebody may wait for
}

func newValve(closed bool) *valve { return &valve{closed: closed, changed: make(chan struct{})} }

// enter reports whether a send may begin; leave must follow it.
func (v *valve) enter() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.sending++
	}
	return !v.closed
}

func (v *valve) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sending--; v.sending == 0 {
		v.tell()
	}
}

func (v *valve) set(closed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = closed
	v.tell()
}

func (v *valve) tell() {
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *valve) state() (closed bool, sending int, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.closed, v.sending, v.changed
}

func (v *valve) isClosed() bool {
	closed, _, _ := v.state()
	return closed
}

// SetPaused has nothing more sent from now on, or ends that: what waits then goes, in its
// order. During a pause the tail's events wait in their lanes until the budget is full,
// and then in the binlog; rows of the sweep go back. Nothing is parked for it, and it
// counts no attempts. What is being sent may still arrive: see Quiet.
func (e *Engine) SetPaused(on bool) {
	// With the mutex a row of the sweep is either in its lane's queue before the valve is
	// closed, and given back by the lane, or refused (enterLane).
	e.mu.Lock()
	defer e.mu.Unlock()
	e.valve.set(on)
	if on {
		return
	}
	now := time.Now()
	for p := range e.fails { // the time of the pause is not theirs
		p.failing = now
	}
}

// Quiet returns when no send is under way, or when there is no pause; the error is that
// of a ctx that ends before.
func (e *Engine) Quiet(ctx context.Context) error {
	for {
		closed, sending, changed := e.valve.state()
		if sending == 0 || !closed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.work.Done():
			return nil
		}
	}
}

// waitForValve is what a lane does that found the valve closed: it gives rows of the sweep
// back, keeps what is the tail's, and waits. The beginning of a drain ends that, and then
// everything goes back.
func (e *Engine) waitForValve(ctx context.Context, l *lane, groups [][]*item) [][]*item {
	groups = e.keepWaiting(l, groups, errPaused)
	for len(groups) > 0 {
		closed, _, changed := e.valve.state()
		if !closed {
			break
		}
		select {
		case <-changed:
			continue
		case <-e.drainStarted:
		case <-ctx.Done():
		}
		break
	}
	return groups
}
