package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// refreezings counts how changes of lanes ended.
type refreezings struct{ changed, notDrained, lostHeld atomic.Int64 }

// TestRefreezeKeepsOrderAndLosesNothing changes the number of lanes of topics again and
// again, while they, others and single lanes break and heal, and the sweep is at work. A
// queue that is to go may be gone before: then its lane can send nothing. At the end
// every row has been stored once, in the order of its key, whatever the lane.
func TestRefreezeKeepsOrderAndLosesNothing(t *testing.T) {
	var seen refreezings
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		parkAfter := rapid.SampledFrom([]time.Duration{0, 500 * time.Millisecond}).Draw(rt, "park after")
		var err error
		synctest.Test(t, func(t *testing.T) {
			_, _, err = simulate(t, seed, parkAfter, seen.refreeze)
		})
		if err != nil {
			rt.Fatalf("seed %d: %v", seed, err)
		}
	})
	if seen.changed.Load() < 100 || seen.notDrained.Load() < 20 || seen.lostHeld.Load() < 5 {
		t.Errorf("%d changes, %d of them with events in lost lanes, %d could not be: the test has not tested",
			seen.changed.Load(), seen.lostHeld.Load(), seen.notDrained.Load())
	}
}

// refreeze changes lanes until it has been done some times.
func (s *refreezings) refreeze(w *town, e *Engine) {
	for range 8 {
		time.Sleep(w.someTime(time.Second))
		w.mu.Lock()
		topic := []string{"a", "b", "c"}[w.random.IntN(3)]
		before, after := w.lanesOf(topic), 1+w.random.IntN(5)
		gone := w.chance(2)
		fate := w.random.IntN(6)
		var lost []int
		for i := after; i < before; i++ {
			lost = append(lost, i)
			if gone {
				w.broken[fmt.Sprintf("%s/%d", topic, i)] = &outbox.SendError{Class: outbox.Configuration, Reason: "queue_vanished"}
			}
		}
		w.mu.Unlock()
		if gone {
			time.Sleep(w.someTime(time.Second))
		}
		swapped := false
		err := e.Refreeze(context.Background(), Change{Topic: topic, Lost: lost, Within: 2 * time.Second, Swap: func(context.Context) (bool, error) {
			time.Sleep(w.someTime(100 * time.Millisecond))
			s.lookInto(e, topic, lost)
			w.mu.Lock()
			defer w.mu.Unlock()
			if fate == 0 {
				return false, errors.New("the store is away")
			}
			swapped = true
			w.counts[topic] = after
			if fate == 1 {
				return true, errors.New("the store did not answer")
			}
			return true, nil
		}})
		s.heal(w, topic, lost)
		switch {
		case errors.Is(err, ErrNotDrained):
			s.notDrained.Add(1)
		case swapped:
			s.changed.Add(1)
		}
	}
}

// lookInto notes whether lost lanes have events, at the moment of the change.
func (s *refreezings) lookInto(e *Engine, topic string, lost []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.ContainsFunc(lost, func(i int) bool {
		lanes := e.topics[topic].moving.lanes
		return i < len(lanes) && !lanes[i].queue.quiet()
	}) {
		s.lostHeld.Add(1)
	}
}

// heal has the lanes work again: if the list was changed, as lanes of the new one.
func (s *refreezings) heal(w *town, topic string, lanes []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range lanes {
		w.broken[fmt.Sprintf("%s/%d", topic, i)] = nil
	}
}

// swap returns a Swap that sets the number of lanes of the rig's sink.
func (r *rig) swap(lanes int) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) {
		r.sink.mu.Lock()
		defer r.sink.mu.Unlock()
		r.sink.lanes = lanes
		return true, nil
	}
}

func (r *rig) storedIn(lane string) []string {
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	return slices.Clone(r.sink.stored[lane])
}

// gate holds up the sends of one topic until it is opened; each of them is told.
type gate struct {
	entered chan string // topic/lane
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan string, 1000), make(chan struct{})} }

