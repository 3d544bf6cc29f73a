package binlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestCompressedTransaction(t *testing.T) {
	mysqlTest := func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		g.exec("CREATE TABLE other (a INT, b TEXT)")
		tl := g.tail("now")
		big := strings.Repeat("long ", 40_000)
		g.session("SET SESSION binlog_transaction_compression = ON", "BEGIN",
			"INSERT INTO other VALUES (1, REPEAT('y', 60000))",
			"INSERT INTO outbox (payload) VALUES ('1'), ('"+big+"')",
			"INSERT INTO other VALUES (2, REPEAT('y', 60000))",
			"INSERT INTO outbox (payload) VALUES ('3')",
			"UPDATE outbox SET payload = 'third' WHERE payload = '3'", "COMMIT")
		batches := g.flushBatches(tl)
		wantStrings(t, "payloads", payloads(eventsOf(batches)), []string{"1", big, "third"})
		for _, b := range batches {
			if b.End.Offset == 0 {
				t.Errorf("position of a compressed transaction: %+v", b.End)
			}
		}
	}
	t.Run("mysql", func(t *testing.T) { mysqlTest(t, testservers.SharedMySQL(t)) })
	t.Run("mysql-files", func(t *testing.T) { mysqlTest(t, testservers.SharedMySQLNoGTID(t)) })
	for name, start := range map[string]func(testing.TB, ...string) *testservers.DB{
		"mariadb": testservers.MariaDB, "mariadb-10.11": testservers.MariaDB1011,
	} {
		t.Run(name, func(t *testing.T) {
			server := start(t, "--log-bin-compress=ON", "--log-bin-compress-min-len=10")
			g := newRig(t, server)
			tl := g.tail("now")
			big := strings.Repeat("long ", 40_000)
			g.session("BEGIN", "INSERT INTO outbox (payload) VALUES ('1'), ('"+big+"')",
				"INSERT INTO outbox (payload) VALUES ('2')", "UPDATE outbox SET payload = 'second' WHERE payload = '2'", "COMMIT",
				"CREATE TABLE a_ddl_statement_that_is_long_enough_to_be_compressed (a INT)")
			wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"1", big, "second"})
		})
	}
}

func TestRotation(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		tl := g.tail("now")
		g.exec("INSERT INTO outbox (payload) VALUES ('1')", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS",
			"INSERT INTO outbox (payload) VALUES ('2')", "FLUSH BINARY LOGS")
		batches := g.flushBatches(tl)
		wantStrings(t, "payloads", payloads(eventsOf(batches)), []string{"1", "2"})
		files := map[string]bool{}
		var seq uint64
		for _, b := range batches {
			files[b.End.File] = true
			if b.End.Seq <= seq {
				t.Errorf("position %+v does not come after %d", b.End, seq)
			}
			seq = b.End.Seq
		}
		if len(files) < 4 {
			t.Errorf("positions name the files %v, want at least 4", files)
		}
	})
}

// From every position that can be saved, a new reader gets exactly the rest.
func TestResumeFromEveryPosition(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		g.exec("CREATE TABLE other (a INT)")
		tl := g.tail("now")
		g.session("INSERT INTO outbox (payload) VALUES ('1')", "INSERT INTO other VALUES (1)", "BEGIN",
			"INSERT INTO outbox (payload) VALUES ('2'), ('3')", "SAVEPOINT s", "INSERT INTO outbox (payload) VALUES ('4')", "COMMIT",
			"FLUSH BINARY LOGS", "ALTER TABLE other ADD COLUMN b INT", "INSERT INTO outbox (payload) VALUES ('5')")
		batches := g.flushBatches(tl)
		all := payloads(eventsOf(batches))
		wantStrings(t, "payloads", all, []string{"1", "2", "3", "4", "5"})
		starts, done := []string{tl.from}, 0
		rest := [][]string{all}
		for _, b := range batches {
			done += len(b.Events)
			if !b.End.IsZero() {
				starts, rest = append(starts, tl.reader.Encode(b.End)), append(rest, all[done:])
			}
		}
		for i, from := range starts {
			again := g.tail(from)
			got := payloads(g.flush(again))
			again.stop()
			got = slices.DeleteFunc(got, func(p string) bool { return strings.HasPrefix(p, "mark") })
			wantStrings(t, "rest behind "+from, got, rest[i])
		}
	})
}

