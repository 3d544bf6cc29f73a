package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

const positionTable = "CREATE TABLE pos (name VARCHAR(9) PRIMARY KEY, v INT);\nINSERT INTO pos VALUES ('x', 0);\n"

// savePosition stands for a checkpoint that goes with the marks.
func savePosition(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "UPDATE pos SET v = 7")
	return err
}

func TestRecordManyAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t)+positionTable, Options{})
		f.fill(5000)
		locked, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, numbers(1, 5000)...), savePosition)
		if err != nil || len(locked) > 0 {
			t.Fatal(err, locked)
		}
		f.wantText("5000", "SELECT COUNT(*) FROM outbox WHERE status = 'SENT' AND sent_at IS NOT NULL")
		f.wantText("7", "SELECT v FROM pos")
	})
}

func TestRecordOfSeveralTables(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd")+"CREATE TABLE other LIKE outbox", Options{})
		f.fill(2)
		f.exec("INSERT INTO other SELECT * FROM outbox")
		other := outbox.Table{Schema: f.table.Schema, Name: "other"}
		layout, err := outbox.ReadTable(t.Context(), f.db, other, outbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		elsewhere := outbox.Outcome{Key: outbox.Key{Table: other, ID: "2"}}
		if _, err := f.Record(t.Context(), []outbox.Outcome{elsewhere}, nil); err == nil {
			t.Fatal("an unknown table was taken")
		}
		f.SetLayout(layout)
		f.record(f.outcome(outbox.OutcomeSent, "1"), elsewhere)
		f.wantText("1", "SELECT GROUP_CONCAT(id) FROM outbox WHERE status = 'SENT'")
		f.wantText("2", "SELECT GROUP_CONCAT(id) FROM other WHERE status = 'SENT'")
	})
}

func TestErrorOfAlsoRollsBack(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd")+positionTable, Options{})
		f.fill(1)
		boom := errors.New("boom")
		_, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, "1"), func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(savePosition(ctx, tx), boom)
		})
		if !errors.Is(err, boom) {
			t.Fatalf("%v, want boom", err)
		}
		f.wantText("PENDING", "SELECT status FROM outbox")
		f.wantText("0", "SELECT v FROM pos")
	})
}

func TestFencedKeepsTheMarks(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.fill(1)
		_, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, "1"), func(context.Context, *sql.Tx) error {
			return fmt.Errorf("saving: %w", outbox.ErrFenced)
		})
		if !errors.Is(err, outbox.ErrFenced) {
			t.Fatalf("%v, want ErrFenced", err)
		}
		f.wantText("SENT", "SELECT status FROM outbox")
	})
}

func TestKilledBeforeCommitLeavesNeither(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd")+positionTable, Options{})
		f.fill(1)
		_, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, "1"), func(ctx context.Context, tx *sql.Tx) error {
			if err := savePosition(ctx, tx); err != nil {
				return err
			}
			var id int64
			if err := tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
				return err
			}
			f.exec(fmt.Sprintf("KILL %d", id))
			return nil
		})
		if err == nil {
			t.Fatal("a killed transaction was reported as committed")
		}
		f.wantText("PENDING", "SELECT status FROM outbox")
		f.wantText("0", "SELECT v FROM pos")
		if _, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, "1"), savePosition); err != nil {
			t.Fatal(err)
		}
		f.wantText("SENT", "SELECT status FROM outbox")
		f.wantText("7", "SELECT v FROM pos")
	})
}

func lockedSet(locked []outbox.Outcome) string {
	ids := make([]string, len(locked))
	for i, o := range locked {
		ids[i] = o.Key.ID
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

func TestLockedRowsAreSetAside(t *testing.T) {
	for name, c := range map[string]struct {
		hold   string // what the stranger does
		locked string
	}{
		"a row":                   {"SELECT * FROM outbox WHERE id IN (2, 4) FOR UPDATE", "2 4"},
		"an insert not committed": {"INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES (9, 'a', 'e', '{}')", "9"},
		"a reader":                {"SELECT * FROM outbox WHERE id = 3 LOCK IN SHARE MODE", "3"},
		"a row deleted, not yet":  {"DELETE FROM outbox WHERE id = 5", "5"},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				t.Parallel() // it is mostly waiting
				f := setUp(t, s, example(t, "pragmatic_ddd")+positionTable, Options{})
				f.fill(6)
				tx := f.stranger(c.hold)
				// Id 8 is nowhere: absent is not locked.
				all := f.outcomes(outbox.OutcomeSent, "1", "2", "3", "4", "5", "6", "8", "9")
				locked, err := f.Record(t.Context(), all, savePosition)
				if err != nil {
					t.Fatal(err)
				}
				if got := lockedSet(locked); got != c.locked {
					t.Fatalf("set aside %q, want %q", got, c.locked)
				}
				f.wantText("7", "SELECT v FROM pos")
				f.wantText(fmt.Sprint(6-strings.Count(c.locked, " ")-1+strings.Count(c.locked, "9")), "SELECT COUNT(*) FROM outbox WHERE status = 'SENT'")
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				f.record(locked...)
				f.wantText("0", "SELECT COUNT(*) FROM outbox WHERE status = 'PENDING'")
			})
		})
	}
}