func (g *gate) answer(topic string, lane int, _ []string) error {
	g.entered <- fmt.Sprintf("%s/%d", topic, lane)
	<-g.open
	return nil
}

func TestRefreezeWaitsForTheOldLanesAndHoldsWhatComes(t *testing.T) {
	g := newGate()
	r := start(t, func(_ *Config, r *rig) { r.sink.lanes, r.sink.answer = 1, g.answer })
	r.src.push("1:a", "2:b")
	<-g.entered
	done := make(chan error, 1)
	go func() {
		done <- r.Refreeze(context.Background(), Change{Topic: "orders", Within: time.Minute, Swap: r.swap(64)})
	}()
	eventually(t, "the lanes are being drained", func() bool { return r.isMoving("orders") })
	r.src.push("3:a", "4:b")
	eventually(t, "what comes waits", func() bool { return r.waitingIn("orders") == 2 })
	if second := r.Refreeze(t.Context(), Change{Topic: "orders", Within: time.Minute, Swap: r.swap(2)}); !errors.Is(second, ErrRefreezing) {
		t.Errorf("a second one at once: %v", second)
	}
	close(g.open)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	eventually(t, "all stored", func() bool { return len(r.sink.all()) == 4 })
	if got := r.storedIn("orders/0"); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("in the old lane: %v", got)
	}
	for id, key := range map[string]string{"3": "a", "4": "b"} {
		if lane := fmt.Sprintf("orders/%d", LaneOf(key, 64)); !slices.Contains(r.storedIn(lane), id) {
			t.Errorf("event %s of key %s is not in %s", id, key, lane)
		}
	}
}

func (r *rig) isMoving(name string) bool {
	r.Engine.mu.Lock()
	defer r.Engine.mu.Unlock()
	return r.topicOf(name).moving != nil
}

func (r *rig) waitingIn(name string) int {
	r.Engine.mu.Lock()
	defer r.Engine.mu.Unlock()
	return len(r.topicOf(name).waiting)
}

// topicRouter sends each event to the topic that its type names.
type topicRouter struct{}

func (topicRouter) Route(e *outbox.Event) (*outbox.Message, error) {
	return &outbox.Message{Topic: e.Type, Key: e.AggregateID, Body: []byte(e.ID)}, nil
}

func TestRefreezeThatCannotDrainLeavesAllAsItWasAndOthersFlow(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	r := start(t, func(c *Config, r *rig) {
		c.Router = topicRouter{}
		r.sink.answer = func(topic string, _ int, _ []string) error {
			if topic == "stuck" && away.Load() {
				return errAway
			}
			return nil
		}
	})
	r.src.push("1:a:stuck")
	eventually(t, "its lane fails", func() bool { return len(r.Usage().Failing) == 1 })
	done := make(chan error, 1)
	swap := func(context.Context) (bool, error) { t.Error("swapped"); return true, nil }
	go func() {
		done <- r.Refreeze(context.Background(), Change{Topic: "stuck", Within: 500 * time.Millisecond, Swap: swap})
	}()
	eventually(t, "it has begun", func() bool { return r.isMoving("stuck") })
	r.src.push("2:a:stuck", "3:a:other")
	eventually(t, "the other topic flows", func() bool { return slices.Contains(r.storedAll("other"), "3") })
	err := <-done
	if !errors.Is(err, ErrNotDrained) || !strings.Contains(err.Error(), "stuck/") || !strings.Contains(err.Error(), "broker_unreachable") {
		t.Fatalf("%v", err)
	}
	away.Store(false)
	eventually(t, "all is sent where it was to be", func() bool {
		return slices.Equal(r.storedIn(fmt.Sprintf("stuck/%d", LaneOf("a", 4))), []string{"1", "2"})
	})
}

func (r *rig) storedAll(topic string) (ids []string) {
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	for lane, stored := range r.sink.stored {
		if strings.HasPrefix(lane, topic+"/") {
			ids = append(ids, stored...)
		}
	}
	return ids
}

