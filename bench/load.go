package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// steadyLoad is a steady load of transactions that insert into one outbox.
type steadyLoad struct {
	rate     int // transactions a second
	rows     int // of each
	duration time.Duration
	until    <-chan struct{} // ends it, if not nil, before the duration does
}

// written is what a load has done.
type written struct {
	mu        sync.Mutex
	committed map[int64]time.Time // when each row was committed, by id
	took      []float64           // ms from a statement's due time to its commit
}

// commitSteadily puts the load on. Transactions are due at fixed times, and one that
// is late counts from when it was due, so that a stall is seen in all that it held up.
func (b *bench) commitSteadily(ctx context.Context, schema string, l steadyLoad) (*written, error) {
	writers := min(64, max(4, l.rate/75))
	gap := time.Duration(writers) * time.Second / time.Duration(l.rate)
	values := strings.TrimSuffix(strings.Repeat("('orders',?,'OrderPlaced',?),", l.rows), ",")
	insert := "INSERT INTO " + schema + ".outbox (aggregate_type, aggregate_id, event_type, payload) VALUES " + values
	payload := payloadOf(b.o.payload)
	w := &written{committed: map[int64]time.Time{}}
	begin := time.Now()
	var g errgroup.Group
	for n := range writers {
		g.Go(func() error {
			due := begin.Add(gap * time.Duration(n) / time.Duration(writers))
			for i := 0; due.Sub(begin) < l.duration; i++ {
				if ended(ctx, l.until, due) {
					return ctx.Err()
				}
				args := make([]any, 0, 2*l.rows)
				for range l.rows {
					args = append(args, fmt.Sprintf("order-%d-%d", n, i%50), payload)
				}
				res, err := b.servers.db.ExecContext(ctx, insert, args...)
				if err != nil {
					return err
				}
				first, err := res.LastInsertId()
				if err != nil {
					return err
				}
				w.add(first, l.rows, due)
				due = due.Add(gap)
			}
			return nil
		})
	}
	return w, g.Wait()
}

// ended waits until a transaction is due, unless the load ends before.
func ended(ctx context.Context, until <-chan struct{}, due time.Time) bool {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return true
	case <-until:
		return true
	case <-timer.C:
		return false
	}
}

func (w *written) add(first int64, rows int, due time.Time) {
	at := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range rows {
		w.committed[first+int64(i)] = at
	}
	w.took = append(w.took, float64(at.Sub(due).Microseconds())/1000)
}

// percentile returns a percentile of the inserts in ms.
func (w *written) percentile(n int) float64 {
	slices.Sort(w.took)
	return w.took[len(w.took)*n/100]
}
