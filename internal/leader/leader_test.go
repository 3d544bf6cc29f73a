package leader

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/internal/testservers"
)

func TestMain(m *testing.M) { testservers.Main(m) }

func onBoth(t *testing.T, test func(t *testing.T, s *testservers.DB)) {
	t.Run("mysql", func(t *testing.T) { test(t, testservers.SharedMySQL(t)) })
	t.Run("mariadb", func(t *testing.T) { test(t, testservers.SharedMariaDB(t)) })
}

func open(t *testing.T, s *testservers.DB) *sql.DB {
	t.Helper()
	db, err := mysqlconn.Open(s.DSN(""), mysqlconn.Options{Role: "leader"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// name is a relay's name for this test alone: locks are server-wide.
func name(t *testing.T) string { return strings.ReplaceAll(t.Name(), "/", "-") }

func acquired(t *testing.T, db *sql.DB) *Lock {
	t.Helper()
	l, err := TryAcquire(t.Context(), db, "app", name(t), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if l == nil {
		t.Fatal("the lock is taken")
	}
	t.Cleanup(func() {
		if err := l.Release(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// waiter acquires in the background.
func waiter(t *testing.T, db *sql.DB, log zerolog.Logger) <-chan *Lock {
	got := make(chan *Lock, 1)
	go func() {
		l, err := Acquire(t.Context(), db, "app", name(t), log)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	return got
}

func TestHoldersExcludeEachOther(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		db := open(t, s)
		first := acquired(t, db)
		if !first.Fresh() {
			t.Fatal("a new lock is not fresh")
		}
		// A third party in the same process is refused too: GET_LOCK is reentrant
		// within a session, but each lock has its own.
		if l, err := TryAcquire(t.Context(), db, "app", name(t), zerolog.Nop()); err != nil || l != nil {
			t.Fatalf("taken twice: %v, %v", l, err)
		}
		var log syncBuffer
		got := waiter(t, db, zerolog.New(&log))
		log.await(t, "another relay leads")
		select {
		case <-got:
			t.Fatal("two hold it")
		default:
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first.Fresh() {
			t.Error("a released lock is fresh")
		}
		second := <-got
		if second == nil || !second.Fresh() {
			t.Fatal("not inherited")
		}
		select {
		case <-first.Lost():
			t.Error("released counts as lost")
		default:
		}
		if err := errors.Join(second.Release(t.Context()), second.Release(t.Context())); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "another relay leads"); n != 1 {
			t.Errorf("said %d times who holds it:\n%s", n, log.String())
		}
	})
}

// syncBuffer is a log that tests wait on.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *syncBuffer) await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(s.String(), text); {
		if time.Now().After(deadline) {
			t.Fatalf("no %q in the log: %s", text, s.String())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestHolderOf(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		db := open(t, s)
		if h, found, err := HolderOf(t.Context(), db, "app", name(t)); err != nil || found {
			t.Fatalf("%v, %v, %v", h, found, err)
		}
		l := acquired(t, db)
		var id int64
		if err := l.conn.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
			t.Fatal(err)
		}
		h, found, err := HolderOf(t.Context(), db, "app", name(t))
		if err != nil || !found || h.ConnectionID != id || h.User != "root" || !strings.Contains(h.String(), fmt.Sprintf("connection %d of root@", id)) {
			t.Fatalf("%v, %v, %v; want connection %d", h, found, err, id)
		}
	})
}

func TestKilledSessionLosesTheLock(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		t.Parallel()
		db := open(t, s)
		first := acquired(t, db)
		var log syncBuffer
		got := waiter(t, db, zerolog.New(&log))
		log.await(t, "another relay leads")
		h, _, err := HolderOf(t.Context(), db, "app", name(t))
		if err != nil {
			t.Fatal(err)
		}
		s.Exec(t, "", fmt.Sprintf("KILL %d", h.ConnectionID))
		second := <-got
		if second == nil {
			t.Fatal("nobody inherits")
		}
		select {
		case <-first.Lost():
		case <-time.After(2 * pingInterval):
			t.Fatal("the loss was not noticed")
		}
		if first.Fresh() {
			t.Error("a lost lock is fresh")
		}
		if err := errors.Join(first.Release(t.Context()), second.Release(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFrozenServer has the server stop answering: nobody says that the lock is
// gone, so the clock must, and before the server could give it to another.
func TestFrozenServer(t *testing.T) {
	for flavor, start := range map[string]func(testing.TB, ...string) *testservers.DB{"mysql": testservers.MySQL, "mariadb": testservers.MariaDB} {
		t.Run(flavor, func(t *testing.T) {
			s := start(t)
			l := acquired(t, open(t, s))
			s.Freeze(t)
			froze := time.Now()
			select {
			case <-l.Lost():
			case <-time.After(pingInterval + pingTimeout + 5*time.Second):
				t.Fatal("the loss was not noticed")
			}
			if l.Fresh() {
				t.Error("the lock of a frozen server is fresh")
			}
			if took := time.Since(froze); took > sessionSeconds*time.Second {
				t.Errorf("noticed after %s, when the session may be over", took)
			}
			s.Thaw(t)
		})
	}
}

func TestLockGoesStaleByTheClock(t *testing.T) {
	s := testservers.SharedMySQL(t)
	l := acquired(t, open(t, s))
	l.stop() // a process that is frozen pings nobody
	<-l.done
	l.done = make(chan struct{})
	l.fresh.Store(int64(time.Since(l.born) - FreshFor + time.Minute))
	if !l.Fresh() {
		t.Fatal("not fresh before its time")
	}
	l.fresh.Store(int64(time.Since(l.born) - FreshFor))
	if l.Fresh() {
		t.Fatal("fresh after its time")
	}
	close(l.done)
}

func TestPingOfALockThatIsNotHeld(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		l := acquired(t, open(t, s))
		if err := l.pingOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.conn.ExecContext(t.Context(), "DO RELEASE_LOCK(?)", l.name); err != nil {
			t.Fatal(err)
		}
		if err := l.pingOnce(t.Context()); err == nil {
			t.Fatal("the ping of a lock that is not held is good")
		}
	})
}

func TestReadOnlyServerIsRefused(t *testing.T) {
	for flavor, start := range map[string]func(testing.TB, ...string) *testservers.DB{"mysql": testservers.MySQL, "mariadb": testservers.MariaDB} {
		t.Run(flavor, func(t *testing.T) {
			s := start(t)
			db := open(t, s)
			s.Exec(t, "", "SET GLOBAL read_only = 1")
			if _, err := TryAcquire(t.Context(), db, "app", name(t), zerolog.Nop()); !errors.Is(err, ErrReadOnly) {
				t.Fatalf("%v, want ErrReadOnly", err)
			}
			s.Exec(t, "", "SET GLOBAL read_only = 0")
			acquired(t, db) // the refused one let go of it
		})
	}
}

func TestAcquireEndsWithItsContext(t *testing.T) {
	db := open(t, testservers.SharedMySQL(t))
	acquired(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	var log syncBuffer
	done := make(chan error, 1)
	go func() {
		_, err := Acquire(ctx, db, "app", name(t), zerolog.New(&log))
		done <- err
	}()
	log.await(t, "another relay leads")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want canceled", err)
	}
}

func TestName(t *testing.T) {
	if got := Name("App", "Ferry"); got != "rowferry:app:ferry" {
		t.Errorf("short: %s", got)
	}
	long := strings.Repeat("ü", 48) // 64 characters with the rest, more bytes
	if got := Name("app", long); got != "rowferry:app:"+long && utf8.RuneCountInString(got) > nameMax {
		t.Errorf("64 characters: %s", got)
	}
	if a, b := Name(strings.Repeat("s", 64), "a"), Name(strings.Repeat("s", 64), "b"); a == b || len(a) != len("rowferry:")+40 {
		t.Errorf("long: %s, %s", a, b)
	}
	rapid.Check(t, func(t *rapid.T) {
		schema, name := rapid.String().Draw(t, "schema"), rapid.String().Draw(t, "name")
		got := Name(schema, name)
		if n := utf8.RuneCountInString(got); n > nameMax || got != strings.ToLower(got) || !strings.HasPrefix(got, "rowferry:") {
			t.Fatalf("%q, %d characters", got, n)
		}
	})
}

func TestLongNamesAreTaken(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		db := open(t, s)
		for _, n := range []string{strings.Repeat("x", 51), strings.Repeat("大", 51), strings.Repeat("大", 52), strings.Repeat("x", 300)} {
			l, err := TryAcquire(t.Context(), db, "app", n, zerolog.Nop())
			if err != nil || l == nil {
				t.Fatalf("%d characters: %v", utf8.RuneCountInString(n), err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}
