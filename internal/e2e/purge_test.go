package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

type purgingDocument struct {
	DryRun bool `json:"dry_run"`
	Tables []struct {
		Table        string
		Rows, Locked int
		Error        string
	}
}

// TestPurgeBesideARelay: the tail passes the deletions, and sends what comes after them.
func TestPurgeBesideARelay(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "MODE=tail"}
		f := s.run(with...)
		const rows = 450
		s.insertMany(s.db, rows, 9, 0)
		s.awaitSent()
		s.exec("UPDATE outbox SET created_at = created_at - INTERVAL 3 DAY, sent_at = sent_at - INTERVAL 2 DAY")
		s.exec("INSERT INTO outbox (aggregate_id, event_type, payload, status, created_at) VALUES ('old', 'e', '{}', 'FAILED', NOW() - INTERVAL 9 DAY), ('old', 'e', '{}', 'PROCESSING', NOW() - INTERVAL 9 DAY)")

		for _, wrong := range [][]string{{"purge"}, {"purge", "--older-than", "0s"}, {"purge", "--older-than", "soon"}, {"purge", "--older-than", "1h", "now"}} {
			if r := s.command(wrong, with...); r.code != 2 || r.stderr == "" {
				t.Errorf("%v: exit code %d, %s", wrong, r.code, r.stderr)
			}
		}
		if r := s.command([]string{"purge", "--older-than", "1h"}, append(with, "LEDGER=none", "CHECKPOINT_STORE=memory")...); r.code != 1 || !strings.Contains(r.stderr, "LEDGER=none") {
			t.Errorf("purge with LEDGER=none: exit code %d, %s", r.code, r.stderr)
		}
		expectParts(t, "purge of younger rows", s.okWith(with, "purge", "--older-than", "49h"), "PURGED", s.schema+".outbox", " 0 ")
		d := decode[purgingDocument](t, s.okWith(with, "purge", "--older-than", "47h", "--dry-run", "--json"))
		if len(d.Tables) != 1 || d.Tables[0].Rows != rows || !d.DryRun || s.queryInt("SELECT COUNT(*) FROM outbox") != rows+2 {
			t.Errorf("a dry run: %+v", d)
		}
		d = decode[purgingDocument](t, s.okWith(with, "purge", "--older-than", "47h", "--json"))
		if len(d.Tables) != 1 || d.Tables[0].Rows != rows || d.Tables[0].Error != "" || s.queryInt("SELECT COUNT(*) FROM outbox") != 2 {
			t.Errorf("purge: %+v", d)
		}
		s.insertMany(s.db, 50, 9, rows)
		s.awaitNone("status = 'PENDING'")
		f.stopCleanly()
		s.expectNoCopies(s.messages(rows + 50))
		if n := len(s.broker.ReadAll(t, s.topic)); n != rows+50 {
			t.Errorf("%d messages, want %d", n, rows+50)
		}
	})
}

// TestRetentionByTheRelay: rows leave when they are old enough, and a relay that reads
// them a second time in the binlog, from an old position, does not send them again.
func TestRetentionByTheRelay(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutRowferry)
		with := []string{"OUTBOX_RETENTION=1s", "CHECKPOINT_INTERVAL=1h", "ROUTE_TOPIC=" + s.topic}
		f := s.run(with...)
		insert := func(n int, payload string) {
			for i := range n {
				s.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', ?, 'made', ?, NOW() - INTERVAL 1 DAY)", i%3, payload)
			}
		}
		insert(20, "{}")
		insert(1, "") // an empty payload is refused
		s.awaitNone("status <> 'FAILED'")
		if n := s.queryInt("SELECT COUNT(*) FROM outbox"); n != 1 {
			t.Errorf("%d rows are left, want the dead letter alone", n)
		}
		f.awaitLog(`"message":"purged rows`)
		s.await("what was purged is counted", func() bool {
			_, metrics := f.get("/metrics")
			return strings.Contains(metrics, fmt.Sprintf("rowferry_purged_total{table=%q} 20", s.schema+".outbox"))
		})
		f.kill()
		f.restart()
		insert(5, "{}")
		s.awaitNone("status <> 'FAILED'")
		f.stopCleanly()
		s.expectNoCopies(s.messages(25))
	})
}

func TestRetentionIsRefusedWithoutSentRows(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutDebezium)
	f := s.start("OUTBOX_RETENTION=24h")
	f.awaitLog("OUTBOX_RETENTION needs a table that says which rows are sent")
	if code, _ := f.get("/readyz"); code != 503 {
		t.Errorf("/readyz: %d", code)
	}
	f.stopCleanly()
}
