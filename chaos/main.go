package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options say how a run goes.
type options struct {
	seed     uint64
	rows     int           // to be committed
	faults   int           // to be done
	duration time.Duration // after which no further fault begins, and no row is written; 0: none
	patience time.Duration // for what must happen once everything is healed
	tail     bool          // MODE=tail: no sweep, so the order of every row is judged
	flavor   string        // of the database
	rowferry string        // the program under test; empty: built from this tree, with the race detector
	dir      string        // where the logs go; empty: a new folder, removed if nothing is wrong
	out      io.Writer
}

// errViolation says that a promise was broken. What and where has been printed.
var errViolation = errors.New("a promise was broken")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := dispatch(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		stop()
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "mutants" {
		return mutants(ctx, args[1:], os.Stdout)
	}
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	return run(ctx, o)
}

func parse(args []string) (options, error) {
	o := options{out: os.Stdout}
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.Uint64Var(&o.seed, "seed", 0, "chooses the faults and the rows; 0: any")
	f.IntVar(&o.rows, "rows", 100_000, "rows to commit")
	f.IntVar(&o.faults, "faults", 200, "faults to do")
	f.DurationVar(&o.duration, "duration", 0, "after which no further fault begins and no row is written; 0: none")
	f.DurationVar(&o.patience, "patience", 5*time.Minute, "how long nothing may move once everything is healed")
	f.BoolVar(&o.tail, "tail", false, "without the sweep: order is judged for every row, and no binlog is purged")
	f.StringVar(&o.flavor, "flavor", "mysql", "mysql or mariadb")
	f.StringVar(&o.rowferry, "rowferry", "", "the program under test; by default it is built from this tree")
	f.StringVar(&o.dir, "dir", "", "where logs are kept; by default a new folder, removed if nothing is wrong")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000_000)
	}
	return o, nil
}

// replay is the command that repeats a run.
func (o options) replay() string {
	s := fmt.Sprintf("go run ./chaos --seed %d --rows %d --faults %d --flavor %s", o.seed, o.rows, o.faults, o.flavor)
	if o.tail {
		s += " --tail"
	}
	if o.duration > 0 {
		s += " --duration " + o.duration.String()
	}
	return s
}

// run does one run; errViolation if something is wrong.
func run(ctx context.Context, o options) (err error) {
	fmt.Fprintf(o.out, "chaos: %s\n", o.replay())
	w, err := newWorld(ctx, o)
	if w != nil {
		defer func() { err = errors.Join(err, w.close(err == nil)) }()
	}
	if err != nil {
		return err
	}
	if err := w.storm(ctx); err != nil {
		return w.judge(ctx, err)
	}
	return w.judge(ctx, w.calm(ctx))
}

// pause waits for d, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
