package binlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// listed reports whether the server lists a replica of that id.
func (g *rig) listed(id uint32) bool {
	g.t.Helper()
	s := &server{db: g.db, flavor: g.server.Flavor()}
	taken, err := s.lists(g.t.Context(), id)
	if err != nil {
		g.t.Fatal(err)
	}
	return taken
}

// has reports whether the server still has a binlog file.
func (g *rig) has(file string) bool {
	g.t.Helper()
	_, sizes, err := (&server{db: g.db}).logs(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	_, ok := sizes[file]
	return ok
}

// A server lets go of a reader that has closed its connection within about one
// heartbeat, so that its server id is free again.
func TestServerForgetsAReader(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		g.config.HeartbeatPeriod = 500 * time.Millisecond
		tl := g.tail("now")
		g.flush(tl)
		if !g.listed(g.config.ServerID) {
			t.Fatal("a connected reader is not listed")
		}
		tl.stop()
		began := time.Now()
		for g.listed(g.config.ServerID) {
			if time.Since(began) > patience {
				t.Fatal("still listed")
			}
			time.Sleep(10 * time.Millisecond) // nothing tells when the thread ends
		}
		t.Logf("after %v", time.Since(began))
	})
}

// Of two readers with one server id MariaDB ends the older. That one says so and does
// not fight for it; when the other has gone, it goes on.
func TestServerIDTaken(t *testing.T) {
	g := newRig(t, testservers.SharedMariaDB(t))
	g.config.HeartbeatPeriod = 200 * time.Millisecond
	var log logBuffer
	g.config.Logger = zerolog.New(&log)
	older := g.tail("now")
	g.flush(older)
	g.config.Logger = zerolog.Nop()
	younger := g.tail("now")
	g.flush(younger)
	older.awaitError("server id; set ROWFERRY_SERVER_ID to a number that no other uses (it is " + strconv.FormatUint(uint64(g.config.ServerID), 10))
	g.insert(1, 1)
	wantStrings(t, "payloads of the younger", payloads(g.flush(younger)), []string{"1"})

	// The older looks again, as after its pause, and stays away.
	if err := older.reader.yieldNow(t); !errors.Is(err, errTaken) {
		t.Errorf("with the younger there: %v", err)
	}
	if s := younger.reader.State(); s.Reconnects != 0 {
		t.Errorf("the younger was ended: %+v", s)
	}
	younger.stop()
	for deadline := time.Now().Add(patience); older.reader.yieldNow(t) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the older never goes on")
		}
	}
	if n := strings.Count(log.String(), "another replica or relay"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
}

// yieldNow looks whether the server id is free, as before a connection.
func (r *Reader) yieldNow(t *testing.T) error {
	t.Helper()
	srv, _, err := r.openServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer srv.db.Close()
	copied := Reader{cfg: r.cfg, evicted: true}
	return copied.yield(t.Context(), srv)
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// through sends a rig's reader through a proxy.
func (g *rig) through() *proxy {
	g.t.Helper()
	p := newProxy(g.t, g.server.Addr())
	g.config.DSN = g.config.DSN.Clone()
	g.config.DSN.Addr = p.addr()
	return p
}

// A connection whose other end is gone without a word is noticed by the missing
// heartbeat, and the next one brings what was written meanwhile.
func TestHalfOpenConnection(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		g.config.HeartbeatPeriod = 100 * time.Millisecond
		p := g.through()
		tl := g.tail("now")
		g.flush(tl)
		p.set(func(p *proxy) { p.silent = true })
		g.insert(1, 3)
		awaitState(t, tl.reader, "disconnected", func(s State) bool { return !s.Connected })
		p.set(func(p *proxy) { p.silent = false })
		p.cut()
		wantStrings(t, "payloads", payloads(g.flush(tl)), numbers(1, 3))
	})
}

