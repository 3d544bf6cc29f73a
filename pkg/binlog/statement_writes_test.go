package binlog

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// Statements that insert, by whatever way, give their rows; those that find a row there
// already give none, for that is a change of an old row.
func TestWaysToInsert(t *testing.T) {
	const into = "INSERT INTO outbox (id, payload) "
	cases := []struct {
		name       string
		flavor     string
		statements []string
		want       []string
	}{
		{"replace", "", []string{into + "VALUES (1, 'a')", "REPLACE INTO outbox (id, payload) VALUES (1, 'no'), (2, 'b')"}, []string{"1=a", "2=b"}},
		{"on duplicate key", "", []string{into + "VALUES (1, 'a')", into + "VALUES (1, 'no'), (2, 'b') ON DUPLICATE KEY UPDATE payload = 'no'"}, []string{"1=a", "2=b"}},
		{"on duplicate key at once", "", []string{"BEGIN", into + "VALUES (1, 'a')", into + "VALUES (1, 'x') ON DUPLICATE KEY UPDATE payload = 'last'", "COMMIT"}, []string{"1=last"}},
		{"ignore", "", []string{into + "VALUES (1, 'a')", "INSERT IGNORE INTO outbox (id, payload) VALUES (1, 'no'), (2, 'b')"}, []string{"1=a", "2=b"}},
		{"select", "", []string{"INSERT INTO source VALUES (1, 'a'), (2, 'b')", into + "SELECT id, name FROM source"}, []string{"1=a", "2=b"}},
		{"load data", "", []string{"LOAD DATA LOCAL INFILE 'Reader::ways' INTO TABLE outbox (id, payload)"}, []string{"1=a", "2=b"}},
		{"procedure", "", []string{"CALL announce(1)"}, []string{"1=by call"}},
		{"function", "", []string{"DO announced(1)", "SELECT announced(2)"}, []string{"1=by function", "2=by function"}},
		{"event", "", []string{"CREATE EVENT e ON SCHEDULE AT CURRENT_TIMESTAMP ON COMPLETION PRESERVE DISABLE DO CALL announce(9)", "CALL announce(1)"}, []string{"1=by call"}},
		{"several tables", "", []string{into + "VALUES (1, 'a')", "INSERT INTO source VALUES (1, 'x')",
			"BEGIN", into + "VALUES (2, 'b'), (3, 'c')", "UPDATE outbox, source SET outbox.payload = 'both', source.name = 'y' WHERE outbox.id = 2", "DELETE outbox FROM outbox JOIN source WHERE outbox.id = 3", "COMMIT"}, []string{"1=a", "2=both"}},
		{"truncate", "", []string{into + "VALUES (1, 'a')", "TRUNCATE TABLE outbox", into + "VALUES (1, 'b')"}, []string{"1=a", "1=b"}},
		{"returning", testservers.FlavorMariaDB, []string{into + "VALUES (1, 'a') RETURNING id", "REPLACE INTO outbox (id, payload) VALUES (2, 'b') RETURNING *"}, []string{"1=a", "2=b"}},
		{"sequence", testservers.FlavorMariaDB, []string{"CREATE SEQUENCE s START WITH 40", "ALTER TABLE outbox MODIFY id BIGINT UNSIGNED NOT NULL DEFAULT (NEXT VALUE FOR s)",
			"INSERT INTO outbox (payload) VALUES ('a'), ('b')", "ALTER TABLE outbox MODIFY id BIGINT UNSIGNED AUTO_INCREMENT"}, []string{"40=a", "41=b"}},
		{"compressed lines", testservers.FlavorMariaDB, []string{"SET STATEMENT max_statement_time = 5 FOR " + into + "VALUES (1, 'a')"}, []string{"1=a"}},
	}
	flavours(t, func(t *testing.T, server *testservers.DB) {
		mysql.RegisterReaderHandler("ways", func() io.Reader { return strings.NewReader("1\ta\n2\tb\n") })
		defer mysql.DeregisterReaderHandler("ways")
		g := newRig(t, server, outboxDDL, "CREATE TABLE source (id INT PRIMARY KEY, name TEXT)", "SET GLOBAL log_bin_trust_function_creators = 1, local_infile = 1",
			"CREATE PROCEDURE announce(n INT) BEGIN INSERT INTO outbox (id, payload) VALUES (n, 'by call'); END",
			"CREATE FUNCTION announced(n INT) RETURNS INT BEGIN INSERT INTO outbox (id, payload) VALUES (n, 'by function'); RETURN 1; END")
		tl := g.tail("now")
		for _, c := range cases {
			if c.flavor != "" && c.flavor != server.Flavor() {
				continue
			}
			g.exec("DELETE FROM outbox", "DELETE FROM source")
			g.session(c.statements...)
			wantStrings(t, c.name, withoutReason(g.flush(tl)), c.want)
		}
	})
}

