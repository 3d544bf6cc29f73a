package binlog

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// Digits for making many rows with one statement.
var digitsDDL = []string{"CREATE TABLE digits (d INT PRIMARY KEY)", "INSERT INTO digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)"}

// insertMany inserts rows 1 to n, a multiple of 10,000, with a payload of so many bytes.
func insertMany(n, payloadBytes int) string {
	return fmt.Sprintf(`INSERT INTO outbox (id, payload)
SELECT 1 + a.d + 10*b.d + 100*c.d + 1000*e.d + 10000*f.d AS n, REPEAT('x', %d)
FROM digits a, digits b, digits c, digits e, digits f WHERE f.d < %d ORDER BY n`, payloadBytes, n/10_000)
}

// A transaction of many row events comes whole, once and in order, and only its end
// has a position, whether it is held or read twice.
func TestLargeTransaction(t *testing.T) {
	const rows = 50_000
	flavours(t, func(t *testing.T, server *testservers.DB) {
		for name, hold := range map[string]int64{"held": 100 << 20, "read twice": 100_000} {
			t.Run(name, func(t *testing.T) {
				g := newRig(t, server, append([]string{outboxDDL}, digitsDDL...)...)
				g.config.HoldBytesMax = hold
				var connects atomic.Int32
				g.config.OnConnect = func() { connects.Add(1) }
				tl := g.tail("now")
				g.exec(insertMany(rows, 40))
				batches := g.flushBatches(tl)
				seen := 0
				for i, b := range batches {
					inside := seen+len(b.Events) > 0 && seen+len(b.Events) < rows
					if seen += len(b.Events); inside && !b.End.IsZero() {
						t.Errorf("position %+v behind %d rows", b.End, seen)
					}
					if i == len(batches)-1 && b.End.IsZero() {
						t.Error("no position behind the transaction")
					}
				}
				for i, e := range eventsOf(batches) {
					if e.ID != strconv.Itoa(i+1) {
						t.Fatalf("event %d has id %s", i, e.ID)
					}
				}
				if seen != rows {
					t.Errorf("%d events, want %d", seen, rows)
				}
				if n := connects.Load(); n != 1 {
					t.Errorf("OnConnect called %d times: nothing can come again when a giant is read for the second time", n)
				}
			})
		}
	})
}

// What a transaction did to its own rows counts as much when it is read twice.
func TestGiantWithChanges(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		script := []string{
			"INSERT INTO outbox (id, payload) VALUES (7, 'older'), (8, 'older')",
			"BEGIN",
			"INSERT INTO outbox (id, payload) VALUES (1, REPEAT('a', 5000)), (2, 'b'), (3, 'c'), (4, 'd')",
			"INSERT INTO outbox (id, payload, status) VALUES (5, 'e', 'SENT'), (6, 'f', 'DRAFT')",
			"UPDATE outbox SET payload = 'B' WHERE id = 2", "UPDATE outbox SET payload = 'BB' WHERE id = 2",
			"DELETE FROM outbox WHERE id = 3",
			"UPDATE outbox SET id = 40 WHERE id = 4", "UPDATE outbox SET payload = 'D' WHERE id = 40",
			"UPDATE outbox SET status = 'PENDING' WHERE id = 6",
			"DELETE FROM outbox WHERE id = 7", "INSERT INTO outbox (id, payload) VALUES (7, 'newer')",
			"INSERT INTO outbox (id, payload) VALUES (3, 'again')", "UPDATE outbox SET payload = 'AGAIN' WHERE id = 3",
			"UPDATE outbox SET payload = 'not ours' WHERE id = 8",
			"COMMIT",
			"INSERT INTO outbox (id, payload) VALUES (50, 'next')",
		}
		want := []string{"7=older", "8=older", "1=" + strings.Repeat("a", 5000), "2=BB", "40=D", "6=f", "7=newer", "3=AGAIN", "50=next"}
		for name, hold := range map[string]int64{"held": 1 << 20, "read twice": 5500} {
			g := newRig(t, server)
			g.config.HoldBytesMax = hold
			tl := g.tail("now")
			g.session(script...)
			wantStrings(t, name, forms(g.flush(tl)), want)
		}
		if server.Flavor() == testservers.FlavorMySQL {
			g := newRig(t, server)
			g.config.HoldBytesMax = 5500
			tl := g.tail("now")
			g.session(append([]string{"SET SESSION binlog_transaction_compression = ON"}, script...)...)
			wantStrings(t, "compressed", forms(g.flush(tl)), want)
		}
	})
}

