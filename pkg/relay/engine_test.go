package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEventIsSentMarkedAndPassed(t *testing.T) {
	r := start(t, nil)
	r.src.push("1:a", "2:b")
	r.src.push("3:a")
	eventually(t, "position 2 saved", func() bool { return r.saved.last() == "2" })
	for _, id := range []string{"1", "2", "3"} {
		if st := r.ledger.status(id); st != outbox.Sent {
			t.Errorf("row %s is %s", id, st)
		}
	}
	if got := r.sink.all(); len(got) != 3 {
		t.Errorf("stored %v", got)
	}
}

func TestLaneKeepsOrderThroughFailures(t *testing.T) {
	var rnd sync.Mutex
	r := start(t, func(c *Config, r *rig) {
		c.MaxAttempts = 1000
		r.sink.answer = func(_ string, _ int, ids []string) error {
			rnd.Lock()
			defer rnd.Unlock()
			switch rand.IntN(6) {
			case 0:
				return errAway
			case 1:
				if len(ids) > 1 {
					return errors.New("something nobody understands")
				}
			}
			return nil
		}
	})
	const n = 400
	for i := range n {
		r.src.push(fmt.Sprintf("%d:%d", i, i%7))
	}
	eventually(t, "all stored", func() bool { return len(r.sink.all()) == n })
	last := map[int]int{}
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	for _, ids := range r.sink.stored {
		for _, text := range ids {
			var id int
			if _, err := fmt.Sscan(text, &id); err != nil {
				t.Fatal(err)
			}
			if before, ok := last[id%7]; ok && before >= id {
				t.Fatalf("key %d: %d stored behind %d", id%7, id, before)
			}
			last[id%7] = id
		}
	}
}

func TestPositionWaitsForTheMarks(t *testing.T) {
	hold := make(chan struct{})
	r := start(t, func(_ *Config, r *rig) { r.ledger.hold = hold })
	r.src.push("1:a")
	r.src.push() // another table's transaction
	eventually(t, "sent", func() bool { return len(r.sink.all()) == 1 })
	time.Sleep(20 * time.Millisecond) // several checkpoint intervals
	if got := r.saved.last(); got != "" {
		t.Fatalf("position %s saved before the row was marked", got)
	}
	if r.Usage().Saved {
		t.Fatal("the saved position counts as current while a row is unmarked")
	}
	close(hold)
	eventually(t, "position 2 saved", func() bool { return r.saved.last() == "2" })
	eventually(t, "current", func() bool { return r.Usage().Saved })
}

func TestLockedRowHoldsThePosition(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) { r.ledger.locked["1"] = true })
	r.src.push("1:a")
	r.src.push("2:b")
	eventually(t, "2 marked", func() bool { return r.ledger.status("2") == outbox.Sent })
	if got := r.saved.last(); got != "" {
		t.Fatalf("position %s saved although row 1 is not marked", got)
	}
	r.ledger.mu.Lock()
	r.ledger.locked = nil
	r.ledger.mu.Unlock()
	eventually(t, "position 2 saved", func() bool { return r.saved.last() == "2" })
	if got := r.sink.all(); len(got) != 2 {
		t.Fatalf("stored %v", got)
	}
}

func TestRefusedFailsAloneAndNeighboursGo(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) {
		r.sink.lanes = 1
		r.sink.answer = func(_ string, _ int, ids []string) error {
			if slices.Contains(ids, "bad") {
				return &outbox.SendError{Class: outbox.Refused, Reason: "too_large"}
			}
			return nil
		}
	})
	r.src.push("1:a", "2:a", "bad:a", "3:a", "x:a:refuse", "y:a:drop", "4:a")
	eventually(t, "position saved", func() bool { return r.saved.last() == "1" })
	if got := r.sink.all(); !slices.Equal(got, []string{"1", "2", "3", "4"}) {
		t.Errorf("stored %v", got)
	}
	for id, want := range map[string]outbox.Status{"bad": outbox.Failed, "x": outbox.Failed, "y": outbox.Sent} {
		if st := r.ledger.status(id); st != want {
			t.Errorf("row %s is %s, want %s", id, st, want)
		}
	}
	if r.ledger.attempts["bad"] != 0 || !strings.Contains(r.ledger.reasons["bad"], "too_large") {
		t.Errorf("attempts %d, reason %q", r.ledger.attempts["bad"], r.ledger.reasons["bad"])
	}
}

