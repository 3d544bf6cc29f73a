package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// yard is a rig of two lanes of which a test breaks one.
type yard struct {
	*rig
	t          *testing.T
	bad, good  string // a key of each lane
	mu         sync.Mutex
	err        error         // what the lane of bad answers
	takes      time.Duration // for a send on it
	deferred   []string
	recoveries int
}

var errMissing = &outbox.SendError{Class: outbox.Configuration, Reason: "topic_missing"}

func newYard(t *testing.T, err error, change func(*Config)) *yard {
	y := &yard{t: t, err: err, bad: "a", good: "b"}
	for laneOf(y.good, 2) == laneOf(y.bad, 2) {
		y.good += "b"
	}
	y.rig = start(t, func(c *Config, r *rig) {
		r.sink.lanes = 2
		r.sink.answer = func(_ string, lane int, _ []string) error {
			if lane != laneOf(y.bad, 2) {
				return nil
			}
			y.mu.Lock()
			err, takes := y.err, y.takes
			y.mu.Unlock()
			time.Sleep(takes)
			return err
		}
		c.ParkAfter = 30 * time.Second
		c.Rows = keyed{r.ledger, y.bad}
		c.Hooks.Deferred = func(_ outbox.Table, reason string) {
			y.mu.Lock()
			defer y.mu.Unlock()
			y.deferred = append(y.deferred, reason)
		}
		c.Hooks.Recovered = func(string) {
			y.mu.Lock()
			defer y.mu.Unlock()
			y.recoveries++
		}
		if change != nil {
			change(c)
		}
	})
	return y
}

// keyed is a ledger whose rows have one key.
type keyed struct {
	*memoryLedger
	key string
}

func (k keyed) Load(ctx context.Context, table outbox.Table, ids []string) ([]*outbox.Event, map[string]outbox.Status, error) {
	events, states, err := k.memoryLedger.Load(ctx, table, ids)
	for _, ev := range events {
		ev.AggregateID = k.key
	}
	return events, states, err
}

func (y *yard) breaks(err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.err = err
}

// pushBad commits rows of the bad lane.
func (y *yard) pushBad(ids ...string) {
	for _, id := range ids {
		y.ledger.mu.Lock()
		y.ledger.rows[id] = outbox.Pending
		y.ledger.mu.Unlock()
		y.src.push(id + ":" + y.bad)
	}
}

func (y *yard) state() parkState {
	e := y.Engine
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.topics["orders"]
	if t == nil || t.lanes == nil {
		return placeOpen
	}
	return t.placeOf(y.bad).state
}

// parked returns a yard whose bad lane is parked with row 1, and draining if it heals.
func parkedYard(t *testing.T, heals bool, change func(*Config)) *yard {
	y := newYard(t, errMissing, change)
	y.pushBad("1")
	time.Sleep(40 * time.Second)
	if y.state() != placeParked {
		t.Fatalf("state %d, want parked", y.state())
	}
	if heals {
		y.breaks(nil)
		time.Sleep(10 * time.Second)
		if y.state() != placeDraining {
			t.Fatalf("state %d, want draining", y.state())
		}
	}
	return y
}

func (y *yard) reopen(wantMore bool, want ...string) {
	y.t.Helper()
	rows, more, err := y.Reopen(y.t.Context())
	var ids []string
	for _, k := range rows {
		ids = append(ids, k.ID)
	}
	if err != nil || more != wantMore || !slices.Equal(ids, want) {
		y.t.Fatalf("Reopen gives %v, %t, %v; want %v, %t", ids, more, err, want, wantMore)
	}
}

func (y *yard) beginsToReopen() {
	y.t.Helper()
	if reopening, err := y.BeginPass(y.t.Context()); !reopening || err != nil {
		y.t.Fatalf("reopening %t, %v", reopening, err)
	}
}

func (y *yard) expectStored(want ...string) {
	y.t.Helper()
	synctest.Wait()
	got := slices.DeleteFunc(y.sink.all(), func(id string) bool { return id[0] == 'g' })
	if !slices.Equal(got, want) {
		y.t.Fatalf("stored %v, want %v", got, want)
	}
}