// Changes that need more room than is given leave no doubt unspoken: the rows of
// before are read by key.
func TestGiantWithTooManyChanges(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t))
	g.config.HoldBytesMax = 1000
	tl := g.tail("now")
	g.session("BEGIN", "INSERT INTO outbox (id, payload) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')",
		"UPDATE outbox SET payload = 'x' WHERE id < 4", "INSERT INTO outbox (id, payload) VALUES (5, 'e')", "COMMIT")
	wantStrings(t, "events", forms(g.flush(tl)), []string{"1=(image)", "2=(image)", "3=(image)", "4=(image)", "5=e"})
}

// The connection breaks off in the middle of the second reading: what was emitted
// comes again, the rest after it, and the engine is told that something may repeat.
func TestDisconnectedWhileReadingAgain(t *testing.T) {
	const rows = 20_000
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, append([]string{outboxDDL}, digitsDDL...)...)
		g.config.HoldBytesMax = 100_000
		var connects atomic.Int32
		g.config.OnConnect = func() { connects.Add(1) }
		r := g.reader()
		from := g.resolve(r, "now")
		g.exec(insertMany(rows, 500))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var ids []string
		cut := false
		err := r.Run(ctx, from, func(ctx context.Context, b outbox.Batch) error {
			for _, e := range b.Events {
				ids = append(ids, e.ID)
			}
			if len(ids) > rows/4 && !cut {
				cut = true
				g.killDumps()
			}
			if len(ids) > 0 && !b.End.IsZero() {
				cancel()
			}
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Run returned %v", err)
		}
		if n := len(ids); n <= rows || n > 2*rows {
			t.Errorf("%d events, want more than %d: the first pieces come again", n, rows)
		}
		if got, want := slices.Compact(slices.Sorted(slices.Values(ids))), rows; len(got) != want {
			t.Errorf("%d rows, want %d", len(got), want)
		}
		if !slices.IsSortedFunc(ids[len(ids)-rows:], compareNumbers) {
			t.Error("the rows are not in order")
		}
		if n := connects.Load(); n != 2 {
			t.Errorf("OnConnect called %d times, want 2", n)
		}
	})
}

func compareNumbers(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// killDumps ends every replication stream of the server; the tests of this package
// that share it reconnect.
func (g *rig) killDumps() {
	rows, err := g.db.QueryContext(g.t.Context(), "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
	if err != nil {
		g.t.Error(err)
		return
	}
	defer rows.Close()
	var kill []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			g.t.Error(err)
		}
		kill = append(kill, "KILL "+id)
	}
	if err := rows.Err(); err != nil {
		g.t.Error(err)
	}
	for _, k := range kill {
		if _, err := g.db.ExecContext(g.t.Context(), k); err != nil && !strings.Contains(err.Error(), "Unknown thread") {
			g.t.Error(err)
		}
	}
}