// Positions of another server, of a file cut short and of a file of the same name
// born at another time are all refused, though file and offset exist.
func TestForeignFilePositionIsAGap(t *testing.T) {
	server := testservers.SharedMySQLNoGTID(t)
	g := newRig(t, server)
	g.exec("INSERT INTO outbox (payload) VALUES ('1')")
	r := g.reader()
	tl := runTail(t, r, g.resolve(r, "earliest"))
	g.flush(tl)
	text := tl.save()
	p, err := parsePosition(text)
	if err != nil {
		t.Fatal(err)
	}
	if p.fde == 0 || p.first == 0 || p.server == "" || p.gtids != nil {
		t.Fatalf("position %s lacks what tells one history from another", text)
	}
	for name, change := range map[string]func(*position){
		"other server":                func(p *position) { p.server = "00000000-0000-0000-0000-000000000001" },
		"file gone":                   func(p *position) { p.file = "binlog.999999" },
		"file shorter":                func(p *position) { p.offset = 1 << 31 },
		"file reborn":                 func(p *position) { p.fde -= 1000 },
		"file reborn within a second": func(p *position) { p.first++ },
	} {
		t.Run(name, func(t *testing.T) {
			q := *p
			change(&q)
			wantGap(t, r, q.String())
		})
	}
}

// Every connection is announced before its first batch.
func TestOnConnectComesFirst(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t))
	connected := make(chan struct{})
	proceed := make(chan struct{})
	g.config.OnConnect = func() {
		close(connected)
		<-proceed
	}
	r := g.reader()
	from := g.resolve(r, "now")
	g.exec("INSERT INTO outbox (payload) VALUES ('1')")
	tl := runTail(t, r, from)
	<-connected
	tl.mu.Lock()
	n := len(tl.batches)
	tl.mu.Unlock()
	if n != 0 {
		t.Errorf("%d batches before OnConnect returned", n)
	}
	if s := r.State(); !s.Connected || s.WaitingForServer {
		t.Errorf("state in OnConnect: %+v", s)
	}
	close(proceed)
	wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"1"})
}

const checkpointDDL = `CREATE TABLE rowferry_checkpoint (name VARCHAR(64) CHARACTER SET ascii PRIMARY KEY, epoch BIGINT UNSIGNED NOT NULL DEFAULT 0,
 owner VARCHAR(255), position LONGTEXT, fence BIGINT UNSIGNED NOT NULL DEFAULT 0, paused TINYINT NOT NULL DEFAULT 0, updated_at DATETIME(6))`

func TestFence(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		for _, image := range []string{"FULL", "MINIMAL"} {
			t.Run(image, func(t *testing.T) {
				g := newRig(t, server, outboxDDL, checkpointDDL, "INSERT INTO rowferry_checkpoint (name) VALUES ('mine'), ('theirs')")
				g.config.FenceTable, g.config.FenceName = outbox.Table{Schema: g.schema, Name: "rowferry_checkpoint"}, "mine"
				tl := g.tail("now")
				g.session("SET SESSION binlog_row_image = "+image,
					"UPDATE rowferry_checkpoint SET fence = 18446744073709551615 WHERE name = 'theirs'",
					"UPDATE rowferry_checkpoint SET fence = 41 WHERE name = 'mine'",
					"BEGIN", "UPDATE rowferry_checkpoint SET fence = 42 WHERE name = 'mine'", "INSERT INTO outbox (payload) VALUES ('1')",
					"UPDATE rowferry_checkpoint SET fence = 43 WHERE name = 'mine'", "COMMIT",
					"UPDATE rowferry_checkpoint SET position = 'x' WHERE name = 'mine'")
				var got []string
				for _, b := range g.flushBatches(tl) {
					got = append(got, fmt.Sprint(b.Fence, b.Own, len(b.Events)))
				}
				last := map[string]string{"FULL": "43 true 0", "MINIMAL": "0 true 0"}[image]
				wantStrings(t, "fence, own, events", got, []string{"0 false 0", "41 true 0", "43 true 1", last})
			})
		}
	})
}

func TestTaggedGTID(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t))
	tl := g.tail("now")
	g.session("SET SESSION gtid_next = 'AUTOMATIC:relay_test'", "INSERT INTO outbox (payload) VALUES ('1')", "INSERT INTO outbox (payload) VALUES ('2')")
	batches := g.flushBatches(tl)
	wantStrings(t, "payloads", payloads(eventsOf(batches)), []string{"1", "2"})
	text := tl.reader.Encode(batches[0].End)
	if !strings.Contains(text, "relay_test") {
		t.Errorf("position %s does not know the tag", text)
	}
	tl.stop()
	again := g.tail(text)
	got := slices.DeleteFunc(payloads(g.flush(again)), func(p string) bool { return strings.HasPrefix(p, "mark") })
	wantStrings(t, "rest", got, []string{"2"})
}

