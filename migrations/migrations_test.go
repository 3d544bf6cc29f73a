package migrations

import (
	"bytes"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestMain(m *testing.M) { testservers.Main(m) }

func onBoth(t *testing.T, test func(t *testing.T, s *testservers.DB)) {
	t.Run("mysql", func(t *testing.T) { test(t, testservers.SharedMySQL(t)) })
	t.Run("mariadb", func(t *testing.T) { test(t, testservers.SharedMariaDB(t)) })
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := mysqlconn.Open(dsn, mysqlconn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func up(t *testing.T, db *sql.DB, o Options, want string) {
	t.Helper()
	applied, err := Up(t.Context(), db, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(applied, " "); got != want {
		t.Fatalf("applied %q, want %q", got, want)
	}
}

// state writes the steps as name:applied:exists.
func state(t *testing.T, db *sql.DB) string {
	t.Helper()
	all, err := Status(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, m := range all {
		b.WriteString(m.Table)
		if m.Applied {
			b.WriteString(" applied")
		}
		if m.Exists {
			b.WriteString(" exists")
		}
		b.WriteString("; ")
	}
	return b.String()
}

const own = "00001_checkpoint.sql 00002_topic.sql 00003_dead.sql"

func TestUpTwiceAndLaterWithOutbox(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		db := open(t, s.DSN(s.Schema(t)))
		if got, want := state(t, db), "rowferry_checkpoint; rowferry_topic; rowferry_dead; outbox; "; got != want {
			t.Fatalf("before: %s", got)
		}
		up(t, db, Options{}, own)
		up(t, db, Options{}, "")
		if got, want := state(t, db), "rowferry_checkpoint applied exists; rowferry_topic applied exists; rowferry_dead applied exists; outbox; "; got != want {
			t.Fatalf("after up: %s", got)
		}
		up(t, db, Options{Outbox: true}, outboxFile)
		up(t, db, Options{}, "") // without the outbox again: it stays
		if got := state(t, db); !strings.HasSuffix(got, "outbox applied exists; ") {
			t.Fatalf("after up --outbox: %s", got)
		}
	})
}

func TestStatusChangesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		db := open(t, s.DSN(s.Schema(t)))
		state(t, db)
		var tables int
		if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()").Scan(&tables); err != nil || tables != 0 {
			t.Fatalf("%d tables, %v", tables, err)
		}
	})
}

func TestPrintedSQLIsWhatUpExecutes(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		var b bytes.Buffer
		if err := Print(&b, Options{Outbox: true}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "goose") {
			t.Fatal("annotations are printed")
		}
		printed := s.Schema(t)
		// As a client does it: everything in one go.
		c, err := mysql.ParseDSN(s.DSN(printed))
		if err != nil {
			t.Fatal(err)
		}
		c.MultiStatements = true
		connector, err := mysql.NewConnector(c)
		if err != nil {
			t.Fatal(err)
		}
		client := sql.OpenDB(connector)
		defer client.Close()
		if _, err := client.ExecContext(t.Context(), b.String()); err != nil {
			t.Fatal(err)
		}
		migrated := s.Schema(t)
		up(t, open(t, s.DSN(migrated)), Options{Outbox: true}, own+" "+outboxFile)
		up(t, open(t, s.DSN(printed)), Options{Outbox: true}, own+" "+outboxFile) // over tables made by hand
		for _, table := range []string{"rowferry_checkpoint", "rowferry_topic", "rowferry_dead", "outbox"} {
			if a, b := ddl(t, client, printed, table), ddl(t, client, migrated, table); a != b {
				t.Errorf("printed and migrated differ:\n%s\n%s", a, b)
			}
		}
	})
}

func ddl(t *testing.T, db *sql.DB, schema, table string) string {
	t.Helper()
	var name, text string
	if err := db.QueryRowContext(t.Context(), "SHOW CREATE TABLE `"+schema+"`.`"+table+"`").Scan(&name, &text); err != nil {
		t.Fatal(err)
	}
	return text
}

func TestUpByManyAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		schema := s.Schema(t)
		var mu sync.Mutex
		var all []string
		var wait sync.WaitGroup
		for range 4 {
			db := open(t, s.DSN(schema))
			wait.Go(func() {
				applied, err := Up(t.Context(), db, Options{})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				all = append(all, applied...)
				mu.Unlock()
			})
		}
		wait.Wait()
		if got := strings.Join(all, " "); got != own {
			t.Errorf("applied %q by four, want %q once", got, own)
		}
	})
}

func TestUpWithoutRightsSaysWhatIsMissing(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		const user = "migrations_reader"
		schema := s.Schema(t)
		s.Exec(t, "", "DROP USER IF EXISTS "+user)
		s.Exec(t, "", "CREATE USER "+user+" IDENTIFIED BY 'x'")
		t.Cleanup(func() { s.Exec(t, "", "DROP USER "+user) })
		s.Exec(t, "", "GRANT SELECT ON `"+schema+"`.* TO "+user)
		_, err := Up(t.Context(), open(t, s.UserDSN(user, "x", schema)), Options{})
		var refused *mysql.MySQLError
		if !errors.As(err, &refused) || refused.Number != 1142 || !strings.Contains(err.Error(), "needs CREATE, SELECT and INSERT") {
			t.Fatalf("%v", err)
		}
	})
}

// A table without a right to it is not in information_schema, and is not missing for that.
func TestStatusWithoutRightsClaimsNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		const user = "migrations_stranger"
		schema := s.Schema(t)
		up(t, open(t, s.DSN(schema)), Options{}, own)
		s.Exec(t, "", "DROP USER IF EXISTS "+user)
		s.Exec(t, "", "CREATE USER "+user+" IDENTIFIED BY 'x'")
		t.Cleanup(func() { s.Exec(t, "", "DROP USER "+user) })
		s.Exec(t, "", "GRANT SELECT ON `"+schema+"`.rowferry_checkpoint TO "+user)
		steps, err := Status(t.Context(), open(t, s.UserDSN(user, "x", schema)))
		var refused *mysql.MySQLError
		if !errors.As(err, &refused) || refused.Number != tableDenied || !strings.Contains(err.Error(), "rowferry doctor") {
			t.Fatalf("%v, %v", steps, err)
		}
	})
}

func TestUpWithoutSchemaSaysSo(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		_, err := Up(t.Context(), open(t, s.DSN("")), Options{})
		if err == nil || !strings.Contains(err.Error(), "name the schema in the DSN") {
			t.Fatalf("%v", err)
		}
	})
}

func TestExamplesAndOutboxAreRecognised(t *testing.T) {
	texts := map[string]string{}
	files, err := Examples.ReadDir("examples")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := Examples.ReadFile("examples/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		texts[f.Name()] = string(text)
	}
	steps, err := list(Options{Outbox: true})
	if err != nil {
		t.Fatal(err)
	}
	texts[outboxFile] = steps[len(steps)-1].sql
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				schema := s.Schema(t)
				s.Exec(t, schema, text)
				l, err := outbox.ReadTable(t.Context(), s.Open(t, schema), outbox.Table{Schema: schema, Name: "outbox"}, outbox.Options{})
				if err != nil {
					t.Fatal(err)
				}
				for r := outbox.Role(0); r < outbox.NumRoles && name == outboxFile; r++ {
					if !l.Has(r) {
						t.Errorf("no column plays %s", r)
					}
				}
			})
		})
	}
}
