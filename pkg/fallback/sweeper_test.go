package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// While the fence was out, the tail sent row 0 and took row 1 into a lane.
func TestSweepTakesNothingTheTailWillSend(t *testing.T) {
	w := newWorld()
	w.pending(orders, "a", 3)
	w.onFence = func() { w.status["a-0"], w.inFlight["a-1"] = outbox.Sent, true }
	tally, err := w.sweeper(func(c *Config) { c.BatchSize = 10 }).Pass(t.Context())
	if err != nil || tally.Sent != 1 || !slices.Equal(w.sent, []string{"a-2"}) {
		t.Fatalf("%+v, %v, sent %v", tally, err, w.sent)
	}
	if want := []string{"candidates", "fence", "reserve", "load 2", "sent 1"}; !slices.Equal(w.steps, want) {
		t.Errorf("the pass went\n%q, want\n%q", w.steps, want)
	}
	w.balanced(t)
}

// A tail that is down is asked once, and what it may send again is looked up from
// before each stretch is taken until after the last of them.
func TestUnfencedPassHasTheTailVerify(t *testing.T) {
	w := newWorld()
	w.pending(orders, "a", 2*stretchPages+1)
	w.fenceErr = fmt.Errorf("%w: no stream", outbox.ErrTailDown)
	tally, err := w.sweeper(func(c *Config) { c.BatchSize = 1 }).Pass(t.Context())
	if err != nil || tally.Sent != 2*stretchPages+1 {
		t.Fatalf("%+v, %v", tally, err)
	}
	var order []string
	for _, s := range w.steps {
		if s == "fence" || s == "verify" || s == "reserve" && order[len(order)-1] != s {
			order = append(order, s)
		}
	}
	want := []string{"fence", "verify", "reserve", "verify", "reserve", "verify", "reserve", "verify"}
	if !slices.Equal(order, want) {
		t.Errorf("the pass went\n%q, want\n%q", order, want)
	}
}

func TestFenceThatFailsOtherwiseTakesNothing(t *testing.T) {
	w := newWorld()
	w.pending(orders, "a", 3)
	w.fenceErr = errors.New("database away")
	if _, err := w.sweeper(nil).Pass(t.Context()); !errors.Is(err, w.fenceErr) {
		t.Fatalf("got %v", err)
	}
	if len(w.sent) != 0 || w.count("reserve") != 0 {
		t.Errorf("steps %v", w.steps)
	}
}

func TestWithoutATailNothingIsWaitedFor(t *testing.T) {
	w := newWorld()
	w.pending(orders, "a", 4)
	tally, err := w.sweeper(func(c *Config) { c.Tail = nil }).Pass(t.Context())
	if err != nil || tally.Sent != 4 || w.count("fence")+w.count("verify") != 0 {
		t.Fatalf("%+v, %v, steps %v", tally, err, w.steps)
	}
}

func TestClaimedRowsGoInTheOrderOfThePage(t *testing.T) {
	w := newWorld()
	w.claims = true
	w.pending(orders, "a", 6)
	tally, err := w.sweeper(nil).Pass(t.Context())
	if err != nil || tally.Sent != 6 {
		t.Fatalf("%+v, %v", tally, err)
	}
	if want := []string{"a-0", "a-1", "a-2", "a-3", "a-4", "a-5"}; !slices.Equal(w.sent, want) {
		t.Errorf("sent %v, want the oldest first", w.sent)
	}
	w.balanced(t)
}

func TestRowsThatSomebodyElseClaimedAreUnreserved(t *testing.T) {
	w := newWorld()
	w.claims = true
	w.pending(orders, "a", 3)
	w.onFence = func() { w.status["a-1"] = outbox.Processing }
	tally, err := w.sweeper(nil).Pass(t.Context())
	if err != nil || tally.Sent != 2 || slices.Contains(w.sent, "a-1") {
		t.Fatalf("%+v, %v, sent %v", tally, err, w.sent)
	}
	w.balanced(t)
}

