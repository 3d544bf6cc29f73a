package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// backlog is a filled outbox table and where the binlog was before.
type backlog struct {
	schema string
	from   string // GTID set
	rows   int
}

// carried is what carrying a backlog took.
type carried struct {
	rows    int
	took    time.Duration // from process start to the last row published and, where rows are marked, marked
	first   time.Duration // from process start to the first acknowledgement
	peakMiB float64
	cpu     time.Duration
	mallocs float64 // 0: not known
}

// goingOn names the rate from the first message on: a JVM takes seconds to start, which
// says nothing about a long drain.
const goingOn = " once going"

// record keeps the figures of one drain under the name of who did it.
func (b *bench) record(name string, c carried) {
	hundredThousands := float64(c.rows) / 100_000
	b.results.add(name, float64(c.rows)/c.took.Seconds(), "rows/s")
	b.results.add(name+goingOn, float64(c.rows)/(c.took-c.first).Seconds(), "rows/s")
	b.results.add(name+", first message after start", float64(c.first.Milliseconds()), "ms")
	b.results.add(name+", peak memory", c.peakMiB, "MiB")
	b.results.add(name+", CPU for 100,000 messages", c.cpu.Seconds()/hundredThousands, "s")
	if c.mallocs > 0 {
		b.results.add(name+", allocations a message", c.mallocs/float64(c.rows), "")
	}
}

// drains measures ceilings, bare loops, rowferry and, if asked, the rival, interleaved.
func (b *bench) drains(ctx context.Context) error {
	if err := b.warmUp(ctx); err != nil {
		return err
	}
	for round := range b.o.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, b.o.rounds)
		steps := []func(context.Context) error{b.ceilings, b.drainUnmarked, b.drainMarked}
		if b.o.rival {
			steps = append(steps, b.drainRival)
		}
		for _, step := range steps {
			if err := step(ctx); err != nil {
				return err
			}
			if err := b.tidy(ctx); err != nil {
				return err
			}
		}
	}
	b.drainRatios()
	return nil
}

// warmUp lets the broker's JVM compile what it needs, so that the first to be measured
// does not pay for all.
func (b *bench) warmUp(ctx context.Context) error {
	for range 3 {
		if _, err := b.brokerCeiling(ctx); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
	}
	return b.tidy(ctx)
}

func (b *bench) drainRatios() {
	for _, r := range []struct{ of, to, goal string }{
		{"rowferry none", "ceiling: broker", ">= 0.85"}, {"rowferry none", "bare loop", ">= 0.85"},
		{"rowferry status", "bare loop that marks", ">= 0.95"}, {"rowferry status", "ceiling: ledger", ""},
		{"rowferry delete", "rowferry status", ">= 1"},
		{"rowferry status, gentle", "rowferry status", ""},
		{"rowferry none" + goingOn, rivalTuned + goingOn, ">= 10"}, {"rowferry status" + goingOn, rivalTuned + goingOn, ">= 2.5"},
		{"rowferry none" + goingOn, rivalDefaults + goingOn, ""}, {"rowferry status" + goingOn, rivalDefaults + goingOn, ""},
		{"bare loop", "ceiling: broker", ""},
		{"rowferry none, CPU for 100,000 messages", "bare loop, CPU for 100,000 messages", ""},
		{"rowferry none, peak memory", "bare loop, peak memory", ""},
	} {
		b.results.ratio(r.of, r.to, r.goal)
	}
}

