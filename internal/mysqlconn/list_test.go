package mysqlconn

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
)

func listOf(t *testing.T, dsns ...string) func() ([]*mysql.Config, error) {
	t.Helper()
	var list []*mysql.Config
	for _, dsn := range dsns {
		c, err := ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	return func() ([]*mysql.Config, error) { return list, nil }
}

func openList(t *testing.T, choice Choice, dsns ...string) *sql.DB {
	t.Helper()
	db, err := OpenList(listOf(t, dsns...), choice, Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	return closeAtEnd(t, db)
}

// The store moves with the primary: from the first server of the list that is one, to
// the next when that has become read-only or is gone, with every session.
func TestListFollowsThePrimary(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...string) *testservers.DB{"mysql": testservers.MySQL, "mariadb": testservers.MariaDB} {
		t.Run(name, func(t *testing.T) {
			primary, replica := start(t, testservers.ReplicaFlags(name)...), start(t, testservers.ReplicaFlags(name)...)
			replica.Follow(t, primary)
			schema := primary.Schema(t)
			primary.Exec(t, schema, "CREATE TABLE t (id INT PRIMARY KEY)")
			primary.Exec(t, "", "CREATE USER app IDENTIFIED BY 'secret'")
			primary.Exec(t, "", "GRANT ALL ON "+schema+".* TO app")
			primary.Exec(t, "", "GRANT REPLICATION CLIENT ON *.* TO app")
			if name == testservers.FlavorMariaDB {
				primary.Exec(t, "", "GRANT SLAVE MONITOR ON *.* TO app")
			}
			replica.CatchUp(t, primary)
			dead := fmt.Sprintf("app:secret@tcp(127.0.0.1:%d)/", testservers.FreePort(0))
			p, r := primary.UserDSN("app", "secret", schema), replica.UserDSN("app", "secret", schema)

			wantPort(t, openList(t, PrimaryOnly, dead, r, p), p)
			wantPort(t, openList(t, Writable, dead, r, p), p)
			wantPort(t, openList(t, AnyServer, dead, r, p), r)
			wantPort(t, openList(t, PrimaryOnly, r), r) // one server is used as it is
			if err := openList(t, PrimaryOnly, dead, r).Ping(); err == nil || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), "read-only") {
				t.Errorf("without a primary: %v", err)
			}
			replica.Exec(t, "", "SET GLOBAL read_only = OFF")
			if err := openList(t, PrimaryOnly, dead, r).Ping(); !errors.Is(err, ErrReplica) {
				t.Errorf("a replica that can be written to: %v", err)
			}
			if err := RefuseReplica(t.Context(), openList(t, PrimaryOnly, r)); !errors.Is(err, ErrReplica) {
				t.Errorf("RefuseReplica gave %v", err)
			}
			if err := RefuseReplica(t.Context(), openList(t, PrimaryOnly, p)); err != nil {
				t.Errorf("RefuseReplica refused a primary: %v", err)
			}
			wantPort(t, openList(t, Writable, dead, r, p), r)

			db := openList(t, PrimaryOnly, p, r)
			idle := twoSessions(t, db)
			primary.Exec(t, "", "SET GLOBAL read_only = ON")
			replica.Promote(t)
			if _, err := idle.ExecContext(t.Context(), "INSERT INTO t VALUES (1)"); err == nil {
				t.Error("a read-only server took a row")
			}
			if err := idle.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
				t.Error(err)
			}
			for i := range 4 { // whichever session of the pool it is
				if _, err := db.ExecContext(t.Context(), "INSERT INTO t VALUES (?)", i); err != nil {
					t.Errorf("row %d: %v", i, err)
				}
			}
			wantPort(t, db, r)
		})
	}
}

// twoSessions fills the pool with an idle session, and one that it returns.
func twoSessions(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	var conns []*sql.Conn
	for range 2 {
		c, err := db.Conn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if err := conns[1].Close(); err != nil {
		t.Fatal(err)
	}
	return conns[0]
}

func wantPort(t *testing.T, db *sql.DB, dsn string) {
	t.Helper()
	var port string
	if err := db.QueryRowContext(t.Context(), "SELECT @@port").Scan(&port); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(dsn, ":"+port+")") {
		t.Errorf("connected to port %s, want %s", port, dsn)
	}
}
