package binlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// forms prints events as id=payload, with the reason of those to be read by key
// and a star for those whose row is gone.
func forms(events []*outbox.Event) []string {
	out := []string{}
	for _, e := range events {
		s := e.ID + "=" + string(e.Payload)
		if e.Unread != "" {
			s += "(" + e.Unread + ")"
		}
		if e.Deleted {
			s += "*"
		}
		out = append(out, s)
	}
	return out
}

// With a minimal row image an event is complete, or says that it must be read by
// key; a column that is not there is never taken for NULL.
func TestMinimalRowImage(t *testing.T) {
	const full = "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, status, attempts, created_at) VALUES "
	cases := []struct {
		name       string
		statements []string
		want       []string
	}{
		{"all columns", []string{full + "(1,'t','a','e','p','PENDING',0,NOW())"}, []string{"1=p"}},
		{"defaults omitted", []string{"INSERT INTO outbox (id, payload) VALUES (1, 'p')"}, []string{"1=(image)"}},
		{"known not to be pending", []string{"INSERT INTO outbox (id, status) VALUES (1, 'SENT')"}, nil},
		{"update of nothing that matters", []string{"BEGIN", full + "(1,'t','a','e','p','PENDING',0,NOW())", "UPDATE outbox SET note = 'x'", "COMMIT"}, []string{"1=p"}},
		{"update of the payload", []string{"BEGIN", full + "(1,'t','a','e','p','PENDING',0,NOW())", "UPDATE outbox SET payload = 'q'", "COMMIT"}, []string{"1=(image)"}},
		{"sent in the end", []string{"BEGIN", full + "(1,'t','a','e','p','PENDING',0,NOW())", "UPDATE outbox SET status = 'SENT'", "COMMIT"}, nil},
		{"pending in the end", []string{"BEGIN", full + "(1,'t','a','e','p','DRAFT',0,NOW())", "UPDATE outbox SET status = 'PENDING'", "COMMIT"}, []string{"1=(image)"}},
		{"draft changed", []string{"BEGIN", full + "(1,'t','a','e','p','DRAFT',0,NOW())", "UPDATE outbox SET payload = 'q'", "COMMIT"}, nil},
		{"renumbered", []string{"BEGIN", full + "(1,'t','a','e','p','PENDING',0,NOW())", "UPDATE outbox SET id = 5", "UPDATE outbox SET payload = 'q' WHERE id = 5", "COMMIT"}, []string{"5=(image)"}},
		{"deleted", []string{"BEGIN", full + "(1,'t','a','e','p','PENDING',0,NOW()), (2,'t','a','e','p','PENDING',0,NOW())", "DELETE FROM outbox WHERE id = 1", "COMMIT"}, []string{"2=p"}},
	}
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, outboxDDL, "ALTER TABLE outbox ADD COLUMN note TEXT")
		g.watch("outbox")
		tl := g.tail("now")
		for _, c := range cases {
			g.exec("DELETE FROM outbox")
			g.session(append([]string{"SET SESSION binlog_row_image = MINIMAL"}, c.statements...)...)
			wantStrings(t, c.name, forms(g.flush(tl)), append([]string{}, c.want...))
		}
	})
}

// A table without a status is used by inserting and deleting at once: the event
// goes out, marked as one whose row is gone.
func TestInsertAndDeleteWithoutStatus(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, outboxDDL, "CREATE TABLE events (id BINARY(4) PRIMARY KEY, aggregatetype VARCHAR(20), aggregateid VARCHAR(20), type VARCHAR(20), payload JSON)")
		g.watch("outbox", "events")
		tl := g.tail("now")
		g.session("BEGIN", "INSERT INTO events VALUES (x'01020300','t','a','e','[1]'), (x'01','t','a','e','[2]')", "DELETE FROM events WHERE id = x'01020300'",
			"INSERT INTO events VALUES (x'01020300','t','a','e','[3]')", "UPDATE events SET payload = '[4]' WHERE id = x'01020300'", "COMMIT")
		wantStrings(t, "events", forms(g.flush(tl)), []string{"01020300=[1]*", "01000000=[2]", "01020300=[4]"})
	})
}

// JSON columns may be logged as a difference only; the row is then read by key.
func TestPartialJSONUpdate(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t), "CREATE TABLE outbox (id INT PRIMARY KEY AUTO_INCREMENT, extra JSON, event_type VARCHAR(20), payload JSON, status VARCHAR(10) DEFAULT 'PENDING')",
		"CREATE TABLE marks (id INT PRIMARY KEY AUTO_INCREMENT, event_type VARCHAR(20), payload VARCHAR(20))")
	tl := g.tail("now")
	g.session("SET SESSION binlog_row_value_options = PARTIAL_JSON", "BEGIN",
		`INSERT INTO outbox (payload, extra) VALUES ('{"a": 1, "b": "xxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', '{"a": 1}'), ('{"a": 1}', '{"a": 1, "b": "xxxxxxxxxxxxxxxxxxxxxxxxxxx"}')`,
		"UPDATE outbox SET payload = JSON_SET(payload, '$.a', 2) WHERE id = 1", "UPDATE outbox SET extra = JSON_SET(extra, '$.a', 2) WHERE id = 2", "COMMIT",
		"INSERT INTO outbox (payload) VALUES ('3')")
	batches := tl.await("both transactions", func(bs []outbox.Batch) bool { return len(eventsOf(bs)) == 3 })
	wantStrings(t, "events", forms(eventsOf(batches)), []string{"1=(image)", "2=(image)", "3=3"})
}