// What waits must not use up the budget of the others for long.
func TestRefreezeGivesUpEarlyWhenItsEventsFillAQuarterOfTheBudget(t *testing.T) {
	g := newGate()
	r := start(t, func(c *Config, r *rig) {
		c.InflightMax, r.sink.answer = 40, g.answer
	})
	r.src.push("1:a")
	<-g.entered
	done := make(chan error, 1)
	go func() {
		done <- r.Refreeze(context.Background(), Change{Topic: "orders", Within: 5 * time.Second, Swap: r.swap(8)})
	}()
	eventually(t, "it has begun", func() bool { return r.isMoving("orders") })
	for i := range 10 {
		r.src.push(fmt.Sprintf("%d:a", i+2))
	}
	if err := <-done; !errors.Is(err, ErrNotDrained) || !strings.Contains(err.Error(), "within 500ms") {
		t.Errorf("%v", err)
	}
	close(g.open)
	eventually(t, "all stored", func() bool { return len(r.sink.all()) == 11 })
}

// A parked lane that stays would leave older rows in the table behind newer ones
// elsewhere; one whose queue is gone is what refreezing is for.
func TestRefreezeWithAParkedLane(t *testing.T) {
	vanished := &outbox.SendError{Class: outbox.Configuration, Reason: "queue_vanished"}
	key := keyOf(t, 3, 4)
	var gone atomic.Bool
	r := start(t, func(c *Config, r *rig) {
		c.ParkAfter = 10 * time.Millisecond
		r.sink.answer = func(_ string, lane int, _ []string) error {
			if lane == 3 && !gone.Load() {
				return vanished
			}
			return nil
		}
	})
	r.src.push("1:" + key)
	eventually(t, "lane 3 is parked", func() bool { return len(r.Usage().Parked) == 1 })
	err := r.Refreeze(t.Context(), Change{Topic: "orders", Within: time.Second, Swap: r.swap(8)})
	if !errors.Is(err, ErrNotDrained) || !strings.Contains(err.Error(), "orders/3 is parked (queue_vanished)") {
		t.Fatalf("its queue stays: %v", err)
	}
	gone.Store(true)
	if err := r.Refreeze(t.Context(), Change{Topic: "orders", Lost: []int{3}, Within: time.Second, Swap: r.swap(3)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new lanes wait for the sweep", func() bool {
		parked := r.Usage().Parked
		return len(parked) == 3 && parked[0].Reason == "queue_vanished"
	})
	r.src.push("2:" + key)
	r.ledger.mu.Lock()
	r.ledger.rows["1"], r.ledger.rows["2"] = outbox.Pending, outbox.Pending
	r.ledger.mu.Unlock()
	eventually(t, "2 is left to the sweep", func() bool { return r.saved.last() == "2" })
	if got := r.sink.all(); len(got) != 0 {
		t.Errorf("stored %v before the sweep", got)
	}
}

// keyOf finds a key of a lane.
func keyOf(t *testing.T, lane, lanes int) string {
	t.Helper()
	for i := range 1000 {
		if key := fmt.Sprint("k", i); LaneOf(key, lanes) == lane {
			return key
		}
	}
	t.Fatal("no key belongs to that lane")
	return ""
}