func TestAnErrorLeavesNoReservation(t *testing.T) {
	for name, breaks := range map[string]func(*world, error){
		"claim": func(w *world, err error) { w.claimErr = err },
		"load":  func(w *world, err error) { w.loadErr = err },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.pending(orders, "a", 3)
			broken := errors.New("database away")
			breaks(w, broken)
			if _, err := w.sweeper(nil).Pass(t.Context()); !errors.Is(err, broken) {
				t.Fatalf("got %v", err)
			}
			w.balanced(t)
		})
	}
}

// Rows of a topic that does not exist pile up and become the oldest ones.
func TestDeadTopicHidesNoRows(t *testing.T) {
	w := newWorld()
	w.claims = true
	w.pending(orders, "dead", 40*3)
	w.pending(orders, "good", 7)
	w.dead["dead"] = true
	complete := false
	s := w.sweeper(func(c *Config) { c.Passed = func(_ outbox.Tally, _ time.Duration, all bool) { complete = all } })
	tally, err := s.Pass(t.Context())
	if err != nil || tally.Sent != 7 {
		t.Fatalf("%+v, %v: the rows behind those of the dead topic were not sent", tally, err)
	}
	if tally.Released != 3 {
		t.Errorf("%d rows claimed to be given back, want one page of them", tally.Released)
	}
	if !complete {
		t.Error("the pass does not count as complete")
	}
	w.balanced(t)
}

// The oldest rows may all be for the one broker that is away; but when there is
// none at all, a pass ends.
func TestAwayBrokerHidesFewRows(t *testing.T) {
	w := newWorld()
	w.pending(orders, "away", 5*3)
	w.pending(orders, "good", 3)
	w.pending(orders, "away", 1000*3)
	w.transient["away"] = true
	complete := true
	s := w.sweeper(func(c *Config) { c.Passed = func(_ outbox.Tally, _ time.Duration, all bool) { complete = all } })
	tally, err := s.Pass(t.Context())
	if err != nil || tally.Sent != 3 {
		t.Fatalf("%+v, %v", tally, err)
	}
	if n := w.count("reserve"); n > 5+1+barrenMax {
		t.Errorf("%d pages were tried although no broker took anything", n)
	}
	if complete {
		t.Error("the pass counts as complete")
	}
}

func TestTablesDoNotKeepEachOtherFromTheSweep(t *testing.T) {
	w := newWorld()
	w.pending(orders, "a", 1)
	w.pending(invoices, "b", 1)
	w.pagesErr[orders] = errors.New("Table 'shop.outbox' doesn't exist")
	complete := true
	s := w.sweeper(func(c *Config) {
		c.Tables = []outbox.Table{orders, invoices}
		c.Passed = func(_ outbox.Tally, _ time.Duration, all bool) { complete = all }
	})
	tally, err := s.Pass(t.Context())
	if !errors.Is(err, w.pagesErr[orders]) || tally.Sent != 1 || !slices.Equal(w.sent, []string{"b-0"}) {
		t.Fatalf("%+v, %v, sent %v", tally, err, w.sent)
	}
	if complete {
		t.Error("a pass with an error counts as complete")
	}
}

func TestNextPassComesSoonerAfterFailures(t *testing.T) {
	for _, c := range []struct {
		interval time.Duration
		failures int
		want     time.Duration // without jitter
	}{
		{5 * time.Minute, 0, 5 * time.Minute},
		{5 * time.Minute, 1, time.Second},
		{5 * time.Minute, 2, 2 * time.Second},
		{5 * time.Minute, 6, 32 * time.Second},
		{5 * time.Minute, 1000, 32 * time.Second},
		{time.Second, 0, time.Second},
		{time.Second, 1, time.Second},
		{time.Second, 6, 30 * time.Second},
		{time.Second, 1000, 30 * time.Second},
		{time.Nanosecond, 0, time.Nanosecond},
	} {
		s := New(Config{PollInterval: c.interval})
		for range 100 {
			if got := s.nextIn(c.failures); got < c.want || got > c.want+c.want/10+1 {
				t.Fatalf("interval %s, %d failures: %s, want %s and up to a tenth", c.interval, c.failures, got, c.want)
			}
		}
	}
}

