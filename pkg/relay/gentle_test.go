package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// slowLedger takes its time, and notes when it recorded how much.
type slowLedger struct {
	*memoryLedger
	mu    sync.Mutex
	calls []ledgerCall
}

type ledgerCall struct {
	rows       int
	began, end time.Time
}

// ledgerTime is what a transaction costs: a commit, and something for each row.
func ledgerTime(rows int) time.Duration {
	return 2*time.Millisecond + time.Duration(rows)*20*time.Microsecond
}

func (l *slowLedger) Record(ctx context.Context, outcomes []outbox.Outcome, also func(context.Context, *sql.Tx) error) ([]outbox.Outcome, error) {
	began := time.Now()
	time.Sleep(ledgerTime(len(outcomes)))
	l.mu.Lock()
	l.calls = append(l.calls, ledgerCall{len(outcomes), began, time.Now()})
	l.mu.Unlock()
	return l.memoryLedger.Record(ctx, outcomes, also)
}

// largest returns the most rows of one transaction that began in a span of time.
func (l *slowLedger) largest(from, to time.Time) (rows int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if !c.began.Before(from) && c.began.Before(to) {
			rows = max(rows, c.rows)
		}
	}
	return rows
}

// busy returns which part of a span of time transactions took.
func (l *slowLedger) busy(from, to time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum time.Duration
	for _, c := range l.calls {
		if !c.began.Before(from) && c.end.Before(to) {
			sum += c.end.Sub(c.began)
		}
	}
	return sum.Seconds() / to.Sub(from).Seconds()
}

// perSecond is a server on which others insert rows at a rate.
func perSecond(rate int) func(context.Context) (uint64, error) {
	began := time.Now()
	return func(context.Context) (uint64, error) {
		return 1000 + uint64(time.Since(began).Seconds()*float64(rate)), nil
	}
}

// startSlow starts an engine whose backlog has waited for the ledger, and which others
// write beside.
func startSlow(t *testing.T, inserted func(context.Context) (uint64, error), backlog int) (*rig, *slowLedger) {
	t.Helper()
	slow := &slowLedger{}
	r := start(t, func(c *Config, r *rig) {
		slow.memoryLedger = r.ledger
		c.Ledger, c.Inserted = slow, inserted
		c.InflightMax, c.InflightBytesMax, c.SendBatchMax = 20_000, 1<<30, 256
	})
	committed := time.Now().Add(-time.Hour)
	for i := 0; i < backlog; i += 100 {
		b := outbox.Batch{End: outbox.Position{Seq: uint64(i + 1)}, CommittedAt: committed}
		for k := range 100 {
			b.Events = append(b.Events, event(fmt.Sprintf("b%d:%d", i+k, k)))
		}
		r.src.batches <- b
	}
	return r, slow
}

func (r *rig) awaitSent(rows int) {
	for sent := 0; sent < rows; time.Sleep(100 * time.Millisecond) { // of the bubble's time
		sent = 0
		r.ledger.mu.Lock()
		for _, st := range r.ledger.rows {
			if st == outbox.Sent {
				sent++
			}
		}
		r.ledger.mu.Unlock()
	}
}

func TestGentleOnlyBesideOthers(t *testing.T) {
	unknown := func(context.Context) (uint64, error) { return 0, errors.New("no") }
	for _, c := range []struct {
		name     string
		inserted func() func(context.Context) (uint64, error)
		gentle   bool
	}{
		{"others insert", func() func(context.Context) (uint64, error) { return perSecond(300) }, true},
		{"nobody does", func() func(context.Context) (uint64, error) { return perSecond(0) }, false},
		{"nearly nobody does", func() func(context.Context) (uint64, error) { return perSecond(2) }, false},
		{"fast was asked for", func() func(context.Context) (uint64, error) { return nil }, false},
		{"the server does not say", func() func(context.Context) (uint64, error) { return unknown }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { gentleOrNot(t, c.inserted(), c.gentle) })
		})
	}
}

