package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

const today = "DATE(" + appNow + ")"

// partitioned are tables of each kind of partitioning. Their first partition holds what
// is old, or has an id below 100; then there is one for yesterday; the last takes the rest.
func partitioned(t *testing.T) map[string]string {
	ddl := func(key, by, old, yesterday, rest, created string) string {
		table := strings.NewReplacer("PRIMARY KEY (id)", "PRIMARY KEY ("+key+")", "created_at   DATETIME ", "created_at   "+created+" ").Replace(example(t, "pragmatic_ddd"))
		return strings.Replace(table, "utf8mb4;", "utf8mb4 PARTITION BY "+by+" (PARTITION old VALUES LESS THAN ("+old+"), PARTITION y VALUES LESS THAN ("+yesterday+"), PARTITION rest VALUES LESS THAN "+rest+");", 1)
	}
	day := func(n int) string { return time.Now().UTC().Add(8*time.Hour).AddDate(0, 0, n).Format(time.DateOnly) }
	unix := func(n int) string {
		at, err := time.ParseInLocation(time.DateOnly, day(n), time.FixedZone("", 8*3600))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(at.Unix())
	}
	return map[string]string{
		"id":      ddl("id", "RANGE (id)", "100", "200", "MAXVALUE", "DATETIME"),
		"ids":     ddl("id", "RANGE COLUMNS (id)", "100", "200", "(MAXVALUE)", "DATETIME"),
		"date":    ddl("id, created_at", "RANGE COLUMNS (created_at)", "'"+day(-1)+"'", "'"+day(0)+"'", "(MAXVALUE)", "DATETIME"),
		"days":    ddl("id, created_at", "RANGE (TO_DAYS(created_at))", "TO_DAYS('"+day(-1)+"')", "TO_DAYS('"+day(0)+"')", "MAXVALUE", "DATETIME"),
		"seconds": ddl("id, created_at", "RANGE (UNIX_TIMESTAMP(created_at))", unix(-1), unix(0), "MAXVALUE", "TIMESTAMP"),
	}
}

func (f *fixture) partitions() []Partition {
	f.t.Helper()
	parts, err := f.Partitions(f.ctx(), f.table)
	if err != nil {
		f.t.Fatal(err)
	}
	return parts
}

func names(parts []Partition) string {
	var all []string
	for _, p := range parts {
		all = append(all, p.Name)
	}
	return strings.Join(all, " ")
}

// insertParts inserts a row of each state into the first partition, and one PENDING row
// into that for the present, by either way of partitioning.
func (f *fixture) insertParts(byID bool) {
	f.t.Helper()
	for i, state := range []string{"PENDING", "PROCESSING", "SENT", "FAILED", "odd"} {
		f.exec(fmt.Sprintf("INSERT INTO outbox (id, aggregate_id, event_type, payload, status, created_at) VALUES (%d, 'a', 'e', '{}', '%s', %s - INTERVAL 3 DAY)", i+1, state, appNow))
	}
	id := "DEFAULT"
	if byID {
		id = "150"
	}
	f.exec("INSERT INTO outbox (id, aggregate_id, event_type, payload, created_at) VALUES (" + id + ", 'a', 'e', '{}', " + appNow + " - INTERVAL 1 DAY)")
}

func TestPartitionsAreMadeListedAndDropped(t *testing.T) {
	for kind, ddl := range partitioned(t) {
		t.Run(kind, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, ddl, Options{})
				o := EnsureOptions{Ahead: 3, Days: 1, Rows: 100}
				made, statement, err := f.PlanPartitions(t.Context(), f.table, o)
				if err != nil || statement == "" {
					t.Fatalf("%q, %v", statement, err)
				}
				f.wantText("3", "SELECT COUNT(*) FROM information_schema.partitions WHERE table_schema = ?", f.table.Schema)
				if err := f.ChangePartitions(t.Context(), f.table, statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
				if got, want := names(f.partitions()), "old y "+strings.Join(made, " ")+" rest"; got != want {
					t.Errorf("partitions %s, want %s", got, want)
				}
				if again, _, err := f.PlanPartitions(t.Context(), f.table, o); err != nil || len(again) > 0 {
					t.Errorf("planned again: %v, %v", again, err)
				}
				f.insertParts(strings.HasPrefix(kind, "id"))
				f.checkDrops()
			})
		})
	}
}

