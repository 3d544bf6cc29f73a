package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// sendLog notes when how many events were sent.
type sendLog struct {
	mu    sync.Mutex
	began time.Time
	at    []time.Duration
	n     []int
}

func (s *sendLog) answer(_ string, _ int, ids []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.n = append(s.at, time.Since(s.began)), append(s.n, len(ids))
	return nil
}

// busiest returns the most events that were sent within a span of time that began
// between two moments.
func (s *sendLog) busiest(span, begin, end time.Duration) (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, from := range s.at {
		sum := 0
		for j := i; j < len(s.at) && s.at[j] < from+span && from >= begin && from < end; j++ {
			sum += s.n[j]
		}
		most = max(most, sum)
	}
	return most
}

// sweepRows sends rows as the sweep does, without their being in the stream.
func (r *rig) sweepRows(t *testing.T, ids []string) outbox.Tally {
	t.Helper()
	r.ledger.mu.Lock()
	for _, id := range ids {
		r.ledger.rows[id] = outbox.Pending
	}
	r.ledger.mu.Unlock()
	var events []*outbox.Event
	for _, id := range r.Reserve(orders, ids) {
		events = append(events, event(id+":swept"))
	}
	tally, err := r.Submit(t.Context(), events, "")
	if err != nil {
		t.Error(err)
	}
	return tally
}

func names(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(prefix, i)
	}
	return ids
}

// N events of both paths take N/rate seconds, and no second holds more than a tenth
// more than the rate.
func TestRateLimitIsExact(t *testing.T) {
	for _, c := range []struct{ rate, tail, swept int }{{1, 7, 3}, {7, 40, 30}, {100, 300, 500}, {2500, 4000, 3000}} {
		t.Run(strconv.Itoa(c.rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { limitIsExact(t, c.rate, c.tail, c.swept) })
		})
	}
}

func limitIsExact(t *testing.T, rate, tail, swept int) {
	log := &sendLog{began: time.Now()}
	r := start(t, func(c *Config, r *rig) {
		c.SendRateMax, c.SendBatchMax, c.InflightMax = rate, 256, 10_000
		r.sink.answer = log.answer
	})
	var sweep sync.WaitGroup
	sweep.Go(func() {
		if got := r.sweepRows(t, names("s", swept)); got.Sent != swept {
			t.Errorf("the sweep sent %d of %d rows", got.Sent, swept)
		}
	})
	for i := range tail {
		r.src.push(fmt.Sprintf("t%d:%d", i, i%13))
	}
	sweep.Wait()
	all := tail + swept
	for len(r.sink.all()) < all {
		time.Sleep(time.Millisecond)
	}
	log.mu.Lock()
	last, lastBatch := log.at[len(log.at)-1], log.n[len(log.n)-1]
	log.mu.Unlock()
	// Each batch goes when those before it are paid for.
	want := time.Duration(all-lastBatch) * time.Second / time.Duration(rate)
	if off := (last - want).Abs(); off > time.Millisecond {
		t.Errorf("%d events at %d/s took %s, want %s", all, rate, last, want)
	}
	if got, most := log.busiest(time.Second, 0, time.Hour), rate+max(1, rate/10); got > most {
		t.Errorf("%d events within a second, want at most %d", got, most)
	}
}

// A drain does not wait for the limit.
func TestRateLimitEndsWithTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(c *Config, _ *rig) { c.SendRateMax = 1 })
		r.src.push(names("t", 500)...)
		synctest.Wait() // the first has gone, all lanes wait for the second
		if got := len(r.sink.all()); got != 1 {
			t.Fatalf("%d events went at once", got)
		}
		began := time.Now()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= time.Second {
			t.Errorf("the drain took %s", took)
		}
		if got := len(r.sink.all()); got != 500 {
			t.Errorf("%d of 500 were sent", got)
		}
	})
}

