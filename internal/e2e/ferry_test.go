package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// patience is how long anything that must happen may take; it is long because a
// loaded machine is slow, and no test waits longer than what it waits for.
const patience = 60 * time.Second

// ferry is one `rowferry run` process.
type ferry struct {
	tb     testing.TB
	binary string
	env    map[string]string // without the prefix
	addr   string            // of its HTTP server
	log    *output

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process is reaped
	err    error         // how it ended; read after exited
}

// start runs the program with the environment of the stage, changed by overrides
// of the form NAME=value (without the prefix; an empty value removes the
// variable), and does not wait. Its log is printed if the test fails.
func (s *stage) start(overrides ...string) *ferry {
	s.tb.Helper()
	return s.startBinary(binary(s.tb, raceBinary), overrides...)
}

// run is start for those that must come up: it returns when the relay relays.
func (s *stage) run(overrides ...string) *ferry {
	s.tb.Helper()
	f := s.start(overrides...)
	f.awaitLog(`"message":"relaying"`)
	return f
}

func (s *stage) startBinary(binary string, overrides ...string) *ferry {
	s.tb.Helper()
	f := &ferry{tb: s.tb, binary: binary, env: s.env(overrides...)}
	if f.env["HTTP_ADDR"] == "" {
		f.env["HTTP_ADDR"] = fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(0))
	}
	f.addr = f.env["HTTP_ADDR"]
	f.launch()
	s.tb.Cleanup(f.discard)
	return f
}

// launch starts the process.
//
// The kernel kills a child when the thread that started it ends, so this
// goroutine keeps its thread until the child is gone: no child outlives the
// test process, and none dies before.
func (f *ferry) launch() {
	f.tb.Helper()
	f.log = newOutput()
	f.cmd = exec.Command(f.binary, "run")
	f.cmd.Env = environ(f.env)
	f.cmd.Stdout, f.cmd.Stderr = f.log, f.log
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	f.exited = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := f.cmd.Start()
		started <- err
		if err == nil {
			f.err = f.cmd.Wait()
			close(f.exited)
		}
	}()
	if err := <-started; err != nil {
		f.tb.Fatalf("starting rowferry: %v", err)
	}
}

// restart starts an ended process again, with the same environment, and returns
// when it relays.
func (f *ferry) restart() {
	f.tb.Helper()
	f.checkLog()
	f.launch()
	f.awaitLog(`"message":"relaying"`)
}

// kill is kill -9: no drain, no last mark, no last position.
func (f *ferry) kill() {
	f.tb.Helper()
	f.signal(syscall.SIGKILL)
	<-f.exited
}

// stop asks the process to end, waits for it, and returns its exit code and how
// long it took.
func (f *ferry) stop() (code int, took time.Duration) {
	f.tb.Helper()
	begin := time.Now()
	f.signal(syscall.SIGTERM)
	return f.wait(), time.Since(begin)
}

// stopCleanly is stop for a process that must end with exit code 0.
func (f *ferry) stopCleanly() {
	f.tb.Helper()
	if code, took := f.stop(); code != 0 {
		f.tb.Errorf("SIGTERM ended rowferry with exit code %d after %v", code, took)
	}
}

func (f *ferry) signal(sig syscall.Signal) {
	f.tb.Helper()
	if err := f.cmd.Process.Signal(sig); err != nil {
		f.tb.Fatalf("signal %v to rowferry: %v", sig, err)
	}
}

// wait returns the exit code of a process that ends by itself.
func (f *ferry) wait() int {
	f.tb.Helper()
	select {
	case <-f.exited:
	case <-time.After(patience):
		f.tb.Fatalf("rowferry has not ended after %v", patience)
	}
	var exit *exec.ExitError
	if f.err != nil && !errors.As(f.err, &exit) {
		f.tb.Fatalf("waiting for rowferry: %v", f.err)
	}
	return f.cmd.ProcessState.ExitCode()
}

func (f *ferry) alive() bool {
	select {
	case <-f.exited:
		return false
	default:
		return true
	}
}

// discard ends what still runs at the end of a test.
func (f *ferry) discard() {
	if f.alive() {
		f.kill()
	}
	f.checkLog()
	if f.tb.Failed() {
		f.tb.Logf("the log of rowferry on %s:\n%s", f.addr, f.log.tail(100))
	}
}