func TestWhenALaneIsParked(t *testing.T) {
	many := func(n int) []string {
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		return ids
	}
	for _, c := range []struct {
		name   string
		err    error
		takes  time.Duration
		rows   int  // of the lane
		others bool // another lane can send all the time
		change func(*Config)
		waits  time.Duration
		parked bool
	}{
		{"configuration, before the time", errMissing, 0, 1, true, nil, 25 * time.Second, false},
		{"configuration", errMissing, 0, 1, false, nil, 40 * time.Second, true},
		{"transient, everything is away", errAway, 0, 1, false, nil, 5 * time.Minute, false},
		{"transient, another lane works", errAway, 0, 1, true, nil, 40 * time.Second, true},
		{"not understood, another lane works", errors.New("?"), 0, 1, true, nil, 60 * time.Second, true},
		{"a quarter of the budget, before a tenth of the time", errAway, 0, 250, true, nil, 2 * time.Second, false},
		{"a quarter of the budget", errAway, 0, 250, true, nil, 10 * time.Second, true},
		{"less than a quarter of the budget", errAway, 0, 200, true, nil, 20 * time.Second, false},
		{"slow, with a quarter of the budget", nil, 4 * time.Second, 400, true, nil, 5 * time.Second, true},
		{"slow, with little", nil, 4 * time.Second, 100, true, nil, 30 * time.Second, false},
		{"without a ledger", errMissing, 0, 1, true, func(c *Config) { c.Ledger, c.Fences = nil, nil }, 5 * time.Minute, false},
		{"not allowed", errMissing, 0, 1, true, func(c *Config) { c.ParkAfter = 0 }, 5 * time.Minute, false},
		{"leadership in doubt", nil, 0, 1, true, func(c *Config) { c.MaySend = func() bool { return false } }, 5 * time.Minute, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newYard(t, c.err, func(cfg *Config) {
					cfg.MaxAttempts = 100
					if c.change != nil {
						c.change(cfg)
					}
				})
				y.takes = c.takes
				y.pushBad(many(c.rows)...)
				for end := time.Now().Add(c.waits); time.Now().Before(end); time.Sleep(time.Second) {
					if c.others {
						y.src.push(fmt.Sprintf("good %d:%s", time.Now().Unix(), y.good))
					}
				}
				use := y.Usage()
				if got := y.state() != placeOpen; got != c.parked || got != (len(use.Parked) == 1) {
					t.Fatalf("parked %t, want %t; %+v", got, c.parked, use)
				}
				if c.parked && (y.saved.last() == "" || len(use.Failing) != 0 || slices.Contains(y.deferred, "") || len(y.deferred) == 0) {
					t.Errorf("position %q, %+v, deferred %q", y.saved.last(), use, y.deferred)
				}
			})
		})
	}
}

// A topic that does not exist fills the budget: nothing is read any more, and no fence
// comes back, until it is parked.
func TestFenceDoesNotWaitForADeadTopicThatFillsTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, errMissing, func(c *Config) { c.InflightMax, c.SourceLagMax = 10, time.Hour })
		y.pushBad("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12")
		synctest.Wait()
		if u := y.Usage(); u.Events != 10 {
			t.Fatalf("%+v, want a full budget", u)
		}
		begin := time.Now()
		if err := y.Fence(t.Context()); err != nil || time.Since(begin) > 6*time.Second {
			t.Fatalf("%v after %s", err, time.Since(begin))
		}
		y.src.push("good:" + y.good)
		time.Sleep(time.Second)
		if y.saved.last() != "13" || y.ledger.status("good") != outbox.Sent {
			t.Errorf("position %s, the good row is %s", y.saved.last(), y.ledger.status("good"))
		}
	})
}

// Rows that are deferred while a pass drains their lane are not for that pass, which may
// see them in another order, but for what follows it, in the order of the stream.
func TestRowsDeferredDuringAPassAreSentBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := parkedYard(t, true, nil)
		y.expectStored("1") // the probe
		y.beginsToReopen()
		y.pushBad("3", "2")
		synctest.Wait()
		if free := y.Reserve(orders, []string{"2", "3"}); len(free) != 0 {
			t.Fatalf("the pass may take %v", free)
		}
		y.reopen(true, "3", "2")
		y.pushBad("4") // is held now
		synctest.Wait()
		if free := y.Reserve(orders, []string{"3", "2", "4"}); !slices.Equal(free, []string{"3", "2"}) {
			t.Fatalf("reserved %v", free)
		}
		if tally, err := y.Submit(t.Context(), []*outbox.Event{event("3:" + y.bad), event("2:" + y.bad)}, ""); err != nil || tally.Sent != 2 {
			t.Fatalf("%+v, %v", tally, err)
		}
		y.reopen(false)
		y.pushBad("5")
		y.expectStored("1", "3", "2", "4", "5")
		if y.state() != placeOpen || len(y.deferred) != 3 || y.recoveries == 0 {
			t.Errorf("state %d, deferred %q, %d calls of Recovered", y.state(), y.deferred, y.recoveries)
		}
	})
}

