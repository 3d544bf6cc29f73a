package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// pass collects a whole pass, page by page, in the order in which it came.
func (f *fixture) pass(graceSeconds, limit int) []string {
	f.t.Helper()
	var ids []string
	var at Cursor
	for {
		page, next, err := f.Candidates(f.ctx(), f.table, at, graceSeconds, limit)
		if err != nil {
			f.t.Fatal(err)
		}
		if len(page) > limit {
			f.t.Fatalf("a page of %d rows, limit %d", len(page), limit)
		}
		for _, c := range page {
			ids = append(ids, c.ID)
		}
		if len(page) < limit {
			return ids
		}
		at = next
	}
}

func (f *fixture) wantPass(graceSeconds, limit int, want ...string) {
	f.t.Helper()
	got := f.pass(graceSeconds, limit)
	slices.Sort(got)
	slices.Sort(want)
	if strings.Join(got, " ") != strings.Join(want, " ") {
		f.t.Errorf("grace %d, limit %d: candidates %v, want %v", graceSeconds, limit, got, want)
	}
}

// TestCandidatesByAge: the application writes +08:00, and so do the sessions of
// the ledger; the server and the test are elsewhere.
func TestCandidatesByAge(t *testing.T) {
	for _, created := range []string{"DATETIME NULL", "DATETIME(6) NULL", "TIMESTAMP(6) NULL"} {
		for _, status := range []string{"VARCHAR(10)", "TINYINT"} {
			t.Run(created+" "+status, func(t *testing.T) {
				onBoth(t, func(t *testing.T, s *testservers.DB) {
					f := setUp(t, s, "CREATE TABLE outbox (id BIGINT PRIMARY KEY, payload TEXT, status "+status+", created_at "+created+", KEY (status, created_at))", Options{})
					age := func(id, seconds int, state outbox.Status) {
						if _, err := f.db.ExecContext(t.Context(), "INSERT INTO outbox VALUES (?, 'x', ?, NOW(6) - INTERVAL ? SECOND)", id, f.layout.StatusText(state), seconds); err != nil {
							t.Fatal(err)
						}
					}
					age(1, 3600, outbox.Pending)
					age(2, 100, outbox.Pending)
					age(3, 100, outbox.Pending) // the same second
					age(4, 100, outbox.Sent)
					age(5, 100, outbox.Failed)
					age(6, 5, outbox.Pending)
					age(7, -8*3600, outbox.Pending) // dated by an application in another zone
					age(8, -20, outbox.Pending)     // a clock that is a little ahead
					f.exec("INSERT INTO outbox VALUES (9, 'x', ?, NULL)", f.layout.StatusText(outbox.Pending))
					for _, limit := range []int{1, 2, 6} {
						f.wantPass(60, limit, "1", "2", "3", "7", "9")
						f.wantPass(2, limit, "1", "2", "3", "6", "7", "8", "9")
						f.wantPass(-1, limit, "1", "2", "3", "6", "7", "8", "9")
					}
					age(10, 0, outbox.Pending) // of this moment
					if got := f.pass(-1, 3); strings.Join(got, " ") != "1 2 3 6 10 8 7 9" && strings.Join(got, " ") != "9 1 2 3 6 10 8 7" {
						t.Errorf("at any age: %v, want all by age", got)
					}
					if got := f.pass(60, 2); strings.Join(got[:3], " ") != "1 2 3" {
						t.Errorf("not the oldest first: %v", got)
					}
				})
			})
		}
	}
}

// TestCandidatesOfOneInstant pages through rows that created_at does not tell apart.
func TestCandidatesOfOneInstant(t *testing.T) {
	for _, sh := range shapes[:6] {
		t.Run(sh.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, sh.ddl(t), Options{})
				var want []string
				for i := 1; i <= 11; i++ {
					event, literal := sh.id(i)
					f.insert(literal, outbox.Pending)
					want = append(want, event)
				}
				f.exec("UPDATE outbox SET created_at = '2020-01-01'")
				f.wantPass(60, 3, want...)
			})
		})
	}
}

func TestCandidatesWaitForTheNextAttempt(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.fill(12)
		f.exec("UPDATE outbox SET created_at = '2020-01-01'")
		at := func(id int, when string) {
			if _, err := f.db.ExecContext(t.Context(), "UPDATE outbox SET next_attempt_at = "+when+" WHERE id = ?", id); err != nil {
				t.Fatal(err)
			}
		}
		for id := 1; id <= 5; id++ { // a statement's worth: the same instant
			at(id, "'2021-01-01'")
		}
		at(6, "NOW(6) - INTERVAL 1 SECOND")
		at(7, "NOW(6) + INTERVAL 60 SECOND")
		for limit := 1; limit <= 5; limit++ {
			f.wantPass(60, limit, "1", "2", "3", "4", "5", "6", "8", "9", "10", "11", "12")
			f.wantPass(-1, limit, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12")
		}
	})
}

