package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowferry/rowferry/demo/consumer"
	"github.com/rowferry/rowferry/demo/reconcile"
	"github.com/rowferry/rowferry/demo/shop"
)

// receiver is the service behind the consumer: it acts on each event of its sale
// once, here by remembering it.
type receiver struct {
	sale  string
	table string // schema.table of the outbox, with which its uids begin
	inbox *reconcile.Inbox

	first     chan struct{} // closed at the first event of the sale
	closeOnce sync.Once
}

func newReceiver(sale, schema string) *receiver {
	return &receiver{sale: sale, table: schema + ".outbox", inbox: reconcile.NewInbox(), first: make(chan struct{})}
}

// handle takes one message. What others have left in the topic, another sale or
// another program, is no business of this one.
func (r *receiver) handle(m consumer.Message) {
	sale, event, err := shop.ReadEvent(m.UID, m.Body)
	ours := sale == r.sale || sale == "" && strings.HasPrefix(m.UID, r.table+":")
	switch {
	case !ours:
	case err != nil:
		r.inbox.RecordUnreadable()
	default:
		r.inbox.Record(event, m.At)
		r.closeOnce.Do(func() { close(r.first) })
	}
}

// lateMessages is how long the consumer goes on after everything has arrived, for
// what should not come at all.
const lateMessages = time.Second

// listen consumes while during runs, and a moment longer.
func (r *receiver) listen(ctx context.Context, c *consumer.Consumer, during func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	consuming, stop := context.WithCancel(ctx)
	group.Go(func() error { return c.Run(consuming, r.handle) })
	group.Go(func() error {
		defer stop()
		if err := during(ctx); err != nil {
			return err
		}
		return pause(ctx, lateMessages)
	})
	return group.Wait()
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// progress is the line shown once a second.
type progress struct {
	elapsed   time.Duration
	orders    int // committed
	events    int // committed
	relayed   int // marked SENT
	consumed  int
	lag       string              // what the relay says; empty if it is not asked
	latencies reconcile.Latencies // of what has arrived since the last line
}

// String implements fmt.Stringer.
func (p progress) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%3.0f s  orders %d  events %d  relayed %d  consumed %d", p.elapsed.Seconds(), p.orders, p.events, p.relayed, p.consumed)
	if p.lag != "" {
		fmt.Fprintf(&b, "  lag %s", p.lag)
	}
	if p.latencies.Count > 0 {
		fmt.Fprintf(&b, "  p50 %s", reconcile.Short(p.latencies.P50))
	}
	return b.String()
}

// watch follows a sale. It measures the latencies of what has arrived since it
// last looked.
type watch struct {
	sale     *shop.Sale
	receiver *receiver
	since    func(reconcile.Arrival) (time.Time, bool)
	patience time.Duration

	start, moved time.Time
	last         progress
}

func newWatch(s *shop.Sale, r *receiver, since func(reconcile.Arrival) (time.Time, bool), patience time.Duration) *watch {
	return &watch{sale: s, receiver: r, since: since, patience: patience, start: time.Now(), moved: time.Now()}
}

// look takes the numbers of this moment. It says done when the sale is finished
// and every event of it has arrived and is marked, or when nothing has changed
// for as long as patience lasts: then the reconciliation will say what is missing.
func (w *watch) look(ctx context.Context, finished bool) (p progress, done bool, err error) {
	rows, err := w.sale.Rows(ctx)
	if err != nil {
		return p, false, err
	}
	orders, events, err := w.sale.Committed(ctx)
	if err != nil {
		return p, false, err
	}
	arrivals := w.receiver.inbox.Arrivals(w.last.consumed)
	p = progress{
		elapsed:   time.Since(w.start),
		orders:    orders,
		events:    events,
		relayed:   rows["SENT"],
		consumed:  w.last.consumed + len(arrivals),
		latencies: reconcile.Measure(arrivals, w.since),
	}
	if !finished || p.consumed != w.last.consumed || p.relayed != w.last.relayed {
		w.moved = time.Now()
	}
	w.last = p
	settled := rows["PENDING"]+rows["PROCESSING"] == 0 && p.consumed >= p.events
	return p, finished && (settled || time.Since(w.moved) > w.patience), nil
}

// awaitSettled follows a sale of another process to its end.
func awaitSettled(ctx context.Context, w *watch, show func(progress)) error {
	for {
		finished, err := w.sale.Finished(ctx)
		if err != nil {
			return err
		}
		p, done, err := w.look(ctx, finished)
		if err != nil {
			return err
		}
		show(p)
		if done {
			return nil
		}
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("waiting for the events: %w", err)
		}
	}
}

// commits remembers when each COMMIT returned.
type commits struct {
	mu sync.Mutex
	at map[reconcile.Key]time.Time
}

func newCommits() *commits { return &commits{at: map[reconcile.Key]time.Time{}} }

func (c *commits) note(k reconcile.Key, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[k] = at
}

// since tells when the event of an arrival was committed.
func (c *commits) since(a reconcile.Arrival) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.at[a.Key]
	return at, known
}