// checkLog fails the test for what no run may ever print.
func (f *ferry) checkLog() {
	f.tb.Helper()
	for _, sign := range []string{"WARNING: DATA RACE", "panic:", "fatal error:"} {
		if f.log.contains(sign) {
			f.tb.Errorf("rowferry printed %q:\n%s", sign, f.log.tail(200))
		}
	}
}

// awaitLog waits until all parts stand in one line of the log, and returns it.
func (f *ferry) awaitLog(parts ...string) string {
	f.tb.Helper()
	line, err := f.log.await(f.exited, patience, parts...)
	if err != nil {
		f.tb.Fatalf("%v; the log of rowferry:\n%s", err, f.log.tail(100))
	}
	return line
}

// get asks the HTTP server; status 0 if it does not answer.
func (f *ferry) get(path string) (status int, body string) {
	f.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.addr+path, nil)
	if err != nil {
		f.tb.Fatal(err)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// httpClient keeps no connections, whose goroutines would outlive the tests.
var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// peakMiB is the most memory that was resident in the life of the process.
func (f *ferry) peakMiB() float64 {
	f.tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.cmd.Process.Pid))
	if err != nil {
		f.tb.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); fields[0] == "VmHWM:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				f.tb.Fatal(err)
			}
			return kib / 1024
		}
	}
	f.tb.Fatal("the kernel does not say how much memory rowferry has")
	return 0
}

// result is what a command that has ended left behind.
type result struct {
	code           int
	stdout, stderr string
}

// command runs a subcommand to its end, with the environment of the stage.
func (s *stage) command(args []string, overrides ...string) result {
	s.tb.Helper()
	return runCommand(s.tb, binary(s.tb, raceBinary), s.env(overrides...), args...)
}

func runCommand(tb testing.TB, binary string, env map[string]string, args ...string) result {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = environ(env)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		tb.Fatalf("rowferry %s: %v (%v)\n%s", strings.Join(args, " "), err, ctx.Err(), stderr.String())
	}
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	if strings.Contains(r.stderr, "DATA RACE") || strings.Contains(r.stderr, "panic:") {
		tb.Errorf("rowferry %s printed\n%s", strings.Join(args, " "), r.stderr)
	}
	return r
}

// environ is an environment with nothing of the caller's relay in it.
func environ(env map[string]string) []string {
	var all []string
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "ROWFERRY_") && !strings.HasPrefix(pair, "OTEL_") {
			all = append(all, pair)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, "ROWFERRY_"+name+"="+env[name])
	}
	return all
}

// output collects what a process prints and tells those who wait for a line.
type output struct {
	mu    sync.Mutex
	text  []byte
	grown chan struct{} // closed and replaced with every write
}

func newOutput() *output { return &output{grown: make(chan struct{})} }

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	close(o.grown)
	o.grown = make(chan struct{})
	return len(p), nil
}

func (o *output) contains(s string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.text, []byte(s))
}

// count is the number of lines that hold s.
func (o *output) count(s string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Count(string(o.text), s)
}

// find returns the first whole line that holds all parts.
func (o *output) find(parts []string) (line string, grown <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for line := range strings.Lines(string(o.text)) {
		missing := func(part string) bool { return !strings.Contains(line, part) }
		if strings.HasSuffix(line, "\n") && !slices.ContainsFunc(parts, missing) {
			return strings.TrimSpace(line), nil
		}
	}
	return "", o.grown
}

func (o *output) await(exited <-chan struct{}, timeout time.Duration, parts ...string) (string, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		line, grown := o.find(parts)
		if line != "" {
			return line, nil
		}
		select {
		case <-grown:
		case <-exited:
			if line, _ := o.find(parts); line != "" {
				return line, nil
			}
			return "", fmt.Errorf("rowferry has ended without a line that holds %q", parts)
		case <-timer.C:
			return "", fmt.Errorf("after %v no line holds %q", timeout, parts)
		}
	}
}

// tail returns the last lines.
func (o *output) tail(lines int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := strings.Split(strings.TrimSpace(string(o.text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
