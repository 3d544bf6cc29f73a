package binlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// unnamed is a position from which on nothing is known of the tables.
func (g *rig) unnamed(from string) string { return withLayouts(g.t, g.resolve(g.reader(), from), "") }

// patientReader waits for proofs as long as a test may take.
func (g *rig) patientReader() *Reader {
	r := g.reader()
	r.proofWait = patience
	return r
}

// proofCase is a backlog from before the first look at the table, with rows that say
// which column their values are of. The last rows behind the last statement are proved.
type proofCase struct {
	name    string
	flavor  string // empty: both
	session []string
}

const (
	proofColumns = "(id BIGINT AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(30), aggregate_id VARCHAR(30), event_type VARCHAR(30), note VARCHAR(30), payload VARCHAR(30), status VARCHAR(30) NOT NULL DEFAULT 'PENDING') CHARACTER SET utf8mb4"
	proofInsert  = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('t', 'a', 'e', 'p')"
	swapColumns  = "ALTER TABLE outbox MODIFY COLUMN aggregate_id VARCHAR(30) AFTER event_type"
	swapBack     = "ALTER TABLE outbox MODIFY COLUMN aggregate_id VARCHAR(30) AFTER aggregate_type"
)

var proofCases = []proofCase{
	{name: "nothing"},
	{name: "other statements", session: []string{"CREATE TABLE other (a INT)", "ALTER TABLE other ADD COLUMN b INT", "ANALYZE TABLE outbox", "DROP TABLE other"}},
	{name: "swapped", session: []string{swapColumns}},
	{name: "swapped and back", session: []string{swapColumns, proofInsert, swapBack}},
	{name: "named by schema", session: []string{"CREATE SCHEMA IF NOT EXISTS elsewhere", "USE elsewhere", strings.Replace(swapColumns, "outbox", "`%s`.`outbox`", 1), "USE `%s`"}},
	{name: "renamed for another", session: []string{"CREATE TABLE n LIKE outbox", strings.Replace(swapColumns, "outbox", "n", 1), "RENAME TABLE outbox TO o, n TO outbox"}},
	{name: "dropped and created", session: []string{"DROP TABLE outbox", "CREATE TABLE outbox " + strings.NewReplacer("aggregate_id", "event_type", "event_type", "aggregate_id").Replace(proofColumns)}},
	{name: "files change", session: []string{"FLUSH BINARY LOGS", proofInsert, swapColumns, "FLUSH BINARY LOGS"}},
	{name: "compressed", flavor: testservers.FlavorMySQL, session: []string{"SET SESSION binlog_transaction_compression = ON", proofInsert, "RENAME TABLE outbox TO o",
		"CREATE TABLE outbox " + strings.NewReplacer("aggregate_id", "event_type", "event_type", "aggregate_id").Replace(proofColumns) + " SELECT * FROM o WHERE id < 0"}},
	{name: "marked statement", session: []string{"/*!50000 " + swapColumns + " */"}},
}

// Rows of a backlog from before the first look are read by place once it is proved that
// the table looked like that: behind the last statement that names it, and everywhere if
// there is none. In front of it no value comes under another column's name.
func TestRowsAreReadByPlaceOnceProved(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		for _, c := range proofCases {
			if c.flavor != "" && c.flavor != server.Flavor() {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				g := newRig(t, server, "CREATE TABLE outbox "+proofColumns)
				from := g.unnamed("now")
				session := append([]string{proofInsert, "BEGIN", proofInsert, proofInsert, "COMMIT"}, c.session...)
				for i := range session {
					session[i] = strings.ReplaceAll(session[i], "%s", g.schema)
				}
				g.session(append(session, proofInsert, proofInsert)...)
				g.watch("outbox")
				events := g.flush(runTail(t, g.patientReader(), from))
				for i, e := range events {
					proved := i >= len(events)-2 || c.session == nil || c.name == "other statements"
					if f := form(e); f != right && (proved || f != "("+unreadNames+")") {
						t.Errorf("event %d of %d came as %s", i, len(events), f)
					}
				}
			})
		}
	})
}

// A table is changed after it was looked at, while rows from before are still to be read:
// the layout that is read then is not the one that was proved.
func TestLayoutReadLaterIsNotKnown(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, "CREATE TABLE outbox "+proofColumns, "CREATE TABLE gate "+proofColumns)
		from := g.unnamed("now")
		g.exec(strings.Replace(proofInsert, "outbox", "gate", 1),
			"ALTER TABLE outbox ADD COLUMN more VARCHAR(30) FIRST", proofInsert, "ALTER TABLE outbox DROP COLUMN more", proofInsert)
		g.watch("gate", "outbox")
		reached, pass := make(chan struct{}), make(chan struct{})
		tl := newTail(t, g.patientReader())
		tl.reader.cfg.Unseen = func(outbox.Table, string, int) {} // whose key cannot be told either
		tl.run(from, func(b outbox.Batch) {
			if len(b.Events) > 0 && b.Events[0].Table.Name == "gate" {
				close(reached)
				<-pass
			}
		})
		<-reached
		g.exec(proofInsert, swapColumns, proofInsert)
		close(pass)
		for _, e := range g.flush(tl) {
			if f := form(e); f != right && e.Unread == "" {
				t.Errorf("row %s came as %s", e.ID, f)
			}
		}
	})
}