// The rows of a prepared XA transaction are published when, and only if, it
// commits; until then only their keys are kept.
func TestTwoPhaseXA(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		tl := g.tail("now")
		g.session("XA START 'gone','b'", "INSERT INTO outbox (id, payload) VALUES (100, 'no')", "XA END 'gone','b'", "XA PREPARE 'gone','b'")
		g.session("XA START 'kept','b'", "INSERT INTO outbox (id, payload) VALUES (200, 'yes'), (201, 'yes')", "XA END 'kept','b'", "XA PREPARE 'kept','b'")
		if got := g.flush(tl); len(got) != 0 {
			t.Errorf("events %q before the decision", ids(got))
		}
		g.session("XA ROLLBACK 'gone','b'", "XA COMMIT 'kept','b'")
		got := g.flush(tl)
		wantStrings(t, "ids", ids(got), []string{"200", "201"})
		for _, e := range got {
			if e.Unread != unreadXA || e.Payload != nil {
				t.Errorf("event %+v, want one to be read by key", e)
			}
		}
		if n := len(tl.reader.parked); n != 0 {
			t.Errorf("%d transactions are still parked", n)
		}
	})
}

// While emit blocks nothing is read, and the reader does not count as waiting for
// the server.
func TestEmitBlocks(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t))
	r := g.reader()
	from := g.resolve(r, "now")
	entered, leave := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- r.Run(ctx, from, func(ctx context.Context, b outbox.Batch) error {
			entered <- struct{}{}
			select {
			case <-leave:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	g.exec("INSERT INTO outbox (payload) VALUES ('1')", "INSERT INTO outbox (payload) VALUES ('2')")
	<-entered
	if r.State().WaitingForServer {
		t.Error("a reader blocked in emit counts as waiting for the server")
	}
	leave <- struct{}{}
	<-entered
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
}

func TestEmitErrorEndsRun(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t))
	r := g.reader()
	from := g.resolve(r, "now")
	g.exec("INSERT INTO outbox (payload) VALUES ('1')")
	want := errors.New("no more")
	err := r.Run(t.Context(), from, func(context.Context, outbox.Batch) error { return want })
	if !errors.Is(err, want) {
		t.Errorf("Run returned %v, want emit's error", err)
	}
}

func TestFromFileAndOffset(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		r := g.reader()
		p, err := parsePosition(g.resolve(r, "now"))
		if err != nil {
			t.Fatal(err)
		}
		if server.Flavor() == testservers.FlavorMySQL { // a file with compressed transactions in it
			g.session("SET SESSION binlog_transaction_compression = ON", "INSERT INTO outbox (payload) VALUES (REPEAT('a', 2000)), ('b')")
			if p, err = parsePosition(g.resolve(r, "now")); err != nil {
				t.Fatal(err)
			}
		}
		g.exec("INSERT INTO outbox (payload) VALUES ('1')")
		from := g.resolve(r, fmt.Sprintf("%s:%d", p.file, p.offset))
		tl := runTail(t, r, from)
		wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"1"})
		q, err := parsePosition(from)
		if err != nil {
			t.Fatal(err)
		}
		if p.gtids != nil && !p.gtids.Equal(q.gtids) {
			t.Errorf("FILE:POS gave the set %s, want %s", q.gtids, p.gtids)
		}
		if p.flavor == flavorMySQL && p.gtids != nil {
			if _, err := r.Resolve(t.Context(), fmt.Sprintf("%s:%d", p.file, p.offset+1)); err == nil {
				t.Error("an offset inside an event was accepted")
			}
		}
	})
}

func TestAccessDeniedIsRetried(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t))
	g.config.DSN = g.config.DSN.Clone()
	g.config.DSN.User, g.config.DSN.Passwd = "nobody", "secret"
	r := g.reader()
	if _, err := r.Resolve(t.Context(), "now"); err == nil || errors.Is(err, ErrGap) {
		t.Errorf("Resolve gave %v", err)
	}
	tl := runTail(t, r, (&position{flavor: flavorMySQL, gtids: newMySQLSet()}).String())
	deadline := time.Now().Add(patience)
	for tl.reader.State().LastError == "" {
		if time.Now().After(deadline) {
			t.Fatal("no error was reported")
		}
		time.Sleep(10 * time.Millisecond) // State is polled, as its users do
	}
	if text := r.State().LastError; !strings.Contains(text, "denied") || strings.Contains(text, "secret") {
		t.Errorf("LastError %q", text)
	}
	tl.stop()
}
