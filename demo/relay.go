package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// relay is the rowferry binary, run as a child process: the demo shows the real
// thing, not a part of it.
type relay struct {
	binary  string
	env     []string
	api     string // http://HOST:PORT
	logPath string

	cmd      *exec.Cmd
	exited   chan struct{} // closed when the process is gone
	exit     error         // how it went; read after exited
	expected atomic.Bool   // we are ending it
	failed   chan error    // tells of an end that nobody asked for
}

// relayLog is the name of the relay's log in the scratch folder.
const relayLog = "rowferry.log"

// relaySettings is what the demo tells rowferry. All else stays at its default.
type relaySettings struct {
	name, dsn, nameServers string
}

// newRelay prepares, and does not start, a relay that logs into scratch.
func newRelay(binary, scratch string, s relaySettings) (*relay, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	env := []string{
		"ROWFERRY_SOURCE_DSN=" + s.dsn,
		"ROWFERRY_NAME=" + s.name,
		"ROWFERRY_OUTBOX_TABLES=outbox",
		"ROWFERRY_ROCKETMQ_NAMESRV=" + s.nameServers,
		"ROWFERRY_ROCKETMQ_CREATE_TOPICS=true",
		"ROWFERRY_HTTP_ADDR=" + address,
		"ROWFERRY_LOG_FORMAT=json",
	}
	return &relay{
		binary:  binary,
		env:     append(withoutRowferry(os.Environ()), env...),
		api:     "http://" + address,
		logPath: filepath.Join(scratch, relayLog),
		failed:  make(chan error, 1),
	}, nil
}

// withoutRowferry drops settings of the caller's own relay: they are not meant
// for this one.
func withoutRowferry(environ []string) []string {
	var kept []string
	for _, pair := range environ {
		if !strings.HasPrefix(pair, "ROWFERRY_") {
			kept = append(kept, pair)
		}
	}
	return kept
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// command builds a call of rowferry whose output goes to the log. It leads a
// process group of its own, so that Ctrl-C reaches it through us only, in order.
func (r *relay) command(ctx context.Context, args ...string) (*exec.Cmd, *os.File, error) {
	logFile, err := os.OpenFile(r.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the relay's log: %w", err)
	}
	cmd := exec.CommandContext(ctx, r.binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = r.env, logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, logFile, nil
}

// call runs a command of rowferry to its end.
func (r *relay) call(ctx context.Context, args ...string) error {
	cmd, logFile, err := r.command(ctx, args...)
	if err != nil {
		return err
	}
	if err := errors.Join(cmd.Run(), logFile.Close()); err != nil {
		return fmt.Errorf("rowferry %s: %w%s", strings.Join(args, " "), err, r.logTail())
	}
	return nil
}

// start runs the relay and returns when it says that it is ready.
func (r *relay) start(ctx context.Context) error {
	// Not tied to ctx: Ctrl-C must drain the relay, not kill it.
	cmd, logFile, err := r.command(context.WithoutCancel(ctx), "run")
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("starting rowferry: %w", err), logFile.Close())
	}
	r.cmd, r.exited = cmd, make(chan struct{})
	r.expected.Store(false)
	go r.reap(cmd, logFile, r.exited)
	return r.awaitReady(ctx)
}

// reap waits for the end of the process and tells whether anybody asked for it.
func (r *relay) reap(cmd *exec.Cmd, logFile *os.File, exited chan<- struct{}) {
	exit := errors.Join(cmd.Wait(), logFile.Close())
	expected := r.expected.Load()
	r.exit = exit
	close(exited)
	if !expected {
		r.failed <- fmt.Errorf("rowferry ended by itself: %v%s", exit, r.logTail())
	}
}

const readyTimeout = 60 * time.Second

func (r *relay) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, errors.New("rowferry is not ready after "+readyTimeout.String()))
	defer cancel()
	var last error
	for {
		body, err := r.get(ctx, "/readyz")
		if err == nil {
			return nil
		}
		if body != "" {
			last = fmt.Errorf("%w: %s", err, body)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last answer: %v)%s", context.Cause(ctx), last, r.logTail())
		case err := <-r.failed:
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// get asks the relay's HTTP API; any status but 200 is an error.
func (r *relay) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.api+path, nil)
	if err != nil {
		return "", fmt.Errorf("asking rowferry for %s: %w", path, err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("asking rowferry for %s: %w", path, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("rowferry answers %s to %s", res.Status, path)
	}
	return strings.TrimSpace(string(body)), err
}

// lag returns what the relay says of its distance to the database.
func (r *relay) lag(ctx context.Context) string {
	body, err := r.get(ctx, "/api/v1/status")
	var status struct {
		Source struct {
			LagSeconds *float64 `json:"lag_seconds"`
		} `json:"source"`
	}
	if err != nil || json.Unmarshal([]byte(body), &status) != nil || status.Source.LagSeconds == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f s", *status.Source.LagSeconds)
}

// kill is kill -9: no drain, no last mark, no last checkpoint.
func (r *relay) kill() error {
	r.expected.Store(true)
	if err := r.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("killing rowferry: %w", err)
	}
	<-r.exited
	return nil
}

const stopTimeout = 30 * time.Second

// stop asks the relay to drain and waits until it is gone. A relay that does not
// end, or not with exit code 0, is an error.
func (r *relay) stop() error {
	if r.cmd == nil {
		return nil
	}
	select {
	case <-r.exited:
		return nil // reported already by whoever waits for it
	default:
	}
	r.expected.Store(true)
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping rowferry: %w", err)
	}
	select {
	case <-r.exited:
		if r.exit != nil {
			return fmt.Errorf("rowferry did not end cleanly: %w%s", r.exit, r.logTail())
		}
		return nil
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("rowferry did not end within %s%s", stopTimeout, r.logTail()), r.kill())
	}
}

// logTail returns the last lines of the log, to be put behind an error.
func (r *relay) logTail() string {
	data, err := os.ReadFile(r.logPath)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "\n  " + strings.Join(lines[max(0, len(lines)-8):], "\n  ")
}
