package binlog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// flavours runs a test against every kind of source.
func flavours(t *testing.T, test func(*testing.T, *testservers.DB)) {
	for name, shared := range map[string]func(testing.TB) *testservers.DB{
		"mysql": testservers.SharedMySQL, "mysql-files": testservers.SharedMySQLNoGTID,
		"mariadb": testservers.SharedMariaDB, "mariadb-10.11": testservers.SharedMariaDB1011,
	} {
		t.Run(name, func(t *testing.T) { test(t, shared(t)) })
	}
}

const outboxDDL = `CREATE TABLE outbox (
  id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY,
  aggregate_type VARCHAR(64), aggregate_id VARCHAR(64), event_type VARCHAR(64),
  payload MEDIUMTEXT, status VARCHAR(16) NOT NULL DEFAULT 'PENDING',
  attempts INT NOT NULL DEFAULT 0, created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))
  CHARACTER SET utf8mb4`

// rig is a schema with an outbox table and a reader of it.
type rig struct {
	t       *testing.T
	server  *testservers.DB
	schema  string
	db      *sql.DB
	config  Config
	zonedDB *sql.DB
	unseen  map[string]int // rows by table and reason
}

func newRig(t *testing.T, server *testservers.DB, ddl ...string) *rig {
	t.Helper()
	g := &rig{t: t, server: server, schema: server.Schema(t)}
	g.db = server.Open(t, g.schema)
	if len(ddl) == 0 {
		ddl = []string{outboxDDL}
	}
	g.exec(ddl...)
	dsn, err := mysql.ParseDSN(server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	g.config = Config{DSN: dsn, ServerID: nextServerID(), Logger: zerolog.Nop(), HeartbeatPeriod: time.Second}
	g.watch("outbox")
	g.config.Reload = func(ctx context.Context, table outbox.Table) (*outbox.Layout, error) {
		return outbox.ReadTable(ctx, g.db, table, outbox.Options{})
	}
	return g
}

var serverIDs atomic.Uint32

// nextServerID gives every reader its own: MariaDB ends the older of two equal ones.
func nextServerID() uint32 { return 1<<31 + serverIDs.Add(1) }

// countUnseen is Config.Unseen; what it counts may be read behind a later event.
func (g *rig) countUnseen(t outbox.Table, reason string, rows int) {
	if g.unseen == nil {
		g.unseen = map[string]int{}
	}
	g.unseen[t.Name+" "+reason] += rows
}

// watch reads the layout of a table of the rig, for New.
func (g *rig) watch(names ...string) {
	g.t.Helper()
	g.config.Layouts = map[outbox.Table]*outbox.Layout{}
	for _, name := range names {
		table := outbox.Table{Schema: g.schema, Name: name}
		l, err := outbox.ReadTable(g.t.Context(), g.db, table, outbox.Options{})
		if err != nil {
			g.t.Fatal(err)
		}
		g.config.Layouts[table] = l
	}
}

func (g *rig) exec(statements ...string) {
	g.t.Helper()
	for _, s := range statements {
		if _, err := g.db.ExecContext(g.t.Context(), s); err != nil {
			g.t.Fatalf("%.200s: %v", s, err)
		}
	}
}

// session runs statements on one connection of their own.
func (g *rig) session(statements ...string) {
	g.t.Helper()
	c, err := g.db.Conn(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() {
		// Session settings must not return to the pool with the connection.
		_ = c.Raw(func(any) error { return driver.ErrBadConn })
		_ = c.Close() // reports that very error
	}()
	for _, s := range statements {
		if _, err := c.ExecContext(g.t.Context(), s); err != nil {
			g.t.Fatalf("%.200s: %v", s, err)
		}
	}
}

func (g *rig) reader() *Reader {
	g.t.Helper()
	r, err := New(g.config)
	if err != nil {
		g.t.Fatal(err)
	}
	return r
}

func (g *rig) resolve(r *Reader, from string) string {
	g.t.Helper()
	text, err := r.Resolve(g.t.Context(), from)
	if err != nil {
		g.t.Fatalf("resolving %s: %v", from, err)
	}
	return text
}

// tail is a running reader and what it has emitted.
type tail struct {
	t      *testing.T
	reader *Reader
	from   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error

	mu      sync.Mutex
	cond    chan struct{} // closed and replaced at every batch
	flushed int           // batches up to the last mark
	batches []outbox.Batch
}

func (g *rig) tail(from string) *tail {
	g.t.Helper()
	r := g.reader()
	return runTail(g.t, r, g.resolve(r, from))
}

func runTail(t *testing.T, r *Reader, from string) *tail {
	ctx, cancel := context.WithCancel(context.Background())
	tl := &tail{t: t, reader: r, from: from, cancel: cancel, done: make(chan struct{}), cond: make(chan struct{})}
	go func() {
		defer close(tl.done)
		tl.err = r.Run(ctx, from, tl.accept)
	}()
	t.Cleanup(func() {
		cancel()
		<-tl.done
	})
	return tl
}

func (tl *tail) accept(_ context.Context, b outbox.Batch) error {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.batches = append(tl.batches, b)
	close(tl.cond)
	tl.cond = make(chan struct{})
	return nil
}

// await waits until ok says that what has been emitted is enough, and returns it.
func (tl *tail) await(what string, ok func([]outbox.Batch) bool) []outbox.Batch {
	tl.t.Helper()
	deadline := time.After(patience)
	for {
		tl.mu.Lock()
		batches, changed := slices.Clone(tl.batches), tl.cond
		tl.mu.Unlock()
		if ok(batches) {
			return batches
		}
		select {
		case <-changed:
		case <-tl.done:
			tl.t.Fatalf("waiting for %s: Run returned %v; got %s", what, tl.err, describe(batches))
		case <-deadline:
			tl.t.Fatalf("waiting for %s: not within %v; state %+v; got %s", what, patience, tl.reader.State(), describe(batches))
		}
	}
}

func describe(batches []outbox.Batch) string {
	var s string
	for _, e := range eventsOf(batches) {
		s += fmt.Sprintf("%s%s ", e.ID, map[bool]string{true: "(" + e.Unread + ")"}[e.Unread != ""])
	}
	if len(s) > 400 {
		s = s[:400] + "..."
	}
	return fmt.Sprintf("%d batches, events %s", len(batches), s)
}

func eventsOf(batches []outbox.Batch) []*outbox.Event {
	var events []*outbox.Event
	for _, b := range batches {
		events = append(events, b.Events...)
	}
	return events
}

func ids(events []*outbox.Event) []string {
	out := []string{}
	for _, e := range events {
		out = append(out, e.ID)
	}
	return out
}

func payloads(events []*outbox.Event) []string {
	out := []string{}
	for _, e := range events {
		out = append(out, string(e.Payload))
	}
	return out
}

// flush inserts a row that marks the end of what the test did, and returns the
// events in front of it, from the last mark on.
func (g *rig) flush(tl *tail) []*outbox.Event {
	g.t.Helper()
	return eventsOf(g.flushBatches(tl))
}

func (g *rig) flushBatches(tl *tail) []outbox.Batch {
	g.t.Helper()
	mark := fmt.Sprintf("mark-%d", serverIDs.Add(1))
	g.exec("INSERT INTO outbox (event_type, payload) VALUES ('mark', '" + mark + "')")
	isMark := func(b outbox.Batch) bool {
		return slices.ContainsFunc(b.Events, func(e *outbox.Event) bool { return string(e.Payload) == mark })
	}
	batches := tl.await("the mark", func(bs []outbox.Batch) bool { return slices.ContainsFunc(bs, isMark) })
	end := slices.IndexFunc(batches, isMark)
	batches, tl.flushed = batches[tl.flushed:end], end+1
	return batches
}

func (tl *tail) stop() {
	tl.t.Helper()
	tl.cancel()
	select {
	case <-tl.done:
	case <-time.After(patience):
		tl.t.Fatal("Run did not end")
	}
	if !errors.Is(tl.err, context.Canceled) {
		tl.t.Fatalf("Run returned %v", tl.err)
	}
}

func wantStrings(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
