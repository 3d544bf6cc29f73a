package binlog

import (
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// Whatever image a session chooses: an event is whole, in its last form, or says that
// its row must be read by key.
func TestRowImages(t *testing.T) {
	cases := []struct {
		name, image, flavor string
		statements          []string
		want                []string
	}{
		{"all but a blob", "NOBLOB", "", []string{"INSERT INTO outbox (id, event_type, payload) VALUES (1, 'e', 'p')"}, []string{"1=p"}},
		{"the blob left out", "NOBLOB", "", []string{"INSERT INTO outbox (id, event_type) VALUES (1, 'e')"}, []string{"1=(image)"}},
		{"a blob that does not matter left out", "NOBLOB", "", []string{"INSERT INTO outbox (id, payload) VALUES (1, 'p')", "INSERT INTO outbox (id, payload, note) VALUES (2, 'q', 'n')"}, []string{"1=p", "2=q"}},
		{"another column changed", "NOBLOB", "", []string{"BEGIN", "INSERT INTO outbox (id, payload) VALUES (1, 'p')", "UPDATE outbox SET event_type = 'e'", "COMMIT"}, []string{"1=(image)"}},
		{"the blob changed", "NOBLOB", "", []string{"BEGIN", "INSERT INTO outbox (id, payload) VALUES (1, 'p')", "UPDATE outbox SET payload = 'q'", "COMMIT"}, []string{"1=q"}},
		{"changed without repeating", "FULL_NODUP", testservers.FlavorMariaDB, []string{"BEGIN", "INSERT INTO outbox (id, payload) VALUES (1, 'p'), (2, 'p'), (3, 'p')",
			"UPDATE outbox SET payload = 'q' WHERE id = 1", "UPDATE outbox SET note = 'n' WHERE id = 2", "UPDATE outbox SET id = 30 WHERE id = 3", "COMMIT"}, []string{"1=(image)", "2=p", "30=p"}},
	}
	for name, shared := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mysql-files": testservers.SharedMySQLNoGTID, "mariadb": testservers.SharedMariaDB} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, shared(t), outboxDDL, "ALTER TABLE outbox ADD COLUMN note TEXT")
			g.watch("outbox")
			tl := g.tail("now")
			for _, c := range cases {
				if c.flavor != "" && c.flavor != g.server.Flavor() {
					continue
				}
				g.exec("DELETE FROM outbox")
				g.session(append([]string{"SET SESSION binlog_row_image = " + c.image}, c.statements...)...)
				wantStrings(t, c.name, forms(g.flush(tl)), c.want)
			}
		})
	}
}

// A server that folds names to lower case takes the table by any of its spellings, and a
// statement that alters it by any too; the table of another schema is not ours.
func TestNamesInLowerCase(t *testing.T) {
	g := newRig(t, testservers.MariaDB(t, "--lower-case-table-names=1"))
	other := newRig(t, g.server)
	tl := g.tail("now")
	other.exec("INSERT INTO outbox (payload) VALUES ('not ours')", "ALTER TABLE outbox ADD COLUMN x INT FIRST")
	g.exec("INSERT INTO OUTBOX (aggregate_id, event_type, payload) VALUES ('a', 'e', '1')",
		"ALTER TABLE "+strings.ToUpper(g.schema)+".OutBox MODIFY COLUMN aggregate_id VARCHAR(64) AFTER event_type",
		"INSERT INTO OutBox (aggregate_id, event_type, payload) VALUES ('a', 'e', '2')")
	g.flushBatches(tl)
	g.exec("INSERT INTO outbox (aggregate_id, event_type, payload) VALUES ('a', 'e', '3')")
	got := g.flush(tl)
	if len(got) != 1 || got[0].Unread != "" || got[0].AggregateID != "a" || got[0].Type != "e" {
		t.Errorf("events %q, want the third as it was inserted", forms(got))
	}
	wantStrings(t, "all", ids(eventsOf(tl.await("all", func([]outbox.Batch) bool { return true }))), []string{"1", "2", "3", "4", "5"})
}
