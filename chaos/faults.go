package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// fault is a step that knows what it acts on. While it lasts it holds its targets, so
// that no two faults of one server fight; faults of different ones overlap as they come.
type fault struct {
	kind    kind
	detail  string
	targets []*target
	begin   func(context.Context) error
	heal    func() error
}

// target is what one fault at a time may hold.
type target struct{ free chan struct{} }

func newTarget() *target {
	t := &target{free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// take returns false if ctx ends before.
func (t *target) take(ctx context.Context) bool {
	select {
	case <-t.free:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *target) give() { t.free <- struct{}{} }

// done is a heal with nothing to do.
func done() error { return nil }

// faultOf gives a step its servers; false if this machine cannot do it.
func (w *world) faultOf(s step) (fault, bool) {
	f := fault{kind: s.kind, heal: done}
	switch s.kind {
	case ferryKill, ferryFreeze, ferryRestart:
		w.onFerry(&f, s.which%instances)
	case brokerKill, brokerFreeze:
		w.onServer(&f, w.broker, w.brokerTarget, s.kind == brokerKill)
	case namesKill:
		w.onServer(&f, w.names, w.namesTarget, true)
	case dbKill, dbFreeze:
		w.onServer(&f, w.db, w.dbTarget, s.kind == dbKill)
	case wayCut, waySlow, waySwallow, wayDamage:
		return f, w.onWay(&f, s)
	case binlogPurge:
		w.purge(&f, s.hold)
	case diskFull:
		if w.disk == nil {
			return f, false
		}
		f.targets = []*target{w.brokerTarget}
		f.begin, f.heal = func(context.Context) error { return w.disk.fill() }, w.disk.clear
	case ddl:
		w.alter(&f, s)
	}
	return f, true
}

func (w *world) onFerry(f *fault, i int) {
	r := w.ferries[i]
	f.detail, f.targets = r.name, []*target{w.ferryTargets[i]}
	switch f.kind {
	case ferryKill:
		f.begin, f.heal = func(context.Context) error { return r.kill() }, r.start
	case ferryFreeze:
		f.begin, f.heal = func(context.Context) error { return r.freeze() }, r.thaw
	default:
		f.begin, f.heal = func(context.Context) error { return r.stop() }, r.start
	}
	begin := f.begin
	f.begin = func(ctx context.Context) error {
		if text := r.ended(); text != "" {
			return errors.New(text)
		}
		return begin(ctx)
	}
}

func (w *world) onServer(f *fault, s *server, t *target, kill bool) {
	f.targets = []*target{t}
	if kill {
		f.begin, f.heal = func(context.Context) error { return s.kill() }, s.start
	} else {
		f.begin, f.heal = func(context.Context) error { return s.freeze() }, s.thaw
	}
}

// onWay returns false where damage would not be noticed by anyone.
func (w *world) onWay(f *fault, s step) bool {
	i := s.which % len(w.ways)
	if s.kind == wayDamage {
		for w.ways[i].corrupt == "" {
			i = (i + 1) % len(w.ways)
		}
	}
	way := w.ways[i]
	f.detail, f.targets, f.heal = way.name, []*target{w.wayTargets[i]}, way.heal
	f.begin = func(context.Context) error {
		switch s.kind {
		case waySlow:
			way.slow(s.n)
		case waySwallow:
			way.swallow(s.n)
		case wayDamage:
			way.damage()
		default:
			return way.cut()
		}
		return nil
	}
	return true
}

// purge takes the binlog away from relays that have not read it: rows are committed while
// none runs, and their log is gone when they come back.
func (w *world) purge(f *fault, hold time.Duration) {
	f.targets = append([]*target{w.dbTarget}, w.ferryTargets...)
	f.begin = func(ctx context.Context) error {
		for _, r := range w.ferries {
			if err := r.kill(); err != nil {
				return err
			}
		}
		pause(ctx, min(hold, 3*time.Second))
		return w.purgeBinlogs()
	}
	f.heal = func() error {
		for _, r := range w.ferries {
			if err := r.start(); err != nil {
				return err
			}
		}
		return nil
	}
}

// storm does the faults of the plan while rows are committed, and heals every one.
func (w *world) storm(ctx context.Context) error {
	writing, stopWriting := context.WithCancelCause(ctx)
	defer stopWriting(nil)
	if w.o.duration > 0 {
		t := time.AfterFunc(w.o.duration, func() { stopWriting(errTimeUp) })
		defer t.Stop()
	}
	wait := w.startWriters(writing)
	w.writers.allow(w.o.rows / (w.o.faults + 1))
	w.writers.await(writing, w.o.rows/(w.o.faults+1))
	w.breathe(writing, w.o.patience)
	w.doFaults(writing)
	w.running.Wait()
	w.writers.allow(w.o.rows)
	err := wait()
	if errors.Is(context.Cause(writing), errTimeUp) {
		err = nil
	}
	return errors.Join(err, ctx.Err())
}

var errTimeUp = errors.New("the time is up")

// breathe waits, for a while, until a relay has caught up nearly: what is never read live
// is all left to the sweep, and the binlog path not tried.
func (w *world) breathe(ctx context.Context, patience time.Duration) {
	deadline := time.Now().Add(patience)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		if n := w.unsent(); n >= 0 && n <= w.o.rows/100 {
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
}

func (w *world) doFaults(ctx context.Context) {
	for i, s := range plan(w.o) {
		if i%5 == 0 && w.o.duration == 0 {
			w.breathe(ctx, 10*time.Second)
		}
		w.writers.allow(w.o.rows * (i + 1) / (w.o.faults + 1))
		w.writers.await(ctx, w.o.rows*i/(w.o.faults+1)*7/10)
		pause(ctx, s.gap)
		f, possible := w.faultOf(s)
		if !possible {
			w.log.note("not possible here: %v", s)
			continue
		}
		if !w.take(ctx, f) {
			return
		}
		w.running.Go(func() { w.do(ctx, f, s.hold) })
		if (i+1)%20 == 0 {
			w.log.say("%d of %d faults, %d rows, %d wait to be sent", i+1, w.o.faults, w.writers.committed.Load(), w.unsent())
		}
	}
}

func (w *world) take(ctx context.Context, f fault) bool {
	for i, t := range f.targets {
		if !t.take(ctx) {
			for _, held := range f.targets[:i] {
				held.give()
			}
			return false
		}
	}
	return ctx.Err() == nil
}

// do lets a fault last. What it cannot do or cannot heal is a violation: a relay that has
// ended, or one that does not end, shows so.
func (w *world) do(ctx context.Context, f fault, hold time.Duration) {
	defer func() {
		for _, t := range f.targets {
			t.give()
		}
	}()
	w.log.note("%s %s for %v", f.kind, f.detail, hold.Round(time.Millisecond))
	began := time.Now()
	if err := f.begin(ctx); err != nil {
		w.log.violation("%s %s: %v", f.kind, f.detail, err)
		return
	}
	w.log.count(string(f.kind))
	pause(ctx, hold)
	if err := f.heal(); err != nil {
		w.log.violation("after %s %s: %v", f.kind, f.detail, err)
		return
	}
	w.endured(f, time.Since(began))
	w.log.note("healed: %s %s after %v", f.kind, f.detail, time.Since(began).Round(time.Millisecond))
}

// endured adds to how many copies a run may end with.
func (w *world) endured(f fault, lasted time.Duration) {
	w.copiesMax.Add(inflightMax * int64(attempts(f.kind, f.detail, lasted)))
}

// attempts is how often all that is in flight may be sent once more because of a fault:
// once where a relay, its leadership or its marks are lost, and, where the broker leaves
// open whether it has stored a batch, once more for each timeout that fits into the fault.
func attempts(k kind, detail string, lasted time.Duration) int {
	switch {
	case k == ddl, k == namesKill, strings.HasPrefix(detail, "name-server"):
		return 0
	case k == brokerKill, k == brokerFreeze, k == diskFull, detail == brokerWay:
		return 2 + int(lasted/sendTimeout)
	case k == binlogPurge:
		return instances
	}
	return 1
}

// alter adds a column at some place in an outbox table, and drops it again.
func (w *world) alter(f *fault, s step) {
	t := w.tables[s.which%len(w.tables)]
	column := fmt.Sprintf("added_%d", s.n)
	place := []string{"FIRST", "AFTER id", ""}[s.n%3]
	f.detail, f.targets = t.name, []*target{w.dbTarget}
	f.begin = func(ctx context.Context) error {
		return w.insist(ctx, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s VARCHAR(20) NULL DEFAULT 'x' %s", t.name, column, place))
	}
	f.heal = func() error {
		return w.insist(context.Background(), fmt.Sprintf("ALTER TABLE %s DROP COLUMN %s", t.name, column))
	}
}
