package ledger

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// letters reads all dead letters, in pages of two.
func (f *fixture) letters(by Filter) []Letter {
	f.t.Helper()
	var all []Letter
	at := Cursor{}
	for more := true; more; {
		var page []Letter
		var err error
		if page, at, more, err = f.DeadLetters(f.ctx(), f.table, by, at, 2); err != nil {
			f.t.Fatal(err)
		}
		all = append(all, page...)
		text, err := at.MarshalText()
		if err != nil {
			f.t.Fatal(err)
		}
		at = Cursor{}
		if err := at.UnmarshalText(text); err != nil { // as one who pages over HTTP
			f.t.Fatal(err)
		}
	}
	return all
}

func idsOf(letters []Letter) string {
	ids := make([]string, len(letters))
	for i, l := range letters {
		ids[i] = l.Key.ID
	}
	return strings.Join(ids, " ")
}

// deadShapes are tables with dead letters of every kind of home.
func deadShapes(t testing.TB) map[string]struct {
	ddl string
	o   Options
} {
	type shape = struct {
		ddl string
		o   Options
	}
	numeric := example(t, "numeric_status") + ";\n" + deadTable(t)
	pragmatic := example(t, "pragmatic_ddd") + ";\n" + deadTable(t)
	return map[string]shape{
		"own":             {ownTables(t), Options{}},
		"own, always":     {ownTables(t), Options{DeadAlways: true}},
		"pragmatic":       {pragmatic, Options{}},
		"numeric":         {numeric, Options{}},
		"numeric, delete": {numeric, Options{Delete: true}},
		"own, none":       {ownTables(t), Options{None: true}},
	}
}

func TestDeadLettersAreListedRequeuedAndDiscarded(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		for name, shape := range deadShapes(t) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := setUp(t, s, shape.ddl, shape.o)
				f.fill(9)
				f.record(f.outcomes(outbox.OutcomeFailed, "2", "3", "5", "7", "8")...)
				f.record(f.outcomes(outbox.OutcomeSent, "1")...)
				letters := f.letters(Filter{})
				if got := idsOf(letters); got != "2 3 5 7 8" {
					t.Fatalf("dead letters %s", got)
				}
				for _, l := range letters {
					if l.Reason != "no such luck" || l.Row == nil || l.Row.Event.Type != "made" || l.Row.Event.Payload != nil || l.Row.Bytes != 2 || l.Discarded {
						t.Errorf("letter %+v", l)
					}
				}
				if got := idsOf(f.letters(Filter{IDs: []string{"7", "1", "4", "2", "7"}})); got != "7 2" {
					t.Errorf("by id: %s", got)
				}

				done, err := f.Discard(f.ctx(), f.table, []string{"3", "4", "5"})
				if err != nil || !slices.Equal(done.IDs, []string{"3", "5"}) || len(done.Locked) > 0 {
					t.Fatalf("discarded %+v, %v", done, err)
				}
				if got := idsOf(f.letters(Filter{})); got != "2 7 8" {
					t.Errorf("after the discard: %s", got)
				}
				all := f.letters(Filter{Discarded: true})
				if got := idsOf(all); got != "2 3 5 7 8" || !all[1].Discarded || all[0].Discarded || all[1].Reason != "no such luck" {
					t.Errorf("with those that were discarded: %s, %+v", got, all)
				}

				done, err = f.Requeue(f.ctx(), f.table, []string{"1", "2", "3", "4", "8"})
				if err != nil || !slices.Equal(done.IDs, []string{"2", "3", "8"}) {
					t.Fatalf("requeued %+v, %v", done, err)
				}
				if got := idsOf(f.letters(Filter{Discarded: true})); got != "5 7" {
					t.Errorf("after the requeue: %s", got)
				}
				if !shape.o.None {
					f.expectFresh("2", "3", "8")
				}
				if shape.o.DeadAlways { // somebody may wait for them
					if err := f.Opened(f.ctx(), []string{"k2", "k3", "k8", "k7"}); err != nil {
						t.Fatal(err)
					}
					f.wantText("5 7", "SELECT GROUP_CONCAT(id ORDER BY id SEPARATOR ' ') FROM rowferry_dead")
				}
				f.wantText("0", "SELECT COUNT(*) FROM rowferry_dead WHERE id IN ('2', '3', '8')")
			})
		}
	})
}