// A transaction that the connection breaks in again and again is read from its start,
// and its rows come once.
func TestDisconnectsWithinOneTransaction(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		p := g.through()
		tl := g.tail("now")
		g.flush(tl)
		p.set(func(p *proxy) { p.limit, p.seen = 150_000, 0 })
		const rows = 60
		var insert strings.Builder
		for i := range rows {
			fmt.Fprintf(&insert, ",('%d', '%s')", i+1, strings.Repeat("x", 10_000))
		}
		g.session("BEGIN", "INSERT INTO outbox (event_type, payload) VALUES "+insert.String()[1:], "COMMIT")
		awaitState(t, tl.reader, "disconnected twice", func(s State) bool { return s.Reconnects >= 2 })
		p.set(func(p *proxy) { p.limit = 0 })
		var got []string
		for _, e := range g.flush(tl) {
			got = append(got, e.Type)
		}
		wantStrings(t, "rows", got, numbers(1, rows))
	})
}

// What is purged while the reader is disconnected is a gap when it comes back.
func TestPurgedWhileDisconnected(t *testing.T) {
	flavours(t, func(t *testing.T, source *testservers.DB) {
		g := newRig(t, source)
		p := g.through()
		tl := g.tail("now")
		g.insert(1, 2)
		g.flush(tl)
		p.set(func(p *proxy) { p.refuse = true })
		p.cut()
		awaitState(t, tl.reader, "disconnected", func(s State) bool { return !s.Connected })
		g.insert(3, 4)
		old := tl.reader.State().File
		for deadline := time.Now().Add(patience); g.has(old); time.Sleep(50 * time.Millisecond) {
			g.exec("FLUSH BINARY LOGS")
			names, _, err := (&server{db: g.db}).logs(t.Context())
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("%s is not purged: %v", old, err)
			}
			g.exec("PURGE BINARY LOGS TO '" + names[len(names)-1] + "'") // not what another test's reader is in
		}
		p.set(func(p *proxy) { p.refuse = false })
		tl.wantGap("")
	})
}

// While nothing takes what is read, the server waits for longer than its
// net_write_timeout, which ends a stream that does not ask for more.
func TestSlowConsumer(t *testing.T) {
	for name, shared := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mariadb": testservers.SharedMariaDB} {
		t.Run(name, func(t *testing.T) { testSlowConsumer(t, newRig(t, shared(t))) })
	}
}

func testSlowConsumer(t *testing.T, g *rig) {
	timeout := "SET GLOBAL net_write_timeout = "
	g.exec(timeout + "1")
	defer g.exec(timeout + "60")
	r := g.reader()
	from := g.resolve(r, "now")
	blocked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var got []string
	go func() {
		done <- r.Run(ctx, from, func(ctx context.Context, b outbox.Batch) error {
			once.Do(func() {
				close(blocked)
				select {
				case <-release:
				case <-ctx.Done():
				}
			})
			for _, e := range b.Events {
				got = append(got, e.Type)
			}
			if len(got) == 40 {
				cancel()
			}
			return nil
		})
	}()
	g.exec("INSERT INTO outbox (event_type, payload) VALUES ('1', 'first')")
	<-blocked
	for i := 2; i <= 40; i++ { // more than sockets buffer
		g.exec(fmt.Sprintf("INSERT INTO outbox (event_type, payload) VALUES ('%d', REPEAT('x', 1000000))", i))
	}
	g.awaitDumpCut(from)
	close(release)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	wantStrings(t, "rows", got, numbers(1, 40))
	if s := r.State(); s.Reconnects != 0 {
		t.Errorf("the stream did not last: %+v", s)
	}
}

// awaitDumpCut reads the same stream as slowly, without asking the server for
// patience, until the server gives up.
func (g *rig) awaitDumpCut(from string) {
	g.t.Helper()
	p, err := parsePosition(from)
	if err != nil {
		g.t.Fatal(err)
	}
	syncer := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: nextServerID(), Flavor: g.server.Flavor(), Host: g.config.DSN.Addr, User: g.config.DSN.User, RawModeEnabled: true,
		DisableRetrySync: true, EventCacheCount: 1, Logger: slog.New(slog.DiscardHandler), ReadTimeout: time.Minute,
	})
	defer syncer.Close()
	stream, err := syncer.StartSync(gomysql.Position{Name: p.file, Pos: uint32(p.offset)})
	if err != nil {
		g.t.Fatal(err)
	}
	g.awaitDumps("begun", func(n int) bool { return n >= 2 })
	g.awaitDumps("given up", func(n int) bool { return n < 2 })
	if _, err := stream.GetEvent(g.t.Context()); err != nil {
		g.t.Log("the impatient stream: ", err)
	}
}

