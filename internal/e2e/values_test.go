package e2e

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// valueServers runs a test against each kind of source, with the metadata about
// columns that tells most and with what the server writes by itself.
func valueServers(t *testing.T, test func(t *testing.T, s *testservers.DB)) {
	for _, kind := range []struct {
		name     string
		shared   func(testing.TB) *testservers.DB
		metadata string
	}{
		{"mysql", testservers.SharedMySQL, "FULL"},
		{"mysql-files", testservers.SharedMySQLNoGTID, "MINIMAL"},
		{"mariadb", testservers.SharedMariaDB, "FULL"},
		{"mariadb-plain", testservers.SharedMariaDB, "NO_LOG"},
	} {
		t.Run(kind.name, func(t *testing.T) {
			s := kind.shared(t)
			before := "MINIMAL"
			if s.Flavor() == testservers.FlavorMariaDB {
				before = "NO_LOG"
			}
			s.Exec(t, "", "SET GLOBAL binlog_row_metadata = "+kind.metadata)
			defer s.Exec(t, "", "SET GLOBAL binlog_row_metadata = "+before)
			test(t, s)
		})
	}
}

// bothWays is a set of tables, and the two ways to read events from them.
type bothWays struct {
	t       *testing.T
	server  *testservers.DB
	schema  string
	db      *sql.DB // of the ledger
	zone    *time.Location
	layouts []*outbox.Layout
	inserts []string
}

func newBothWays(t *testing.T, server *testservers.DB) *bothWays {
	t.Helper()
	zone, err := time.LoadLocation("America/St_Johns") // half an hour off, with summer time
	if err != nil {
		t.Fatal(err)
	}
	w := &bothWays{t: t, server: server, schema: server.Schema(t), zone: zone}
	w.db, err = mysqlconn.Open(server.DSN(w.schema), mysqlconn.Options{Zone: zone})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.db.Close(); err != nil {
			t.Error(err)
		}
	})
	w.table("mark", "id BIGINT PRIMARY KEY, payload INT")
	return w
}

func (w *bothWays) table(name, columns string) {
	w.t.Helper()
	s := "SET SESSION sql_mode = ''"
	w.session(s, "CREATE TABLE "+name+" ("+columns+") CHARACTER SET utf8mb4")
	l, err := outbox.ReadTable(w.t.Context(), w.db, outbox.Table{Schema: w.schema, Name: name}, outbox.Options{Zone: w.zone})
	if err != nil {
		w.t.Fatal(err)
	}
	w.layouts = append(w.layouts, l)
}

// session runs statements on a connection of their own, as an application does.
func (w *bothWays) session(statements ...string) {
	w.t.Helper()
	c, err := w.server.Open(w.t, w.schema).Conn(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		_ = c.Raw(func(any) error { return driver.ErrBadConn })
		_ = c.Close() // reports that very error
	}()
	for _, s := range statements {
		if _, err := c.ExecContext(w.t.Context(), s); err != nil {
			w.t.Fatalf("%.300s: %v", s, err)
		}
	}
}

// insert notes a row to be inserted.
func (w *bothWays) insert(table string, values ...string) {
	w.inserts = append(w.inserts, "INSERT IGNORE INTO "+table+" VALUES ("+strings.Join(values, ", ")+")")
}

// compare inserts the rows, reads them from the binlog and by key, and wants equal
// events, none of which the binlog left open.
func (w *bothWays) compare() []*outbox.Event {
	w.t.Helper()
	tailed := w.tailed()
	if rows := w.count(); len(tailed) != rows {
		w.t.Errorf("%d events of %d rows", len(tailed), rows)
	}
	keyed := w.keyed(tailed)
	bad := 0
	for _, e := range tailed {
		if want := keyed[e.Key()]; !reflect.DeepEqual(e, want) {
			if bad++; bad <= 20 {
				w.t.Errorf("%s %s:\nbinlog %s\nledger %s", e.Table.Name, e.ID, shown(e), shown(want))
			}
		}
	}
	if bad > 20 {
		w.t.Errorf("and %d more", bad-20)
	}
	return tailed
}

// count is the number of rows but for the mark.
func (w *bothWays) count() int {
	w.t.Helper()
	total := 0
	for _, l := range w.layouts[1:] {
		var n int
		if err := w.db.QueryRowContext(w.t.Context(), "SELECT COUNT(*) FROM "+l.Table.Name).Scan(&n); err != nil {
			w.t.Fatal(err)
		}
		total += n
	}
	return total
}