// expectFresh checks that rows look as if they had never been tried.
func (f *fixture) expectFresh(ids ...string) {
	f.t.Helper()
	states, err := f.Statuses(f.ctx(), f.table, ids)
	if err != nil {
		f.t.Fatal(err)
	}
	rows, err := f.Describe(f.ctx(), f.table, ids)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, id := range ids {
		if states[id].Status != outbox.Pending || rows[id].Event.Attempts != 0 || rows[id].LastError != "" {
			f.t.Errorf("row %s is %+v, %+v", id, states[id], rows[id])
		}
	}
	if f.layout.Has(outbox.RoleNextAttemptAt) {
		f.wantText("0", "SELECT COUNT(*) FROM outbox WHERE next_attempt_at IS NOT NULL AND id IN ("+strings.Join(ids, ",")+")")
	}
}

func TestDeadLettersAreFiltered(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.fill(10)
		at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) // the sessions of the ledger are 8 hours ahead
		f.exec("UPDATE outbox SET created_at = '2026-03-01 20:00:00' + INTERVAL id HOUR, event_type = IF(id % 2, 'odd', 'even')")
		f.record(f.outcomes(outbox.OutcomeFailed, numbers(1, 10)...)...)
		for _, c := range []struct {
			by   Filter
			want string
		}{
			{Filter{}, "1 2 3 4 5 6 7 8 9 10"},
			{Filter{Since: at.Add(4 * time.Hour)}, "4 5 6 7 8 9 10"},
			{Filter{Until: at.Add(4 * time.Hour)}, "1 2 3"},
			{Filter{Since: at.Add(2 * time.Hour), Until: at.Add(9 * time.Hour), Type: "odd"}, "3 5 7"},
			{Filter{AggregateID: "a3"}, "3 10"},
			{Filter{Type: "odd", IDs: numbers(1, 4)}, "1 3"},
			{Filter{Type: "even", AggregateID: "a1"}, "8"},
			{Filter{Type: "neither"}, ""},
		} {
			if got := idsOf(f.letters(c.by)); got != c.want {
				t.Errorf("%+v: %s, want %s", c.by, got, c.want)
			}
		}
		sent, _, more, err := f.Find(f.ctx(), f.table, Filter{Status: outbox.Sent}, Cursor{}, 100)
		if err != nil || more || len(sent) > 0 {
			t.Errorf("SENT rows: %v, %t, %v", sent, more, err)
		}
	})
}

// TestRequeueIsGuarded: what is not FAILED any more when it comes to it stays as it is,
// and a row that somebody keeps locked does not hold up the others.
func TestRequeueIsGuarded(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.fill(5)
		f.record(f.outcomes(outbox.OutcomeFailed, numbers(1, 5)...)...)
		stranger := f.stranger("UPDATE outbox SET status = 'SENT', last_error = NULL WHERE id = 2", "UPDATE outbox SET status = 'PENDING' WHERE id = 4")
		for what, do := range map[string]func() (Requeued, error){
			"discard": func() (Requeued, error) { return f.Discard(f.ctx(), f.table, []string{"1", "2"}) },
			"requeue": func() (Requeued, error) { return f.Requeue(f.ctx(), f.table, []string{"3", "4", "5"}) },
		} {
			done, err := do()
			if err != nil || len(done.Locked) != 1 || len(done.IDs) == 0 {
				t.Errorf("%s beside a lock: %+v, %v", what, done, err)
			}
		}
		if err := stranger.Commit(); err != nil {
			t.Fatal(err)
		}
		done, err := f.Requeue(f.ctx(), f.table, []string{"2", "4"})
		if err != nil || len(done.IDs)+len(done.Locked) > 0 {
			t.Errorf("what is not FAILED was requeued: %+v, %v", done, err)
		}
		f.wantText("FAILED SENT PENDING PENDING PENDING", "SELECT GROUP_CONCAT(status ORDER BY id SEPARATOR ' ') FROM outbox")
	})
}

func TestADiscardFitsIntoTheColumn(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		for _, column := range []string{"VARCHAR(20)", "VARCHAR(5)", "TINYTEXT", "TEXT", "VARCHAR(20) CHARACTER SET latin1", "VARBINARY(40)", "VARCHAR(30) NOT NULL DEFAULT ''"} {
			t.Run(column, func(t *testing.T) {
				ddl := strings.Replace(ownTables(t), "last_error      VARCHAR(1024)   NULL", "last_error "+column, 1)
				f := setUp(t, s, ddl, Options{})
				f.fill(2)
				long := f.outcome(outbox.OutcomeFailed, "1")
				long.Reason = strings.Repeat("ß€𝄞", 300)
				f.record(long)
				if done, err := f.Discard(f.ctx(), f.table, []string{"1"}); err != nil || len(done.IDs) != 1 {
					t.Fatalf("%+v, %v", done, err)
				}
				if got := f.letters(Filter{Discarded: true}); len(got) != 1 || !got[0].Discarded {
					t.Errorf("%+v", got)
				}
				if done, err := f.Requeue(f.ctx(), f.table, []string{"1"}); err != nil || len(done.IDs) != 1 {
					t.Fatalf("%+v, %v", done, err)
				}
				f.expectFresh("1")
			})
		}
	})
}

