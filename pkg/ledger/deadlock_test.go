package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// What TestDeadlockIsRetried shows for marks holds for all that changes rows: the victim of
// a deadlock (1213) starts anew, and one that has waited too long (1205) leaves out what
// is locked.
func TestDeletesFailuresAndClaimsOutliveDeadlocksAndLockWaits(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		do   func(f *fixture, ids ...string) (done []string, err error)
		left string // of the rows that were done
	}{
		"delete": {Options{Delete: true}, recordAs(outbox.OutcomeSent), ""},
		"failed": {Options{}, recordAs(outbox.OutcomeFailed), "FAILED"},
		"claim": {Options{}, func(f *fixture, ids ...string) ([]string, error) {
			return f.Claim(f.ctx(), f.table, ids, "token")
		}, "PROCESSING"},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				t.Parallel() // it is mostly waiting
				f := setUp(t, s, ownTables(t), c.o)
				f.fill(500)
				done := f.deadlocked(func() ([]string, error) { return c.do(f, "1", "100") })
				if done != "1 100" {
					t.Errorf("after a deadlock %q are done, want both rows", done)
				}
				f.stranger("SELECT * FROM outbox WHERE id = 300 FOR UPDATE")
				got, err := c.do(f, "200", "300")
				if err != nil || strings.Join(got, " ") != "200" {
					t.Errorf("with a row locked %q are done, %v; want row 200", got, err)
				}
				f.wantText(c.left, "SELECT COALESCE(GROUP_CONCAT(DISTINCT status), '') FROM outbox WHERE id IN (1, 100, 200)")
				f.wantText("PENDING", "SELECT status FROM outbox WHERE id = 300")
			})
		})
	}
}

// recordAs records outcomes and returns the ids that were not set aside.
func recordAs(kind outbox.OutcomeKind) func(f *fixture, ids ...string) ([]string, error) {
	return func(f *fixture, ids ...string) ([]string, error) {
		locked, err := f.Record(f.ctx(), f.outcomes(kind, ids...), nil)
		return slices.DeleteFunc(ids, func(id string) bool {
			return slices.ContainsFunc(locked, func(o outbox.Outcome) bool { return o.Key.ID == id })
		}), err
	}
}

// deadlocked has a stranger, who has more to lose, lock rows 100 and 1 in the opposite
// order of what is done, and returns what that gives, sorted.
func (f *fixture) deadlocked(do func() ([]string, error)) string {
	f.t.Helper()
	tx := f.stranger("UPDATE outbox SET headers = '{}' WHERE id BETWEEN 100 AND 500")
	result := make(chan string, 1)
	go func() {
		done, err := do()
		slices.Sort(done)
		if err != nil {
			done = []string{fmt.Sprint(err)}
		}
		result <- strings.Join(done, " ")
	}()
	f.awaitLockWait() // it has row 1 and waits for row 100
	if _, err := tx.ExecContext(f.ctx(), "UPDATE outbox SET headers = '{}' WHERE id = 1"); err != nil {
		f.t.Fatalf("the stranger was the victim: %v", err)
	}
	if err := tx.Commit(); err != nil {
		f.t.Fatal(err)
	}
	return <-result
}
