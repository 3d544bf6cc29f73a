package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// flavours are the servers whose binlogs differ.
var flavours = map[string]func(testing.TB) *testservers.DB{
	"MySQL":            testservers.SharedMySQL,
	"MySQLWithoutGTID": testservers.SharedMySQLNoGTID,
	"MariaDB":          testservers.SharedMariaDB,
}

func eachFlavour(t *testing.T, test func(t *testing.T, server *testservers.DB)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(flavours)) {
		t.Run(name, func(t *testing.T) { test(t, flavours[name](t)) })
	}
}

// trickyPayload holds what a careless conversion would change.
const trickyPayload = "{\"text\": \"Grüße, 船, 🚢\", \"quote\": \"\\\"'`\\\\\"}\r\n\t\x00\x01\x02\x7f end "

func TestACommittedRowIsPublishedOnceAsTheContractSays(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutRowferry)
		f := s.run()
		s.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers, created_at)
			VALUES ('Order', 'order 7', 'Order Placed', ?, '{"traceparent": "00-ab-cd-01", "tenant": "Ümlaut", "retry": 3}', '2026-01-02 03:04:05.678900')`, trickyPayload)
		id := s.queryText("SELECT MAX(id) FROM outbox")
		m := s.messages(1)[0]
		w := s.want(id)
		w.tag = "Order_Placed" // blanks separate the tags of a subscription
		w.properties["KEYS"] = id + " order_7"
		w.properties["aggregate_type"] = "Order"
		w.properties["traceparent"], w.properties["tenant"], w.properties["retry"] = "00-ab-cd-01", "Ümlaut", "3"
		s.check(m, w)
		s.awaitSent()
		if s.queryInt("SELECT COUNT(*) FROM outbox WHERE sent_at IS NOT NULL AND ABS(TIMESTAMPDIFF(SECOND, sent_at, NOW(6))) < 60 AND attempts = 0 AND last_error IS NULL AND claim_token IS NULL") != 1 {
			t.Error("the row is SENT, but sent_at, attempts, last_error or claim_token is not as it should be")
		}
		s.expectExactly([]string{id})
		f.stopCleanly()
	})
}

func TestARolledBackRowIsNeverPublished(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		s.exec("CREATE TABLE unsafe (id INT PRIMARY KEY) ENGINE=MyISAM") // forces the rollback into the binlog
		f := s.run()
		for _, statement := range []string{"SELECT 1", "INSERT INTO unsafe VALUES (1)"} {
			tx, err := s.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := insertInto(t.Context(), tx, "gone", "Created", "{}"); err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(t.Context(), statement); err != nil && server.Flavor() == testservers.FlavorMariaDB {
				t.Fatal(err) // MySQL with GTIDs refuses such a transaction
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
		last := s.insert("kept") // comes after them in the stream
		s.awaitSent()
		s.expectExactly([]string{last})
		f.stopCleanly()
	})
}

func TestRowsOfOneStatementAndOfAHugeTransactionArriveInOrder(t *testing.T) {
	const huge = 50_000
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		f := s.run()
		s.insertMany(s.db, 500, 10, 0)
		s.insertAtOnce(huge)
		begin := time.Now()
		s.awaitSent()
		t.Logf("%v from the commit until all are SENT", time.Since(begin).Round(time.Millisecond))
		messages, copies := s.audit()
		if len(messages) != huge+500 || copies != 0 {
			t.Errorf("%d messages with %d copies, want %d without", len(messages), copies, huge+500)
		}
		f.stopCleanly()
	})
}

func TestUpdatesDeletesAndOtherTablesAreNeverPublished(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		s.exec("CREATE TABLE outbox_archive LIKE outbox")
		s.exec("INSERT INTO outbox (aggregate_id, event_type, payload, status) VALUES ('old', 'Created', '{}', 'SENT')")
		f := s.run()
		first := s.insert("first")
		s.awaitSent() // now our own mark is in the binlog too
		s.exec("UPDATE outbox SET payload = '{\"changed\": true}', event_type = 'Changed'")
		s.exec("INSERT INTO outbox_archive SELECT * FROM outbox")
		s.exec("UPDATE outbox_archive SET status = 'PENDING'")
		s.exec("INSERT INTO outbox (aggregate_id, event_type, payload, status) VALUES ('dump', 'Created', '{}', 'SENT')")
		s.exec("DELETE FROM outbox")
		second := s.insert("second")
		s.awaitSent()
		third := s.insert("third") // after the mark of the second
		s.awaitSent()
		s.expectExactly([]string{first, second, third})
		f.stopCleanly()
	})
}

// A position that never moved would need binlogs that the server purges; one
// that moved because of its own saving would never rest.
func TestTheCheckpointMovesWithOtherTablesAndRestsWhenIdle(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		s.exec("CREATE TABLE other (id INT PRIMARY KEY AUTO_INCREMENT, v INT)")
		f := s.run("CHECKPOINT_INTERVAL=100ms")
		saved := func() string {
			return s.queryText("SELECT CONCAT(`position`, ' ', COALESCE(updated_at, 'never')) FROM rowferry_checkpoint WHERE name = ?", s.schema)
		}
		for round := range 2 {
			before := saved()
			s.exec("INSERT INTO other (v) VALUES (1), (2), (3)")
			s.await(fmt.Sprintf("the checkpoint moves in round %d", round), func() bool { return saved() != before })
		}
		s.await("the checkpoint rests", func() bool {
			before := saved()
			time.Sleep(time.Second) // ten times the interval: a loop would have saved
			return saved() == before
		})
		f.stopCleanly()
	})
}
