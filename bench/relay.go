package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// carryTimeout bounds one drain.
const carryTimeout = 30 * time.Minute

// relay is a rowferry process.
type relay struct {
	cmd     *exec.Cmd
	addr    string // of its HTTP server
	started time.Time
	logFile string
}

// startRelay starts rowferry over one schema. Its topic is that of the rows; env
// adds to the environment.
func (b *bench) startRelay(ctx context.Context, schema string, env ...string) (*relay, error) {
	r := &relay{addr: fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(0)), logFile: filepath.Join(b.dir, "rowferry.log")}
	common := []string{
		"PATH=" + os.Getenv("PATH"),
		"ROWFERRY_SOURCE_DSN=" + b.servers.dsn + schema, "ROWFERRY_NAME=" + schema,
		"ROWFERRY_ROCKETMQ_NAMESRV=" + b.servers.nameServer, "ROWFERRY_HTTP_ADDR=" + r.addr,
	}
	migrate := exec.CommandContext(ctx, b.binary, "migrate", "up")
	migrate.Env = common
	if out, err := migrate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("migrating: %w\n%s", err, out)
	}
	log, err := os.Create(r.logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor
	r.cmd = exec.Command(b.binary, "run")
	r.cmd.Env = append(common, env...)
	if gogc := os.Getenv("GOGC"); gogc != "" {
		r.cmd.Env = append(r.cmd.Env, "GOGC="+gogc)
	}
	r.cmd.Stderr = log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // main never ends a thread
	r.started = time.Now()
	return r, r.cmd.Start()
}

// readyRelay starts rowferry over a schema and a topic of a part's own, and returns once
// it reads the binlog.
func (b *bench) readyRelay(ctx context.Context, part string) (r *relay, schema, topic string, err error) {
	if schema, topic, err = b.ground(part); err != nil {
		return nil, "", "", err
	}
	if r, err = b.startRelay(ctx, schema, "ROWFERRY_ROUTE_TOPIC="+topic); err != nil {
		return nil, "", "", err
	}
	if err := r.awaitReady(ctx); err != nil {
		return nil, "", "", errors.Join(err, r.stop())
	}
	return r, schema, topic, nil
}

// profile keeps the CPU profile of the next seconds.
func (r *relay) profile(file string) error {
	time.Sleep(300 * time.Millisecond) // until it listens
	resp, err := http.Get("http://" + r.addr + "/debug/pprof/profile?seconds=4")
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}

// stop drains the process.
func (r *relay) stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return r.cmd.Wait()
}

// awaitReady returns once the process reads the binlog: what is committed before
// that is not the tail's to carry.
func (r *relay) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		resp, err := http.Get("http://" + r.addr + "/readyz")
		if err == nil {
			resp.Body.Close() //nolint:errcheck // only the code matters
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting until rowferry is ready: %w", ctx.Err())
		}
	}
}

// plain asks for answers that cost the process no compression.
var plain = http.Client{Transport: &http.Transport{DisableCompression: true}}

// published returns how many events the process has had acknowledged.
func (r *relay) published() (float64, error) { return r.metric("rowferry_events_published_total{") }

// metric returns the sum of the series that begin with prefix.
func (r *relay) metric(prefix string) (float64, error) {
	resp, err := plain.Get("http://" + r.addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	var sum float64
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, prefix) {
			n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, lines.Err()
}

// await polls until the process has published n events; first is when it had
// published anything at all.
func (r *relay) await(ctx context.Context, n int, poll time.Duration) (first time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, carryTimeout)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		got, err := r.published()
		if err == nil && got > 0 && first.IsZero() {
			first = time.Now()
		}
		if err == nil && got >= float64(n) {
			return first, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			text, _ := os.ReadFile(r.logFile) // best effort: it explains the failure
			return first, errors.Join(fmt.Errorf("published %.0f of %d: %w\n%s", got, n, ctx.Err(), text), err)
		}
	}
}

// usage returns what a process has used: resident memory now and at its peak, in MiB,
// and CPU time.
func usage(pid int) (rssMiB, peakMiB float64, cpu time.Duration, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	cpu, err = cpuOf(pid)
	return kibOf(status, "VmRSS:") / 1024, kibOf(status, "VmHWM:") / 1024, cpu, err
}

// cpuOf returns the CPU time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.Atoi(fields[11]) // proc(5): utime, in ticks of 10 ms
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}

func kibOf(status []byte, name string) float64 {
	for _, line := range strings.Split(string(status), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, _ := strconv.ParseFloat(f[1], 64) // proc(5): always a number
			return n
		}
	}
	return 0
}