func TestCandidatesWithoutCreatedAt(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, "CREATE TABLE outbox (id BIGINT PRIMARY KEY, payload TEXT, status TINYINT NOT NULL, KEY (status))", Options{})
		for id, status := range []int{0, 0, 1, 0, 2, 0} {
			f.exec("INSERT INTO outbox VALUES (?, 'x', ?)", id, status)
		}
		if got := f.pass(3600, 2); strings.Join(got, " ") != "0 1 3 5" {
			t.Errorf("candidates %v", got)
		}
	})
}

func TestNoCandidatesWithoutStatus(t *testing.T) {
	f := setUp(t, testservers.SharedMySQL(t), example(t, "debezium"), Options{Delete: true})
	f.exec("INSERT INTO outbox VALUES ('x', 'order', 'a1', 'made', '{}')")
	f.wantPass(0, 5)
}

// TestPassIsCompleteWhileRowsChange: rows that stay PENDING through a pass are in
// it once, whatever happens to the others.
func TestPassIsCompleteWhileRowsChange(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.fill(100)
		seen := map[string]int{}
		var at Cursor
		for {
			page, next, err := f.Candidates(t.Context(), f.table, at, 10, 7)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range page {
				seen[c.ID]++
				if i%2 == 0 {
					f.record(f.outcome(outbox.OutcomeSent, c.ID))
				}
			}
			if len(page) < 7 {
				break
			}
			at = next
		}
		for _, id := range numbers(1, 100) {
			if seen[id] != 1 {
				t.Errorf("row %s came %d times", id, seen[id])
			}
		}
	})
}

func TestCandidatesTakeNoLocks(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.fill(10)
		f.stranger("SELECT * FROM outbox FOR UPDATE") // and wait for none
		if got := f.pass(10, 100); len(got) != 10 {
			t.Fatalf("%d candidates, want 10", len(got))
		}
		if b, err := f.Backlog(t.Context(), f.table); err != nil || b.Pending != 10 {
			t.Fatalf("%+v, %v", b, err)
		}
	})
}

func TestBacklog(t *testing.T) {
	for _, layout := range []string{"pragmatic_ddd", "numeric_status"} {
		t.Run(layout, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, example(t, layout), Options{})
				want := func(pending, failed int64, from, to float64) {
					t.Helper()
					b, err := f.Backlog(t.Context(), f.table)
					if err != nil || b.Pending != pending || b.Failed != failed || b.OldestSeconds < from || b.OldestSeconds > to {
						t.Errorf("%+v, %v; want %d, %d, %v-%v s", b, err, pending, failed, from, to)
					}
				}
				want(0, 0, 0, 0)
				f.fill(300)
				if _, err := f.db.ExecContext(t.Context(), "UPDATE outbox SET created_at = NOW() - INTERVAL id * 100 SECOND"); err != nil {
					t.Fatal(err)
				}
				f.exec("UPDATE outbox SET status = ? WHERE id <= 100", f.layout.StatusText(outbox.Sent))
				want(200, 0, 30000, 30060)
				f.exec("UPDATE outbox SET status = ? WHERE id > 250", f.layout.StatusText(outbox.Failed))
				want(150, 50, 25000, 25060)
			})
		})
	}
}

func TestBacklogCountsNoFurtherThanItSays(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.fill(10005)
		if b, err := f.Backlog(t.Context(), f.table); err != nil || b.Pending != 10001 {
			t.Fatalf("%+v, %v", b, err)
		}
	})
}

func TestBacklogWithoutStatus(t *testing.T) {
	for deletes, want := range map[bool]int64{true: 2, false: 0} {
		t.Run(fmt.Sprint(deletes), func(t *testing.T) {
			f := setUp(t, testservers.SharedMySQL(t), example(t, "debezium"), Options{Delete: deletes})
			f.exec("INSERT INTO outbox VALUES ('x', 'order', 'a1', 'made', '{}'), ('y', 'order', 'a1', 'made', '{}')")
			if b, err := f.Backlog(t.Context(), f.table); err != nil || b.Pending != want {
				t.Fatalf("%+v, %v; want %d", b, err, want)
			}
		})
	}
}
