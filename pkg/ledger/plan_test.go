package ledger

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// explainer catches a statement instead of running it.
type explainer struct {
	query string
	args  []any
}

var errCaught = errors.New("caught")

func (e *explainer) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	e.query, e.args = query, args
	return nil, errCaught
}

func (e *explainer) QueryContext(_ context.Context, query string, args ...any) (*sql.Rows, error) {
	e.query, e.args = query, args
	return nil, errCaught
}

// plan returns the index that a statement uses, the rows it expects to read and
// what it does besides.
func (f *fixture) plan(e explainer) (index string, rows int64, extra string) {
	f.t.Helper()
	r, err := f.db.QueryContext(f.ctx(), "EXPLAIN FORMAT=TRADITIONAL "+e.query, e.args...)
	if err != nil {
		f.t.Fatalf("EXPLAIN %.200s: %v", e.query, err)
	}
	defer r.Close()
	names, err := r.Columns()
	if err != nil || !r.Next() {
		f.t.Fatal(err, r.Err())
	}
	into := make([]any, len(names))
	values := map[string]*sql.NullString{}
	for i, name := range names {
		v := &sql.NullString{}
		into[i], values[name] = v, v
	}
	if err := r.Scan(into...); err != nil {
		f.t.Fatal(err)
	}
	n, err := strconv.ParseInt(values["rows"].String, 10, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return values["key"].String, n, values["Extra"].String
}

// TestPlans uses the two tables on which the optimizer leaves the primary key:
// many rows of which few are PENDING, and a small one with a covering index.
func TestPlans(t *testing.T) {
	for name, sent := range map[string]int{"few pending": 5800, "small table": 2000} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, ownTables(t), Options{Delete: true})
				f.fill(sent + 200)
				f.exec("UPDATE outbox SET status = 'SENT', sent_at = NOW() WHERE id <= ?", sent)
				f.exec("ANALYZE TABLE outbox")
				tab, err := f.Ledger.table(f.table)
				if err != nil {
					t.Fatal(err)
				}
				f.checkPlans(tab, numbers(sent-800, sent+99))
			})
		})
	}
}

func (f *fixture) checkPlans(tab *table, ids []string) {
	caught := map[string]explainer{}
	catch := func(name string, run func(e *explainer) error) {
		var e explainer
		if err := run(&e); !errors.Is(err, errCaught) {
			f.t.Fatalf("%s: %v", name, err)
		}
		caught[name] = e
	}
	for kind := outbox.OutcomeSent; kind <= outbox.OutcomeReleased; kind++ {
		g := &group{groupKey: groupKey{table: tab, kind: kind, token: holder}}
		set, guard, err := f.change(g)
		if err != nil {
			f.t.Fatal(err)
		}
		catch(kind.String(), func(e *explainer) error { _, err := tab.update(f.ctx(), e, set, ids, guard); return err })
	}
	catch("claim", func(e *explainer) error {
		_, err := tab.update(f.ctx(), e, tab.setClaimed(holder), ids, f.free(tab))
		return err
	})
	catch("delete", func(e *explainer) error { return f.delete(f.ctx(), e, tab, ids) })
	for _, lock := range []string{"", shared} {
		catch("look-up"+lock, func(e *explainer) error {
			return f.lookUp(f.ctx(), e, tab, ids, lock, map[string]outbox.RowState{})
		})
	}
	catch("range", func(e *explainer) error {
		_, err := tab.pendingIn(f.ctx(), e, spans(ids)[0])
		return err
	})
	for name, e := range caught {
		if index, rows, _ := f.plan(e); index != "PRIMARY" || rows > int64(len(ids)) {
			f.t.Errorf("%s of %d ids uses index %q, %d rows", name, len(ids), index, rows)
		}
	}
}

// TestCandidatePlans: a page walks one index in its order, also from the middle.
// How many rows the server expects is not asked: it counts entries that are gone.
func TestCandidatePlans(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.fill(5000)
		f.exec("UPDATE outbox SET status = 'SENT' WHERE id <= 4000")
		f.exec("ANALYZE TABLE outbox")
		tab, err := f.Ledger.table(f.table)
		if err != nil {
			t.Fatal(err)
		}
		at := f.text("SELECT created_at FROM outbox WHERE id = 4900")
		for i, p := range tab.phases(30) {
			for _, after := range []Cursor{{}, {at: [2]string{at, at}, id: "4900", begun: true}} {
				c, err := tab.pageQuery(p, after, 200)
				if err != nil {
					t.Fatal(err)
				}
				index, _, extra := f.plan(explainer{c.text, c.args})
				if index != "idx_status_created" && index != "idx_status_next_attempt" || strings.Contains(extra, "filesort") {
					t.Errorf("phase %d, cursor %v: index %q, %s", i, after.begun, index, extra)
				}
			}
		}
	})
}
