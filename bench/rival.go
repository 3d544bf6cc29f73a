package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
)

const (
	rivalTuned    = "Debezium Server, tuned"
	rivalDefaults = "Debezium Server, defaults"
	// rivalPatience is how long nothing may arrive before the rival counts as stuck: its
	// sink waits for ever for a send that the broker has refused once.
	rivalPatience = 45 * time.Second
)

var rivalSettings = map[string]string{rivalTuned: "tuned.properties", rivalDefaults: "defaults.properties"}

var errStuck = errors.New("nothing more arrived")

// rival is a Debezium Server process over one schema. Its folder outlives it: there
// are its offsets, from which the next one goes on.
type rival struct {
	cmd     *exec.Cmd
	ended   chan error
	started time.Time
	logFile string
}

// rivalFolder prepares the folder of one schema's Debezium Servers.
func (b *bench) rivalFolder(schema string) (string, error) {
	dir := filepath.Join(b.dir, "debezium-"+schema)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(filepath.Join(dir, "config"), 0o755)
}

// startRival starts one with the settings of a name, over a schema, to a topic.
func (b *bench) startRival(dir, name, schema, topic string) (*rival, error) {
	var settings []byte
	for _, file := range []string{"common.properties", rivalSettings[name]} {
		text, err := os.ReadFile(filepath.Join("bench/debezium", file))
		if err != nil {
			return nil, err
		}
		settings = append(append(settings, text...), '\n')
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "application.properties"), settings, 0o644); err != nil {
		return nil, err
	}
	dsn, err := mysql.ParseDSN(b.servers.dsn)
	if err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(dsn.Addr, ":")
	cmd, err := testservers.DebeziumServer("--add-opens", "java.base/java.lang=ALL-UNNAMED")
	if err != nil {
		return nil, err
	}
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"BENCH_MYSQL_HOST="+host, "BENCH_MYSQL_PORT="+port, "BENCH_MYSQL_USER="+dsn.User, "BENCH_MYSQL_PASSWORD="+dsn.Passwd,
		"BENCH_SCHEMA="+schema, "BENCH_TOPIC="+topic, "BENCH_NAMESRV="+b.servers.nameServer,
		fmt.Sprintf("BENCH_HTTP_PORT=%d", testservers.FreePort(0)))
	r := &rival{cmd: cmd, ended: make(chan error, 1), logFile: filepath.Join(dir, "server.log")}
	log, err := os.Create(r.logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // main never ends a thread
	r.started = time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { r.ended <- cmd.Wait() }()
	return r, nil
}

// stop lets it save its offsets. One that is stuck does not end by itself.
func (r *rival) stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-r.ended: // 143 after SIGTERM
		return nil
	case <-time.After(30 * time.Second):
		err := r.cmd.Process.Kill()
		<-r.ended
		return err
	}
}

// awaitStored returns once the topic holds n messages, and when it held the first.
func (b *bench) awaitStored(ctx context.Context, r *rival, topic string, n int) (first time.Time, err error) {
	var last int64
	progress := time.Now()
	for {
		stored, err := b.servers.broker.Stored(topic)
		if err != nil {
			return first, err
		}
		if stored > 0 && first.IsZero() {
			first = time.Now()
		}
		if stored >= int64(n) {
			return first, nil
		}
		if stored > last {
			last, progress = stored, time.Now()
		}
		if time.Since(progress) > rivalPatience {
			return first, fmt.Errorf("%w: %d of %d messages after %s\n%s", errStuck, last, n, time.Since(r.started).Round(time.Second), r.logTail())
		}
		if err := r.alive(); err != nil {
			return first, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return first, ctx.Err()
		}
	}
}

func (r *rival) logTail() string {
	text, _ := os.ReadFile(r.logFile) // best effort: it explains a failure
	return string(text[max(0, len(text)-3000):])
}

// primeRival runs one until it follows the binlog, and stops it: then its offsets tell
// the next one where to go on, as a restart finds them.
func (b *bench) primeRival(ctx context.Context, dir, name, schema string) error {
	topic, err := b.topic("prime")
	if err != nil {
		return err
	}
	r, err := b.startRival(dir, name, schema, topic)
	if err != nil {
		return err
	}
	err = b.awaitFollowing(ctx, r.follower(), schema, topic)
	return errors.Join(err, r.stop())
}

// drainRival has Debezium Server carry the backlog, tuned and at its defaults. One that
// gets stuck is a note, not the end of the run.
func (b *bench) drainRival(ctx context.Context) error {
	for _, name := range []string{rivalTuned, rivalDefaults} {
		c, err := b.drainOneRival(ctx, name)
		if errors.Is(err, errStuck) {
			b.results.note("%s got stuck: %v", name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b.record(name, c)
	}
	return nil
}

func (b *bench) drainOneRival(ctx context.Context, name string) (c carried, err error) {
	schema, err := b.schema("bench_rival")
	if err != nil {
		return c, err
	}
	dir, err := b.rivalFolder(schema)
	if err != nil {
		return c, err
	}
	if err := b.primeRival(ctx, dir, name, schema); err != nil {
		return c, err
	}
	if err := b.fill(ctx, schema, b.o.rows); err != nil {
		return c, err
	}
	topic, err := b.topic("rival")
	if err != nil {
		return c, err
	}
	r, err := b.startRival(dir, name, schema, topic)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	first, err := b.awaitStored(ctx, r, topic, b.o.rows)
	if err != nil {
		return c, err
	}
	c = carried{rows: b.o.rows, took: time.Since(r.started), first: first.Sub(r.started)}
	_, c.peakMiB, c.cpu, err = usage(r.cmd.Process.Pid)
	return c, err
}

// rivalSubject is Debezium Server with the settings of a name, for what follows.
func (b *bench) rivalSubject(name string) subject {
	return subject{name, func(_ context.Context, schema, topic string) (follower, error) {
		dir, err := b.rivalFolder(schema)
		if err != nil {
			return follower{}, err
		}
		r, err := b.startRival(dir, name, schema, topic)
		if err != nil {
			return follower{}, err
		}
		return r.follower(), nil
	}}
}

func (r *rival) follower() follower { return follower{r.cmd.Process.Pid, r.alive, r.stop} }

// alive returns what it died of, if it has.
func (r *rival) alive() error {
	select {
	case end := <-r.ended:
		r.ended <- end
		return fmt.Errorf("it ended (%v)\n%s", end, r.logTail()) //nolint:errorlint // nil, when it took itself down
	default:
		return nil
	}
}
