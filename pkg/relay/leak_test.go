package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// A leadership may come and go for months. Each of these lives ends in another way.
func TestAThousandLivesLeakNothing(t *testing.T) {
	ways := []func(*testing.T){liveCleanly, liveWithoutBroker, liveParked, liveWithoutLanes, liveWaitingForAFence}
	round := func(lives int) {
		t.Run("lives", func(t *testing.T) { // what the test keeps of them goes with it
			for i := range lives {
				ways[i%len(ways)](t)
			}
		})
	}
	round(50) // what is made once is made
	goroutines, heap := runtime.NumGoroutine(), liveHeapBytes()
	for range 10 {
		round(100)
	}
	awaitGoroutines(t, goroutines)
	const perLifeBytes = 500 // far below what an engine holds
	if grown := int64(liveHeapBytes()) - int64(heap); grown > 1000*perLifeBytes {
		t.Errorf("a thousand lives have left %d bytes behind", grown)
	} else {
		t.Logf("a thousand lives have changed the heap by %d bytes", grown)
	}
}

// liveHeapBytes is what is in use after two collections: the first one leaves what has a
// finalizer.
func liveHeapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// awaitGoroutines waits until no more than so many run: those that end take a moment.
func awaitGoroutines(t *testing.T, most int) {
	t.Helper()
	eventually(t, fmt.Sprintf("at most %d goroutines", most), func() bool { return runtime.NumGoroutine() <= most })
}

func liveCleanly(t *testing.T) {
	r := start(t, nil)
	r.src.push("1:a", "2:b", "3:c")
	eventually(t, "position saved", func() bool { return r.saved.last() == "1" })
	endLife(t, r)
}

// liveWithoutBroker ends while both paths have rows that cannot go.
func liveWithoutBroker(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) {
		r.sink.answer = func(string, int, []string) error { return errAway }
	})
	r.src.push("1:a", "2:b", "3:c")
	eventually(t, "lanes fail", func() bool { return len(r.Usage().Failing) > 0 })
	r.Reserve(orders, []string{"4"})
	if tally, err := r.Submit(t.Context(), []*outbox.Event{event("4:d")}, ""); err != nil || tally.Released != 1 {
		t.Fatalf("%+v, %v", tally, err)
	}
	endLife(t, r)
}

func liveParked(t *testing.T) {
	r := start(t, func(c *Config, r *rig) {
		c.ParkAfter = 1
		r.sink.answer = func(string, int, []string) error { return errMissing }
	})
	r.src.push("1:a", "2:b", "3:c")
	eventually(t, "parked", func() bool { return len(r.Usage().Parked) > 0 })
	endLife(t, r)
}

// laneless is a broker that does not say how many lanes there are.
type laneless struct{ *scriptedSink }

func (laneless) Lanes(context.Context, string) (int, error) { return 0, errAway }

func liveWithoutLanes(t *testing.T) {
	r := start(t, func(c *Config, r *rig) { c.Sink = laneless{r.sink} })
	r.src.push("1:a", "2:b", "3:c")
	eventually(t, "the topic fails", func() bool { return len(r.Usage().Failing) > 0 })
	endLife(t, r)
}

// liveWaitingForAFence ends under a sweep.
func liveWaitingForAFence(t *testing.T) {
	r := start(t, func(c *Config, _ *rig) { c.Fences = silentFences{} })
	r.Verify()
	var sweep sync.WaitGroup
	sweep.Go(func() {
		if err := r.Fence(context.Background()); !errors.Is(err, errDrained) {
			t.Errorf("the fence of an engine that has ended: %v", err)
		}
	})
	endLife(t, r)
	sweep.Wait()
}

func endLife(t *testing.T, r *rig) {
	t.Helper()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.src.batches = nil // 10,000 places each
}

// What waits is in queues, not in goroutines.
func TestGoroutinesDoNotGrowWithTheBacklog(t *testing.T) {
	r := start(t, func(c *Config, r *rig) {
		c.InflightMax, c.InflightBytesMax = 20_000, 1<<30
		r.sink.answer = func(string, int, []string) error { return errAway }
	})
	waiting := func(n int) int {
		for i := int(r.Usage().Events); i < n; i++ {
			r.src.push(fmt.Sprintf("%d:%d", i, i%997))
		}
		eventually(t, fmt.Sprintf("%d events wait", n), func() bool { return r.Usage().Events == int64(n) })
		eventually(t, "all lanes fail", func() bool { return len(r.Usage().Failing) == 4 })
		return runtime.NumGoroutine()
	}
	few := waiting(100)
	if many := waiting(20_000); many > few {
		t.Errorf("%d goroutines with 100 events waiting, %d with 20,000", few, many)
	}
}