func (g *rig) awaitDumps(what string, ok func(n int) bool) {
	g.t.Helper()
	for deadline := time.Now().Add(3 * patience); !ok(g.dumps()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("the impatient stream has not %s", what)
		}
	}
}

// dumps counts the streams that the server is sending.
func (g *rig) dumps() (n int) {
	g.t.Helper()
	if err := g.db.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'").Scan(&n); err != nil {
		g.t.Fatal(err)
	}
	return n
}

// With semi-synchronous replication a row is in the binlog, and read, for as long as
// no replica has confirmed it, before it is committed. A reader that connects again
// meanwhile knows more than gtid_executed, and nothing is lost.
func TestSemiSyncDelayIsNoGap(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t))
	g.exec("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
	defer g.exec("UNINSTALL PLUGIN rpl_semi_sync_source")
	p := g.through()
	tl := g.tail("now")
	g.flush(tl)
	g.exec("SET GLOBAL rpl_semi_sync_source_timeout = 3600000", "SET GLOBAL rpl_semi_sync_source_enabled = ON")
	off := sync.OnceFunc(func() { g.exec("SET GLOBAL rpl_semi_sync_source_enabled = OFF") })
	defer off()
	committed := make(chan error, 1)
	go func() {
		_, err := g.db.Exec("INSERT INTO outbox (payload) VALUES ('1')")
		committed <- err
	}()
	tl.await("the row", func(bs []outbox.Batch) bool { return slices.Contains(payloads(eventsOf(bs)), "1") })
	p.cut()
	tl.awaitError("not committed yet")
	off()
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	g.insert(2, 2)
	wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"1", "2"})
}

// A password that is changed while the reader is away is picked up by itself.
func TestRotatedPassword(t *testing.T) {
	flavours(t, func(t *testing.T, source *testservers.DB) {
		g := newRig(t, source)
		g.exec("CREATE USER IF NOT EXISTS rotating IDENTIFIED BY 'first'", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO rotating")
		defer g.exec("DROP USER rotating")
		p := newProxy(t, source.Addr())
		var password atomic.Value
		password.Store("first")
		g.config.Sources = NewSources(func() ([]*mysql.Config, error) {
			cfg, err := mysql.ParseDSN(source.UserDSN("rotating", password.Load().(string), ""))
			cfg.Addr = p.addr()
			return []*mysql.Config{cfg}, err
		}, 0, 0)
		tl := g.tail("now")
		g.flush(tl)
		g.exec("ALTER USER rotating IDENTIFIED BY 'second'")
		if _, err := g.reader().Resolve(t.Context(), "now"); err == nil || errors.Is(err, ErrGap) || !strings.Contains(err.Error(), "denied") {
			t.Errorf("the old password gave %v", err)
		}
		password.Store("second")
		p.cut()
		g.insert(1, 2)
		wantStrings(t, "payloads", payloads(g.flush(tl)), numbers(1, 2))
	})
}

// The source's own server id would end replication towards it, so it is refused.
func TestServerIDOfTheSource(t *testing.T) {
	flavours(t, func(t *testing.T, source *testservers.DB) {
		g := newRig(t, source)
		if err := g.db.QueryRow("SELECT @@server_id").Scan(&g.config.ServerID); err != nil {
			t.Fatal(err)
		}
		_, err := g.reader().Resolve(t.Context(), "now")
		var config *configError
		if !errors.As(err, &config) || !strings.Contains(err.Error(), "ROWFERRY_SERVER_ID") {
			t.Errorf("Resolve gave %v", err)
		}
	})
}
