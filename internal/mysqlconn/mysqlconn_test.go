package mysqlconn

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestMain(m *testing.M) { testservers.Main(m) }

// onBoth runs a test on MySQL and on MariaDB.
func onBoth(t *testing.T, test func(t *testing.T, s *testservers.DB)) {
	t.Run("mysql", func(t *testing.T) { test(t, testservers.SharedMySQL(t)) })
	t.Run("mariadb", func(t *testing.T) { test(t, testservers.SharedMariaDB(t)) })
}

func open(t *testing.T, dsn string, o Options) *sql.DB {
	t.Helper()
	db, err := Open(dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	return closeAtEnd(t, db)
}

func closeAtEnd(t *testing.T, db *sql.DB) *sql.DB {
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func variable(t *testing.T, db *sql.DB, name string) string {
	t.Helper()
	var v string
	if err := db.QueryRowContext(t.Context(), "SELECT @@SESSION."+name).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSessionSetUp(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		// What the DSN says must not undo what the statements rely on.
		dsn := s.DSN("") + "?parseTime=true&charset=latin1&multiStatements=true&sql_mode=PAD_CHAR_TO_FULL_LENGTH"
		db := open(t, dsn, Options{Zone: time.FixedZone("", 8*3600), MarkImage: ImageMinimal})
		want := map[string]string{
			"innodb_lock_wait_timeout": "2", "lock_wait_timeout": "2", "wait_timeout": "9", "autocommit": "1",
			"time_zone": "+08:00", "binlog_row_image": "MINIMAL", "sql_mode": "STRICT_TRANS_TABLES",
			"character_set_client": "utf8mb4", "character_set_results": "utf8mb4",
		}
		isolation := "transaction_isolation"
		if s.Flavor() == testservers.FlavorMariaDB {
			isolation = "tx_isolation"
			want["in_predicate_conversion_threshold"] = "0"
		}
		want[isolation] = "READ-COMMITTED"
		for name, value := range want {
			if got := variable(t, db, name); got != value {
				t.Errorf("%s is %q, want %q", name, got, value)
			}
		}
		var now string
		if err := db.QueryRowContext(t.Context(), "SELECT NOW()").Scan(&now); err != nil {
			t.Errorf("a time is not read as text: %v", err)
		}
	})
}

func TestEverySessionIsSetUp(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		db := open(t, s.DSN(""), Options{MaxConns: 1})
		for range 2 {
			if got := variable(t, db, "innodb_lock_wait_timeout"); got != "2" {
				t.Fatalf("innodb_lock_wait_timeout is %s, want 2", got)
			}
			s.Exec(t, "", "KILL "+variable(t, db, "pseudo_thread_id"))
		}
	})
}

func TestFoundRowsAreReported(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		schema := s.Schema(t)
		db := open(t, s.DSN(schema), Options{})
		s.Exec(t, schema, "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
		s.Exec(t, schema, "INSERT INTO t VALUES (1, 1)")
		r, err := db.ExecContext(t.Context(), "UPDATE t SET v = ? WHERE id = ?", 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := r.RowsAffected(); err != nil || n != 1 {
			t.Fatalf("an update that changes nothing reports %d rows, %v; want 1", n, err)
		}
	})
}

func TestRowImageByRight(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		user := account(t, s)
		with := func(image string) *sql.DB { return open(t, s.UserDSN(user, "secret", ""), Options{MarkImage: image}) }

		if got, err := RowImage(t.Context(), with(ImageAuto)); err != nil || got != "FULL" {
			t.Errorf("auto without the right: %q, %v; want FULL", got, err)
		}
		if err := with(ImageMinimal).PingContext(t.Context()); !errors.Is(err, ErrRowImage) {
			t.Errorf("minimal without the right: %v; want ErrRowImage", err)
		}
		right := "SESSION_VARIABLES_ADMIN"
		if s.Flavor() == testservers.FlavorMariaDB {
			right = "BINLOG ADMIN"
		}
		s.Exec(t, "", fmt.Sprintf("GRANT %s ON *.* TO %s", right, user))
		for image, want := range map[string]string{ImageAuto: "MINIMAL", ImageMinimal: "MINIMAL", ImageFull: "FULL", "": "FULL"} {
			if got, err := RowImage(t.Context(), with(image)); err != nil || got != want {
				t.Errorf("%q with the right: %q, %v; want %s", image, got, err, want)
			}
		}
	})
}