func shown(e *outbox.Event) string {
	if e == nil {
		return "nothing"
	}
	s := fmt.Sprintf("%q", []any{e.Unread, string(e.Payload), e.Payload == nil, e.AggregateType, e.AggregateID, e.Type, e.Topic, e.Tag, e.Headers, e.HeadersErr, e.CreatedAt.String(), fmt.Sprint(e.Attempts)})
	if len(s) > 700 {
		s = s[:350] + "..." + s[len(s)-350:]
	}
	return s
}

// tailed inserts the rows and returns what the reader makes of them.
func (w *bothWays) tailed() []*outbox.Event {
	w.t.Helper()
	dsn, err := mysql.ParseDSN(w.server.DSN(""))
	if err != nil {
		w.t.Fatal(err)
	}
	config := binlog.Config{DSN: dsn, ServerID: serverID(w.schema), Layouts: map[outbox.Table]*outbox.Layout{}, Logger: zerolog.Nop()}
	for _, l := range w.layouts {
		config.Layouts[l.Table] = l
	}
	reader, err := binlog.New(config)
	if err != nil {
		w.t.Fatal(err)
	}
	from, err := reader.Resolve(w.t.Context(), "now")
	if err != nil {
		w.t.Fatal(err)
	}
	w.session(append([]string{"SET SESSION sql_mode = '', time_zone = '+00:00'", "SET NAMES utf8mb4", "BEGIN"},
		append(w.inserts, "COMMIT", "INSERT INTO mark VALUES (1, 1)")...)...)
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	var events []*outbox.Event
	end := errors.New("the mark")
	err = reader.Run(ctx, from, func(_ context.Context, b outbox.Batch) error {
		for _, e := range b.Events {
			if e.Table.Name == "mark" {
				return end
			}
			events = append(events, e)
		}
		return nil
	})
	if !errors.Is(err, end) {
		w.t.Fatalf("reading the binlog: %v", err)
	}
	return events
}

func serverID(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum32() | 1<<31
}

// keyed reads the rows of the events by key.
func (w *bothWays) keyed(events []*outbox.Event) map[outbox.Key]*outbox.Event {
	w.t.Helper()
	l := ledger.New(w.db, w.layouts, ledger.Options{Logger: zerolog.Nop()})
	ids := map[outbox.Table][]string{}
	for _, e := range events {
		ids[e.Table] = append(ids[e.Table], e.ID)
	}
	found := map[outbox.Key]*outbox.Event{}
	for table, list := range ids {
		rows, _, err := l.Load(w.t.Context(), table, list)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, e := range rows {
			found[e.Key()] = e
		}
	}
	return found
}

// roleColumns are the roles that a column of any type may play.
var roleColumns = []string{"aggregate_type", "aggregate_id", "event_type", "payload", "attempts", "created_at", "headers", "topic", "tag"}

// A row has the same event whether it comes from the binlog or by key, whatever
// the types of its columns.
func TestBothPathsReadTheSameEvents(t *testing.T) {
	turn := 0 // each server sees the types in other roles
	valueServers(t, func(t *testing.T, s *testservers.DB) {
		w := newBothWays(t, s)
		turn++
		var types []valueType
		for _, v := range valueTypes(rand.New(rand.NewPCG(4, 4))) {
			if v.only == "" || v.only == s.Flavor() {
				types = append(types, v)
			}
		}
		w.tablesOf(types, turn)
		for i, v := range types {
			if v.key {
				w.keyTable(fmt.Sprintf("k%d", i), v)
			}
		}
		w.compare()
	})
}

// tablesOf makes tables whose columns have the types, each in one role. A row takes
// one literal of each.
func (w *bothWays) tablesOf(types []valueType, turn int) {
	w.t.Helper()
	for n := 0; len(types) > 0; n++ {
		some := types[:min(len(types), len(roleColumns))]
		types = types[len(some):]
		columns, rows := []string{"id BIGINT PRIMARY KEY"}, 0
		for i, v := range some {
			columns = append(columns, roleColumns[(i+turn)%len(roleColumns)]+" "+v.column+" NULL")
			rows = max(rows, len(v.literals))
		}
		if !strings.Contains(strings.Join(columns, ","), "payload") {
			columns[1] = "payload " + some[0].column + " NULL"
		}
		table := fmt.Sprintf("v%d", n)
		w.table(table, strings.Join(columns, ", "))
		for id := range rows {
			row := []string{fmt.Sprint(id)}
			for _, v := range some {
				row = append(row, v.literals[id%len(v.literals)])
			}
			w.insert(table, row...)
		}
	}
}

// keyTable makes a table with ids of a type. Literals that are one id are one row.
func (w *bothWays) keyTable(name string, v valueType) {
	w.t.Helper()
	w.table(name, "id "+v.column+" PRIMARY KEY, payload INT")
	for i, literal := range v.literals {
		if literal != "NULL" {
			w.insert(name, literal, fmt.Sprint(i))
		}
	}
}
