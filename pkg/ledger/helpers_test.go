package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/migrations"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestMain(m *testing.M) { testservers.Main(m) }

// onBoth runs a test on MySQL and on MariaDB.
func onBoth(t *testing.T, test func(t *testing.T, s *testservers.DB)) {
	t.Run("mysql", func(t *testing.T) { test(t, testservers.SharedMySQL(t)) })
	t.Run("mariadb", func(t *testing.T) { test(t, testservers.SharedMariaDB(t)) })
}

// fixture is a table called outbox and a ledger over it.
type fixture struct {
	*Ledger
	t      testing.TB
	table  outbox.Table
	layout *outbox.Layout
	admin  *sql.DB // a stranger: an account and session of its own
}

func (f *fixture) ctx() context.Context { return f.t.Context() }

func setUp(t testing.TB, s *testservers.DB, ddl string, o Options) *fixture {
	t.Helper()
	schema := s.Schema(t)
	f := &fixture{t: t, table: outbox.Table{Schema: schema, Name: "outbox"}, admin: s.Open(t, schema)}
	for statement := range strings.SplitSeq(ddl, ";\n") {
		if strings.TrimSpace(statement) != "" {
			f.exec(statement)
		}
	}
	zone := time.FixedZone("", 8*3600)
	db, err := mysqlconn.Open(s.DSN(schema), mysqlconn.Options{Zone: zone, MarkImage: mysqlconn.ImageMinimal})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if f.layout, err = outbox.ReadTable(t.Context(), db, f.table, outbox.Options{Zone: zone}); err != nil {
		t.Fatal(err)
	}
	o.Name = "test"
	o.Logger = zerolog.Nop()
	f.Ledger = New(db, []*outbox.Layout{f.layout}, o)
	return f
}

func (f *fixture) exec(query string, args ...any) {
	f.t.Helper()
	if _, err := f.admin.ExecContext(f.ctx(), query, args...); err != nil {
		f.t.Fatalf("%.200s: %v", query, err)
	}
}

// text reads one value as text, "NULL" for NULL.
func (f *fixture) text(query string, args ...any) string {
	f.t.Helper()
	v := sql.NullString{}
	if err := f.admin.QueryRowContext(f.ctx(), query, args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", query, err)
	}
	if !v.Valid {
		return "NULL"
	}
	return v.String
}

func (f *fixture) wantText(want, query string, args ...any) {
	f.t.Helper()
	if got := f.text(query, args...); got != want {
		f.t.Errorf("%s %v: %s, want %s", query, args, got, want)
	}
}

// fill inserts n PENDING rows with ids from 1 and one second between them, the
// newest a minute old.
func (f *fixture) fill(n int) {
	f.t.Helper()
	columns, constants := "", ""
	if f.layout.Has(outbox.RoleAggregateType) {
		columns, constants = ", aggregate_type", ", 'order'"
	}
	for from := 1; from <= n; from += 1000 {
		to := min(n, from+999)
		values := make([]string, 0, 1000)
		for id := from; id <= to; id++ {
			values = append(values, fmt.Sprintf("(%d, 'a%d', 'made', '{}', NOW() - INTERVAL %d SECOND%s)", id, id%7, 60+n-id, constants))
		}
		f.exec("INSERT INTO outbox (id, aggregate_id, event_type, payload, created_at" + columns + ") VALUES " + strings.Join(values, ","))
	}
}

func (f *fixture) outcome(kind outbox.OutcomeKind, id string) outbox.Outcome {
	return outbox.Outcome{Key: outbox.Key{Table: f.table, ID: id}, Kind: kind, Reason: "no such luck", OrderKey: "k" + id}
}

func (f *fixture) outcomes(kind outbox.OutcomeKind, ids ...string) []outbox.Outcome {
	all := make([]outbox.Outcome, len(ids))
	for i, id := range ids {
		all[i] = f.outcome(kind, id)
	}
	return all
}

// record must succeed and set nothing aside.
func (f *fixture) record(outcomes ...outbox.Outcome) {
	f.t.Helper()
	locked, err := f.Record(f.ctx(), outcomes, nil)
	if err != nil || len(locked) > 0 {
		f.t.Fatalf("recording: %v, locked %v", err, locked)
	}
}

// stranger begins a transaction that the test may end itself.
func (f *fixture) stranger(queries ...string) *sql.Tx {
	f.t.Helper()
	tx, err := f.admin.BeginTx(f.ctx(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			f.t.Error(err)
		}
	})
	for _, q := range queries {
		if _, err := tx.ExecContext(f.ctx(), q); err != nil {
			f.t.Fatalf("%s: %v", q, err)
		}
	}
	return tx
}

// awaitLockWait returns when a session in the fixture's schema waits for a lock.
func (f *fixture) awaitLockWait() {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		if f.text(`SELECT COUNT(*) FROM information_schema.innodb_trx x JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id
WHERE x.trx_state = 'LOCK WAIT' AND p.db = ?`, f.table.Schema) != "0" {
			return
		}
		// The server has no signal for it, and innodb_trx is a snapshot that is
		// renewed only when nobody has read it for 100 ms.
		time.Sleep(150 * time.Millisecond)
	}
	f.t.Fatal("nobody waits for a lock")
}

func numbers(from, to int) []string {
	var ids []string
	for i := from; i <= to; i++ {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

func example(t testing.TB, name string) string {
	t.Helper()
	text, err := migrations.Examples.ReadFile("examples/" + name + ".sql")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// ownTables is the SQL of rowferry's tables, with an outbox in its layout.
func ownTables(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	if err := migrations.Print(&b, migrations.Options{Outbox: true}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// deadTable is the SQL of rowferry_dead alone.
func deadTable(t testing.TB) string {
	t.Helper()
	for statement := range strings.SplitSeq(ownTables(t), ";\n") {
		if strings.Contains(statement, "rowferry_dead") {
			return statement + ";\n"
		}
	}
	t.Fatal("no rowferry_dead among the migrations")
	return ""
}
