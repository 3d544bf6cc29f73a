// Command bench measures rowferry on real servers of this machine, side by side
// with the ceilings that the same broker and the same database set, in one run.
//
// It prints a table and writes the raw numbers and a plot to bench/results/. Only
// ratios within one run mean anything: machines differ, and a noisy one differs from
// itself. docs/benchmarks.md tells the method.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// options are the command line.
type options struct {
	rows      int
	keys      int
	payload   int // bytes
	rates     string
	duration  time.Duration
	sustained int // rows a second
	rounds    int
	out       string
	profile   string
	only      string
	giant     int // rows of the one large transaction, a multiple of a million
	rival     bool
	growth    bool
	sentRows  int
	mysqld    string // further flags
}

// String leaves out the folders, which are nobody's business and change nothing.
func (o options) String() string {
	type plain options // without this method
	o.out, o.profile = "", ""
	return fmt.Sprintf("%+v", plain(o))
}

// bareCommand makes this program the bare loop; see bareMain.
const bareCommand = "bare-loop"

func main() {
	if len(os.Args) == 3 && os.Args[1] == bareCommand {
		rlog.SetLogLevel("fatal")
		exitOn(bareMain(os.Args[2]))
		return
	}
	var o options
	flag.IntVar(&o.rows, "rows", 500_000, "waiting rows to drain")
	flag.IntVar(&o.keys, "keys", 1000, "distinct aggregates")
	flag.IntVar(&o.payload, "payload", 500, "bytes of a payload")
	flag.StringVar(&o.rates, "rates", "300,3000", "transactions a second of the latency runs")
	flag.DurationVar(&o.duration, "duration", 15*time.Second, "length of a latency run, of the sustained load and of the inserters' runs")
	flag.IntVar(&o.sustained, "sustained", 0, "rows a second of the sustained load (0: two fifths of what the drain with ledger status made)")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of what is measured interleaved; medians are shown")
	flag.StringVar(&o.out, "out", "bench/results", "folder for the raw numbers and the plot")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU profiles of the drains (none: do not profile)")
	flag.StringVar(&o.only, "only", "", "measure these parts only, a comma list of: "+strings.Join(partNames(), " "))
	flag.IntVar(&o.giant, "giant", 1_000_000, "rows of one large transaction, a multiple of a million")
	flag.BoolVar(&o.rival, "rival", false, "also measure Debezium Server (fetched by scripts/provision debezium, 780 MB)")
	flag.BoolVar(&o.growth, "growth", false, "also measure how cost grows with the work (takes an hour and 30 GB of disk)")
	flag.IntVar(&o.sentRows, "sent-rows", 10_000_000, "rows of earlier times in the table, for --growth")
	flag.StringVar(&o.mysqld, "mysqld", "", `further flags of the database, as in --mysqld="--binlog-row-metadata=FULL"`)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exitOn(run(ctx, o))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	rlog.SetLogLevel("fatal") // the producer of the ceiling logs on its own
	dir, err := os.MkdirTemp("", "rowferry-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // scratch
	binary := filepath.Join(dir, "rowferry")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/rowferry").CombinedOutput(); err != nil {
		return fmt.Errorf("building rowferry: %w\n%s", err, out)
	}
	fmt.Fprintln(os.Stderr, "starting servers")
	s, err := startServers(dir, o.mysqld)
	if err != nil {
		return err
	}
	defer s.stop() //nolint:errcheck // the results are written by then
	b := &bench{o: o, servers: s, binary: binary, dir: dir,
		results: results{At: time.Now().UTC(), Commit: commit(ctx), Machine: describeMachine(), Options: o.String()}}
	if b.results.Settings, err = b.serverSettings(ctx); err != nil {
		return err
	}
	err = b.measure(ctx)
	b.results.Machine.LoadEnd = load()
	return errors.Join(err, b.results.write(o.out)) // also what was measured before a failure
}

// bench is one run.
type bench struct {
	o       options
	servers *servers
	binary  string
	dir     string
	results results
	sentMax int64 // the last id of the rows of earlier times; 0: not made yet
}

// part is something that can be measured alone.
type part struct {
	name string
	do   func(*bench, context.Context) error
}

var parts = []part{
	{"drains", (*bench).drains}, {"latency", (*bench).latencies}, {"sustained", (*bench).sustained},
	{"start", (*bench).coldStarts}, {"memory", (*bench).memory}, {"inserters", (*bench).inserters},
	{"binlog", (*bench).binlogs}, {"giant", (*bench).giants}, {"growth", (*bench).growth},
}

func partNames() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// chosen tells whether a part is to be measured.
func (o options) chosen(part string) bool {
	if o.only != "" {
		return slices.Contains(strings.Split(o.only, ","), part)
	}
	return part != "growth" || o.growth
}

func (b *bench) measure(ctx context.Context) error {
	for _, p := range parts {
		if !b.o.chosen(p.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s (load %s)\n", p.name, load())
		if err := p.do(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := b.tidy(ctx); err != nil {
			return err
		}
	}
	return nil
}
