package binlog

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
)

// twins are a primary and a replica that can take its place.
type twins struct{ primary, replica *testservers.DB }

func newTwins(t *testing.T, start func(testing.TB, ...string) *testservers.DB, flavor string) twins {
	t.Helper()
	p := twins{start(t), start(t, testservers.ReplicaFlags(flavor)...)}
	p.replica.Follow(t, p.primary)
	return p
}

// sources names servers, the next of which is tried almost at once.
func sources(t *testing.T, servers ...*testservers.DB) *Sources {
	t.Helper()
	var list []*mysql.Config
	for _, s := range servers {
		cfg, err := mysql.ParseDSN(s.DSN(""))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, cfg)
	}
	return NewSources(func() ([]*mysql.Config, error) { return list, nil }, 100*time.Millisecond, 100*time.Millisecond)
}

// on is the same rig at another server that has its schema by replication.
func (g *rig) on(server *testservers.DB) *rig {
	h := *g
	h.server, h.db = server, server.Open(g.t, g.schema)
	return &h
}

// in is the same rig for a subtest.
func (g *rig) in(t *testing.T) *rig {
	h := *g
	h.t = t
	return &h
}

func (g *rig) insert(first, last int) {
	g.t.Helper()
	for i := first; i <= last; i++ {
		g.exec(fmt.Sprintf("INSERT INTO outbox (payload) VALUES ('%d')", i))
	}
}

func numbers(first, last int) []string {
	var out []string
	for i := first; i <= last; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

// save stops a tail and returns the position behind all it emitted.
func (tl *tail) save() string {
	tl.t.Helper()
	tl.stop()
	tl.mu.Lock()
	defer tl.mu.Unlock()
	for _, b := range slices.Backward(tl.batches) {
		if !b.End.IsZero() {
			return tl.reader.Encode(b.End)
		}
	}
	return tl.from
}

func (tl *tail) awaitError(part string) {
	tl.t.Helper()
	awaitState(tl.t, tl.reader, "failing with "+part, func(s State) bool { return !s.Connected && strings.Contains(s.LastError, part) })
}

// dead is a server that does not answer.
func dead() *mysql.Config {
	return &mysql.Config{Net: "tcp", Addr: fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(0)), User: "root", AllowNativePasswords: true}
}

// from is a tail of some servers, behind a position.
func (g *rig) from(position string, s *Sources) *tail {
	g.t.Helper()
	g.config.Sources = s
	return g.tail(position)
}

// TestReplication takes a primary and its replica through the accidents that a reader
// of both can meet, with the same rows all the way: none may be lost or repeated.
func TestReplication(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...string) *testservers.DB{"mysql": testservers.MySQL, "mariadb": testservers.MariaDB} {
		t.Run(name, func(t *testing.T) {
			p := newTwins(t, start, name)
			g := newRig(t, p.primary)
			g.config.RoleEvery = 50 * time.Millisecond
			h := g.on(p.replica)
			p.replica.CatchUp(t, p.primary)
			saved := ""
			ok := t.Run("standstill", func(t *testing.T) { saved = testStandstill(t, p, g.in(t)) }) &&
				t.Run("lag", func(t *testing.T) { saved = testLag(t, p, g.in(t), saved) }) &&
				t.Run("failover", func(t *testing.T) { saved = testFailover(t, p, g.in(t), h.in(t), saved) }) &&
				t.Run("former primary", func(t *testing.T) { saved = testFormerPrimary(t, p, g.in(t), h.in(t), saved) }) &&
				t.Run("repointed", func(t *testing.T) { saved = testRepointed(t, p, g.in(t), h.in(t), saved) }) &&
				t.Run("promoted without", func(t *testing.T) { testPromotedWithout(t, p, g.in(t), h.in(t), saved) })
			if ok && saved == "" {
				t.Error("nothing was saved")
			}
		})
	}
}

// testStandstill reads from a replica that stops replicating, which is seen.
func testStandstill(t *testing.T, p twins, g *rig) string {
	tl := g.from("now", sources(t, p.replica))
	g.insert(1, 5)
	wantStrings(t, "payloads", payloads(g.flush(tl)), numbers(1, 5))
	running := "replica of " + p.primary.Addr()
	awaitState(t, tl.reader, "a replica", func(s State) bool { return s.Replication == running && !s.Standstill })
	p.replica.StopFollowing(t)
	awaitState(t, tl.reader, "known to stand still", func(s State) bool {
		return s.Connected && s.Standstill && strings.Contains(s.Replication, "not running")
	})
	g.insert(6, 7)
	p.replica.FollowOn(t)
	awaitState(t, tl.reader, "known to run", func(s State) bool { return s.Replication == running && !s.Standstill })
	wantStrings(t, "payloads", payloads(g.flush(tl)), numbers(6, 7))
	return tl.save()
}