func gentleOrNot(t *testing.T, inserted func(context.Context) (uint64, error), gentle bool) {
	const backlog = 40_000
	began := time.Now()
	r, slow := startSlow(t, inserted, backlog)
	sends := &sendLog{began: began}
	r.sink.mu.Lock()
	r.sink.answer = sends.answer
	r.sink.mu.Unlock()
	// It takes some seconds at most to find out how things stand.
	from, to := began.Add(5*time.Second), began.Add(7*time.Second)
	time.Sleep(time.Until(from))
	resting := r.Usage().Resting
	r.awaitSent(backlog)
	if !gentle {
		if got := slow.largest(began, to); got != markMax {
			t.Errorf("transactions of up to %d rows with nobody to be gentle with", got)
		}
		if resting != 0 {
			t.Errorf("rests %.1f times as long", resting)
		}
		return
	}
	if got := slow.largest(from, to); got > gentleRows {
		t.Errorf("a transaction of %d rows beside others, want at most %d", got, gentleRows)
	}
	if got, most := slow.busy(from, to), 1.05/(1+restMost); got > most {
		t.Errorf("transactions took %.2f of the time beside others, want at most %.2f", got, most)
	}
	// What is marked meanwhile is 4,000 a second.
	if got := sends.busiest(time.Second/10, time.Second, 4*time.Second); got > 1300 {
		t.Errorf("%d events were sent within a tenth of a second", got)
	}
	if resting != restMost {
		t.Errorf("rests %.1f times as long, want %.1f", resting, restMost)
	}
	time.Sleep(time.Second)
	r.src.push("last:1") // caught up: this one is a batch of its own
	r.awaitSent(backlog + 1)
	if resting := r.Usage().Resting; resting != 0 {
		t.Errorf("rests %.1f times as long although nothing waits", resting)
	}
}

// A backlog shrinks, however much applications write meanwhile, as long as the ledger can
// follow at all.
func TestGentleCatchUpMakesHeadway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, backlog = 8000, 20_000 // the ledger does 4,000/s when it rests, 45,000/s when it does not
		r, _ := startSlow(t, perSecond(rate), backlog)
		began, written, rests := time.Now(), 0, map[float64]bool{}
		for caughtUp := false; !caughtUp; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatal("not caught up within a minute")
			}
			b := outbox.Batch{End: outbox.Position{Seq: uint64(backlog + written + 1)}, CommittedAt: time.Now()}
			for range rate / 100 {
				b.Events = append(b.Events, event(fmt.Sprintf("n%d:%d", written, written%100)))
				written++
			}
			select {
			case r.src.batches <- b:
			default:
				t.Fatal("the backlog only grows")
			}
			use := r.Usage()
			rests[use.Resting] = true
			caughtUp = time.Since(began) > time.Second && use.Events < 1000 && len(r.src.batches) < 10
		}
		if !rests[restMost/2] {
			t.Errorf("rests of %v times: they were not shortened step by step", rests)
		}
	})
}

// What waits in the binlog was written so slowly that even the gentle rate goes through it
// quickly: then much that others insert elsewhere is no reason to hurry.
func TestGentleMindsTheBacklogsOwnPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := startSlow(t, perSecond(50_000), 0)
		r.sink.mu.Lock()
		r.sink.answer = func(string, int, []string) error { time.Sleep(time.Millisecond); return nil } // lanes keep in step
		r.sink.mu.Unlock()
		committed := time.Now().Add(-24 * time.Hour)
		for i := range 16_001 {
			committed = committed.Add(100 * time.Millisecond) // 10 a second
			r.src.batches <- outbox.Batch{End: outbox.Position{Seq: uint64(i + 1)}, CommittedAt: committed,
				Events: []*outbox.Event{event(fmt.Sprintf("b%d:%d", i, i%100))}}
		}
		time.Sleep(3500 * time.Millisecond)
		if got := r.Usage().Resting; got != restMost {
			t.Errorf("rests %.1f times as long, want %.1f", got, restMost)
		}
	})
}

// The sweep alone can be a catch-up: after a gap it takes all there is.
func TestGentleSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, slow := startSlow(t, perSecond(100), 0)
		began := time.Now()
		for page := 0; time.Since(began) < 5*time.Second; page++ {
			r.sweepRows(t, names(fmt.Sprintf("p%d-", page), 200))
		}
		if got, most := slow.busy(began.Add(3*time.Second), began.Add(5*time.Second)), 1.05/(1+restMost); got > most {
			t.Errorf("transactions took %.2f of the time, want at most %.2f", got, most)
		}
	})
}

// A drain does not rest.
func TestGentleEndsWithTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const backlog = 10_000
		r, slow := startSlow(t, perSecond(300), backlog)
		time.Sleep(time.Second)
		if r.Usage().Resting == 0 {
			t.Fatal("it does not rest")
		}
		began := time.Now()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if took, most := time.Since(began), 2*backlog/markMax*ledgerTime(markMax); took > most {
			t.Errorf("the drain took %s", took)
		}
		if got := slow.largest(began, time.Now()); got != markMax {
			t.Errorf("transactions of up to %d rows, want %d", got, markMax)
		}
		r.awaitSent(backlog)
	})
}