// Memory does not grow with the transaction, compressed or not.
func TestGiantIsNotHeld(t *testing.T) {
	const rows, payloadBytes = 100_000, 600 // 95 MB once decoded
	for _, compression := range []string{"OFF", "ON"} {
		t.Run("compression "+compression, func(t *testing.T) {
			g := newRig(t, testservers.SharedMySQL(t), append([]string{outboxDDL}, digitsDDL...)...)
			g.config.HoldBytesMax = 2 << 20
			r := g.reader()
			from := g.resolve(r, "now")
			g.session("SET SESSION binlog_transaction_compression = "+compression, insertMany(rows, payloadBytes))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			seen, most := 0, uint64(0)
			err := r.Run(ctx, from, func(ctx context.Context, b outbox.Batch) error {
				if seen += len(b.Events); seen%10_000 < len(b.Events) {
					var m runtime.MemStats
					runtime.GC() //nolint:revive // what is live is the question
					runtime.ReadMemStats(&m)
					most = max(most, m.HeapAlloc)
				}
				if seen == rows && !b.End.IsZero() {
					cancel()
				}
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("Run returned %v", err)
			}
			t.Logf("%d MiB live at most", most>>20)
			if most > 30<<20 {
				t.Errorf("%d MiB live while %d rows were read", most>>20, rows)
			}
		})
	}
}

// A giant that is rolled back, or torn by a crash, is never emitted.
func TestGiantThatDidNotCommit(t *testing.T) {
	const giant = "gtid 1; query BEGIN; map outbox; insert 1=a; insert 2=b; insert 3=c; "
	for name, script := range map[string]string{
		"rolled back": giant + "query ROLLBACK; gtid 2; query BEGIN; map outbox; insert 9=z; xid",
		"torn":        giant + "rotate b.2; describe; gtid 1; query BEGIN; map outbox; insert 9=z; xid",
	} {
		h := newHand(t, flavorMySQL)
		h.s.r.cfg.HoldBytesMax = 500
		if err := h.script(script); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, b := range h.batches {
			got = append(got, ids(b.Events)...)
		}
		if want := "9"; strings.Join(got, ",") != want {
			t.Errorf("%s: events %v, want %s", name, got, want)
		}
	}
}

// Another transaction than the expected one comes first, or another server, which may
// divide the rows into other events: nothing of it may go out before its end.
func TestGiantIsNotMistaken(t *testing.T) {
	for name, c := range map[string]struct{ server, gtid string }{
		"another transaction": {"s", "gtid 5"},
		"another server":      {"replica", "gtid 1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, flavorMySQL)
			h.s.r.cfg.HoldBytesMax = 500
			err := h.script("gtid 1; query BEGIN; map outbox; insert 1=a; insert 2=b; xid")
			if !errors.Is(err, errReadAgain) {
				t.Fatalf("script ended with %v", err)
			}
			h.s.tx.reset()
			h.s.server = c.server
			if err := h.script(c.gtid + "; query BEGIN; map outbox; insert 1=a; insert 2=b; query ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			if events := eventsOf(h.batches); len(events) != 0 {
				t.Errorf("emitted %q of a transaction that was rolled back", ids(events))
			}
		})
	}
}