func TestUnknownErrorCountsAttemptsOfTheRowAlone(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) {
		r.sink.lanes = 1
		r.sink.answer = func(_ string, _ int, ids []string) error {
			if slices.Contains(ids, "odd") {
				return errors.New("java.lang.IllegalStateException")
			}
			return nil
		}
	})
	r.src.push("1:a", "odd:a", "2:a")
	eventually(t, "position saved", func() bool { return r.saved.last() == "1" })
	if st := r.ledger.status("odd"); st != outbox.Failed || r.ledger.attempts["odd"] != 2 {
		t.Errorf("row is %s after %d attempts, want FAILED after 2", st, r.ledger.attempts["odd"])
	}
	if r.ledger.attempts["1"]+r.ledger.attempts["2"] != 0 {
		t.Error("a neighbour lost an attempt")
	}
	if got := r.sink.all(); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("stored %v", got)
	}
}

func TestOutageCostsNoAttemptAndBlocksAtTheBudget(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	r := start(t, func(c *Config, r *rig) {
		c.InflightMax = 50
		r.sink.answer = func(string, int, []string) error {
			if away.Load() {
				return errAway
			}
			return nil
		}
	})
	for i := range 500 {
		r.src.push(fmt.Sprintf("%d:%d", i, i%11))
	}
	eventually(t, "budget full", func() bool { return r.Usage().Events == 50 })
	eventually(t, "failure named", func() bool { return len(r.Usage().Failing) > 0 })
	if got := r.saved.last(); got != "" {
		t.Fatalf("position %s saved during the outage", got)
	}
	away.Store(false)
	eventually(t, "all stored", func() bool { return len(r.sink.all()) == 500 })
	eventually(t, "position saved", func() bool { return r.saved.last() == "500" })
	if len(r.ledger.attempts) != 0 || len(r.Usage().Failing) != 0 {
		t.Errorf("attempts %v, failing %v", r.ledger.attempts, r.Usage().Failing)
	}
}

func TestRowsAlreadySentAreNotSentAgainUntilTheFenceReturns(t *testing.T) {
	b := outbox.Batch{End: outbox.Position{Seq: 1}, Events: []*outbox.Event{
		event("1:a"), event("2:a"), event("3:a"), event("gone:a"), event("deleted by its own transaction:a"),
	}}
	b.Events[4].Deleted = true
	r := start(t, func(_ *Config, r *rig) {
		r.sink.lanes = 1
		r.ledger.rows["1"], r.ledger.rows["2"], r.ledger.rows["3"] = outbox.Sent, outbox.Pending, outbox.Failed
		r.src.seq = 1
		r.src.batches <- b // ahead of the fence
		r.src.onStart = func() { r.Verify() }
	})
	eventually(t, "position 1 saved", func() bool { return r.saved.last() == "1" })
	if got := r.sink.all(); !slices.Equal(got, []string{"2", "deleted by its own transaction"}) {
		t.Fatalf("stored %v, want row 2 and the one that has no row", got)
	}
	eventually(t, "fence back", func() bool { return !r.fence.outstanding() })
	r.src.push("4:a")
	eventually(t, "position 2 saved", func() bool { return r.saved.last() == "2" })
	if got := r.sink.all(); len(got) != 3 || !slices.Contains(got, "4") {
		t.Fatalf("stored %v; after the fence rows are sent without asking", got)
	}
}

func TestUnreadEventIsReadByKeyInItsPlace(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) {
		r.sink.lanes = 1
		r.ledger.rows["2"] = outbox.Pending
	})
	b := outbox.Batch{End: outbox.Position{Seq: 1}, Events: []*outbox.Event{event("1:a"), event("2:a"), event("3:a"), event("4:a")}}
	b.Events[1].Unread, b.Events[3].Unread = "image", "image"
	r.src.batches <- b
	eventually(t, "position saved", func() bool { return r.saved.last() == "1" })
	if got := r.sink.all(); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Fatalf("stored %v", got)
	}
}

func TestSweepPassesOverWhatIsInFlight(t *testing.T) {
	hold := make(chan struct{})
	r := start(t, func(_ *Config, r *rig) { r.ledger.hold = hold })
	r.src.push("1:a")
	eventually(t, "sent", func() bool { return len(r.sink.all()) == 1 })
	if free := r.Reserve(orders, []string{"1", "2"}); !slices.Equal(free, []string{"2"}) {
		t.Fatalf("reserved %v: row 1 is sent but not marked yet", free)
	}
	r.Unreserve(orders, []string{"2"})
	close(hold)
	eventually(t, "marked", func() bool { return r.ledger.status("1") == outbox.Sent })
	eventually(t, "free again", func() bool {
		free := r.Reserve(orders, []string{"1"})
		r.Unreserve(orders, free)
		return len(free) == 1
	})
}