// testLag goes on at a replica that has not yet got what was read from the primary:
// it is waited for.
func testLag(t *testing.T, p twins, g *rig, saved string) string {
	p.replica.StopFollowing(t)
	tl := g.from(saved, sources(t, p.primary, p.replica))
	g.insert(8, 9)
	wantStrings(t, "payloads from the primary", payloads(g.flush(tl)), numbers(8, 9))
	saved = tl.save()

	replica := sources(t, p.replica)
	behind := runTail(t, g.readerOf(NewSources(func() ([]*mysql.Config, error) {
		list, err := replica.list()
		return append([]*mysql.Config{dead()}, list...), err
	}, 100*time.Millisecond, time.Hour)), saved)
	behind.awaitError("does not yet have transactions already read")
	behind.awaitError("refused") // the primary is tried again, too
	g.insert(10, 11)
	p.replica.FollowOn(t)
	wantStrings(t, "payloads from the replica", payloads(g.flush(behind)), numbers(10, 11))
	return behind.save()
}

func (g *rig) readerOf(s *Sources) *Reader {
	g.t.Helper()
	g.config.Sources = s
	return g.reader()
}

// testFailover kills the primary and promotes the replica.
func testFailover(t *testing.T, p twins, g, h *rig, saved string) string {
	tl := g.from(saved, sources(t, p.primary, p.replica))
	g.insert(12, 20)
	p.replica.CatchUp(t, p.primary)
	p.primary.Kill(t)
	p.replica.Promote(t)
	h.insert(21, 30)
	wantStrings(t, "payloads", payloads(h.flush(tl)), numbers(12, 30))
	if s := tl.reader.State(); s.Address != p.replica.Addr() || s.Replication != "" {
		t.Errorf("state %+v, want the promoted replica %s", s, p.replica.Addr())
	}
	saved = tl.save()
	at, err := parsePosition(saved)
	if err != nil {
		t.Fatal(err)
	}
	if set, ok := at.gtids.(*mariadbSet); ok && len(set.domains) != 1 {
		t.Errorf("position %s, want one entry for the one domain", saved)
	}
	return saved
}

// testFormerPrimary has the former primary come back, first in the list, without what
// the new one has written: it is not read.
func testFormerPrimary(t *testing.T, p twins, g, h *rig, saved string) string {
	p.primary.Start(t, testservers.ReplicaFlags(p.primary.Flavor())...)
	h.insert(31, 35)
	tl := g.from(saved, sources(t, p.primary, p.replica))
	wantStrings(t, "payloads", payloads(h.flush(tl)), numbers(31, 35))
	if s := tl.reader.State(); s.Address != p.replica.Addr() {
		t.Errorf("reading from %s, want %s", s.Address, p.replica.Addr())
	}
	return tl.save()
}

// testRepointed makes the former primary a replica of the new one while it is read.
func testRepointed(t *testing.T, p twins, g, h *rig, saved string) string {
	p.primary.Follow(t, p.replica)
	p.primary.CatchUp(t, p.replica)
	tl := g.from(saved, sources(t, p.primary))
	h.insert(36, 40)
	wantStrings(t, "payloads", payloads(h.flush(tl)), numbers(36, 40))
	awaitState(t, tl.reader, "a replica", func(s State) bool { return s.Replication == "replica of "+p.replica.Addr() })
	return tl.save()
}

// testPromotedWithout reads what only one server has; the other is a primary without
// it: a gap, and the next reader begins where it was found.
func testPromotedWithout(t *testing.T, p twins, g, h *rig, saved string) {
	p.primary.Promote(t)
	tl := g.from(saved, sources(t, p.primary, p.replica))
	g.insert(100, 101)
	wantStrings(t, "payloads that the other lacks", payloads(g.flush(tl)), numbers(100, 101))
	p.primary.Kill(t)
	tl.wantGap("does not know transactions that were read")

	next := g.reader()
	from := g.resolve(next, "now")
	if got := next.State().Address; got != p.replica.Addr() {
		t.Errorf("resolved at %s, want %s", got, p.replica.Addr())
	}
	again := runTail(t, next, from)
	h.insert(41, 42)
	wantStrings(t, "payloads after the gap", payloads(h.flush(again)), numbers(41, 42))
}

// wantGap waits for Run to end with ErrGap for the given reason.
func (tl *tail) wantGap(reason string) {
	tl.t.Helper()
	select {
	case <-tl.done:
	case <-time.After(3 * patience):
		tl.t.Fatalf("Run did not end; state %+v", tl.reader.State())
	}
	if !errors.Is(tl.err, ErrGap) || !strings.Contains(tl.err.Error(), reason) {
		tl.t.Fatalf("Run returned %v, want ErrGap with %q", tl.err, reason)
	}
	tl.t.Log(tl.err)
}

