package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/rowferry/rowferry/demo/consumer"
	"github.com/rowferry/rowferry/demo/reconcile"
	"github.com/rowferry/rowferry/demo/shop"
)

// loadFlags are those of every command that sells.
func loadFlags(flags *flag.FlagSet) *shop.Load {
	load := &shop.Load{}
	flags.IntVar(&load.RatePerSecond, "rate", 300, "attempts to buy a second")
	flags.DurationVar(&load.Duration, "duration", 20*time.Second, "how long the sale goes on")
	flags.IntVar(&load.Workers, "workers", 16, "customers buying at the same time")
	return load
}

func checkLoad(load *shop.Load) error {
	if load.RatePerSecond < 1 || load.Workers < 1 || load.Duration < time.Second {
		fmt.Fprintln(os.Stderr, "demo: --rate and --workers must be at least 1, --duration at least 1s")
		return errUsage
	}
	return nil
}

// attempts is about how many customers will come.
func attempts(load *shop.Load) int {
	return int(float64(load.RatePerSecond) * load.Duration.Seconds())
}

func shopCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo shop", flag.ContinueOnError)
	dsn := flags.String("dsn", os.Getenv("SHOP_DSN"), "user:password@tcp(HOST:PORT)/SCHEMA (environment: SHOP_DSN)")
	load := loadFlags(flags)
	if err := parse(flags, args); err != nil {
		return err
	}
	if err := checkLoad(load); err != nil {
		return err
	}
	db, err := shop.Open(*dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := shop.CreateTables(ctx, db); err != nil {
		return err
	}
	sale, err := shop.Start(ctx, db, attempts(load))
	if err != nil {
		return err
	}
	fmt.Printf("sale %s is open: %d customers a second for %s\n", sale.ID, load.RatePerSecond, load.Duration)
	customers := shop.NewCustomers(sale, *load)
	err = customers.Rush(ctx)
	counts := customers.Counts()
	printCounts(counts)
	// Closed even after an error or Ctrl-C: whoever reconciles waits for it.
	return errors.Join(err, sale.Finish(context.WithoutCancel(ctx), counts))
}

func printCounts(c shop.Counts) {
	fmt.Printf("the sale is over: %d orders and %d later events committed; rolled back: %d sold out, %d declined, %d events undone by a savepoint; %d transactions retried\n",
		c.Orders, c.Events-c.Orders, c.SoldOut, c.RolledBack, c.Undone, c.Retried)
}

func consumeCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo consume", flag.ContinueOnError)
	dsn := flags.String("dsn", os.Getenv("SHOP_DSN"), "user:password@tcp(HOST:PORT)/SCHEMA (environment: SHOP_DSN)")
	nameServers := flags.String("namesrv", os.Getenv("ROCKETMQ_NAMESRV"), "name servers of RocketMQ, HOST:PORT,... (environment: ROCKETMQ_NAMESRV)")
	patience := flags.Duration("patience", time.Minute, "how long to wait when nothing more arrives")
	duplicates := flags.Bool("allow-duplicates", false, "copies are no difference, as after a crash")
	if err := parse(flags, args); err != nil {
		return err
	}
	db, err := shop.Open(*dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	sale, err := awaitSale(ctx, db)
	if err != nil {
		return err
	}
	schema, err := sale.Schema(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("sale %s: waiting for topic %s\n", sale.ID, shop.Topic)
	c, err := consumer.Open(ctx, *nameServers, shop.Topic)
	if err != nil {
		return err
	}
	fmt.Printf("sale %s: reading %d queues\n", sale.ID, c.Queues())
	r := newReceiver(sale.ID, schema)
	err = r.listen(ctx, c, func(ctx context.Context) error {
		return awaitSettled(ctx, newWatch(sale, r, sinceWritten, *patience), func(p progress) { fmt.Println(p) })
	})
	if err != nil {
		return err
	}
	report, err := conclude(ctx, sale, r, reconcile.Rules{DuplicatesAllowed: *duplicates})
	if err != nil {
		return err
	}
	return errors.Join(present(report), sale.Reconciled(ctx))
}

// awaitSale returns the sale to reconcile, as soon as there is one.
func awaitSale(ctx context.Context, db *sql.DB) (*shop.Sale, error) {
	for {
		sale, err := shop.Unreconciled(ctx, db)
		if err != nil || sale != nil {
			return sale, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a sale: %w", ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// conclude reads the facts of a sale that is over and compares.
func conclude(ctx context.Context, sale *shop.Sale, r *receiver, rules reconcile.Rules) (reconcile.Report, error) {
	facts, err := sale.Facts(ctx)
	if err != nil {
		return reconcile.Report{}, err
	}
	report := reconcile.Reconcile(facts, r.inbox, rules)
	report.Clock, report.Latencies = "insert to consumer", reconcile.Measure(r.inbox.Arrivals(0), sinceWritten)
	return report, nil
}

// sinceWritten measures from inside the transaction: in another process than the
// shop, the moment of the commit is not known.
func sinceWritten(a reconcile.Arrival) (time.Time, bool) { return a.WrittenAt, true }

// present prints the table and turns differences into an error.
func present(report reconcile.Report) error {
	fmt.Println()
	if err := report.Print(os.Stdout); err != nil {
		return err
	}
	if differences := report.Differences(); len(differences) > 0 {
		fmt.Println()
		for _, d := range differences {
			fmt.Println("  differs:", d)
		}
		return errDiffers
	}
	fmt.Println("\n  every committed event arrived, and nothing else")
	return nil
}
