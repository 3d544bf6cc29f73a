package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

const (
	purgeAge = time.Hour
	appNow   = "(UTC_TIMESTAMP(6) + INTERVAL 8 HOUR)" // in the zone of the fixture's ledger
)

// purge must succeed.
func (f *fixture) purge(o PurgeOptions) Purged {
	f.t.Helper()
	o.Age = purgeAge
	done, err := f.Purge(f.ctx(), f.table, o)
	if err != nil {
		f.t.Fatal(err)
	}
	return done
}

// sentRows makes n rows that were sent two hours ago, all created in one second.
func (f *fixture) sentRows(n int) {
	f.fill(n)
	f.exec("UPDATE outbox SET status = 'SENT', created_at = " + appNow + " - INTERVAL 3 HOUR, sent_at = " + appNow + " - INTERVAL 2 HOUR")
}

// TestPurgeDeletesWhatWasSentLongAgo crosses every state with every date that a row
// may have, in each layout: only SENT rows that were sent before the age go.
func TestPurgeDeletesWhatWasSentLongAgo(t *testing.T) {
	states := map[string][]string{
		"rowferry": {"PENDING", "PROCESSING", "SENT", "FAILED"}, "pragmatic_ddd": {"PENDING", "PROCESSING", "SENT", "FAILED"},
		"numeric_status": {"0", "3", "1", "2"},
	}
	for layout, states := range states {
		t.Run(layout, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				ddl := ownTables(t)
				if layout != "rowferry" {
					ddl = example(t, layout)
				}
				f := setUp(t, s, ddl, Options{})
				want, id := "", 0
				for state, value := range states {
					for _, created := range []string{"3 HOUR", "2 HOUR", "1 MINUTE", "-26 HOUR"} {
						for _, sent := range []string{"2 HOUR", "1 MINUTE", "NULL"} {
							id++
							if !f.insertPurgeable(id, layout, value, created, sent) {
								continue
							}
							if stays := state != 2 || sent == "1 MINUTE" || created == "1 MINUTE" || created == "-26 HOUR"; stays {
								want += fmt.Sprintf("%d,", id)
							}
						}
					}
				}
				before := f.text("SELECT COUNT(*) FROM outbox")
				planned := f.purge(PurgeOptions{DryRun: true})
				f.wantText(before, "SELECT COUNT(*) FROM outbox")
				done := f.purge(PurgeOptions{})
				f.wantText(strings.TrimSuffix(want, ","), "SELECT GROUP_CONCAT(id ORDER BY id) FROM outbox")
				if done.Rows == 0 || done != planned {
					t.Errorf("purged %+v, a dry run said %+v", done, planned)
				}
			})
		})
	}
}

// insertPurgeable inserts a row with these dates, as ages; it reports false for a
// combination that the layout does not have.
func (f *fixture) insertPurgeable(id int, layout, status, created, sent string) bool {
	ago := func(age string) string {
		if age == "NULL" {
			return age
		}
		return appNow + " - INTERVAL " + age
	}
	columns, values := "id, aggregate_id, event_type, payload, status, created_at", fmt.Sprintf("%d, 'a', 'made', '{}', '%s', %s", id, status, ago(created))
	switch layout {
	case "numeric_status": // updated_at is when it was sent
		if sent == "NULL" {
			return false
		}
		columns, values = columns+", updated_at", values+", "+ago(sent)
	case "rowferry":
		columns, values = columns+", sent_at, aggregate_type, updated_at", values+", "+ago(sent)+", 'order', "+ago(created)
	default:
		columns, values = columns+", sent_at", values+", "+ago(sent)
	}
	f.exec("INSERT INTO outbox (" + columns + ") VALUES (" + values + ")")
	return true
}

