package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mattn/go-isatty"
	"golang.org/x/sync/errgroup"

	"github.com/rowferry/rowferry/demo/consumer"
	"github.com/rowferry/rowferry/demo/reconcile"
	"github.com/rowferry/rowferry/demo/shop"
)

// options of demo run.
type options struct {
	load     *shop.Load
	kill     bool
	binary   string
	patience time.Duration
}

func runCommand(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("demo run", flag.ContinueOnError)
	o.load = loadFlags(flags)
	flags.BoolVar(&o.kill, "kill", false, "kill -9 rowferry in the middle of the sale and start it again")
	flags.StringVar(&o.binary, "rowferry", "", "rowferry binary to run (default: built from cmd/rowferry)")
	flags.DurationVar(&o.patience, "patience", time.Minute, "how long to wait when nothing more arrives")
	if err := parse(flags, args); err != nil {
		return err
	}
	if err := checkLoad(o.load); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "rowferry-demo-")
	if err != nil {
		return fmt.Errorf("making a scratch folder: %w", err)
	}
	log := filepath.Join(scratch, relayLog)
	err = rehearse(ctx, o, scratch)
	if _, statErr := os.Stat(log); err != nil && statErr == nil && ctx.Err() == nil {
		return fmt.Errorf("%w\n  the log of rowferry is %s", err, log)
	}
	return errors.Join(err, os.RemoveAll(scratch))
}

// rehearse brings the stage up, plays, and takes everything down again in reverse
// order, also when interrupted.
func rehearse(ctx context.Context, o options, scratch string) (err error) {
	binary, err := relayBinary(ctx, o.binary, scratch)
	if err != nil {
		return err
	}
	s, err := findServers(ctx, scratch)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	schema, dsn, drop, err := makeSchema(ctx, s.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	r, err := newRelay(binary, scratch, relaySettings{name: schema, dsn: dsn, nameServers: s.nameServers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	db, err := shop.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := shop.CreateTables(ctx, db); err != nil {
		return err
	}
	p := &play{options: o, relay: r, schema: schema, nameServers: s.nameServers, commits: newCommits()}
	if p.sale, err = shop.Start(ctx, db, attempts(o.load)); err != nil {
		return err
	}
	return p.perform(ctx)
}

// play is one sale with everything around it.
type play struct {
	options
	relay       *relay
	schema      string
	nameServers string
	commits     *commits
	sale        *shop.Sale
	customers   *shop.Customers
	receiver    *receiver
	stockMin    int // the lowest stock seen so far
}

// perform sells, relays, consumes and compares.
func (p *play) perform(ctx context.Context) error {
	if err := p.relay.call(ctx, "migrate", "up"); err != nil {
		return err
	}
	if err := p.relay.start(ctx); err != nil {
		return err
	}
	fmt.Printf("rowferry is ready: status page %s/, log %s\n", p.relay.api, p.relay.logPath)
	load := *p.load
	load.Committed = p.commits.note
	p.customers, p.receiver = shop.NewCustomers(p.sale, load), newReceiver(p.sale.ID, p.schema)

	// The topic is made by the first event, so the consumer can attach only then.
	first, err := p.customers.First(ctx)
	if err != nil {
		return err
	}
	c, err := consumer.Open(ctx, p.nameServers, shop.Topic)
	if err != nil {
		return err
	}
	if err := p.receiver.listen(ctx, c, func(ctx context.Context) error { return p.sell(ctx, first) }); err != nil {
		return err
	}
	return p.compare(ctx)
}

// sell lets the customers in when the first event has come through, and returns
// when all that they caused has come through as well and the relay has ended.
func (p *play) sell(ctx context.Context, first reconcile.Key) error {
	if err := p.awaitFirst(ctx, first); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	over := make(chan struct{})
	group.Go(func() error {
		defer close(over)
		return p.customers.Rush(groupCtx)
	})
	group.Go(func() error { return p.watch(groupCtx, over) })
	if p.kill {
		group.Go(func() error { return p.crash(groupCtx) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return p.relay.stop()
}

const firstEventTimeout = 30 * time.Second

func (p *play) awaitFirst(ctx context.Context, first reconcile.Key) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-p.relay.failed:
		return err
	case <-time.After(firstEventTimeout):
		return fmt.Errorf("the first event, %s version %d, has not arrived within %s%s", first.Order, first.Version, firstEventTimeout, p.relay.logTail())
	case <-p.receiver.first:
		fmt.Printf("the first event has come through; the sale is open: %d customers a second for %s\n", p.load.RatePerSecond, p.load.Duration)
		return nil
	}
}

// crash is kill -9 in the middle of the sale, and a restart.
func (p *play) crash(ctx context.Context) error {
	if err := pause(ctx, p.load.Duration/2); err != nil {
		return err
	}
	if err := p.relay.kill(); err != nil {
		return err
	}
	p.say("rowferry was killed (kill -9)")
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	start := time.Now()
	if err := p.relay.start(ctx); err != nil {
		return err
	}
	p.say("rowferry was started again, ready after %.1f s", time.Since(start).Seconds())
	return nil
}

// say prints a line of its own, over the one that shows the progress.
func (p *play) say(format string, args ...any) {
	fmt.Printf("%s%s\n", eraseLine(), fmt.Sprintf(format, args...))
}

// show writes the progress: on a terminal over the line before.
func (p *play) show(now progress, last bool) {
	fmt.Print(eraseLine(), now)
	if last || !isatty.IsTerminal(os.Stdout.Fd()) {
		fmt.Println()
	}
}

// watch shows the progress once a second. It returns when the sale is over and
// every event is consumed and marked, or when nothing moves any more.
func (p *play) watch(ctx context.Context, over <-chan struct{}) error {
	w := newWatch(p.sale, p.receiver, p.commits.since, p.patience)
	for {
		finished := isClosed(over)
		now, done, err := w.look(ctx, finished)
		if err != nil {
			return err
		}
		now.lag = p.relay.lag(ctx)
		p.show(now, done)
		if done {
			return nil
		}
		stock, err := p.sale.StockMin(ctx)
		if err != nil {
			return err
		}
		p.stockMin = min(p.stockMin, stock)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-p.relay.failed:
			return err
		case <-time.After(time.Second):
		}
	}
}

// eraseLine returns what takes the cursor to the start of an empty line.
func eraseLine() string {
	if isatty.IsTerminal(os.Stdout.Fd()) {
		return "\r\x1b[K"
	}
	return ""
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// compare holds the two sides against each other.
func (p *play) compare(ctx context.Context) error {
	counts := p.customers.Counts()
	if err := p.sale.Finish(ctx, counts); err != nil {
		return err
	}
	printCounts(counts)
	facts, err := p.sale.Facts(ctx)
	if err != nil {
		return err
	}
	facts.StockMin = min(facts.StockMin, p.stockMin)
	report := reconcile.Reconcile(facts, p.receiver.inbox, reconcile.Rules{DuplicatesAllowed: p.kill})
	report.Clock = "commit to consumer"
	// Without the first event, which waited for its topic to be made.
	report.Latencies = reconcile.Measure(p.receiver.inbox.Arrivals(1), p.commits.since)
	return present(report)
}