func (b *bench) ceilings(ctx context.Context) error {
	for _, c := range []struct {
		name    string
		measure func(context.Context) (float64, error)
	}{{"ceiling: broker", b.brokerCeiling}, {"ceiling: ledger", b.ledgerCeiling}} {
		rate, err := c.measure(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		b.results.add(c.name, rate, "rows/s")
	}
	return nil
}

// drainUnmarked has the same rows carried by those who do not touch the table.
func (b *bench) drainUnmarked(ctx context.Context) error {
	l, err := b.newBacklog(ctx, "bench_unmarked", b.o.rows)
	if err != nil {
		return err
	}
	c, err := b.drainBare(ctx, l, false)
	if err != nil {
		return fmt.Errorf("bare loop: %w", err)
	}
	b.record("bare loop", c)
	if c, err = b.drain(ctx, l, "none"); err != nil {
		return fmt.Errorf("rowferry none: %w", err)
	}
	b.record("rowferry none", c)
	return nil
}

// drainMarked gives everybody who writes to the table the same rows anew.
func (b *bench) drainMarked(ctx context.Context) error {
	for _, who := range []struct {
		name string
		do   func(context.Context, backlog) (carried, error)
	}{
		{"bare loop that marks", func(ctx context.Context, l backlog) (carried, error) { return b.drainBare(ctx, l, true) }},
		{"rowferry status", func(ctx context.Context, l backlog) (carried, error) { return b.drain(ctx, l, "status") }},
		{"rowferry delete", func(ctx context.Context, l backlog) (carried, error) { return b.drain(ctx, l, "delete") }},
		{"rowferry status, gentle", func(ctx context.Context, l backlog) (carried, error) {
			return b.drain(ctx, l, "status", "ROWFERRY_CATCH_UP=gentle")
		}},
	} {
		l, err := b.newBacklog(ctx, "bench_marked", b.o.rows)
		if err != nil {
			return err
		}
		c, err := who.do(ctx, l)
		if err != nil {
			return fmt.Errorf("%s: %w", who.name, err)
		}
		b.record(who.name, c)
	}
	return nil
}

// newBacklog fills a new outbox table.
func (b *bench) newBacklog(ctx context.Context, schema string, rows int) (backlog, error) {
	if _, err := b.schema(schema); err != nil {
		return backlog{}, err
	}
	from, err := b.gtids(ctx)
	if err != nil {
		return backlog{}, err
	}
	return backlog{schema, from, rows}, b.fill(ctx, schema, rows)
}

// gtids returns the set of all transactions so far.
func (b *bench) gtids(ctx context.Context) (set string, err error) {
	err = b.servers.db.QueryRowContext(ctx, "SELECT @@GLOBAL.gtid_executed").Scan(&set)
	return strings.ReplaceAll(set, "\n", ""), err
}

// drain has rowferry carry a backlog.
func (b *bench) drain(ctx context.Context, l backlog, ledger string, env ...string) (c carried, err error) {
	topic, err := b.topic("drain_" + ledger)
	if err != nil {
		return c, err
	}
	r, err := b.startRelay(ctx, l.schema, append([]string{
		"ROWFERRY_LEDGER=" + ledger, "ROWFERRY_ROUTE_TOPIC=" + topic, "ROWFERRY_START_AT=" + l.from, "ROWFERRY_CATCH_UP=fast"}, env...)...)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if b.o.profile != "" {
		go r.profile(filepath.Join(b.o.profile, ledger+".pprof")) //nolint:errcheck // an aid: it may come too late
	}
	first, err := r.await(ctx, l.rows, 50*time.Millisecond)
	if err != nil {
		return c, err
	}
	if ledger != "none" {
		if err := b.awaitMarked(ctx, l.schema); err != nil {
			return c, err
		}
	}
	c = carried{rows: l.rows, took: time.Since(r.started), first: first.Sub(r.started)}
	if _, c.peakMiB, c.cpu, err = usage(r.cmd.Process.Pid); err != nil {
		return c, err
	}
	c.mallocs, err = r.metric("go_memstats_mallocs_total ")
	return c, err
}

// awaitMarked returns when no row is waiting.
func (b *bench) awaitMarked(ctx context.Context, schema string) error {
	for {
		var one int
		err := b.servers.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM "+schema+".outbox WHERE status='PENDING' LIMIT 1) x").Scan(&one)
		if err != nil || one == 0 {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// drainBare has the bare loop carry a backlog, in a process of its own.
func (b *bench) drainBare(ctx context.Context, l backlog, mark bool) (c carried, err error) {
	topic, err := b.topic("bare")
	if err != nil {
		return c, err
	}
	cmd, err := b.bareProcess(ctx, bareConfig{Schema: l.schema, From: l.from, Topic: topic, Rows: l.rows, Mark: mark})
	if err != nil {
		return c, err
	}
	start := time.Now()
	out, err := cmd.Output()
	if err != nil {
		return c, err
	}
	c = carried{rows: l.rows, took: time.Since(start), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	var report bareReport
	if err := json.Unmarshal(out, &report); err != nil {
		return c, fmt.Errorf("reading its report: %w", err)
	}
	c.first, c.mallocs = report.First.Sub(start), float64(report.Mallocs)
	if used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		c.peakMiB = float64(used.Maxrss) / 1024 // getrusage(2): KiB
	}
	return c, nil
}

// bareProcess is the bare loop's process over the servers of the run.
func (b *bench) bareProcess(ctx context.Context, config bareConfig) (*exec.Cmd, error) {
	config.DSN, config.NameServer = b.servers.dsn, b.servers.nameServer
	argument, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, bareCommand, string(argument))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // main never ends a thread
	return cmd, nil
}
