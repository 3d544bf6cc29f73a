package binlog

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// TestServerInTrouble does to servers of its own what no other test would survive.
func TestServerInTrouble(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...string) *testservers.DB{
		"mysql": testservers.MySQL, "mysql-files": testservers.MySQLNoGTID,
		"mariadb": testservers.MariaDB, "mariadb-10.11": testservers.MariaDB1011,
	} {
		t.Run(name, func(t *testing.T) {
			server := start(t)
			t.Run("crash", func(t *testing.T) { testCrash(t, server) })
			t.Run("silence", func(t *testing.T) { testSilence(t, server) })
			t.Run("close while frozen", func(t *testing.T) { testCloseWhileFrozen(t, server) })
			t.Run("purged", func(t *testing.T) { testPurged(t, server) })
			t.Run("reset", func(t *testing.T) { testReset(t, server) })
		})
	}
}

// A server that crashes and comes back costs neither a row nor a repetition.
func testCrash(t *testing.T, server *testservers.DB) {
	g := newRig(t, server)
	tl := g.tail("now")
	var want []string
	for i := range 20 {
		if i == 10 {
			server.Kill(t)
			server.Start(t)
		}
		g.insertPatiently(strconv.Itoa(i))
		want = append(want, strconv.Itoa(i))
	}
	wantStrings(t, "payloads", payloads(g.flush(tl)), want)
	if tl.reader.State().Reconnects == 0 {
		t.Error("the reader did not notice the crashes")
	}
}

// insertPatiently gets over a pool that still holds connections from before a crash.
func (g *rig) insertPatiently(payload string) {
	g.t.Helper()
	var err error
	for range 20 {
		if _, err = g.db.Exec("INSERT INTO outbox (payload) VALUES (?)", payload); err == nil {
			return
		}
	}
	g.t.Fatal(err)
}

// A silent server is noticed by the missing heartbeat.
func testSilence(t *testing.T, server *testservers.DB) {
	g := newRig(t, server)
	g.config.HeartbeatPeriod = 200 * time.Millisecond
	tl := g.tail("now")
	g.flush(tl)
	server.Freeze(t)
	awaitState(t, tl.reader, "disconnected", func(s State) bool { return !s.Connected })
	server.Thaw(t)
	g.exec("INSERT INTO outbox (payload) VALUES ('after')")
	wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"after"})
}

// awaitState polls, as the users of State do.
func awaitState(t *testing.T, r *Reader, what string, ok func(State) bool) State {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if s := r.State(); ok(s) {
			return s
		} else if time.Now().After(deadline) {
			t.Fatalf("not %s within %v: %+v", what, patience, s)
		}
	}
}

// Closing takes no time, whatever the server does.
func testCloseWhileFrozen(t *testing.T, server *testservers.DB) {
	g := newRig(t, server)
	g.config.HeartbeatPeriod = time.Minute
	tl := g.tail("now")
	g.flush(tl)
	server.Freeze(t)
	defer server.Thaw(t)
	wantQuickStop(t, tl)

	// And while connecting: the kernel of a frozen server accepts, and nobody speaks.
	again := runTail(t, tl.reader, tl.from)
	time.Sleep(100 * time.Millisecond) // no signal tells that a handshake hangs
	wantQuickStop(t, again)
}

func wantQuickStop(t *testing.T, tl *tail) {
	t.Helper()
	began := time.Now()
	tl.stop()
	if took := time.Since(began); took > time.Second {
		t.Errorf("closing took %v", took)
	}
}

func testPurged(t *testing.T, server *testservers.DB) {
	g := newRig(t, server)
	r := g.reader()
	saved := g.resolve(r, "now")
	g.exec("INSERT INTO outbox (payload) VALUES ('1')", "FLUSH BINARY LOGS", "INSERT INTO outbox (payload) VALUES ('2')", "FLUSH BINARY LOGS")
	p, err := parsePosition(g.resolve(r, "now"))
	if err != nil {
		t.Fatal(err)
	}
	g.exec("PURGE BINARY LOGS TO '" + p.file + "'")
	wantGap(t, r, saved)
	if from := g.resolve(r, p.String()); from != p.String() {
		t.Errorf("a good position %s became %s", p, from)
	}
	tl := runTail(t, r, g.resolve(r, "earliest"))
	// MariaDB may keep the last file but one for its own recovery.
	if got := payloads(g.flush(tl)); slices.Contains(got, "1") {
		t.Errorf("earliest gave %q, which was purged", got)
	}
}

// testReset resets the log, behind the reader's back and under it, and writes it anew
// beyond what was read: file names, offsets and GTIDs are given a second time, often
// within the same second. Going on would skip what bears the names of what was read.
func testReset(t *testing.T, server *testservers.DB) {
	g := newRig(t, server)
	g.resetLog()
	tl := g.tail("now")
	g.insert(1, 5)
	g.flush(tl)
	g.resetLog()
	g.insert(6, 40)
	tl.wantGap("the log was reset")
	saved := tl.reader.Encode(tl.batches[len(tl.batches)-1].End)
	wantGap(t, g.reader(), saved)

	// More was read, in later files, than there is again.
	tl = g.tail("now")
	g.exec("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
	g.insert(41, 42)
	g.flush(tl)
	saved = tl.save()
	g.resetLog()
	g.insert(43, 100)
	wantGap(t, g.reader(), saved)
	g.exec("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
	g.insert(101, 200) // now there is a file of that name, which is as long
	wantGap(t, g.reader(), saved)
}

func (g *rig) resetLog() {
	g.t.Helper()
	if g.server.Flavor() == testservers.FlavorMySQL {
		g.exec("RESET BINARY LOGS AND GTIDS")
	} else {
		g.exec("RESET MASTER")
	}
}

// wantGap holds for both ways to learn of it: asking first, and just reading.
func wantGap(t *testing.T, r *Reader, from string) {
	t.Helper()
	if _, err := r.Resolve(t.Context(), from); !errors.Is(err, ErrGap) {
		t.Errorf("Resolve(%s) gave %v, want ErrGap", from, err)
	} else {
		t.Log(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	err := r.Run(ctx, from, func(context.Context, outbox.Batch) error { return nil })
	if !errors.Is(err, ErrGap) {
		t.Errorf("Run(%s) gave %v, want ErrGap", from, err)
	}
}
