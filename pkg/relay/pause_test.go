package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// pause begins a pause and waits for what is being sent.
func (r *rig) pause(ctx context.Context) error {
	r.SetPaused(true)
	return r.Quiet(ctx)
}

// TestPauseKeepsOrderAndLosesNothing pauses and resumes while events of both paths
// flow through a broker that fails at times.
func TestPauseKeepsOrderAndLosesNothing(t *testing.T) {
	var closed atomic.Bool
	var sentWhilePaused atomic.Int64
	r := start(t, func(c *Config, r *rig) {
		c.ParkAfter = time.Hour
		r.sink.answer = func(string, int, []string) error {
			if closed.Load() {
				sentWhilePaused.Add(1)
			}
			if rand.IntN(8) == 0 {
				return errAway
			}
			return nil
		}
	})
	const n, keys = 600, 7
	pushed := 0
	for pushed < n {
		for range rand.IntN(20) {
			r.src.push(fmt.Sprintf("%d:%d", pushed, pushed%keys))
			pushed++
		}
		if err := r.pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		closed.Store(true)
		r.src.push(fmt.Sprintf("%d:%d", pushed, pushed%keys))
		pushed++
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		closed.Store(false)
		r.SetPaused(false)
	}
	eventually(t, "all stored", func() bool { return len(r.sink.all()) == pushed })
	if got := sentWhilePaused.Load(); got > 0 {
		t.Errorf("%d sends began during a pause", got)
	}
	last := map[int]int{}
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	for _, ids := range r.sink.stored {
		for _, text := range ids {
			var id int
			if _, err := fmt.Sscan(text, &id); err != nil {
				t.Fatal(err)
			}
			if before, ok := last[id%keys]; ok && before >= id {
				t.Fatalf("key %d: %d stored behind %d", id%keys, id, before)
			}
			last[id%keys] = id
		}
	}
}

// TestPauseWaitsForWhatIsBeingSent: when Quiet has returned, nothing is under way.
func TestPauseWaitsForWhatIsBeingSent(t *testing.T) {
	sending, end := make(chan struct{}), make(chan struct{})
	r := start(t, func(_ *Config, r *rig) {
		r.sink.answer = func(string, int, []string) error {
			close(sending)
			<-end
			return nil
		}
	})
	r.src.push("1:a")
	<-sending
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := r.pause(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("pausing returned %v while a batch is away", err)
	}
	quiet := make(chan error, 1)
	go func() { quiet <- r.pause(t.Context()) }()
	close(end)
	if err := <-quiet; err != nil {
		t.Fatal(err)
	}
	eventually(t, "what was away is marked and passed", func() bool { return r.saved.last() == "1" })
}

// TestSweptRowsGoBackDuringAPause, both those that wait for a lane and those that come
// later; they count no attempts, and nothing counts as failing.
func TestSweptRowsGoBackDuringAPause(t *testing.T) {
	r := start(t, func(c *Config, r *rig) { c.Paused = true; r.sink.lanes = 1 })
	r.src.push("1:a")
	eventually(t, "1 waits", func() bool { return r.Usage().Events == 1 })
	r.beginPass(t)
	for _, id := range []string{"2", "3"} {
		if got := r.Reserve(orders, []string{id}); len(got) != 1 {
			t.Fatalf("reserved %v", got)
		}
		tally, err := r.Submit(t.Context(), []*outbox.Event{event(id + ":a")}, "")
		if err != nil || tally != (outbox.Tally{Released: 1}) {
			t.Fatalf("a row of the sweep: %+v, %v", tally, err)
		}
	}
	if use := r.Usage(); len(use.Failing) > 0 || len(r.sink.all()) > 0 || r.saved.last() != "" {
		t.Errorf("during the pause: %+v, stored %v, position %q", use, r.sink.all(), r.saved.last())
	}
	r.SetPaused(false)
	eventually(t, "1 is sent and passed", func() bool { return r.saved.last() == "1" })
	if r.ledger.attempts["1"]+r.ledger.attempts["2"] > 0 {
		t.Error("a pause has counted attempts")
	}
}

// TestResumedPassDoesNotOvertake: a row of the sweep went back during a pause, so that
// of its key which comes after the pause, in the same pass, goes back as well.
func TestResumedPassDoesNotOvertake(t *testing.T) {
	r := start(t, func(c *Config, _ *rig) { c.Paused = true })
	submit := func(id string) outbox.Tally {
		r.Reserve(orders, []string{id})
		tally, err := r.Submit(t.Context(), []*outbox.Event{event(id + ":a")}, "")
		if err != nil {
			t.Fatal(err)
		}
		return tally
	}
	r.beginPass(t)
	if got := submit("1"); got.Released != 1 {
		t.Fatalf("1: %+v", got)
	}
	r.SetPaused(false)
	if got := submit("2"); got.Released != 1 {
		t.Errorf("2 has overtaken 1: %+v", got)
	}
	r.beginPass(t)
	if got := submit("1"); got.Sent != 1 {
		t.Errorf("1 in the next pass: %+v", got)
	}
}

func TestDrainDuringAPauseSendsNothing(t *testing.T) {
	r := start(t, nil)
	r.src.push("1:a")
	eventually(t, "position 1", func() bool { return r.saved.last() == "1" })
	if err := r.pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.src.push("2:a")
	r.src.push("3:b")
	eventually(t, "two wait", func() bool { return r.Usage().Events == 2 })
	begin := time.Now()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("the drain took %s", took)
	}
	if r.saved.last() != "1" || len(r.sink.all()) != 1 || r.ledger.status("2") == outbox.Sent {
		t.Errorf("position %s, stored %v, row 2 %s", r.saved.last(), r.sink.all(), r.ledger.status("2"))
	}
}

// TestPausedRelayReadsNoFurtherThanItsBudget: the rest stays in the binlog.
func TestPausedRelayReadsNoFurtherThanItsBudget(t *testing.T) {
	r := start(t, func(c *Config, _ *rig) { c.Paused, c.InflightMax = true, 10 })
	for i := range 50 {
		r.src.push(fmt.Sprintf("%d:a", i))
	}
	eventually(t, "the budget is full", func() bool { return r.Usage().Events == 10 })
	r.SetPaused(false)
	eventually(t, "all are sent", func() bool { return r.saved.last() == "50" })
}