// TestPurgeSparesWhatChangedMeanwhile changes rows between the read of a page and its
// deletion.
func TestPurgeSparesWhatChangedMeanwhile(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.sentRows(5)
		p, err := f.planPurge(t.Context(), f.table, purgeAge)
		if err != nil {
			t.Fatal(err)
		}
		page, err := f.purgePage(t.Context(), p, Cursor{})
		if err != nil || len(page.ids) != 5 || !page.last {
			t.Fatalf("page %+v, %v", page, err)
		}
		f.exec("UPDATE outbox SET status = 'PENDING', sent_at = NULL WHERE id = 1")
		f.exec("UPDATE outbox SET status = 'FAILED' WHERE id = 2")
		f.exec("UPDATE outbox SET status = 'PROCESSING' WHERE id = 3")
		f.exec("UPDATE outbox SET sent_at = " + appNow + " WHERE id = 4") // requeued, and sent again
		var done Purged
		if err := f.purgeBatch(t.Context(), p, page.ids, PurgeOptions{}, &done); err != nil || done.Rows != 1 {
			t.Fatalf("purged %+v, %v; want one row", done, err)
		}
		f.wantText("1,2,3,4", "SELECT GROUP_CONCAT(id ORDER BY id) FROM outbox")
	})
}

// TestPurgeGoesPageByPage has several pages of rows of one instant.
func TestPurgeGoesPageByPage(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		const rows = 5*purgeRows + 1
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.sentRows(rows)
		if got := f.purge(PurgeOptions{DryRun: true}); got != (Purged{Rows: rows}) {
			t.Errorf("a dry run said %+v", got)
		}
		if got := f.purge(PurgeOptions{RowsMax: purgeRows + 7}); got != (Purged{Rows: purgeRows + 7, More: true}) {
			t.Errorf("with a limit, purged %+v", got)
		}
		if got := f.purge(PurgeOptions{}); got != (Purged{Rows: rows - purgeRows - 7}) {
			t.Errorf("purged %+v", got)
		}
		f.wantText("0", "SELECT COUNT(*) FROM outbox")
	})
}

// TestPurgeLeavesLockedRows: somebody else's lock on a row holds up that row alone.
func TestPurgeLeavesLockedRows(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.sentRows(20)
		f.stranger("UPDATE outbox SET attempts = 1 WHERE id IN (3, 4)")
		if got := f.purge(PurgeOptions{}); got != (Purged{Rows: 18, Locked: 2}) {
			t.Errorf("purged %+v", got)
		}
	})
}

// TestPurgeLocksItsRowsOnly looks, from inside the deletion, at what others can still
// do: insert anywhere, and mark and claim any other row.
func TestPurgeLocksItsRowsOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.sentRows(600)
		f.exec("UPDATE outbox SET sent_at = " + appNow + " WHERE id % 2 = 0 OR id > 300") // not due
		f.exec("UPDATE outbox SET status = 'PENDING' WHERE id > 500")
		f.exec("ANALYZE TABLE outbox")
		p, err := f.planPurge(t.Context(), f.table, purgeAge)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := f.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // it only held locks
		if n, err := p.delete(t.Context(), tx, numbers(1, 600)); err != nil || n != 150 {
			t.Fatalf("deleted %d, %v", n, err)
		}
		f.stranger("SET SESSION innodb_lock_wait_timeout = 1",
			"INSERT INTO outbox (aggregate_id, event_type, payload, created_at) VALUES ('a', 'e', '{}', '2000-01-01'), ('a', 'e', '{}', NOW()), ('a', 'e', '{}', NOW() - INTERVAL 3 HOUR)",
			"UPDATE outbox SET status = 'SENT' WHERE id > 500",
			"UPDATE outbox SET attempts = 1 WHERE id > 300 OR id IN (2, 4, 150, 298, 300)")
	})
}