// A file and an offset mean nothing on another server: the switch is a gap, even
// where the other server has a file of that name and size.
func TestFilePositionDoesNotTravel(t *testing.T) {
	p := newTwins(t, testservers.MySQLNoGTID, testservers.FlavorMySQL)
	g := newRig(t, p.primary)
	g.config.RoleEvery = 50 * time.Millisecond
	p.replica.CatchUp(t, p.primary)
	testStandstill(t, p, g)

	tl := g.from("now", sources(t, p.primary, p.replica))
	g.insert(8, 9)
	wantStrings(t, "payloads", payloads(g.flush(tl)), numbers(8, 9))
	p.replica.CatchUp(t, p.primary)
	p.primary.Kill(t)
	p.replica.Promote(t)
	h := g.on(p.replica)
	h.insert(10, 100)
	tl.wantGap("whose file of that name is another")
	again := runTail(t, tl.reader, g.resolve(tl.reader, "now"))
	h.insert(101, 102)
	wantStrings(t, "payloads after the gap", payloads(h.flush(again)), numbers(101, 102))
}

// A replica whose own binlog lacks what it replicates is refused by name.
func TestReplicaWithoutItsOwnLogIsRefused(t *testing.T) {
	t.Run("mysql", func(t *testing.T) {
		replica := testservers.MySQL(t, "--log-replica-updates=OFF")
		replica.Exec(t, "", "CHANGE REPLICATION SOURCE TO SOURCE_HOST='primary.example', SOURCE_PORT=3307")
		wantReplicaRefused(t, replica)
	})
	t.Run("mariadb", func(t *testing.T) {
		primary, replica := testservers.MariaDB(t), testservers.MariaDB(t, "--log-slave-updates=OFF")
		replica.Follow(t, primary)
		replica.CatchUp(t, primary) // the state that any account may ask for is right only then
		wantReplicaRefused(t, replica)
	})
}

func wantReplicaRefused(t *testing.T, replica *testservers.DB) {
	t.Helper()
	replica.Exec(t, "", "CREATE USER tail IDENTIFIED BY 'secret'")
	replica.Exec(t, "", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO tail")
	for _, dsn := range []string{replica.DSN(""), replica.UserDSN("tail", "secret", "")} {
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(Config{DSN: cfg, ServerID: nextServerID()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Resolve(t.Context(), "now")
		var config *configError
		if !errors.As(err, &config) || !strings.Contains(err.Error(), "log_replica_updates=ON") || !strings.Contains(err.Error(), replica.Addr()) {
			t.Errorf("%s: Resolve gave %v", cfg.User, err)
		}
	}
}

// The order in which servers are tried, and when a position counts as lost.
func TestSourcesInTrouble(t *testing.T) {
	away, lost := errors.New("away"), gap("unknown there")
	for _, c := range []struct {
		name   string
		files  bool
		after  time.Duration
		script string // server and failure, in order
		want   string // where the next try goes, or "gap"
	}{
		{"one server", false, 0, "0 away 0 away", "0"},
		{"one server without the position", false, 0, "0 lost", "gap"},
		{"not yet", false, time.Hour, "0 away 0 away", "0"},
		{"the next, and round", false, 0, "0 away 1 away 2 away 0 away", "1"},
		{"a gap asks the next at once", false, time.Hour, "0 lost", "1"},
		{"a gap while the others may come back", false, time.Hour, "0 lost 1 away", "1"},
		{"a gap when the others do not come back", false, 0, "0 lost 1 away 2 away", "gap"},
		{"a gap found last", false, 0, "0 away 1 away 2 lost", "gap"},
		{"a gap everywhere", false, time.Hour, "0 lost 1 lost 2 lost", "gap"},
		{"something was read in between", false, time.Hour, "0 lost 1 lost 2 worked 2 lost 0 lost", "1"},
		{"a file elsewhere", true, time.Hour, "0 lost", "gap"},
		{"a file, not yet", true, time.Hour, "0 away", "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := []*mysql.Config{{Addr: "0"}, {Addr: "1"}, {Addr: "2"}}
			if strings.HasPrefix(c.name, "one server") {
				list = list[:1]
			}
			s := NewSources(func() ([]*mysql.Config, error) { return list, nil }, c.after, c.after)
			var verdict error
			words := strings.Fields(c.script)
			for i := 0; i < len(words); i += 2 {
				cfg, err := s.current()
				if err != nil || cfg.Addr != words[i] {
					t.Fatalf("step %d is at %v (%v), want %s", i/2, cfg, err, words[i])
				}
				moved := false
				switch words[i+1] {
				case "away":
					verdict, moved = s.failed(away, c.files)
				case "lost":
					verdict, moved = s.failed(lost, c.files)
				case "worked":
					s.worked()
				}
				if moved {
					verdict = nil
				}
			}
			got := "gap"
			if !errors.Is(verdict, ErrGap) {
				cfg, err := s.current()
				if err != nil {
					t.Fatal(err)
				}
				got = cfg.Addr
			}
			if got != c.want {
				t.Errorf("next is %s (%v), want %s", got, verdict, c.want)
			}
		})
	}
}
