package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestTheSweepAloneDeliversEverything(t *testing.T) {
	for _, layout := range []string{layoutRowferry, layoutPragmatic} {
		t.Run(layout, func(t *testing.T) {
			s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layout)
			if layout == layoutRowferry {
				s.relaxTypes()
			}
			s.insertMany(s.db, 1000, 10, 0) // before the start
			f := s.run("MODE=poll", "OUTBOX_POLL_INTERVAL=100ms")
			s.insertMany(s.db, 1000, 10, 1000)
			messages, copies := s.audit()
			if len(messages) != 2000 || copies != 0 {
				t.Errorf("%d messages with %d copies, want 2000 without", len(messages), copies)
			}
			f.stopCleanly()
		})
	}
}

// relaxTypes lets rows be inserted without an aggregate type.
func (s *stage) relaxTypes() {
	s.tb.Helper()
	s.exec("ALTER TABLE outbox MODIFY aggregate_type VARCHAR(127) NOT NULL DEFAULT ''")
}

// With claim columns two pollers may share a table; each row must go once.
func TestTwoPollersShareATableWithClaims(t *testing.T) {
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutRowferry)
	s.relaxTypes()
	s.insertMany(s.db, 3000, 10, 0)
	a := s.run("MODE=poll", "OUTBOX_POLL_INTERVAL=100ms", "OUTBOX_BATCH_SIZE=50")
	b := s.run("MODE=poll", "OUTBOX_POLL_INTERVAL=100ms", "OUTBOX_BATCH_SIZE=50")
	s.awaitSent()
	s.expectExactly(s.ids("TRUE"))
	for _, f := range []*ferry{a, b} {
		if !f.log.contains("sweep took rows") {
			t.Error("one of the pollers has done nothing")
		}
		f.stopCleanly()
	}
}

func TestTheTailAloneDeliversEverything(t *testing.T) {
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	f := s.run("MODE=tail")
	s.insertMany(s.db, 2000, 10, 0)
	messages, copies := s.audit()
	if len(messages) != 2000 || copies != 0 {
		t.Errorf("%d messages with %d copies, want 2000 without", len(messages), copies)
	}
	if f.log.contains("sweep") {
		t.Error("with MODE=tail something was swept")
	}
	f.stopCleanly()
}

func TestRowsFromBeforeTheFirstStartAreSweptAtTheStart(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		s.insertMany(s.db, 1000, 10, 0)
		s.exec("INSERT INTO outbox (aggregate_id, event_type, payload, created_at) VALUES ('future', 'Created', '{\"n\": 1}', NOW() + INTERVAL 9 HOUR)")
		f := s.run("OUTBOX_GRACE=1s")
		messages, copies := s.audit()
		if len(messages) != 1001 || copies != 0 {
			t.Errorf("%d messages with %d copies, want 1001 without", len(messages), copies)
		}
		f.stopCleanly()
	})
}

// What both paths see at the same time goes once: the fence keeps the sweep from
// rows that the tail is about to send. The small budget lets the tail fall behind
// what the sweep can see, the more so in the transactions of 3,000 rows.
func TestBothPathsTogetherPublishEachRowOnce(t *testing.T) {
	for _, grace := range []string{"0s", "1s"} {
		t.Run(grace, func(t *testing.T) {
			s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
			f := s.run("OUTBOX_GRACE="+grace, "OUTBOX_POLL_INTERVAL=200ms", "INFLIGHT_MAX=200")
			l := s.startLoad(400, 100)
			for range 3 {
				l.awaitCommitted(400)
				s.insertAtOnce(3000)
			}
			l.awaitCommitted(200)
			l.stop()
			messages, copies := s.audit()
			if copies != 0 {
				s.expectNoCopies(messages)
			}
			f.stopCleanly()
		})
	}
}

// insertAtOnce commits n rows over ten keys in one transaction.
func (s *stage) insertAtOnce(n int) {
	s.tb.Helper()
	tx, err := s.db.BeginTx(s.tb.Context(), nil)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.insertMany(tx, n, 10, s.queryInt("SELECT COALESCE(MAX(id), 0) FROM outbox"))
	if err := tx.Commit(); err != nil {
		s.tb.Fatal(err)
	}
}

// Insert-only tables, read-only accounts: with these two settings the database
// is only read.
func TestWithoutLedgerAndWithAFileNothingIsWrittenToTheDatabase(t *testing.T) {
	t.Parallel()
	server := testservers.SharedMySQL(t)
	s := newBareStage(t, server, testservers.SharedRocketMQ(t))
	s.createTable(layoutDebezium)
	user := s.account("SELECT ON `" + s.schema + "`.outbox")
	server.Exec(t, "", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO "+user)
	file := filepath.Join(t.TempDir(), "checkpoint")
	f := s.run("SOURCE_DSN="+server.UserDSN(user, "secret", s.schema), "LEDGER=none", "CHECKPOINT_STORE=file:"+file, "CHECKPOINT_INTERVAL=100ms")
	want := []string{s.insertDebezium("a"), s.insertDebezium("b")}
	s.messages(len(want))
	s.await("the position is saved", func() bool { _, err := os.Stat(file); return err == nil })
	f.stopCleanly()

	want = append(want, s.insertDebezium("c")) // while nobody runs
	f.restart()
	want = append(want, s.insertDebezium("d"))
	s.messages(len(want))
	f.stopCleanly()
	s.expectExactly(want)
	if tables := s.idsOf("SHOW TABLES"); !slices.Equal(tables, []string{"outbox"}) {
		t.Errorf("the schema holds %q, want outbox alone", tables)
	}
}

// insertDebezium commits a row of a table without status and returns its id.
func (s *stage) insertDebezium(key string) string {
	s.tb.Helper()
	id := s.queryText("SELECT UUID()")
	s.exec("INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (?, 'Order', ?, 'Created', '{\"a\": 1}')", id, key)
	return id
}

// A habit of users of Debezium: the row is deleted in the transaction that wrote
// it, and is published all the same.
func TestADebeziumRowDeletedByItsOwnTransactionIsPublished(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutDebezium)
	f := s.run()
	id := s.queryText("SELECT UUID()")
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		"INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (?, 'Order', '7', 'Created', '{}')",
		"DELETE FROM outbox WHERE id = ?",
	} {
		if _, err := tx.ExecContext(t.Context(), statement, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	s.messages(1)
	f.stopCleanly()
	s.expectExactly([]string{id})
}