func TestTailTakesOverAReservedRowAndWaitsForOneInItsLane(t *testing.T) {
	gate := make(chan struct{})
	r := start(t, func(_ *Config, r *rig) {
		r.sink.answer = func(string, int, []string) error { <-gate; return nil }
	})
	r.Reserve(orders, []string{"1", "2"})
	sweep := make(chan outbox.Tally, 1)
	go func() {
		tally, err := r.Submit(context.Background(), []*outbox.Event{event("2:a")}, "")
		if err != nil {
			t.Error(err)
		}
		sweep <- tally
	}()
	eventually(t, "2 in its lane", func() bool {
		r.Engine.mu.Lock()
		defer r.Engine.mu.Unlock()
		it := r.inflight[outbox.Key{Table: orders, ID: "2"}]
		return it != nil && it.state == inLane
	})
	r.src.push("1:a", "2:a") // the tail comes second for both
	eventually(t, "1 taken over", func() bool {
		r.Engine.mu.Lock()
		defer r.Engine.mu.Unlock()
		it := r.inflight[outbox.Key{Table: orders, ID: "1"}]
		return it != nil && it.origin == outbox.FromBinlog
	})
	tally, err := r.Submit(t.Context(), []*outbox.Event{event("1:a")}, "")
	if err != nil || tally.Released != 1 {
		t.Fatalf("submitting a row that the tail has taken over: %+v, %v", tally, err)
	}
	close(gate)
	if tally := <-sweep; tally.Sent != 1 {
		t.Fatalf("sweep of 2: %+v", tally)
	}
	eventually(t, "position saved", func() bool { return r.saved.last() == "1" })
	got := r.sink.all()
	slices.Sort(got)
	if !slices.Equal(got, []string{"1", "2"}) {
		t.Fatalf("stored %v", got)
	}
}

func TestSweptRowIsReleasedByAnOutageAndTheTailSendsIt(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	r := start(t, func(_ *Config, r *rig) {
		r.sink.answer = func(string, int, []string) error {
			if away.Load() {
				return errAway
			}
			return nil
		}
	})
	r.Reserve(orders, []string{"1"})
	tally, err := r.Submit(t.Context(), []*outbox.Event{event("1:a")}, "me-1")
	if err != nil || tally.Released != 1 {
		t.Fatalf("%+v, %v", tally, err)
	}
	r.src.push("1:a")
	away.Store(false)
	eventually(t, "position saved", func() bool { return r.saved.last() == "1" })
	if got := r.sink.all(); !slices.Equal(got, []string{"1"}) {
		t.Fatalf("stored %v", got)
	}
}

func TestSweepKeepsOrderWhenRowsGoBack(t *testing.T) {
	var sends atomic.Int64
	r := start(t, func(_ *Config, r *rig) {
		r.sink.answer = func(string, int, []string) error {
			if sends.Add(1) == 1 {
				return errAway // a broker that is busy for a moment
			}
			return nil
		}
	})
	submit := func(from, to int) outbox.Tally {
		t.Helper()
		var ids []string
		var events []*outbox.Event
		for i := from; i < to; i++ {
			ids = append(ids, fmt.Sprint(i))
			events = append(events, event(fmt.Sprintf("%d:a", i)))
		}
		r.Reserve(orders, ids)
		tally, err := r.Submit(t.Context(), events, "")
		if err != nil {
			t.Fatal(err)
		}
		return tally
	}
	r.beginPass(t)
	for page := range 2 {
		if tally := submit(20*page, 20*page+20); tally.Released != 20 {
			t.Errorf("page %d: %+v, want all 20 given back", page, tally)
		}
	}
	r.beginPass(t)
	if tally := submit(0, 40); tally.Sent != 40 {
		t.Errorf("the next pass: %+v, want all 40 sent", tally)
	}
	for i, id := range r.sink.all() {
		if id != fmt.Sprint(i) {
			t.Fatalf("stored %v", r.sink.all())
		}
	}
}

func TestFenceProvesWhatTheTailHasPassed(t *testing.T) {
	r := start(t, nil)
	r.src.push("1:a")
	if err := r.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Engine.mu.Lock()
	known := r.inflight[outbox.Key{Table: orders, ID: "1"}] != nil
	r.Engine.mu.Unlock()
	if !known && r.ledger.status("1") != outbox.Sent {
		t.Fatal("a fence returned before what was committed ahead of it was registered")
	}
}

