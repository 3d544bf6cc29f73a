package binlog

import (
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestStatements(t *testing.T) {
	const insert = "INSERT INTO outbox (event_type, payload) VALUES "
	cases := []struct {
		name       string
		statements []string
		want       []string // payloads in order
	}{
		{"single", []string{insert + "('a', 'one')"}, []string{"one"}},
		{"many rows", []string{insert + "('a', '1'), ('a', '2'), ('a', '3')"}, []string{"1", "2", "3"}},
		{"transaction", []string{"BEGIN", insert + "('a', '1')", "INSERT INTO other VALUES (1, 'x')", insert + "('a', '2')", "COMMIT"}, []string{"1", "2"}},
		{"rollback", []string{"BEGIN", insert + "('a', '1')", "ROLLBACK", insert + "('a', '2')"}, []string{"2"}},
		{"savepoint", []string{"BEGIN", insert + "('a', '1')", "SAVEPOINT s", insert + "('a', '2')", "ROLLBACK TO s", insert + "('a', '3')", "COMMIT"}, []string{"1", "3"}},
		{"ddl", []string{insert + "('a', '1')", "CREATE TABLE third (a INT)", insert + "('a', '2')", "DROP TABLE third"}, []string{"1", "2"}},
		{"own ddl", []string{insert + "('a', '1')", "ALTER TABLE outbox ADD COLUMN extra INT AFTER id", insert + "('a', '2')"}, []string{"1", "2"}},
		{"not pending", []string{"INSERT INTO outbox (payload, status) VALUES ('old', 'SENT'), ('new', 'PENDING')"}, []string{"new"}},
		{"update later", []string{insert + "('a', '1')", "UPDATE outbox SET payload = 'changed'"}, []string{"1"}},
		{"delete later", []string{insert + "('a', '1')", "DELETE FROM outbox"}, []string{"1"}},
		{"updated at once", []string{"BEGIN", insert + "('a', '1'), ('a', '2')", "UPDATE outbox SET payload = 'changed' WHERE payload = '1'", "COMMIT"}, []string{"changed", "2"}},
		{"sent at once", []string{"BEGIN", insert + "('a', '1'), ('a', '2')", "UPDATE outbox SET status = 'SENT' WHERE payload = '1'", "COMMIT"}, []string{"2"}},
		{"pending at once", []string{"BEGIN", "INSERT INTO outbox (payload, status) VALUES ('draft', 'DRAFT')", "UPDATE outbox SET status = 'PENDING'", "COMMIT"}, []string{"draft"}},
		{"deleted at once", []string{"BEGIN", insert + "('a', '1'), ('a', '2')", "DELETE FROM outbox WHERE payload = '1'", "COMMIT"}, []string{"2"}},
		{"renumbered at once", []string{"BEGIN", insert + "('a', '1')", "UPDATE outbox SET id = id + 1000", "UPDATE outbox SET payload = 'x'", "COMMIT"}, []string{"x"}},
		{"replace new", []string{"REPLACE INTO outbox (payload) VALUES ('r')"}, []string{"r"}},
		{"replace own", []string{"BEGIN", "REPLACE INTO outbox (id, payload) VALUES (7, 'first')", "REPLACE INTO outbox (id, payload) VALUES (7, 'second')", "COMMIT"}, []string{"second"}},
		{"ctas", []string{insert + "('a', '1')", "CREATE TABLE copy SELECT * FROM outbox", insert + "('a', '2')"}, []string{"1", "2"}},
		{"xa one phase", []string{"XA START 'g'", insert + "('a', '1')", "XA END 'g'", "XA COMMIT 'g' ONE PHASE"}, []string{"1"}},
		{"xa rolled back", []string{"XA START 'g'", insert + "('a', '1')", "XA END 'g'", "XA PREPARE 'g'", "XA ROLLBACK 'g'", insert + "('a', '2')"}, []string{"2"}},
		{"online ddl by rename", []string{"CREATE TABLE _outbox_gho LIKE outbox", "ALTER TABLE _outbox_gho ADD COLUMN second INT AFTER id",
			insert + "('a', '1')", "INSERT INTO _outbox_gho (id, payload) SELECT id, payload FROM outbox",
			"RENAME TABLE outbox TO _outbox_del, _outbox_gho TO outbox", insert + "('a', '2')"}, []string{"1", "2"}},
		{"same table elsewhere", []string{"CREATE TABLE outbox2 LIKE outbox", "INSERT INTO outbox2 (payload) VALUES ('no')"}, []string{}},
	}
	flavours(t, func(t *testing.T, server *testservers.DB) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				g := newRig(t, server, outboxDDL, "CREATE TABLE other (a INT PRIMARY KEY, b TEXT)")
				tl := g.tail("now")
				g.session(c.statements...)
				wantStrings(t, "payloads", payloads(g.flush(tl)), c.want)
			})
		}
	})
}