// Lanes that wait for the limit neither fail nor are parked, however long that is.
func TestRateLimitParksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(c *Config, _ *rig) {
			c.SendRateMax, c.ParkAfter, c.InflightMax = 1, time.Second, 64
			c.Hooks.Deferred = func(_ outbox.Table, reason string) { t.Errorf("an event was deferred: %s", reason) }
		})
		for i := range 60 {
			r.src.push(fmt.Sprintf("t%d:%d", i, i))
		}
		for len(r.sink.all()) < 60 {
			if use := r.Usage(); len(use.Parked)+len(use.Failing) > 0 {
				t.Fatalf("parked %v, failing %v", use.Parked, use.Failing)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// Whatever the limit, whatever fails and whenever the end comes: the events of a key go
// in order, and none is lost.
func TestRateLimitKeepsOrderAndLosesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := limitedRun{
			rate: rapid.IntRange(1, 300).Draw(rt, "rate"), batch: rapid.IntRange(1, 40).Draw(rt, "batch"),
			lanes: rapid.IntRange(1, 5).Draw(rt, "lanes"), keys: rapid.IntRange(1, 9).Draw(rt, "keys"),
			events: rapid.IntRange(1, 80).Draw(rt, "events"), swept: rapid.IntRange(0, 30).Draw(rt, "swept"),
			failEvery: rapid.IntRange(2, 9).Draw(rt, "fail every"), unknown: rapid.Bool().Draw(rt, "unknown"),
			stopAfter: time.Duration(rapid.IntRange(0, 2000).Draw(rt, "stop after")) * time.Millisecond,
		}
		var err error
		synctest.Test(t, func(t *testing.T) { err = p.run(t) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

type limitedRun struct {
	rate, batch, lanes, keys, events, swept, failEvery int
	unknown                                            bool // what fails: else the broker is away
	stopAfter                                          time.Duration
}

func (p limitedRun) run(t *testing.T) error {
	sends := 0
	r := start(t, func(c *Config, r *rig) {
		c.SendRateMax, c.SendBatchMax, c.MaxAttempts = p.rate, p.batch, 1000
		c.DrainTimeout = time.Hour
		r.sink.lanes = p.lanes
		var mu sync.Mutex
		r.sink.answer = func(string, int, []string) error {
			mu.Lock()
			defer mu.Unlock()
			sends++
			switch {
			case sends%p.failEvery != 0 || isClosed(r.drainStarted):
				return nil
			case p.unknown:
				return errors.New("something nobody understands")
			}
			return errAway
		}
	})
	for i := range p.events {
		r.src.push(fmt.Sprintf("%d:%d", i, i%p.keys))
	}
	var sweep sync.WaitGroup
	sweep.Go(func() { r.sweepRows(t, names("s", p.swept)) })
	time.Sleep(p.stopAfter)
	sweep.Wait() // what it is given back is PENDING
	if err := r.stop(); err != nil {
		return err
	}
	stored := r.sink.all()
	passed, err := strconv.Atoi(cmp.Or(r.saved.last(), "0"))
	if err != nil {
		return err
	}
	for i := range p.events {
		id := strconv.Itoa(i)
		sent := r.ledger.status(id) == outbox.Sent
		if sent != slices.Contains(stored, id) {
			return fmt.Errorf("event %d: marked %t, stored %t", i, sent, !sent)
		}
		if i < passed && !sent {
			return fmt.Errorf("event %d was not sent, and position %d passes it", i, passed)
		}
	}
	for _, id := range names("s", p.swept) {
		if sent := slices.Contains(stored, id); sent != (r.ledger.status(id) == outbox.Sent) {
			return fmt.Errorf("swept row %s: sent %t, but %s", id, sent, r.ledger.status(id))
		}
	}
	return p.inOrder(r.sink.stored)
}

// inOrder checks the events of the tail.
func (p limitedRun) inOrder(stored map[string][]string) error {
	for lane, ids := range stored {
		last := map[int]int{}
		for _, text := range ids {
			id, err := strconv.Atoi(text)
			if err != nil {
				continue // the sweep's
			}
			if before, ok := last[id%p.keys]; ok && id <= before {
				return fmt.Errorf("%s: %d came behind %d", lane, id, before)
			}
			last[id%p.keys] = id
		}
	}
	return nil
}
