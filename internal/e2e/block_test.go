package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// bodies returns the numbers in the payloads of a key, in the order in which they are stored.
func (s *stage) numbersOf(key string) []int {
	s.tb.Helper()
	var numbers []int
	for _, m := range s.broker.ReadAll(s.tb, s.topic) {
		if m.Properties["aggregate_id"] == key {
			numbers = append(numbers, payloadNumber(m))
		}
	}
	return numbers
}

func (s *stage) insertNumber(key string, n int) {
	s.tb.Helper()
	if _, err := insertInto(s.tb.Context(), s.db, key, "Created", fmt.Sprintf(`{"n": %d}`, n)); err != nil {
		s.tb.Fatal(err)
	}
}

// insertBadNumber commits a row that is too large until it is made smaller.
func (s *stage) insertBadNumber(key string, n int) string {
	s.tb.Helper()
	id, err := insertInto(s.tb.Context(), s.db, key, "Created", fmt.Sprintf(`{"n": %d, "text": "%s"}`, n, strings.Repeat("x", 2000)))
	if err != nil {
		s.tb.Fatal(err)
	}
	return fmt.Sprint(id)
}

func (s *stage) mendNumber(id string, n int) {
	s.tb.Helper()
	s.exec("UPDATE outbox SET payload = ? WHERE id = ?", fmt.Sprintf(`{"n": %d}`, n), id)
}

// awaitDeferred waits until so many rows of a key are left PENDING by a relay that has
// passed them, because the key is blocked.
func (f *ferry) awaitBlocked(s *stage, keys, deferred int) {
	f.tb.Helper()
	s.await(fmt.Sprintf("%d keys are blocked and %d events wait", keys, deferred), func() bool {
		_, metrics := f.get("/metrics")
		return strings.Contains(metrics, fmt.Sprintf("rowferry_blocked_keys %d\n", keys)) &&
			(deferred == 0 || strings.Contains(metrics, fmt.Sprintf("reason=\"blocked\",table=\"%s.outbox\"} %d\n", s.schema, deferred)))
	})
}

// TestBlockedKeyWaitsForItsDeadLetter: the key that has a dead letter waits, over a kill,
// and goes on in its order once that is requeued; another key never waits.
func TestBlockedKeyWaitsForItsDeadLetter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		server func(testing.TB) *testservers.DB
		layout string
	}{
		{testservers.SharedMySQL, layoutPragmatic},
		{testservers.SharedMariaDB, layoutRowferry},
		{testservers.SharedMySQL, layoutNumeric},
	} {
		t.Run(c.layout, func(t *testing.T) {
			t.Parallel()
			testBlockedKey(t, newDeadStage(t, c.server(t), c.layout))
		})
	}
}