func TestTableLockSetsAllAside(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		t.Parallel()
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.fill(2)
		conn, err := f.admin.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.ExecContext(t.Context(), "LOCK TABLES outbox WRITE"); err != nil {
			t.Fatal(err)
		}
		locked, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, "1", "2"), nil)
		if _, unlock := conn.ExecContext(t.Context(), "UNLOCK TABLES"); unlock != nil {
			t.Fatal(unlock)
		}
		if err != nil || lockedSet(locked) != "1 2" {
			t.Fatalf("set aside %q, %v", lockedSet(locked), err)
		}
	})
}

// TestDeadlockIsRetried has a stranger with more to lose lock rows in the
// opposite order, so that the server makes Record the victim.
func TestDeadlockIsRetried(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd")+positionTable, Options{})
		f.fill(500)
		tx := f.stranger("UPDATE outbox SET attempts = 9 WHERE id BETWEEN 100 AND 500")
		type answer struct {
			locked []outbox.Outcome
			err    error
		}
		done := make(chan answer, 1)
		go func() {
			locked, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, "1", "100"), savePosition)
			done <- answer{locked, err}
		}()
		f.awaitLockWait() // it has row 1 and waits for row 100
		if _, err := tx.ExecContext(t.Context(), "UPDATE outbox SET attempts = 9 WHERE id = 1"); err != nil {
			t.Fatalf("the stranger was the victim: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if a := <-done; a.err != nil || len(a.locked) > 0 {
			t.Fatalf("%v, set aside %v", a.err, a.locked)
		}
		f.wantText("1 100", "SELECT GROUP_CONCAT(id ORDER BY id SEPARATOR ' ') FROM outbox WHERE status = 'SENT' AND attempts = 9")
		f.wantText("7", "SELECT v FROM pos")
	})
}

// TestNoStrangersLocked looks, from inside the transaction, at what others can
// still do. 600 ids are marked of which 100 are PENDING among 500: the case in
// which the optimizer would rather read all PENDING rows by their index.
func TestNoStrangersLocked(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.fill(1000)
		f.exec("UPDATE outbox SET status = 'SENT' WHERE id <= 500")
		f.exec("ANALYZE TABLE outbox")
		_, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeSent, numbers(1, 600)...), func(context.Context, *sql.Tx) error {
			tx := f.stranger("SET SESSION innodb_lock_wait_timeout = 1",
				"INSERT INTO outbox (aggregate_id, event_type, payload, created_at) VALUES ('a', 'e', '{}', '2000-01-01')",
				"UPDATE outbox SET status = 'SENT' WHERE id BETWEEN 601 AND 1000",
				"UPDATE outbox SET attempts = 1 WHERE id <= 400") // SENT rows that were asked for and not changed
			return tx.Rollback()
		})
		if err != nil {
			t.Fatal(err)
		}
		f.wantText("600", "SELECT COUNT(*) FROM outbox WHERE status = 'SENT'")
	})
}

func TestDeleteLedger(t *testing.T) {
	ddl := func(t *testing.T, id string) string {
		return strings.Replace(example(t, "debezium"), "CHAR(36)  ", id, 1) + deadTable(t)
	}
	insert := "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', 'a1', 'made', '{}')"
	for id, rows := range map[string]func(int) (string, string){"CHAR(36)": uuidID, "BINARY(16)": binaryID} {
		t.Run(id, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, ddl(t, id), Options{Delete: true})
				var outcomes []outbox.Outcome
				for i, kind := range []outbox.OutcomeKind{outbox.OutcomeSent, outbox.OutcomeFailed, outbox.OutcomeAttempt, outbox.OutcomeReleased} {
					event, literal := rows(i)
					f.exec(fmt.Sprintf(insert, literal))
					outcomes = append(outcomes, f.outcome(kind, event))
				}
				f.record(outcomes...)
				f.wantText("3", "SELECT COUNT(*) FROM outbox")
				_, sent := rows(0)
				f.wantText("0", "SELECT COUNT(*) FROM outbox WHERE id = "+sent)
				failed, _ := rows(1)
				f.wantText("test "+f.table.String()+" "+failed+" k"+failed+" no such luck 0",
					"SELECT CONCAT_WS(' ', name, tbl, id, order_key, reason, attempts) FROM rowferry_dead")
			})
		})
	}
}

func TestDeleteManyAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{Delete: true})
		f.fill(2500)
		f.record(f.outcomes(outbox.OutcomeSent, numbers(1, 2499)...)...)
		f.wantText("2500", "SELECT GROUP_CONCAT(id) FROM outbox")
	})
}

func TestNoneLedgerWritesDeadLettersOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd")+positionTable, Options{None: true})
		f.fill(4)
		all := []outbox.Outcome{
			f.outcome(outbox.OutcomeSent, "1"), f.outcome(outbox.OutcomeAttempt, "3"), f.outcome(outbox.OutcomeReleased, "4"),
		}
		if _, err := f.Record(t.Context(), all, savePosition); err != nil {
			t.Fatal(err)
		}
		f.wantText("7", "SELECT v FROM pos")
		// A dead letter that can be kept nowhere must not be lost.
		if _, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeFailed, "2"), nil); err == nil {
			t.Fatal("a dead letter vanished")
		}
		f.exec(strings.TrimSuffix(deadTable(t), ";\n"))
		f.record(f.outcome(outbox.OutcomeFailed, "2"))
		f.record(f.outcome(outbox.OutcomeFailed, "2")) // once more
		f.wantText("2", "SELECT GROUP_CONCAT(id) FROM rowferry_dead")
		f.wantText("4", "SELECT COUNT(*) FROM outbox WHERE status = 'PENDING'")
	})
}

func TestReasonWithoutLastErrorGoesToRowferryDead(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "numeric_status"), Options{MaxAttempts: 2})
		f.fill(4)
		f.record(f.outcome(outbox.OutcomeFailed, "1")) // without rowferry_dead: FAILED all the same
		f.exec(strings.TrimSuffix(deadTable(t), ";\n"))
		f.exec("UPDATE outbox SET status = 1 WHERE id = 4") // by somebody else: SENT is no dead letter
		again := f.outcome(outbox.OutcomeAttempt, "3")
		f.record(f.outcome(outbox.OutcomeFailed, "2"), again, f.outcome(outbox.OutcomeFailed, "4"))
		f.wantText("2:no such luck:0", "SELECT GROUP_CONCAT(CONCAT_WS(':', id, reason, attempts) ORDER BY id) FROM rowferry_dead")
		f.record(again) // the last attempt
		f.wantText("2:no such luck:0,3:no such luck:2", "SELECT GROUP_CONCAT(CONCAT_WS(':', id, reason, attempts) ORDER BY id) FROM rowferry_dead")
		f.wantText("2 2 2 1", "SELECT GROUP_CONCAT(status ORDER BY id SEPARATOR ' ') FROM outbox")
	})
}

func TestDeadAlways(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{DeadAlways: true})
		f.fill(1)
		f.record(f.outcome(outbox.OutcomeFailed, "1"))
		f.wantText("k1", "SELECT order_key FROM rowferry_dead WHERE id = '1'")
	})
}

// TestLastErrorFitsItsColumn writes what strict mode would refuse.
func TestLastErrorFitsItsColumn(t *testing.T) {
	reason := "Größe 大 \U0001F69A " + strings.Repeat("x", 3000)
	for column, want := range map[string]string{
		"VARCHAR(12) CHARACTER SET utf8mb4": "Größe 大 \U0001F69A xx",
		"VARCHAR(12) CHARACTER SET utf8mb3": "Größe 大 ? xx",
		"VARCHAR(12) CHARACTER SET latin1":  "Gr??e ? ? xx",
		"TINYTEXT CHARACTER SET utf8mb4":    ("Größe 大 \U0001F69A " + strings.Repeat("x", 300))[:255],
		"VARBINARY(12)":                     "Gr??e ? ? xx",
	} {
		t.Run(column, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, "CREATE TABLE outbox (id BIGINT PRIMARY KEY, aggregate_id VARCHAR(9), event_type VARCHAR(9), payload TEXT, status VARCHAR(9), attempts INT, last_error "+column+")", Options{})
				f.insert("1", outbox.Pending)
				o := f.outcome(outbox.OutcomeFailed, "1")
				o.Reason = reason
				f.record(o)
				f.wantText(want, "SELECT last_error FROM outbox")
			})
		})
	}
}

func TestRecordEndsWithItsContext(t *testing.T) {
	f := setUp(t, testservers.SharedMySQL(t), example(t, "pragmatic_ddd"), Options{})
	f.fill(1)
	f.stranger("SELECT * FROM outbox FOR UPDATE")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := f.Record(ctx, f.outcomes(outbox.OutcomeSent, "1"), nil)
		done <- err
	}()
	f.awaitLockWait()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want canceled", err)
	}
}

// TestRowsThatCannotBeMarkedAreLoud: the layout takes "pending" for PENDING, a
// column with a binary collation does not.
func TestRowsThatCannotBeMarkedAreLoud(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, "CREATE TABLE outbox (id BIGINT PRIMARY KEY, payload TEXT, status VARCHAR(9) COLLATE utf8mb4_bin)", Options{})
		f.exec("INSERT INTO outbox VALUES (1, 'x', 'pending'), (2, 'x', 'PENDING')")
		var log bytes.Buffer
		f.log = zerolog.New(&log)
		for range 3 {
			f.record(f.outcomes(outbox.OutcomeSent, "1", "2")...)
		}
		if n := strings.Count(log.String(), "rows cannot be marked"); n != 1 {
			t.Fatalf("said %d times:\n%s", n, log.String())
		}
		f.exec("DELETE FROM outbox WHERE id = 1")
		f.record(f.outcomes(outbox.OutcomeSent, "1", "2")...) // gone, and SENT already
		if !strings.Contains(log.String(), "can be marked as sent again") {
			t.Fatalf("the end was not said:\n%s", log.String())
		}
	})
}