// checkDrops drops the first partition, once nothing in it is unsent.
func (f *fixture) checkDrops() {
	f.t.Helper()
	rows := f.partitions()[0].Rows
	for _, s := range []outbox.Status{outbox.Pending, outbox.Processing, outbox.Sent, outbox.Failed, outbox.Other} {
		if rows[s] != 1 {
			f.t.Errorf("the first partition holds %d %s rows, want 1", rows[s], s)
		}
	}
	refused := func(failed bool, want string) {
		f.t.Helper()
		_, err := f.DropPartition(f.ctx(), f.table, "old", failed)
		if !errors.Is(err, ErrPartition) || !strings.Contains(err.Error(), want) {
			f.t.Errorf("%v, want %q", err, want)
		}
	}
	refused(true, "1 PENDING, 1 PROCESSING, 1 OTHER")
	f.exec("UPDATE outbox SET status = 'SENT' WHERE id = 1")
	refused(true, "1 PROCESSING, 1 OTHER")
	f.exec("UPDATE outbox SET status = 'SENT' WHERE id = 2")
	refused(true, ": 1 OTHER")
	f.exec("UPDATE outbox SET status = 'SENT' WHERE id = 5")
	refused(false, "1 FAILED")
	if _, err := f.DropPartition(f.ctx(), f.table, "no such", false); !errors.Is(err, ErrPartition) {
		f.t.Errorf("dropping what is not there: %v", err)
	}
	if dropped, err := f.DropPartition(f.ctx(), f.table, "old", true); err != nil || dropped[outbox.Sent] != 4 {
		f.t.Errorf("dropped %v, %v", dropped, err)
	}
	f.wantText("1", "SELECT COUNT(*) FROM outbox")
	// A later row finds its place, and nobody is locked out.
	f.exec("INSERT INTO outbox (aggregate_id, event_type, payload, created_at) VALUES ('a', 'e', '{}', " + today + ")")
}

// TestPartitionsComeAndGoWithoutReuseOfIDs: whichever partition has had the newest id, and
// whether or not its row is still there, the next row has a newer one.
func TestPartitionsComeAndGoWithoutReuseOfIDs(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, partitioned(t)["date"], Options{})
		newest := 0
		insert := func(daysAgo int) {
			t.Helper()
			f.exec(fmt.Sprintf("INSERT INTO outbox (aggregate_id, event_type, payload, status, created_at) VALUES ('a', 'e', '{}', 'SENT', %s - INTERVAL %d DAY)", appNow, daysAgo))
			id, err := strconv.Atoi(f.text("SELECT MAX(id) FROM outbox"))
			if err != nil {
				t.Fatal(err)
			}
			if id <= newest {
				t.Errorf("a row has the id %d, which is not newer than %d", id, newest)
			}
			newest = id
		}
		insert(1)
		insert(0)
		f.exec("DELETE FROM outbox WHERE id = ?", newest) // so that the last partition can be split
		_, statement, err := f.PlanPartitions(t.Context(), f.table, EnsureOptions{Ahead: 2, Days: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.ChangePartitions(t.Context(), f.table, statement); err != nil {
			t.Fatal(err)
		}
		insert(0)
		insert(3)
		if _, err := f.DropPartition(t.Context(), f.table, "old", false); err != nil {
			t.Fatal(err)
		}
		insert(0)
		insert(1)
		f.exec("DELETE FROM outbox WHERE id = ?", newest)
		if _, err := f.DropPartition(t.Context(), f.table, "y", false); err != nil {
			t.Fatal(err)
		}
		insert(0)
	})
}

