package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// A transaction many times as large as the budget arrives by the tail alone, once, in
// order and in its last form, in bounded memory; also when it comes compressed.
func TestATransactionLargerThanTheBudgetIsCarriedInBoundedMemory(t *testing.T) {
	const rows = 20_000 // 15 MiB as events, against a budget of 4
	const rssMaxMiB = 110
	broker := testservers.SharedRocketMQ(t)
	for _, compression := range []string{"OFF", "ON"} {
		t.Run("compression "+compression, func(t *testing.T) {
			s := newStage(t, testservers.SharedMySQL(t), broker, layoutPragmatic)
			f := s.startBinary(binary(t, plainBinary), "MODE=tail", "INFLIGHT_BYTES_MAX=4MiB")
			f.awaitLog(`"message":"relaying"`)
			session, err := s.db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			if _, err := session.ExecContext(t.Context(), "SET SESSION binlog_transaction_compression = "+compression); err != nil {
				t.Fatal(err)
			}
			tx, err := session.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			s.insertMany(tx, rows, 50, 0)
			for _, change := range []string{
				"UPDATE outbox SET payload = CONCAT(payload, ' ', REPEAT('x', 400)) WHERE id % 2 = 0",
				"UPDATE outbox SET event_type = 'Changed' WHERE id % 1000 = 0",
				"DELETE FROM outbox WHERE id % 1000 = 1",
			} {
				if _, err := tx.ExecContext(t.Context(), change); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			s.awaitSent()
			f.awaitLog("read a second time")
			messages, _ := s.audit()
			s.expectNoCopies(messages)
			if n := s.queryInt("SELECT COUNT(*) FROM outbox"); len(messages) != n || n >= rows {
				t.Errorf("%d messages of %d rows", len(messages), n)
			}
			s.expectLastForm(messages)
			if peak := f.peakMiB(); peak > rssMaxMiB {
				t.Errorf("%.0f MiB resident, want at most %d", peak, rssMaxMiB)
			} else {
				t.Logf("%.0f MiB resident at most", peak)
			}
			f.stopCleanly()
		})
	}
}

// expectLastForm compares type and body of some messages with the table.
func (s *stage) expectLastForm(messages []testservers.Message) {
	s.tb.Helper()
	want := map[string]string{}
	for _, id := range s.ids("id % 500 < 2") {
		want[id] = s.queryText("SELECT CONCAT(event_type, ' ', payload) FROM outbox WHERE id = ?", id)
	}
	for _, m := range messages {
		id := m.Properties["outbox_id"]
		if form, ok := want[id]; ok && form != m.Properties["event_type"]+" "+string(m.Body) {
			s.tb.Errorf("row %s was published as %.60q, the table says %.60q", id, m.Body, form)
		}
		delete(want, id)
	}
	if len(want) > 0 {
		s.tb.Errorf("%d rows were not found among the messages", len(want))
	}
}

// A row larger than any message is refused by the tail without being kept, and its
// neighbours go. It spans packets of the protocol, which hold 16 MiB.
func TestAHugeRowIsRefusedAloneAndNotKept(t *testing.T) {
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	s.exec("ALTER TABLE outbox MODIFY COLUMN payload LONGTEXT, ADD COLUMN last_error TEXT")
	f := s.startBinary(binary(t, plainBinary), "MODE=tail")
	f.awaitLog(`"message":"relaying"`)
	s.insert("before")
	const bytes = 40 << 20
	s.exec("INSERT INTO outbox (aggregate_id, event_type, payload) VALUES ('huge', 'Created', REPEAT('y', ?))", bytes)
	s.insert("after")
	s.awaitNone("status = 'PENDING'")
	if got := strings.Join(s.idsOf("SELECT CONCAT(aggregate_id, ' ', status) FROM outbox ORDER BY id"), ", "); got != "before SENT, huge FAILED, after SENT" {
		t.Errorf("rows %s", got)
	}
	if reason := s.queryText("SELECT last_error FROM outbox WHERE aggregate_id = 'huge'"); !strings.Contains(reason, fmt.Sprintf("too_large: the payload has %d bytes", bytes)) {
		t.Errorf("last_error is %q", reason)
	}
	f.stopCleanly()
}