// account makes an account without rights.
func account(t *testing.T, s *testservers.DB) string {
	t.Helper()
	const user = "mysqlconn_plain"
	s.Exec(t, "", "DROP USER IF EXISTS "+user)
	s.Exec(t, "", "CREATE USER "+user+" IDENTIFIED BY 'secret'")
	t.Cleanup(func() { s.Exec(t, "", "DROP USER "+user) })
	return user
}

func TestCredentialsAreAskedForEachConnection(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		user := account(t, s)
		password := "secret"
		db := open(t, s.UserDSN("nobody", "wrong", ""), Options{MaxConns: 1, Credentials: func(context.Context) (string, string, error) {
			return user, password, nil
		}})
		id := variable(t, db, "pseudo_thread_id")
		s.Exec(t, "", "ALTER USER "+user+" IDENTIFIED BY 'rotated'")
		password = "rotated"
		s.Exec(t, "", "KILL "+id)
		if again := variable(t, db, "pseudo_thread_id"); again == id {
			t.Fatal("the killed session answers")
		}
	})
}

func TestChangeOfOffsetDropsTheSession(t *testing.T) {
	s := testservers.SharedMySQL(t)
	db := open(t, s.DSN(""), Options{MaxConns: 1, Zone: time.UTC})
	before := variable(t, db, "pseudo_thread_id")
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Raw(func(c any) error {
		c.(*zoned).offset = "+01:00" // as if it had been set up in summer
		return nil
	})
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	if variable(t, db, "pseudo_thread_id") == before {
		t.Fatal("a session with yesterday's offset was used again")
	}
}

func TestOffset(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	winter := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	summer := time.Date(2026, 7, 15, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		zone *time.Location
		at   time.Time
		want string
	}{
		{nil, winter, "+00:00"},
		{berlin, winter, "+01:00"},
		{berlin, summer, "+02:00"},
		{time.FixedZone("", -(3*3600 + 1800)), winter, "-03:30"},
	} {
		if got := offset(c.zone, c.at); got != c.want {
			t.Errorf("offset(%v, %v) = %s, want %s", c.zone, c.at, got, c.want)
		}
	}
}

func TestErrorsHoldNothingOfTheDSN(t *testing.T) {
	for _, dsn := range []string{
		"user:hunter2@tcp(host:3306)",
		"user:hunter2@tcp(host:3306",
		"user:pw@hunter2/db",
		"user:pw@tcp(host)/db?parseTime=hunter2",
		"user:pw@tcp(host)/db?timeout=hunter2",
		"user:pw@tcp(host)/db?tls=hunter2",
		"user:pw@tcp(host)/hunter2%zz?x=y",
	} {
		_, err := Open(dsn, Options{})
		if err == nil {
			t.Errorf("%s was taken", dsn)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error quotes it: %v", dsn, err)
		}
	}
}

func TestOpenLeavesTheConfigAlone(t *testing.T) {
	c := mysql.NewConfig()
	db, err := OpenConfig(c, Options{Role: "store"})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if c.InterpolateParams || c.ConnectionAttributes != "" {
		t.Fatal("the caller's configuration was changed")
	}
	if _, err := OpenConfig(c, Options{MarkImage: "tiny"}); err == nil {
		t.Fatal("an unknown row image was taken")
	}
}

// How much others insert is known to any account, and grows with it. Rows of temporary
// tables, of which looking at the backlog makes some, do not count.
func TestRowsInserted(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		schema := s.Schema(t)
		s.Exec(t, schema, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)")
		user := account(t, s)
		s.Exec(t, "", "GRANT SELECT, UPDATE ON "+schema+".t TO "+user)
		db := open(t, s.UserDSN(user, "secret", schema), Options{})
		count := func() uint64 {
			t.Helper()
			n, err := RowsInserted(t.Context(), db)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := count()
		for range 100 {
			s.Exec(t, schema, "INSERT INTO t (v) VALUES (1), (2), (3)")
		}
		if got := count() - before; got < 300 {
			t.Errorf("300 rows were inserted, %d counted", got)
		}
		before = count()
		for range 100 {
			var n int
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM (SELECT 1 FROM t LIMIT 1000) x").Scan(&n); err != nil {
				t.Fatal(err)
			}
		}
		if got := count() - before; got > 5000 { // other tests of this server may insert meanwhile
			t.Errorf("%d rows counted although none was inserted", got)
		}
	})
}