func TestPurgePlans(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		for _, rows := range []int{300, 6000} {
			f := setUp(t, s, ownTables(t), Options{})
			f.sentRows(rows)
			f.exec("UPDATE outbox SET created_at = " + appNow + " - INTERVAL id SECOND")
			f.exec("UPDATE outbox SET status = 'PENDING' WHERE id <= 100")
			f.exec("ANALYZE TABLE outbox")
			p, err := f.planPurge(t.Context(), f.table, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			at := f.text("SELECT created_at FROM outbox WHERE id = 200")
			for _, after := range []Cursor{{}, {at: [2]string{at}, id: "200", begun: true}} {
				c, err := p.pageQuery(after)
				if err != nil {
					t.Fatal(err)
				}
				if index, _, extra := f.plan(explainer{c.text, c.args}); index != "idx_status_created" || strings.Contains(extra, "filesort") {
					t.Errorf("a page of %d rows uses index %q, %s", rows, index, extra)
				}
			}
			var e explainer
			if _, err := p.delete(t.Context(), &e, numbers(101, 300)); !errors.Is(err, errCaught) {
				t.Fatal(err)
			}
			if index, n, _ := f.plan(e); index != "PRIMARY" || n > 200 {
				t.Errorf("deleting 200 of %d rows uses index %q, %d rows", rows, index, n)
			}
		}
	})
}

func TestPurgeRefusesWithItsReason(t *testing.T) {
	s := testservers.SharedMySQL(t)
	pragmatic := example(t, "pragmatic_ddd")
	index := "KEY idx_status_created (status, created_at)"
	for name, c := range map[string]struct {
		ddl  string
		o    Options
		want string
	}{
		"ledger none":      {pragmatic, Options{None: true}, "LEDGER=none"},
		"ledger delete":    {pragmatic, Options{Delete: true}, "LEDGER=delete"},
		"no status":        {example(t, "debezium"), Options{}, "no status column"},
		"no date":          {"CREATE TABLE outbox (id BIGINT PRIMARY KEY, payload TEXT, status VARCHAR(20), created_at BIGINT)", Options{}, "none of the columns"},
		"no index":         {strings.Replace(pragmatic, index, "KEY idx_status (status)", 1), Options{}, "CREATE INDEX"},
		"index on a part":  {strings.Replace(pragmatic, index, "KEY idx_status (status(3), created_at)", 1), Options{}, "CREATE INDEX"},
		"index in between": {strings.Replace(pragmatic, index, "KEY idx_status (status, attempts, created_at)", 1), Options{}, "CREATE INDEX"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, s, c.ddl, c.o)
			_, err := f.Purge(t.Context(), f.table, PurgeOptions{Age: purgeAge})
			if !errors.Is(err, ErrCannotPurge) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestPurgeFindsItsIndex: whatever index leads to old rows will do.
func TestPurgeFindsItsIndex(t *testing.T) {
	s := testservers.SharedMySQL(t)
	for index, want := range map[string]purgeIndex{
		"(status, created_at, attempts)": {"i", true, outbox.RoleCreatedAt},
		"(status, sent_at)":              {"i", true, outbox.RoleSentAt},
		"(created_at)":                   {"i", false, outbox.RoleCreatedAt},
		"(sent_at, status)":              {"i", false, outbox.RoleSentAt},
	} {
		t.Run(index, func(t *testing.T) {
			f := setUp(t, s, strings.Replace(example(t, "pragmatic_ddd"), "idx_status_created (status, created_at)", "i "+index, 1), Options{})
			f.sentRows(10)
			f.exec("UPDATE outbox SET status = 'FAILED' WHERE id = 1")
			p, err := f.planPurge(t.Context(), f.table, purgeAge)
			if err != nil || p.index != want {
				t.Fatalf("index %+v, %v; want %+v", p.index, err, want)
			}
			if got := f.purge(PurgeOptions{}); got != (Purged{Rows: 9}) {
				t.Errorf("purged %+v", got)
			}
		})
	}
}

func TestPurgeEndsWithItsContext(t *testing.T) {
	f := setUp(t, testservers.SharedMySQL(t), example(t, "pragmatic_ddd"), Options{})
	f.sentRows(3 * purgeRows)
	ctx, cancel := context.WithCancel(t.Context())
	stop := time.AfterFunc(time.Millisecond, cancel)
	defer stop.Stop()
	done, err := f.Purge(ctx, f.table, PurgeOptions{Age: purgeAge, Sparing: 1 << 20})
	if !errors.Is(err, context.Canceled) || done.Rows > purgeRows {
		t.Fatalf("purged %+v, %v", done, err)
	}
	f.wantText(fmt.Sprint(3*purgeRows-done.Rows), "SELECT COUNT(*) FROM outbox")
}