func testBlockedKey(t *testing.T, s *stage) {
	with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "MESSAGE_BYTES_MAX=1KiB", "ON_DEAD=block"}
	f := s.run(append(with, "OUTBOX_LEASE=9s")...)
	s.insertNumber("held", 0)
	bad := s.insertBadNumber("held", 1)
	for n := 2; n < 6; n++ {
		s.insertNumber("held", n)
		s.insertNumber("free", n)
	}
	s.awaitFailed(1)
	s.awaitNone(s.notSent() + " AND aggregate_id = 'free'")
	f.awaitBlocked(s, 1, 4)
	if got := s.numbersOf("held"); !slices.Equal(got, []int{0}) {
		t.Fatalf("of the blocked key %v were published", got)
	}
	s.okWith(with, "sweep")

	f.kill()
	s.insertNumber("held", 6)
	f.restart()
	s.insertNumber("held", 7)
	s.insertNumber("free", 8)
	s.awaitNone(s.notSent() + " AND aggregate_id = 'free'")
	f.awaitBlocked(s, 1, 0)
	if got := s.numbersOf("held"); !slices.Equal(got, []int{0}) {
		t.Fatalf("of the blocked key %v were published after a restart", got)
	}

	// Not mended, it dies again, and the key waits on.
	if got := decode[deadDone](t, s.okWith(with, "dead", "requeue", "--id", bad, "--json")); got.Changed != 1 || got.Sent != 0 || (got.Failed != 1 && got.Note == "") {
		t.Errorf("requeued unmended: %+v", got)
	}
	s.awaitFailed(1)
	if got := s.numbersOf("held"); !slices.Equal(got, []int{0}) {
		t.Fatalf("of the blocked key %v were published after the second death", got)
	}
	s.mendNumber(bad, 1)
	if got := decode[deadDone](t, s.okWith(with, "dead", "requeue", "--key", "held", "--json")); got.Changed != 1 || got.Sent < 1 {
		t.Errorf("requeued: %+v", got)
	}
	s.insertNumber("held", 8)
	s.awaitSent()
	f.awaitBlocked(s, 0, 0)
	s.expectForgotten()

	// What is discarded opens the key, too.
	bad = s.insertBadNumber("held", 9)
	s.insertNumber("held", 10)
	s.awaitFailed(1)
	f.awaitBlocked(s, 1, 0)
	if got := decode[deadDone](t, s.okWith(with, "dead", "discard", "--id", bad, "--yes", "--json")); got.Changed != 1 {
		t.Errorf("discarded: %+v", got)
	}
	s.insertNumber("held", 11)
	s.awaitNone(s.notSent() + " AND NOT " + s.failed())
	f.awaitBlocked(s, 0, 0)
	if got, want := s.numbersOf("held"), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11}; !slices.Equal(got, want) {
		t.Errorf("published %v, want %v", got, want)
	}
	f.stopCleanly()
}

// expectForgotten checks that no key waits for anything in rowferry_dead.
func (s *stage) expectForgotten() {
	s.tb.Helper()
	if n := s.queryInt("SELECT COUNT(*) FROM rowferry_dead"); n != 0 {
		s.tb.Errorf("%d letters are left in rowferry_dead", n)
	}
}

// TestBlockedKeyIsRequeuedWithoutARelay: the command sends the dead letter and what waited
// for it by itself, or, where it may not, has the next relay do it before anything else.
func TestBlockedKeyIsRequeuedWithoutARelay(t *testing.T) {
	t.Parallel()
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprintf("paused %t", paused), func(t *testing.T) {
			t.Parallel()
			s := newDeadStage(t, testservers.SharedMySQL(t), layoutPragmatic)
			with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "MESSAGE_BYTES_MAX=1KiB", "ON_DEAD=block", "OUTBOX_LEASE=9s"}
			f := s.run(with...)
			bad := s.insertBadNumber("held", 0)
			for n := 1; n < 4; n++ {
				s.insertNumber("held", n)
			}
			s.awaitFailed(1)
			f.awaitBlocked(s, 1, 3)
			f.stopCleanly()
			s.mendNumber(bad, 0)
			if paused {
				s.okWith(with, "pause")
			}
			got := decode[deadDone](t, s.okWith(with, "dead", "requeue", "--all", "--json"))
			if paused != (got.Sent == 0) || paused != strings.Contains(got.Note, "paused") || got.Changed != 1 {
				t.Errorf("requeued: %+v", got)
			}
			if paused { // the next relay must not let the new event go first
				s.insertNumber("held", 4)
				s.okWith(with, "resume")
			}
			f.restart()
			s.insertNumber("held", 5)
			s.awaitSent()
			f.awaitBlocked(s, 0, 0)
			want := []int{0, 1, 2, 3, 5}
			if paused {
				want = []int{0, 1, 2, 3, 4, 5}
			}
			if got := s.numbersOf("held"); !slices.Equal(got, want) {
				t.Errorf("published %v, want %v", got, want)
			}
			f.stopCleanly()
			s.expectForgotten()
		})
	}
}