func TestFenceSaysWhenTheTailIsDown(t *testing.T) {
	r := start(t, func(c *Config, _ *rig) {
		c.Disconnected = func() time.Duration { return time.Hour }
		c.Fences = silentFences{}
	})
	if err := r.Fence(t.Context()); !errors.Is(err, outbox.ErrTailDown) {
		t.Fatalf("got %v", err)
	}
}

// With a grace of 0 every moment would be "no stream for the grace", so that no
// fence was ever waited for.
func TestFenceWaitsForAConnectedTailWhateverTheGrace(t *testing.T) {
	late := make(lateFences, 1)
	r := start(t, func(c *Config, _ *rig) {
		c.Disconnected = func() time.Duration { return 0 }
		c.Grace = 0
		c.Fences = late
	})
	done := make(chan error, 1)
	go func() { done <- r.Fence(t.Context()) }()
	r.src.batches <- outbox.Batch{Fence: <-late}
	if err := <-done; err != nil {
		t.Fatalf("got %v", err)
	}
}

// lateFences come back when the test says so.
type lateFences chan uint64

func (f lateFences) WriteFence(_ context.Context, n uint64) error {
	f <- n
	return nil
}

type silentFences struct{}

func (silentFences) WriteFence(context.Context, uint64) error { return nil }

func TestFencedRelayStops(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) { r.saved.err = outbox.ErrFenced })
	r.src.push("1:a")
	eventually(t, "stopped", func() bool { return r.work.Err() != nil })
	if err := r.stop(); !errors.Is(err, outbox.ErrFenced) {
		t.Fatalf("Run returned %v", err)
	}
}

func TestDrainSendsMarksAndSavesWhatWasRead(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) {
		r.sink.answer = func(string, int, []string) error { time.Sleep(time.Millisecond); return nil }
	})
	for i := range 300 {
		r.src.push(fmt.Sprintf("%d:%d", i, i%11))
	}
	eventually(t, "all read", func() bool { return len(r.src.batches) == 0 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if got := len(r.sink.all()); fmt.Sprint(got) != r.saved.last() {
		t.Fatalf("%d stored, position %s: they must agree after a clean drain", got, r.saved.last())
	}
	for _, id := range r.sink.all() {
		if r.ledger.status(id) != outbox.Sent {
			t.Fatalf("row %s stored but not marked", id)
		}
	}
}

func TestDrainGivesUpWhatCannotBeSent(t *testing.T) {
	r := start(t, func(c *Config, r *rig) {
		r.sink.answer = func(_ string, _ int, ids []string) error {
			if ids[0] == "1" {
				return nil
			}
			return errAway
		}
	})
	r.src.push("1:a")
	eventually(t, "position 1", func() bool { return r.saved.last() == "1" })
	r.src.push("2:a")
	eventually(t, "2 fails", func() bool { return len(r.Usage().Failing) > 0 })
	begin := time.Now()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("drain took %s with the broker away", took)
	}
	if r.saved.last() != "1" || r.ledger.status("2") == outbox.Sent {
		t.Errorf("position %s, row 2 %s", r.saved.last(), r.ledger.status("2"))
	}
}

func TestNothingIsSentWhileLeadershipIsUncertain(t *testing.T) {
	var lead atomic.Bool
	r := start(t, func(c *Config, _ *rig) { c.MaySend = lead.Load })
	r.src.push("1:a")
	eventually(t, "waiting", func() bool { return len(r.Usage().Failing) > 0 })
	if got := r.sink.all(); len(got) != 0 {
		t.Fatalf("stored %v without leadership", got)
	}
	lead.Store(true)
	eventually(t, "stored", func() bool { return len(r.sink.all()) == 1 })
}

func TestIdleRelaySavesNothing(t *testing.T) {
	r := start(t, nil)
	r.src.seq++
	r.src.batches <- outbox.Batch{End: outbox.Position{Seq: r.src.seq}, Own: true}
	eventually(t, "taken", func() bool { p, _ := r.position(); return p.Seq == 1 })
	time.Sleep(30 * time.Millisecond) // several checkpoint intervals
	if got := r.saved.last(); got != "" {
		t.Fatalf("saved %s because of our own write", got)
	}
	if !r.Usage().Saved {
		t.Fatal("an idle relay counts as having something to save")
	}
}