// TestNoRowSlipsIntoADroppedPartition: a transaction that was open when the drop began
// commits a row while it waits.
func TestNoRowSlipsIntoADroppedPartition(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, partitioned(t)["date"], Options{})
		tx := f.stranger("INSERT INTO outbox (id, aggregate_id, event_type, payload, created_at) VALUES (7, 'a', 'e', '{}', " + appNow + " - INTERVAL 3 DAY)")
		if _, err := f.MayDropPartition(t.Context(), f.table, "old", false); err != nil {
			t.Fatalf("nobody sees the row yet, but %v", err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := f.DropPartition(t.Context(), f.table, "old", false)
			ended <- err
		}()
		for deadline := time.Now().Add(time.Minute); f.text("SELECT COUNT(*) FROM information_schema.processlist WHERE db = ? AND state LIKE '%metadata lock%'", f.table.Schema) == "0"; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the drop does not wait for the open transaction")
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, ErrPartition) || !strings.Contains(err.Error(), "1 PENDING") {
			t.Errorf("%v", err)
		}
		f.wantText("1", "SELECT COUNT(*) FROM outbox PARTITION (old)")
	})
}

func TestPartitionsThatCannotBeLookedAfter(t *testing.T) {
	s := testservers.SharedMySQL(t)
	pragmatic := example(t, "pragmatic_ddd")
	by := func(clause string) string { return strings.Replace(pragmatic, "utf8mb4;", "utf8mb4 "+clause+";", 1) }
	for name, c := range map[string]struct{ ddl, want string }{
		"none":          {pragmatic, "is not partitioned"},
		"by hash":       {by("PARTITION BY HASH (id) PARTITIONS 3"), "HASH"},
		"subpartitions": {by("PARTITION BY RANGE (id) SUBPARTITION BY HASH (id) SUBPARTITIONS 2 (PARTITION p VALUES LESS THAN MAXVALUE)"), "subpartitions"},
		"by a function": {by("PARTITION BY RANGE (id DIV 10) (PARTITION p VALUES LESS THAN (5))"), "RANGE"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, s, c.ddl, Options{})
			if _, err := f.Partitions(t.Context(), f.table); !errors.Is(err, ErrPartition) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	t.Run("no status", func(t *testing.T) {
		f := setUp(t, s, partitioned(t)["id"], Options{None: true})
		if _, err := f.DropPartition(t.Context(), f.table, "old", false); !errors.Is(err, ErrPartition) {
			t.Errorf("%v", err)
		}
	})
	t.Run("the rest holds rows", func(t *testing.T) {
		f := setUp(t, s, partitioned(t)["id"], Options{})
		f.exec("INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES (300, 'a', 'e', '{}')")
		if _, _, err := f.PlanPartitions(t.Context(), f.table, EnsureOptions{Ahead: 1, Days: 1, Rows: 100}); !errors.Is(err, ErrPartition) || !strings.Contains(err.Error(), "copies them") {
			t.Errorf("%v", err)
		}
	})
}

// TestPlansOfAPartitionedTable: with a key of id and date, statements by id still go by it,
// and lock no strangers.
func TestPlansOfAPartitionedTable(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, partitioned(t)["days"], Options{})
		f.fill(1000)
		f.exec("UPDATE outbox SET status = 'SENT' WHERE id <= 500")
		f.exec("ANALYZE TABLE outbox")
		tx, err := f.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // it only held locks
		tab, err := f.Ledger.table(f.table)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := tab.update(t.Context(), tx, tab.setSent(), numbers(1, 600), tab.open()); err != nil || n != 100 {
			t.Fatalf("marked %d, %v", n, err)
		}
		f.stranger("SET SESSION innodb_lock_wait_timeout = 1",
			"INSERT INTO outbox (aggregate_id, event_type, payload, created_at) VALUES ('a', 'e', '{}', '2000-01-01'), ('a', 'e', '{}', NOW())",
			"UPDATE outbox SET status = 'SENT' WHERE id BETWEEN 602 AND 1000",
			"UPDATE outbox SET attempts = 1 WHERE id <= 400")
	})
}