// Without a sweep that finds its rows, a lane whose queue is gone waits with them in
// hand, for ever: they go to the new lanes, before what has come since.
func TestRefreezeMovesWhatALostLaneHolds(t *testing.T) {
	vanished := &outbox.SendError{Class: outbox.Configuration, Reason: "queue_vanished"}
	key := keyOf(t, 3, 4)
	r := start(t, func(_ *Config, r *rig) {
		r.sink.answer = func(_ string, lane int, _ []string) error {
			if lane == 3 {
				return vanished
			}
			return nil
		}
	})
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i))
		r.src.push(fmt.Sprintf("%d:%s", i, key))
	}
	eventually(t, "lane 3 fails", func() bool { return len(r.Usage().Failing) == 1 })
	if err := r.Refreeze(t.Context(), Change{Topic: "orders", Lost: []int{3}, Within: time.Minute, Swap: r.swap(3)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all stored", func() bool { return len(r.sink.all()) == 20 })
	if got := r.storedIn(fmt.Sprintf("orders/%d", LaneOf(key, 3))); !slices.Equal(got, want) {
		t.Errorf("stored %v", got)
	}
	if use := r.Usage(); len(use.Failing) != 0 {
		t.Errorf("still failing: %v", use.Failing)
	}
}

// Rows of a key must not overtake those that went back in the same pass, also in one
// that began while the lanes changed.
func TestSweepsRowsGoBackForTheRestOfThePass(t *testing.T) {
	for _, during := range []bool{false, true} {
		r := start(t, nil)
		r.beginPass(t)
		swap := func(context.Context) (bool, error) {
			if during {
				r.beginPass(t)
			}
			r.expectPassable(t, "1:a", false)
			r.Reserve(orders, []string{"1"})
			tally, err := r.Submit(context.Background(), []*outbox.Event{event("1:a")}, "")
			if err != nil || tally.Released != 1 {
				t.Errorf("%+v, %v", tally, err)
			}
			return true, nil
		}
		if err := r.Refreeze(t.Context(), Change{Topic: "orders", Within: time.Second, Swap: swap}); err != nil {
			t.Fatal(err)
		}
		r.expectPassable(t, "2:a", false) // or it would overtake row 1
		r.beginPass(t)
		r.expectPassable(t, "2:a", true)
	}
}

func (r *rig) expectPassable(t *testing.T, row string, want bool) {
	t.Helper()
	if got, _ := r.Passable([]*outbox.Event{event(row)}); (len(got) == 1) != want {
		t.Errorf("row %s is passable: %t", row, !want)
	}
}

// A topic whose lanes are not known, because its list names a queue that is gone, is
// asked about again after the change.
func TestRefreezeOfATopicThatIsNotResolved(t *testing.T) {
	var mu sync.Mutex
	lanes := 0
	r := start(t, func(c *Config, r *rig) {
		c.Sink = lanesOf{r.sink, func() (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if lanes == 0 {
				return 0, &outbox.SendError{Class: outbox.Configuration, Reason: "queue_vanished"}
			}
			return lanes, nil
		}}
	})
	r.src.push("1:a")
	eventually(t, "it fails", func() bool { return r.Usage().Failing["orders"] == "queue_vanished" })
	if err := r.Refreeze(t.Context(), Change{Topic: "orders", Within: time.Second, Swap: func(context.Context) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		lanes = 7
		return true, nil
	}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "1 stored", func() bool {
		return slices.Equal(r.storedIn(fmt.Sprintf("orders/%d", LaneOf("a", 7))), []string{"1"})
	})
}

// lanesOf is a sink that counts lanes in its own way.
type lanesOf struct {
	*scriptedSink
	count func() (int, error)
}

func (s lanesOf) Lanes(context.Context, string) (int, error) { return s.count() }

// A relay that stops does not wait for a refreezing, and none begins.
func TestRefreezeEndsWithTheRelay(t *testing.T) {
	g := newGate()
	r := start(t, func(_ *Config, r *rig) { r.sink.answer = g.answer })
	r.src.push("1:a")
	<-g.entered
	done := make(chan error, 1)
	go func() {
		done <- r.Refreeze(context.Background(), Change{Topic: "orders", Within: time.Minute, Swap: r.swap(8)})
	}()
	eventually(t, "it has begun", func() bool { return r.isMoving("orders") })
	r.src.push("2:a")
	eventually(t, "2 waits", func() bool { return r.waitingIn("orders") == 1 })
	go func() { _ = r.stop() }()
	if err := <-done; !errors.Is(err, ErrNotDrained) {
		t.Errorf("%v", err)
	}
	close(g.open)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if got := r.storedIn(fmt.Sprintf("orders/%d", LaneOf("a", 4))); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("stored %v", got)
	}
	if err := r.Refreeze(context.Background(), Change{Topic: "orders", Within: time.Minute, Swap: r.swap(8)}); !errors.Is(err, ErrNotDrained) {
		t.Errorf("after the end: %v", err)
	}
}
