package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

type partitionChangeDocument struct {
	Table     string
	Names     []string
	Statement string
	Applied   bool
	Rows      map[string]int
}

// TestPartitionsAreChangedUnderARelay: rows of the old, the split and the new partitions
// are relayed by the tail, and a dropped partition is no deletion of events.
func TestPartitionsAreChangedUnderARelay(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutNone)
		s.layout = layoutPragmatic
		ddl := strings.Replace(exampleSQL(t, layoutPragmatic), "PRIMARY KEY (id)", "PRIMARY KEY (id, created_at)", 1)
		s.exec(strings.Replace(ddl, "utf8mb4;", "utf8mb4 PARTITION BY RANGE COLUMNS (created_at) (PARTITION old VALUES LESS THAN ('2020-01-01'), PARTITION rest VALUES LESS THAN (MAXVALUE))", 1))
		with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "MODE=tail"}
		f := s.run(with...)
		insert := func(created string) {
			s.exec("INSERT INTO outbox (aggregate_id, event_type, payload, created_at) VALUES ('a', 'e', '{}', " + created + ")")
		}
		insert("'2019-12-31'")
		insert("'2019-12-31'")
		s.awaitSent()

		planned := decode[partitionChangeDocument](t, s.okWith(with, "partition", "ensure", "--ahead", "2", "--dry-run", "--json"))
		if len(planned.Names) != 3 || planned.Applied || !strings.Contains(planned.Statement, "REORGANIZE") {
			t.Errorf("a dry run: %+v", planned)
		}
		expectParts(t, "partition ensure", s.okWith(with, "partition", "ensure", "--ahead", "2"), planned.Names[0], "done")
		expectParts(t, "partition ensure again", s.okWith(with, "partition", "ensure", "--ahead", "2"), "has the partitions it needs")
		insert("NOW()")
		s.exec("INSERT INTO outbox (aggregate_id, event_type, payload, status, created_at) VALUES ('old', 'e', '{}', 'FAILED', '2019-01-01')")
		s.awaitNone("status = 'PENDING'")
		expectParts(t, "partition list", s.okWith(with, "partition", "list"), "PARTITION", "old", "2020-01-01", planned.Names[2], "rest")

		s.fails(1, "1 FAILED", with, "partition", "drop", "old", "--yes")
		s.fails(1, "no partition", with, "partition", "drop", "older", "--yes")
		s.fails(2, "add --yes", with, "partition", "drop", "old", "--failed")
		s.fails(2, "outbox", with, "partition", "list", "--table", "orders")
		s.fails(2, "--ahead", with, "partition", "ensure", "--ahead", "0")
		would := decode[partitionChangeDocument](t, s.okWith(with, "partition", "drop", "old", "--failed", "--dry-run", "--json"))
		if would.Applied || would.Rows["sent"] != 2 || would.Rows["failed"] != 1 || s.queryInt("SELECT COUNT(*) FROM outbox") != 4 {
			t.Errorf("a dry run: %+v", would)
		}
		s.okWith(with, "partition", "drop", "old", "--failed", "--yes")
		if n := s.queryInt("SELECT COUNT(*) FROM outbox"); n != 1 {
			t.Errorf("%d rows are left, want 1", n)
		}
		insert("NOW()")
		s.awaitSent()
		f.stopCleanly()
		s.expectExactly([]string{"1", "2", "3", "5"})
	})
}