// What is held while the last rows are sent is bounded, and does not outlive the pass.
func TestHeldEventsAreDeferredIfThatTakesTooLong(t *testing.T) {
	for name, end := range map[string]func(y *yard){
		"more than a quarter": func(y *yard) { y.pushBad("5", "6", "7") },
		"the pass ended":      func(y *yard) { y.beginsToReopen() },
		"a row went back": func(y *yard) {
			y.PassOver(event("1:" + y.bad))
			y.reopen(false)
		},
		"the broker is away again": func(y *yard) {
			y.breaks(errAway)
			y.Reserve(orders, []string{"2"})
			if tally, err := y.Submit(y.t.Context(), []*outbox.Event{event("2:" + y.bad)}, ""); err != nil || tally.Released != 1 {
				y.t.Errorf("%+v, %v", tally, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := parkedYard(t, true, func(c *Config) { c.InflightMax = 20 })
				y.ledger.rows["2"] = outbox.Pending
				y.beginsToReopen()
				y.reopen(true)
				y.pushBad("3", "4")
				synctest.Wait()
				if y.state() != placeHolding || y.Usage().Events != 2 {
					t.Fatalf("state %d, %+v; want two events held", y.state(), y.Usage())
				}
				end(y)
				synctest.Wait()
				if s := y.state(); s != placeDraining && s != placeParked || y.Usage().Events != 0 || y.heldEvents != 0 || y.heldBytes != 0 {
					t.Fatalf("state %d, %+v, %d held", s, y.Usage(), y.heldEvents)
				}
				y.expectStored("1")
			})
		})
	}
}

// A shutdown does not wait for parked lanes, and what was held stays for the next start.
func TestDrainLeavesParkedLanesAndHeldEvents(t *testing.T) {
	for _, holding := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			y := parkedYard(t, holding, nil)
			if holding {
				y.beginsToReopen()
				y.reopen(true)
			}
			y.pushBad("2", "3")
			synctest.Wait()
			begin := time.Now()
			if err := y.stop(); err != nil || time.Since(begin) > 100*time.Millisecond {
				t.Fatalf("%v after %s", err, time.Since(begin))
			}
			want := map[bool]string{false: "3", true: "1"}[holding]
			if got := y.saved.last(); got != want {
				t.Errorf("holding %t: position %s, want %s", holding, got, want)
			}
		})
	}
}

// An event whose own transaction deleted its row can be found by no sweep: it waits.
func TestEventWithoutARowIsHeldThroughParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, errMissing, nil)
		y.src.seq = 1
		gone := event("gone:" + y.bad)
		gone.Deleted = true
		y.src.batches <- outbox.Batch{Events: []*outbox.Event{gone}, End: outbox.Position{Seq: 1}}
		y.pushBad("1")
		time.Sleep(40 * time.Second)
		if y.state() != placeParked || y.saved.last() != "" || len(y.deferred) != 1 {
			t.Fatalf("state %d, position %q, deferred %q", y.state(), y.saved.last(), y.deferred)
		}
		y.breaks(nil)
		time.Sleep(10 * time.Second)
		y.beginsToReopen()
		y.reopen(true)
		y.reopen(false)
		time.Sleep(time.Second)
		if y.saved.last() != "2" || !slices.Contains(y.sink.all(), "gone") {
			t.Fatalf("position %q, stored %v", y.saved.last(), y.sink.all())
		}
	})
}

// When more is deferred during a pass than is noted, the lane stays closed for it.
func TestPassThatCannotKeepUpIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := parkedYard(t, true, nil)
		y.beginsToReopen()
		y.Engine.mu.Lock()
		for i := range laterRowsMax {
			y.later.add(y.topics["orders"].placeOf(y.bad), outbox.Key{Table: orders, ID: fmt.Sprint("x", i)})
		}
		y.Engine.mu.Unlock()
		y.pushBad("2")
		synctest.Wait()
		if got, _ := y.Passable([]*outbox.Event{event("2:" + y.bad)}); len(got) != 0 {
			t.Fatal("rows of the lane may still go in this pass")
		}
		y.reopen(false)
		y.beginsToReopen()
		y.reopen(true)
		y.reopen(false)
		if y.state() != placeOpen {
			t.Fatalf("state %d", y.state())
		}
	})
}

// A probe whose answer nobody understands lets its lane drain: the pass that follows must
// find the row, or it would send those of its key that are newer. Marks may be slow.
func TestProbeIsOverBeforeItsLaneDrains(t *testing.T) {
	var understood atomic.Bool
	understood.Store(true)
	recovered := make(chan string, 10)
	slow := make(chan struct{})
	r := start(t, func(c *Config, r *rig) {
		c.ParkAfter, r.sink.lanes = 10*time.Millisecond, 1
		c.Hooks.Recovered = func(topic string) { recovered <- topic }
		r.ledger.rows["1"] = outbox.Pending
		r.sink.answer = func(string, int, []string) error {
			if understood.Load() {
				return &outbox.SendError{Class: outbox.Configuration, Reason: "no_permission"}
			}
			return errors.New("nobody understands this")
		}
	})
	r.src.push("1:a")
	eventually(t, "the lane is parked", func() bool { return len(r.Usage().Parked) == 1 })
	r.ledger.mu.Lock()
	r.ledger.hold = slow
	r.ledger.mu.Unlock()
	r.src.push("2:b:drop") // keeps the marker busy
	understood.Store(false)
	<-recovered
	if reopening, err := r.BeginPass(t.Context()); !reopening || err != nil {
		t.Fatalf("the lane does not drain: %t, %v", reopening, err)
	}
	if free := r.Reserve(orders, []string{"1"}); len(free) != 1 {
		t.Error("the pass does not find the row")
	}
	close(slow)
}
