// Command bench measures rowferry on real servers of this machine, side by side
// with the ceilings that the same broker and the same database set, in one run.
//
// It prints a table and writes the raw numbers to bench/results/. Only ratios
// within one run mean anything: machines differ, and a noisy one differs from
// itself.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// options are the command line.
type options struct {
	rows     int
	keys     int
	payload  int // bytes
	rate     int // transactions a second of the latency run
	duration time.Duration
	rounds   int
	out      string
	profile  string
	only     string
	giant    int // rows of the one large transaction, a multiple of a million
}

// figure is one measured number.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// results is what a run writes down.
type results struct {
	At      time.Time `json:"at"`
	CPUs    int       `json:"cpus"`
	Go      string    `json:"go"`
	Options string    `json:"options"`
	Figures []figure  `json:"figures"`
}

func (r *results) add(name string, value float64, unit string) {
	r.Figures = append(r.Figures, figure{name, value, unit})
	fmt.Fprintf(os.Stderr, "  %-44s %12.1f %s\n", name, value, unit)
}

func main() {
	var o options
	flag.IntVar(&o.rows, "rows", 200_000, "waiting rows to drain")
	flag.IntVar(&o.keys, "keys", 1000, "distinct aggregates")
	flag.IntVar(&o.payload, "payload", 500, "bytes of a payload")
	flag.IntVar(&o.rate, "rate", 300, "transactions a second of the latency run")
	flag.DurationVar(&o.duration, "duration", 15*time.Second, "length of the latency run")
	flag.IntVar(&o.rounds, "rounds", 1, "rounds of ceilings and drains, interleaved; medians are shown")
	flag.StringVar(&o.out, "out", "bench/results", "folder for the raw numbers")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU profiles of the drains (none: do not profile)")
	flag.StringVar(&o.only, "only", "", "measure one part only: drains, latency, binlog or giant")
	flag.IntVar(&o.giant, "giant", 1_000_000, "rows of one large transaction, a multiple of a million")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
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
	s, err := startServers(dir)
	if err != nil {
		return err
	}
	defer s.stop() //nolint:errcheck // the results are written by then
	b := &bench{o: o, servers: s, binary: binary, dir: dir,
		results: results{At: time.Now().UTC(), CPUs: runtime.NumCPU(), Go: runtime.Version(), Options: fmt.Sprintf("%+v", o)}}
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.write()
}

// bench is one run.
type bench struct {
	o       options
	servers *servers
	binary  string
	dir     string
	results results
}

func (b *bench) measure(ctx context.Context) error {
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{{"drains", b.drains}, {"latency", b.latency}, {"binlog", b.binlogs}, {"giant", b.giants}} {
		if b.o.only != "" && b.o.only != part.name {
			continue
		}
		fmt.Fprintln(os.Stderr, part.name)
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// drains measures ceilings and drains of a backlog, interleaved.
func (b *bench) drains(ctx context.Context) error {
	rates := map[string][]float64{}
	for round := range b.o.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, b.o.rounds)
		for _, step := range []struct {
			name string
			do   func(context.Context) (float64, error)
		}{
			{"ceiling: broker alone", b.brokerCeiling},
			{"ceiling: ledger alone", b.ledgerCeiling},
			{"drain: ledger none", func(ctx context.Context) (float64, error) { return b.drain(ctx, "none") }},
			{"drain: ledger status", func(ctx context.Context) (float64, error) { return b.drain(ctx, "status") }},
		} {
			rate, err := step.do(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
			rates[step.name] = append(rates[step.name], rate)
			b.results.add(step.name, rate, "rows/s")
		}
	}
	broker, ledger := median(rates["ceiling: broker alone"]), median(rates["ceiling: ledger alone"])
	b.results.add("ratio: none / broker", median(rates["drain: ledger none"])/broker, "")
	b.results.add("ratio: status / ledger", median(rates["drain: ledger status"])/ledger, "")
	return nil
}

// write prints the table and keeps the raw numbers.
func (b *bench) write() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	for _, f := range b.results.Figures {
		if _, err := fmt.Fprintf(w, "%s\t%.2f\t%s\n", f.Name, f.Value, f.Unit); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := os.MkdirAll(b.o.out, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(b.results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.o.out, "latest.json"), append(text, '\n'), 0o644)
}
