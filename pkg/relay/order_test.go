package relay

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// A large transaction that a broken connection cut off comes again from its start,
// and an id may be used again: the tail then has a row twice, maybe within one run
// of the router.
func TestRowThatTheTailHasTwiceIsSentOnceAndPassed(t *testing.T) {
	r := start(t, nil)
	r.src.seq = 1
	r.src.batches <- outbox.Batch{Events: []*outbox.Event{event("1:a"), event("2:a"), event("1:a")}, End: outbox.Position{Seq: 1}}
	eventually(t, "position 1 saved", func() bool { return r.saved.last() == "1" })
	if got := r.sink.all(); !slices.Equal(got, []string{"1", "2"}) {
		t.Fatalf("stored %v", got)
	}
	if u := r.Usage(); u.Events != 0 || u.Bytes != 0 {
		t.Fatalf("still in flight: %+v", u)
	}
}

// A lane that holds up an event of the tail gives back what the sweep has put
// behind it; the next page of that pass must not overtake what went back.
func TestRowsGivenBackBehindTheTailAreNotOvertakenInTheSamePass(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	r := start(t, func(_ *Config, r *rig) {
		r.sink.lanes = 1
		r.sink.answer = func(string, int, []string) error {
			entered <- struct{}{}
			<-gate
			if away.Load() {
				return errAway
			}
			return nil
		}
	})
	r.src.push("tail:a")
	<-entered // the event of the tail is on its way, and will fail
	r.beginPass(t)
	r.Reserve(orders, []string{"1"})
	first := make(chan outbox.Tally, 1)
	go func() {
		tally, _ := r.Submit(context.Background(), []*outbox.Event{event("1:b")}, "")
		first <- tally
	}()
	eventually(t, "1 behind it", func() bool {
		r.Engine.mu.Lock()
		defer r.Engine.mu.Unlock()
		it := r.inflight[outbox.Key{Table: orders, ID: "1"}]
		return it != nil && it.state == inLane
	})
	close(gate)
	if tally := <-first; tally.Released != 1 {
		t.Fatalf("%+v, want row 1 given back", tally)
	}
	away.Store(false)
	eventually(t, "the tail's event stored", func() bool { return len(r.sink.all()) == 1 })
	r.Reserve(orders, []string{"2"})
	tally, err := r.Submit(t.Context(), []*outbox.Event{event("2:b")}, "")
	if err != nil || tally.Released != 1 {
		t.Fatalf("%+v, %v: row 2 overtook row 1 of its key; stored %v", tally, err, r.sink.all())
	}
}

// The lease counts from before the claim was made, however long reading the rows
// took, and a send must not outlast it: then another poller may have the row.
func TestClaimedRowIsNotSentBeyondItsLease(t *testing.T) {
	for name, timing := range map[string]struct{ lease, send time.Duration }{
		"run out":           {100 * time.Millisecond, 0},
		"too short to send": {10 * time.Second, 9900 * time.Millisecond},
	} {
		r := start(t, func(c *Config, _ *rig) { c.Lease, c.SendTimeout = timing.lease, timing.send })
		r.Reserve(orders, []string{"1"})
		time.Sleep(120 * time.Millisecond) // claiming and reading took this long
		tally, err := r.Submit(t.Context(), []*outbox.Event{event("1:a")}, "me-1")
		if err != nil || tally.Released != 1 || len(r.sink.all()) != 0 {
			t.Errorf("%s: %+v, %v; stored %v", name, tally, err, r.sink.all())
		}
	}
}

// What a lane or topic has given back in a pass is passed over for the rest of it,
// and tried again by the next.
func TestPassableLeavesOutWhatGaveBackInThisPass(t *testing.T) {
	for _, c := range []struct {
		err  error
		away bool
	}{
		{errAway, true},
		{&outbox.SendError{Class: outbox.Configuration, Reason: "topic_missing"}, false},
	} {
		r := start(t, func(_ *Config, r *rig) {
			r.sink.answer = func(string, int, []string) error { return c.err }
		})
		r.beginPass(t)
		page := []*outbox.Event{event("2:a"), event("3:a:refuse")}
		if got, _ := r.Passable(page); len(got) != 2 || r.Away() {
			t.Fatalf("%d of 2 passable before anything failed; away %t", len(got), r.Away())
		}
		r.Reserve(orders, []string{"1"})
		if tally, err := r.Submit(t.Context(), []*outbox.Event{event("1:a")}, ""); err != nil || tally.Released != 1 {
			t.Fatalf("%+v, %v", tally, err)
		}
		if got, _ := r.Passable(page); len(got) != 1 || got[0].ID != "3" {
			t.Errorf("%d passable, want only the one that is to be settled as refused", len(got))
		}
		if r.Away() != c.away {
			t.Errorf("after %v, Away is %t", c.err, r.Away())
		}
		r.beginPass(t)
		if got, _ := r.Passable(page); len(got) != 2 || r.Away() {
			t.Errorf("%d of 2 passable in the next pass; away %t", len(got), r.Away())
		}
	}
}