// Two large transactions of one group commit beyond 4 GiB of a file, where no stream can
// begin: what stands before them comes again, and neither is read for ever.
func TestGiantBeyond4GiB(t *testing.T) {
	const script = "anonymous; query BEGIN; map outbox; insert 1=a; xid; " +
		"anonymous; query BEGIN; map outbox; insert 2=b; insert 3=c; xid; " +
		"anonymous; query BEGIN; map outbox; insert 4=d; insert 5=e; xid"
	h := newHand(t, flavorMySQL)
	r := h.s.r
	r.cfg.HoldBytesMax = 500
	r.resume = position{flavor: flavorMySQL, file: "b.1", offset: 4_294_960_000, server: "s"}
	for range 3 { // connections: to each giant, and to the end
		h.s = &stream{r: r, ctx: h.s.ctx, emit: h.s.emit, server: "s", head: h.s.head, flavor: flavorMySQL,
			file: "b.1", offset: r.resume.offset, log: h.s.log, plans: map[uint64]*plan{}}
		h.logPos = 300 // past 4 GiB
		if err := h.script(script); err == nil {
			break
		} else if !errors.Is(err, errReadAgain) {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprint(ids(eventsOf(h.batches))), "[1 2 3 4 5]"; got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	if r.giant != nil {
		t.Error("a giant is still waited for")
	}
}

// The rows of a prepared transaction that was too large to keep even its keys are the
// sweep's: their loss is said when, and only if, it commits.
func TestGiantXA(t *testing.T) {
	for _, decision := range []string{"COMMIT", "ROLLBACK"} {
		h := newHand(t, flavorMySQL)
		h.s.r.cfg.HoldBytesMax, h.s.r.cfg.HoldPrepared = 500, true
		if err := h.script("gtid 1; query XA START X'67',X'',1; map outbox; insert 1=a; insert 2=b; query XA END X'67',X'',1; prepare g"); err != nil {
			t.Fatal(err)
		}
		if end := h.batches[0].End; !end.IsZero() {
			t.Errorf("position %+v before the decision", end)
		}
		for range 2 { // the gap of one source is looked for at the next
			err := h.script("gtid 2; query XA " + decision + " X'67',X'',1")
			if want := decision == "COMMIT"; errors.Is(err, ErrGap) != want || err != nil && !want {
				t.Errorf("%s gave %v", decision, err)
			}
		}
	}
}

// rowsModel plays a transaction on a plain table, beside the changes under test.
type rowsModel struct {
	order []*modelRow // as inserted
	live  map[string]*modelRow
}

type modelRow struct {
	event   outbox.Event
	pending bool
	deleted bool
	mine    bool // inserted by this transaction
}

// Whatever is inserted, updated, renamed and deleted, also rows from before the
// transaction, the changes give the form that a table would hold in the end.
func TestChangesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &changes{bytesMax: 1 << 20}
		m := &rowsModel{live: map[string]*modelRow{}}
		hasStatus := rapid.Bool().Draw(t, "has a status")
		var held []heldRow
		id := rapid.SampledFrom([]string{"1", "2", "3", "4"})
		for _, old := range rapid.SliceOfDistinct(id, rapid.ID).Draw(t, "from before") {
			m.live[old] = &modelRow{event: outbox.Event{Table: handTable, ID: old, Payload: []byte("old")}, pending: true}
		}
		for n := range rapid.IntRange(0, 30).Draw(t, "steps") {
			at := momentOf(uint32(n/2), n%2)
			k := id.Draw(t, "key")
			row := m.live[k]
			switch {
			case row == nil:
				held = append(held, m.insert(k, n, at, rapid.Bool().Draw(t, "pending") || !hasStatus))
			case rapid.Bool().Draw(t, "delete"):
				c.add(row.event.Key(), change{at: at, deleted: true, kept: !hasStatus})
				row.deleted = true
				delete(m.live, k)
			default:
				m.update(t, c, row, n, at, hasStatus, id.Draw(t, "new key"))
			}
		}
		wantLastForms(t, c, held, m, hasStatus)
	})
}

func (m *rowsModel) insert(key string, n int, at moment, pending bool) heldRow {
	row := &modelRow{event: outbox.Event{Table: handTable, ID: key, Payload: fmt.Appendf(nil, "p%d", n)}, pending: pending, mine: true}
	m.live[key] = row
	m.order = append(m.order, row)
	e := row.event
	return heldRow{&e, pending, at}
}

func (m *rowsModel) update(t *rapid.T, c *changes, row *modelRow, n int, at moment, hasStatus bool, to string) {
	key := row.event.Key()
	ch := change{at: at, to: key}
	if m.live[to] == nil {
		delete(m.live, key.ID)
		row.event.ID, ch.to.ID = to, to
		m.live[to] = row
	}
	if rapid.Bool().Draw(t, "changes the payload") {
		row.event.Payload = fmt.Appendf(nil, "u%d", n)
		e := row.event
		ch.event = &e
		ch.status = statusPending
		if row.pending = rapid.Bool().Draw(t, "pending") || !hasStatus; !row.pending {
			ch.status = statusNotPending
		}
	}
	c.add(key, ch)
}

func wantLastForms(t *rapid.T, c *changes, held []heldRow, m *rowsModel, hasStatus bool) {
	var got, want []string
	for _, h := range held {
		if e, pending := c.last(h.event, h.pending, h.at); pending {
			got = append(got, forms([]*outbox.Event{e})[0])
		}
	}
	for _, row := range m.order {
		if row.pending && !(row.deleted && hasStatus) {
			e := row.event
			e.Deleted = row.deleted
			want = append(want, forms([]*outbox.Event{&e})[0])
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}
