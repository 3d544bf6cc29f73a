package binlog

import (
	"fmt"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// How transactions end, with engines that know none among their tables, and what of
// their rows is an event.
func TestTransactionEnds(t *testing.T) {
	const insert, draft = "INSERT INTO outbox (id, payload) VALUES ", "INSERT INTO outbox (id, payload, status) VALUES "
	cases := []struct {
		name       string
		mixes      bool // engines within one transaction, which MySQL with GTIDs refuses
		statements []string
		want       []string // id? is an event to be read by key
	}{
		{"rolled back engine", false, []string{"BEGIN", insert + "(1, 'no')", "INSERT INTO other VALUES (1)", "ROLLBACK"}, nil},
		{"engine without transactions", false, []string{"INSERT INTO myisam VALUES (1)", insert + "(1, 'a')", "INSERT INTO myisam VALUES (2)"}, []string{"1=a"}},
		{"other engine in between", true, []string{"BEGIN", insert + "(1, 'a')", "INSERT INTO myisam VALUES (3)", insert + "(2, 'b')", "COMMIT"}, []string{"1=a", "2=b"}},
		{"other engine, rolled back", true, []string{"BEGIN", insert + "(1, 'no')", "INSERT INTO myisam VALUES (4)", insert + "(2, 'no')", "ROLLBACK"}, nil},
		{"other engine by trigger, rolled back", true, []string{"BEGIN", insert + "(1, 'no')", "INSERT INTO tee VALUES (5)", "ROLLBACK", insert + "(2, 'b')"}, []string{"2=b"}},
		{"other engine, partly rolled back", true, []string{"BEGIN", insert + "(1, 'a')", "SAVEPOINT s", insert + "(2, 'no')", "INSERT INTO myisam VALUES (6)", "ROLLBACK TO s", insert + "(3, 'c')", "COMMIT"}, []string{"1=a", "3=c"}},
		{"outbox without transactions", true, []string{"BEGIN", "INSERT INTO other VALUES (2)", "INSERT INTO plain (id, payload) VALUES (1, 'stays')", "ROLLBACK"}, []string{"1=stays"}},
		{"nested savepoints", false, []string{"BEGIN", insert + "(1, 'a')", "SAVEPOINT s", insert + "(2, 'no')", "SAVEPOINT u", insert + "(3, 'no')", "ROLLBACK TO u", insert + "(4, 'no')",
			"ROLLBACK TO s", insert + "(5, 'e')", "RELEASE SAVEPOINT s", insert + "(6, 'f')", "COMMIT"}, []string{"1=a", "5=e", "6=f"}},
		{"rolled back update", false, []string{"BEGIN", insert + "(1, 'a')", "SAVEPOINT s", "UPDATE outbox SET payload = 'no'", "ROLLBACK TO s", "COMMIT"}, []string{"1=a"}},
		{"updated twice", false, []string{"BEGIN", insert + "(1, 'a'), (2, 'b')", "UPDATE outbox SET payload = CONCAT(payload, '1')", "UPDATE outbox SET payload = CONCAT(payload, '2') WHERE id = 1", "COMMIT"}, []string{"1=a12", "2=b1"}},
		{"key changed", false, []string{"BEGIN", insert + "(1, 'a'), (2, 'b')", "UPDATE outbox SET id = id + 10 ORDER BY id DESC", "COMMIT"}, []string{"11=a", "12=b"}},
		{"keys exchanged", false, []string{"BEGIN", insert + "(1, 'a'), (2, 'b')", "UPDATE outbox SET id = 3 WHERE id = 1", "UPDATE outbox SET id = 1 WHERE id = 2", "UPDATE outbox SET id = 2 WHERE id = 3", "COMMIT"}, []string{"2=a", "1=b"}},
		{"deleted and inserted again", false, []string{"BEGIN", insert + "(1, 'no')", "DELETE FROM outbox", insert + "(1, 'a')", "UPDATE outbox SET payload = 'b'", "COMMIT"}, []string{"1=b"}},
		{"key taken by another", false, []string{"BEGIN", insert + "(1, 'a')", "UPDATE outbox SET id = 2", insert + "(1, 'b')", "DELETE FROM outbox WHERE id = 2", "COMMIT"}, []string{"1=b"}},
		{"draft", false, []string{draft + "(1, 'no', 'DRAFT'), (2, 'b', 'PENDING')", "UPDATE outbox SET status = 'PENDING' WHERE id = 1"}, []string{"2=b"}},
		{"draft made pending at once", false, []string{"BEGIN", draft + "(1, 'a', 'DRAFT'), (2, 'no', 'DRAFT')", "UPDATE outbox SET status = 'PENDING' WHERE id = 1", "COMMIT"}, []string{"1=a"}},
		{"pending made draft and pending", false, []string{"BEGIN", insert + "(1, 'a')", "UPDATE outbox SET status = 'DRAFT'", "UPDATE outbox SET status = 'PENDING', payload = 'b'", "COMMIT"}, []string{"1=b"}},
		{"implicit commit", false, []string{"BEGIN", insert + "(1, 'a')", "CREATE TABLE implicit (a INT)", "ROLLBACK"}, []string{"1=a"}},
		{"nothing but a savepoint", false, []string{"BEGIN", "SAVEPOINT s", insert + "(1, 'no')", "ROLLBACK TO s", "COMMIT", insert + "(2, 'b')"}, []string{"2=b"}},
		{"outbox made and filled", false, []string{"DROP TABLE plain", "CREATE TABLE plain (PRIMARY KEY (id)) SELECT 9 AS id, 'made' AS payload, 'PENDING' AS status, 'x' AS event_type"}, []string{"9=made"}},
	}
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, outboxDDL, "CREATE TABLE other (a INT PRIMARY KEY)", "CREATE TABLE myisam (a INT PRIMARY KEY) ENGINE=MyISAM", "CREATE TABLE tee (a INT PRIMARY KEY)",
			"CREATE TRIGGER t AFTER INSERT ON tee FOR EACH ROW INSERT INTO myisam VALUES (NEW.a + 100)",
			"CREATE TABLE plain (id INT PRIMARY KEY, payload TEXT, status VARCHAR(20) DEFAULT 'PENDING') ENGINE=MyISAM")
		g.watch("outbox", "plain")
		tl := g.tail("now")
		for _, c := range cases {
			if c.mixes && server == testservers.SharedMySQL(t) {
				continue
			}
			g.exec("DELETE FROM outbox")
			g.session(c.statements...)
			want := c.want
			if c.name == "other engine, partly rolled back" && server.Flavor() == testservers.FlavorMariaDB {
				want = []string{"1?", "2?", "3=c"} // it writes what was rolled back, and ROLLBACK TO
			}
			wantStrings(t, c.name, withoutReason(g.flush(tl)), append([]string{}, want...))
		}
	})
}

// withoutReason prints id=payload, and id? of events of which the key only is known.
func withoutReason(events []*outbox.Event) []string {
	out := []string{}
	for _, e := range events {
		if e.Unread != "" && e.Payload == nil {
			out = append(out, e.ID+"?")
			continue
		}
		out = append(out, fmt.Sprintf("%s=%s", e.ID, e.Payload))
	}
	return out
}