// What is written in statement format is counted, where somebody else finds it, and the
// position stays. What only reads the table, or is of another one, is not.
func TestStatementWritesAreCounted(t *testing.T) {
	cases := []struct {
		name       string
		statements []string
		unseen     int
		want       []string
	}{
		{"insert", []string{"INSERT INTO outbox (id, payload) VALUES (1, 'x')"}, 1, nil},
		{"insert select", []string{"INSERT INTO outbox (id, payload) SELECT id, name FROM source"}, 1, nil},
		{"replace", []string{"REPLACE INTO outbox (id, payload) VALUES (1, 'x')"}, 1, nil},
		{"on duplicate key", []string{"INSERT INTO outbox (id, payload) VALUES (1, 'x') ON DUPLICATE KEY UPDATE payload = 'y'"}, 1, nil},
		{"load data", []string{"LOAD DATA LOCAL INFILE 'Reader::counted' INTO TABLE outbox (id, payload)"}, 1, nil},
		{"two in a transaction", []string{"BEGIN", "INSERT INTO outbox (id, payload) VALUES (1, 'x')", "INSERT INTO outbox (id, payload) VALUES (2, 'x')", "COMMIT"}, 2, nil},
		{"rolled back", []string{"BEGIN", "INSERT INTO outbox (id, payload) VALUES (1, 'x')", "ROLLBACK"}, 0, nil},
		{"prepared and committed", []string{"XA START 'counted'", "INSERT INTO outbox (id, payload) VALUES (1, 'x')", "XA END 'counted'", "XA PREPARE 'counted'", "XA COMMIT 'counted'"}, 1, nil},
		{"prepared and rolled back", []string{"XA START 'counted'", "INSERT INTO outbox (id, payload) VALUES (1, 'x')", "XA END 'counted'", "XA PREPARE 'counted'", "XA ROLLBACK 'counted'"}, 0, nil},
		{"update and delete", []string{"UPDATE outbox SET payload = 'x'", "DELETE FROM outbox"}, 0, nil},
		{"as a source only", []string{"INSERT INTO source SELECT id + 100, payload FROM outbox"}, 0, nil},
		{"of another schema", []string{"INSERT INTO %s.outbox (id, payload) VALUES (1, 'x')"}, 0, nil},
		{"in a procedure", []string{"CALL announce(1)"}, 1, nil},
	}
	flavours(t, func(t *testing.T, server *testservers.DB) {
		mysql.RegisterReaderHandler("counted", func() io.Reader { return strings.NewReader("1\ta\n2\tb\n") })
		defer mysql.DeregisterReaderHandler("counted")
		other := newRig(t, server)
		g := newRig(t, server, outboxDDL, "CREATE TABLE source (id INT PRIMARY KEY, name TEXT)", "INSERT INTO source VALUES (1, 's')", "SET GLOBAL local_infile = 1",
			"CREATE PROCEDURE announce(n INT) BEGIN INSERT INTO outbox (id, payload) VALUES (n, 'by call'); END")
		g.config.Unseen = g.countUnseen
		tl := g.tail("now")
		for _, c := range cases {
			g.exec("DELETE FROM outbox")
			statements := []string{"SET SESSION binlog_format = STATEMENT"}
			for _, statement := range c.statements {
				statements = append(statements, strings.Replace(statement, "%s", other.schema, 1))
			}
			before := g.unseen["outbox "+unseenStatement]
			g.session(statements...)
			wantStrings(t, c.name, withoutReason(g.flush(tl)), append([]string{}, c.want...))
			if n := g.unseen["outbox "+unseenStatement] - before; n != c.unseen {
				t.Errorf("%s: %d statements counted, want %d", c.name, n, c.unseen)
			}
		}
	})
}

