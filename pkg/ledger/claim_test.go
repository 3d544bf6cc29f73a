package ledger

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func (f *fixture) claimed(token string, ids ...string) string {
	f.t.Helper()
	got, err := f.Claim(f.ctx(), f.table, ids, token)
	if err != nil {
		f.t.Fatal(err)
	}
	slices.Sort(got)
	return strings.Join(got, " ")
}

// age moves the claim of a row into the past; the row itself is old anyway.
func (f *fixture) age(id string, seconds int) {
	f.t.Helper()
	if _, err := f.db.ExecContext(f.ctx(), "UPDATE outbox SET claimed_at = claimed_at - INTERVAL ? SECOND WHERE id = ?", seconds, id); err != nil {
		f.t.Fatal(err)
	}
}

func TestClaimsExcludeEachOther(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{Lease: time.Minute})
		f.fill(6)
		f.exec("UPDATE outbox SET status = 'SENT' WHERE id = 6")
		f.exec("UPDATE outbox SET created_at = '2020-01-01'") // an old row is not an old claim
		if got := f.claimed("one", "1", "2", "3", "6", "7"); got != "1 2 3" {
			t.Fatalf("claimed %s", got)
		}
		if got := f.claimed("two", numbers(1, 6)...); got != "4 5" {
			t.Fatalf("claimed %s under another's lease", got)
		}
		if got := f.claimed("one again", numbers(1, 6)...); got != "" {
			t.Fatalf("claimed %s twice", got)
		}
		states, err := f.Statuses(t.Context(), f.table, []string{"1", "4"})
		if err != nil || states["1"] != (outbox.RowState{Status: outbox.Processing, Token: "one", Held: true}) || states["4"].Token != "two" {
			t.Fatalf("%+v, %v", states, err)
		}
	})
}

func TestLeaseRunsOut(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{Lease: time.Minute})
		f.fill(5)
		f.claimed("dead", "1", "2", "3", "4")
		f.age("1", 50)
		f.age("2", 70)
		f.exec("UPDATE outbox SET claimed_at = NULL WHERE id = 3")
		if ids, err := f.Expired(t.Context(), f.table, 10); err != nil || strings.Join(ids, " ") != "2 3" {
			t.Fatalf("expired %v, %v; want 2 3", ids, err)
		}
		if ids, err := f.Expired(t.Context(), f.table, 1); err != nil || len(ids) != 1 {
			t.Fatalf("expired %v, %v; want one", ids, err)
		}
		states, err := f.Statuses(t.Context(), f.table, []string{"1", "2", "3"})
		if err != nil || !states["1"].Held || states["2"].Held || states["3"].Held {
			t.Fatalf("%+v, %v", states, err)
		}
		if got := f.claimed("heir", "1", "2", "5"); got != "2 5" {
			t.Fatalf("claimed %s, want 2 5", got)
		}
		// The old owner comes back: what it knows about the row is worth nothing now,
		// but that the row was sent is a fact.
		late := f.outcomes(outbox.OutcomeFailed, "2")
		late[0].Token = "dead"
		f.record(late...)
		late[0].Kind = outbox.OutcomeReleased
		f.record(late...)
		f.wantText("PROCESSING heir", "SELECT CONCAT(status, ' ', claim_token) FROM outbox WHERE id = 2")
		late[0].Kind = outbox.OutcomeSent
		f.record(late...)
		f.wantText("SENT", "SELECT status FROM outbox WHERE id = 2")
	})
}

func TestReclaim(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{Lease: time.Minute})
		f.fill(4)
		f.claimed("dead", "1", "2", "3")
		f.age("1", 70)
		f.age("2", 70)
		for _, want := range []int64{1, 1, 0} {
			if n, err := f.Reclaim(t.Context(), f.table, 1); err != nil || n != want {
				t.Fatalf("took back %d, %v; want %d", n, err, want)
			}
		}
		f.wantText("1 2 4", "SELECT GROUP_CONCAT(id ORDER BY id SEPARATOR ' ') FROM outbox WHERE status = 'PENDING' AND claim_token IS NULL AND attempts = 0")
	})
}

func TestClaimPassesOverLockedRows(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		t.Parallel()
		f := setUp(t, s, ownTables(t), Options{})
		f.fill(3)
		f.stranger("SELECT * FROM outbox WHERE id = 2 FOR UPDATE")
		if got := f.claimed("one", "1", "2", "3"); got != "1 3" {
			t.Fatalf("claimed %s, want 1 3", got)
		}
	})
}

func TestClaimNeedsItsColumns(t *testing.T) {
	f := setUp(t, testservers.SharedMySQL(t), example(t, "pragmatic_ddd"), Options{})
	if _, err := f.Claim(t.Context(), f.table, []string{"1"}, "t"); err == nil {
		t.Fatal("claimed in a table that cannot hold claims")
	}
}

// TestClaimersAndMarkersDoNotDeadlock has them all on the same rows at once.
func TestClaimersAndMarkersDoNotDeadlock(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		const rows = 300
		f.fill(rows)
		owners := make([]map[string]bool, 4)
		var all sync.WaitGroup
		for i := range owners {
			owners[i] = map[string]bool{}
			all.Go(func() {
				for from := 1; from <= rows; from += 50 {
					got, err := f.Claim(t.Context(), f.table, numbers(from, from+99), fmt.Sprintf("%d-%d", i, from))
					if err != nil {
						t.Error(err)
						return
					}
					for _, id := range got {
						owners[i][id] = true
					}
					if _, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, got...), nil); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		count := 0
		for _, o := range owners {
			count += len(o)
		}
		if count != rows {
			t.Errorf("%d claims for %d rows", count, rows)
		}
		f.wantText(fmt.Sprint(rows), "SELECT COUNT(*) FROM outbox WHERE status = 'SENT'")
	})
}