// A reader that lags behind an ALTER reads the old rows by the names in the binlog;
// without names it reads no more than the key, and that only where the sweep would
// mend a mistake.
func TestLagBehindAlter(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		for _, c := range []struct {
			metadata, alter string
			want            []string
		}{
			{"FULL", "ADD COLUMN first INT FIRST", []string{"1=p"}},
			{"FULL", "DROP COLUMN aggregate_id", []string{"1=p"}},
			{"FULL", "ADD COLUMN headers JSON", []string{"1=(layout)"}},
			{"FULL", "MODIFY COLUMN payload BLOB", []string{"1=(layout)"}},
			{defaultMetadata(server), "ADD COLUMN more INT", []string{"1=(layout)"}},
			{defaultMetadata(server), "MODIFY COLUMN event_type VARCHAR(99)", []string{"1=(layout)"}},
		} {
			t.Run(c.metadata+" "+c.alter, func(t *testing.T) {
				g := newRig(t, server, outboxDDL, "SET GLOBAL binlog_row_metadata = "+c.metadata)
				defer g.exec("SET GLOBAL binlog_row_metadata = " + defaultMetadata(server))
				r := g.reader()
				from := g.resolve(r, "now")
				g.exec("INSERT INTO outbox (payload) VALUES ('p')", "ALTER TABLE outbox "+c.alter)
				g.watch("outbox") // a new process sees only the present table
				tl := runTail(t, g.reader(), from)
				wantStrings(t, "events", forms(g.flush(tl)), c.want)
			})
		}
	})
}

// Where nothing tells which column is the id, the reader stops and says what to do.
func TestUnknownLayoutWithoutStatusStops(t *testing.T) {
	g := newRig(t, testservers.SharedMySQL(t), "CREATE TABLE outbox (id CHAR(36) PRIMARY KEY, payload TEXT)")
	r := g.reader()
	from := g.resolve(r, "now")
	g.exec("INSERT INTO outbox VALUES ('1', 'p')", "ALTER TABLE outbox ADD COLUMN x CHAR(36) FIRST")
	g.watch("outbox")
	err := g.reader().Run(t.Context(), from, func(_ context.Context, b outbox.Batch) error {
		if len(b.Events) > 0 {
			return fmt.Errorf("emitted %s", forms(b.Events))
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "binlog_row_metadata=FULL") {
		t.Errorf("Run returned %v", err)
	}
}

// Columns of one type that change places leave no trace in a TABLE_MAP without
// names; the statement does, and the layout is read again.
func TestColumnsChangePlaces(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		tl := g.tail("now")
		g.exec("INSERT INTO outbox (aggregate_id, event_type, payload) VALUES ('a', 'e', '1')",
			"ALTER TABLE outbox MODIFY COLUMN aggregate_id VARCHAR(64) AFTER event_type",
			"INSERT INTO outbox (aggregate_id, event_type, payload) VALUES ('a', 'e', '2')")
		for _, e := range g.flush(tl) {
			if e.AggregateID != "a" || e.Type != "e" {
				t.Errorf("event %s: aggregate id %q, type %q", e.Payload, e.AggregateID, e.Type)
			}
		}
	})
}

// An engine without transactions ends its groups with COMMIT instead of an XID.
func TestMyISAM(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, outboxDDL, "ALTER TABLE outbox ENGINE = MyISAM")
		tl := g.tail("now")
		g.exec("INSERT INTO outbox (payload) VALUES ('1'), ('2')", "INSERT INTO outbox (payload) VALUES ('3')")
		wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"1", "2", "3"})
	})
}

// Rows written in statement format are not in the binlog. That is a gap, not
// silence.
func TestStatementFormatIsAGap(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		tl := g.tail("now")
		g.session("SET SESSION binlog_format = STATEMENT", "UPDATE outbox SET payload = 'x' WHERE id = 9")
		g.flush(tl)
		g.session("SET SESSION binlog_format = STATEMENT", "INSERT INTO outbox (id, payload) VALUES (500, 'lost')")
		<-tl.done
		if !errors.Is(tl.err, ErrGap) || !strings.Contains(tl.err.Error(), "STATEMENT") {
			t.Errorf("Run returned %v", tl.err)
		}
	})
}

// Parts of a table's rows that come by several tables in one statement, and a
// trigger that writes the outbox.
func TestTriggerWritesOutbox(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server, outboxDDL, "CREATE TABLE orders (id INT PRIMARY KEY)",
			"CREATE TRIGGER announce AFTER INSERT ON orders FOR EACH ROW INSERT INTO outbox (aggregate_id, payload) VALUES (NEW.id, CONCAT('order ', NEW.id))")
		tl := g.tail("now")
		g.exec("INSERT INTO orders VALUES (1), (2)")
		wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"order 1", "order 2"})
	})
}
