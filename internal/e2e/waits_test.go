package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// rowLockWaits is how often any session of the server has waited for a row.
func (s *stage) rowLockWaits() int {
	s.tb.Helper()
	var name string
	var n int
	if err := s.db.QueryRowContext(s.tb.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'").Scan(&name, &n); err != nil {
		s.tb.Fatal(err)
	}
	return n
}

// A relay drains a backlog by the tail or by the sweep, and marks, claims or deletes its
// rows as fast as it can, while an application inserts. What is inserted meanwhile are
// archived rows, which the relay leaves alone: so nobody has to wait for a row, and the
// server counts the waits of everybody. It runs alone, therefore.
func TestInsertsWaitForNoRowWhileARelayDrainsABacklog(t *testing.T) {
	for _, c := range []struct {
		flavour              string
		layout, mode, ledger string
	}{
		{"MySQL", layoutPragmatic, "tail", "status"}, {"MySQL", layoutRowferry, "poll", "status"}, {"MariaDB", layoutNumeric, "tail", "delete"},
	} {
		t.Run(fmt.Sprintf("%s, %s, %s, %s", c.flavour, c.layout, c.mode, c.ledger), func(t *testing.T) {
			s := newStage(t, flavours[c.flavour](t), testservers.SharedRocketMQ(t), c.layout)
			if c.layout == layoutRowferry {
				s.relaxTypes()
			}
			settings := []string{"MODE=" + c.mode, "LEDGER=" + c.ledger, "OUTBOX_POLL_INTERVAL=100ms"}
			s.run(settings...).stopCleanly() // notes where to begin
			s.insertMany(s.db, 3000, 100, 0)
			before := s.rowLockWaits()
			archive := s.archiveRows()
			f := s.run(settings...)
			s.awaitNone(s.pending())
			f.stopCleanly()
			inserted := archive()
			if n := s.rowLockWaits() - before; n != 0 {
				t.Errorf("%d waits for a row", n)
			}
			if inserted < 10 {
				t.Errorf("only %d rows were inserted meanwhile", inserted)
			}
			t.Logf("%d rows inserted meanwhile", inserted)
		})
	}
}

func (s *stage) pending() string {
	if s.layout == layoutNumeric {
		return "status = 0"
	}
	return "status IN ('PENDING', 'PROCESSING')"
}

// archiveRows inserts rows that are SENT already, in four sessions that do not wait long
// for a lock. The function returned ends that and says how many there are.
func (s *stage) archiveRows() (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var n atomic.Int64
	var running sync.WaitGroup
	sent := map[string]any{layoutNumeric: 1}[s.layout]
	if sent == nil {
		sent = "SENT"
	}
	for range 4 {
		running.Go(func() {
			if err := s.archive(ctx, sent, &n); err != nil {
				s.tb.Errorf("inserting: %v", err)
			}
		})
	}
	stop = sync.OnceValue(func() int64 { cancel(); running.Wait(); return n.Load() })
	s.tb.Cleanup(func() { stop() })
	return stop
}

func (s *stage) archive(ctx context.Context, sent any, n *atomic.Int64) error {
	conn, err := s.db.Conn(context.Background())
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(context.Background(), "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
		return err
	}
	for ctx.Err() == nil {
		_, err := conn.ExecContext(context.Background(),
			"INSERT INTO outbox (aggregate_id, event_type, payload, status, created_at) VALUES ('a', 'Archived', '{}', ?, NOW() - INTERVAL ? SECOND)", sent, n.Load()%100)
		if err != nil {
			return err
		}
		n.Add(1)
	}
	return nil
}