// begin runs a sweeper that counts its passes, and returns how to end it.
func begin(ctx context.Context, s *Sweeper) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	return func() { cancel(); <-done }
}

func TestRunSweepsAtOnceAndAgainOneGraceLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var passes atomic.Int64
		s := w.sweeper(func(c *Config) { c.Passed = func(outbox.Tally, time.Duration, bool) { passes.Add(1) } })
		end := begin(t.Context(), s)
		for _, c := range []struct {
			after time.Duration
			want  int64
		}{{0, 1}, {30 * time.Second, 1}, {2 * time.Second, 2}, {4 * time.Minute, 2}, {2 * time.Minute, 3}} {
			time.Sleep(c.after)
			synctest.Wait()
			if got := passes.Load(); got != c.want {
				t.Errorf("%d passes after %s more, want %d", got, c.after, c.want)
			}
		}
		end()
	})
}

func TestTriggersDuringAPassAreOnePassMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var passes atomic.Int64
		gate := make(chan struct{})
		s := w.sweeper(func(c *Config) {
			c.Passed = func(outbox.Tally, time.Duration, bool) { passes.Add(1); <-gate }
		})
		end := begin(t.Context(), s)
		synctest.Wait() // within the first pass
		for range 10 {
			s.Trigger()
		}
		close(gate)
		synctest.Wait()
		if got := passes.Load(); got != 2 {
			t.Errorf("%d passes, want the first and one for all the triggers", got)
		}
		end()
	})
}

func TestFailedPassIsTriedAgainWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.pending(orders, "a", 1)
		w.transient["a"] = true
		var passes atomic.Int64
		s := w.sweeper(func(c *Config) {
			c.Grace = time.Hour // keeps the second start-up pass out of it
			c.Passed = func(outbox.Tally, time.Duration, bool) { passes.Add(1) }
		})
		end := begin(t.Context(), s)
		time.Sleep(10 * time.Second) // at 0, 1, 3 and 7 s, with jitter
		synctest.Wait()
		if got := passes.Load(); got != 4 {
			t.Errorf("%d passes in 10 s, want 4", got)
		}
		w.mu.Lock()
		w.transient["a"] = false
		w.mu.Unlock()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := passes.Load(); got != 5 || !slices.Equal(w.sent, []string{"a-0"}) {
			t.Errorf("%d passes, sent %v", got, w.sent)
		}
		end()
	})
}

// A pass that waits for the tail ends with the context, and takes nothing more.
func TestRunEndsWithinAPass(t *testing.T) {
	w := newWorld()
	w.pending(orders, "a", 3)
	tail := waitingTail{waiting: make(chan struct{}, 1)}
	end := begin(t.Context(), w.sweeper(func(c *Config) { c.Tail = tail }))
	<-tail.waiting
	end()
	if len(w.sent) != 0 {
		t.Errorf("sent %v", w.sent)
	}
	w.balanced(t)
}

// waitingTail never passes anything.
type waitingTail struct{ waiting chan struct{} }

func (w waitingTail) Fence(ctx context.Context) error {
	w.waiting <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func (waitingTail) Verify() {}

// A pause ends with a pass, and holds none before.
func TestNoPassBeginsDuringAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.pending(orders, "a", 3)
		var paused atomic.Bool
		paused.Store(true)
		s := w.sweeper(func(c *Config) { c.Paused = paused.Load })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { s.Run(ctx); close(ended) }()
		time.Sleep(time.Hour)
		if w.count("candidates") != 0 || len(w.sent) != 0 {
			t.Errorf("steps %v", w.steps)
		}
		paused.Store(false)
		s.Trigger()
		synctest.Wait()
		if len(w.sent) != 3 {
			t.Errorf("sent %v", w.sent)
		}
		cancel()
		<-ended
	})
}