// In the MIXED format rows and statements stand in one transaction: rows that a
// statement may have changed after their insertion are read by key.
func TestMixedFormat(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		g.config.Unseen = g.countUnseen
		tl := g.tail("now")
		g.session("SET SESSION binlog_format = MIXED", "BEGIN", "INSERT INTO outbox (id, payload) VALUES (1, UUID()), (2, UUID())",
			"UPDATE outbox SET payload = 'changed' WHERE id = 1", "COMMIT")
		wantStrings(t, "events", forms(g.flush(tl)), []string{"1=(image)", "2=(image)"})
		g.session("SET SESSION binlog_format = MIXED", "BEGIN", "INSERT INTO outbox (id, payload) VALUES (30, UUID())", "DELETE FROM outbox WHERE id = 30",
			"INSERT INTO outbox (id, payload) VALUES (40, 'unseen')", "COMMIT")
		wantStrings(t, "events", forms(g.flush(tl)), []string{"30=(image)"}) // by key it is absent
		if n := g.unseen["outbox "+unseenStatement]; n != 1 {
			t.Errorf("%d statements counted, want 1", n)
		}
	})
}

// prepare prepares an XA transaction on a connection of its own.
func (g *rig) prepare(id string, statements ...string) {
	g.t.Helper()
	name := "'" + id + "'"
	g.session(append(append([]string{"XA START " + name}, statements...), "XA END "+name, "XA PREPARE "+name)...)
}

// An XA transaction is decided minutes, other transactions, a restart of the server and
// one of the reader later, by another session. Where the position waited for it the
// rows come in their last form or by key; else they are the sweep's.
func TestXADecidedAfterRestarts(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...string) *testservers.DB{"mysql": testservers.MySQL, "mysql-files": testservers.MySQLNoGTID, "mariadb": testservers.MariaDB} {
		t.Run(name, func(t *testing.T) {
			server := start(t)
			g := newRig(t, server)
			g.config.HoldPrepared = true
			tl := g.tail("now")
			g.prepare("kept", "INSERT INTO outbox (id, payload) VALUES (1, 'a'), (2, 'b'), (3, 'no')", "UPDATE outbox SET payload = 'c' WHERE id = 1", "DELETE FROM outbox WHERE id = 3", "UPDATE outbox SET id = 20 WHERE id = 2")
			g.prepare("gone", "INSERT INTO outbox (id, payload) VALUES (50, 'no')")
			g.exec("INSERT INTO outbox (id, payload) VALUES (100, 'other')")
			wantStrings(t, "before the decision", forms(g.flush(tl)), []string{"100=other"})
			saved := tl.reader.Encode(tl.lastEnd())
			tl.stop()
			server.Stop(t)
			server.Start(t)
			for _, decide := range []string{"XA COMMIT 'kept'", "XA ROLLBACK 'gone'"} {
				if err := g.retry(decide); err != nil {
					t.Fatal(err)
				}
			}
			again := runTail(t, g.reader(), saved)
			got := forms(g.flush(again))
			got = slices.DeleteFunc(got, func(s string) bool { return strings.Contains(s, "other") || strings.Contains(s, "mark") })
			wantStrings(t, "after the decision", got, []string{"1=(xa)", "20=(xa)"})
			if n := len(again.reader.parked); n != 0 {
				t.Errorf("%d transactions are still parked", n)
			}
			testTornTransaction(t, server)
		})
	}
}

// retry is for a pool with connections from before a restart.
func (g *rig) retry(statement string) (err error) {
	for range 20 {
		if _, err = g.db.ExecContext(g.t.Context(), statement); err == nil || errorNumber(err) != 0 {
			return err
		}
	}
	return err
}

// lastEnd is the newest position that may be saved.
func (tl *tail) lastEnd() (end outbox.Position) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	for _, b := range tl.batches {
		if !b.End.IsZero() {
			end = b.End
		}
	}
	return end
}

// A server is killed while transactions are being written. What the log holds of those
// that did not commit is not emitted, and everything that the table holds is, once.
func testTornTransaction(t *testing.T, server *testservers.DB) {
	g := newRig(t, server)
	tl := g.tail("now")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	writing := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			query := fmt.Sprintf("INSERT INTO outbox (payload) VALUES (REPEAT('%d', 200000)), ('%d'), (REPEAT('x', 300000))", i%10, i)
			if _, err := g.db.ExecContext(ctx, query); err != nil {
				return
			}
			select {
			case writing <- struct{}{}:
			default:
			}
		}
	}()
	for range 5 {
		<-writing
	}
	server.Kill(t)
	<-done
	server.Start(t)
	var want []string
	g.retry("DO 1") //nolint:errcheck // it only drops connections from before
	rows, err := g.db.QueryContext(t.Context(), "SELECT id FROM outbox ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	wantStrings(t, "ids after a crash", ids(g.flush(tl)), want)
}