// TestDeadLettersWithoutRowferryDead: where the table has room, nothing else is needed.
func TestDeadLettersWithoutRowferryDead(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.exec("DROP TABLE rowferry_dead")
		f.fill(3)
		f.record(f.outcomes(outbox.OutcomeFailed, "1", "2")...)
		if _, err := f.Discard(f.ctx(), f.table, []string{"1"}); err != nil {
			t.Error(err)
		}
		if _, err := f.Requeue(f.ctx(), f.table, []string{"2"}); err != nil {
			t.Error(err)
		}
		if got := idsOf(f.letters(Filter{Discarded: true})); got != "1" {
			t.Errorf("left %s", got)
		}
	})
}

// TestBlockedKeys: what is discarded, mended by hand or gone keeps nobody waiting for long.
func TestBlockedKeys(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{DeadAlways: true})
		f.fill(6)
		f.record(f.outcomes(outbox.OutcomeFailed, numbers(1, 6)...)...)
		if _, err := f.Discard(f.ctx(), f.table, []string{"1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Requeue(f.ctx(), f.table, []string{"2"}); err != nil {
			t.Fatal(err)
		}
		f.exec("UPDATE outbox SET status = 'SENT' WHERE id = 3")
		f.exec("DELETE FROM outbox WHERE id = 4")
		dead, settled, err := f.BlockedKeys(f.ctx(), 10)
		slices.Sort(dead)
		slices.Sort(settled)
		if err != nil || !slices.Equal(dead, []string{"k5", "k6"}) || !slices.Equal(settled, []string{"k1", "k2", "k3", "k4"}) {
			t.Errorf("blocked by %v, settled %v, %v", dead, settled, err)
		}
		if dead, _, err = f.BlockedKeys(f.ctx(), 1); err != nil || len(dead) != 1 {
			t.Errorf("up to one: %v, %v", dead, err)
		}

		if err := f.Opened(f.ctx(), []string{"k1", "k2", "k3", "k5"}); err != nil {
			t.Fatal(err)
		}
		dead, settled, err = f.BlockedKeys(f.ctx(), 10)
		slices.Sort(dead)
		if err != nil || !slices.Equal(dead, []string{"k5", "k6"}) || !slices.Equal(settled, []string{"k4"}) {
			t.Errorf("after some are open: blocked by %v, settled %v, %v", dead, settled, err)
		}
		f.wantText("1 4 5 6", "SELECT GROUP_CONCAT(id ORDER BY id SEPARATOR ' ') FROM rowferry_dead")
		if got := f.letters(Filter{Discarded: true}); idsOf(got) != "1 5 6" || !got[0].Discarded || got[0].DiscardedAt.IsZero() {
			t.Errorf("letters %+v", got)
		}
	})
}

// TestALongListOfDeadLettersIsQuick: a page costs what a page of a short list costs,
// also behind thousands that were discarded.
func TestALongListOfDeadLettersIsQuick(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		const rows = 10_000
		f := setUp(t, s, ownTables(t), Options{})
		f.fill(rows)
		f.exec("UPDATE outbox SET status = 'FAILED', last_error = IF(id % 2, 'refused: too_large', 'discarded: old')")
		f.exec("ANALYZE TABLE outbox")
		examined := func() (n int) {
			var name string
			if err := f.db.QueryRowContext(f.ctx(), "SHOW SESSION STATUS LIKE 'Handler_read_next'").Scan(&name, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		f.db.SetMaxOpenConns(1) // one session, whose reads are counted
		at := Cursor{}
		for page := range 3 {
			before := examined()
			ids, next, more, err := f.Find(f.ctx(), f.table, Filter{Status: outbox.Failed}, at, 100)
			if err != nil || len(ids) != 100 || !more {
				t.Fatalf("page %d: %d rows, %t, %v", page, len(ids), more, err)
			}
			if n := examined() - before; n > 1000 {
				t.Errorf("page %d read %d rows", page, n)
			}
			at = next
		}
		began := time.Now()
		n := 0
		for at, more := (Cursor{}), true; more; {
			var page []Letter
			var err error
			if page, at, more, err = f.DeadLetters(f.ctx(), f.table, Filter{}, at, 1000); err != nil {
				t.Fatal(err)
			}
			n += len(page)
		}
		t.Logf("%d letters listed in %s", n, time.Since(began))
		if n != rows/2 {
			t.Errorf("%d letters", n)
		}
	})
}