// knowledge waits for a position that says, or does not say, what the tables look like.
func knowledge(t *testing.T, positions <-chan string, known bool) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case text := <-positions:
			if p, err := parsePosition(text); err != nil || (p.layouts != "") == known {
				return text
			}
		case <-deadline:
			t.Fatalf("no position came that says (%v) what the tables look like", known)
		}
	}
}

func newTail(t *testing.T, r *Reader) *tail {
	return &tail{t: t, reader: r, cond: make(chan struct{}), done: make(chan struct{})}
}

// run is like runTail, with something to do before a batch is taken.
func (tl *tail) run(from string, before func(outbox.Batch)) {
	ctx, cancel := context.WithCancel(context.Background())
	tl.cancel = cancel
	go func() {
		defer close(tl.done)
		tl.err = tl.reader.Run(ctx, from, func(ctx context.Context, b outbox.Batch) error {
			before(b)
			return tl.accept(ctx, b)
		})
	}()
	tl.t.Cleanup(func() {
		cancel()
		<-tl.done
	})
}

// scanConn fails, or falls silent, when its connection turns out to be that of a scan.
type scanConn struct {
	net.Conn
	is     atomic.Bool
	silent bool
	met    chan struct{} // a scan has begun
}

var errScanRefused = errors.New("no second stream")

func (c *scanConn) Write(b []byte) (int, error) {
	for _, query := range []string{"SELECT @@global.server_uuid", "SELECT @@global.server_id"} {
		if bytes.HasSuffix(b, []byte(query)) {
			select {
			case c.met <- struct{}{}:
			default:
			}
			if c.is.Store(true); !c.silent {
				return 0, errScanRefused
			}
		}
	}
	return c.Conn.Write(b)
}

// Read of a silent connection waits until it is closed.
func (c *scanConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.is.Load() {
			return n, err
		}
	}
}

// withoutScans has every scan of the rig's readers fail or hang.
func (g *rig) withoutScans(silent bool) (met chan struct{}) {
	met = make(chan struct{}, 1)
	addr := g.config.DSN.Addr
	g.config.DSN.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &scanConn{Conn: c, silent: silent, met: met}, err
	}
	return met
}

// A server that gives no second stream is read all the same, by key.
func TestScanRefused(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, "CREATE TABLE outbox "+proofColumns)
		met := g.withoutScans(false)
		from := g.unnamed("now")
		g.exec(proofInsert, proofInsert)
		tl := runTail(t, g.patientReader(), from)
		for _, e := range g.flush(tl) {
			if e.Unread != unreadNames {
				t.Errorf("row %s came as %s", e.ID, form(e))
			}
		}
		select {
		case <-met:
		default:
			t.Fatal("there was no scan")
		}
		g.exec(proofInsert) // behind the place where the log ended at the look
		for _, e := range g.flush(tl) {
			if form(e) != right {
				t.Errorf("row %s came as %s", e.ID, form(e))
			}
		}
	})
}

// What is found out beside the reading holds up neither rows, nor the end, nor the next
// connection.
func TestProofEndsWithTheConnection(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t), "CREATE TABLE outbox "+proofColumns)
	p := newProxy(t, g.config.DSN.Addr)
	g.config.DSN.Addr = p.addr()
	met := g.withoutScans(true)
	from := g.unnamed("now")
	g.exec(proofInsert)
	r := g.reader()
	r.proofWait = 2 * time.Second
	tl := runTail(t, r, from)
	<-met
	p.cut()
	for _, e := range g.flush(tl) {
		if f := form(e); f != right && e.Unread != unreadNames {
			t.Errorf("row %s came as %s", e.ID, f)
		}
	}
	tl.stop()
}

// A table without rows becomes known too, with other traffic and without any, and a
// position says so, with which the next reader begins.
func TestQuietTableBecomesKnown(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, "CREATE TABLE outbox "+proofColumns, "CREATE TABLE quiet "+proofColumns)
		g.watch("outbox", "quiet")
		tl := newTail(t, g.reader())
		positions := make(chan string, 1000)
		tl.run(g.unnamed("now"), func(b outbox.Batch) { positions <- tl.reader.Encode(b.End) })
		knowledge(t, positions, true)
		g.exec(strings.Replace(swapColumns, "outbox", "quiet", 1))
		knowledge(t, positions, false)
		saved := knowledge(t, positions, true)
		tl.stop()
		g.exec(strings.Replace(proofInsert, "outbox", "quiet", 1), strings.Replace(proofInsert, "outbox", "quiet", 1))
		g.withoutScans(false)
		g.watch("outbox", "quiet")
		if got := fmt.Sprint(forms(g.flush(runTail(t, g.reader(), saved)))); got != "[1=p 2=p]" {
			t.Errorf("got %s", got)
		}
	})
}
