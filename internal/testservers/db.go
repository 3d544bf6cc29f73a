package testservers

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// DB is a running MySQL or MariaDB.
type DB struct {
	flavor string
	dsn    string // of the superuser, without a schema

	server DBServer // zero for a server that is not ours
	mu     sync.Mutex
	proc   *Process // nil for a server that is not ours
}

// MySQL starts a MySQL for this test, with GTIDs on. Flags are added to mysqld's.
func MySQL(tb testing.TB, flags ...string) *DB {
	tb.Helper()
	return ownDB(tb, DBServer{Flavor: FlavorMySQL, Flags: append(gtidFlags(true), flags...)})
}

// MySQLNoGTID starts a MySQL for this test, with GTIDs off.
func MySQLNoGTID(tb testing.TB, flags ...string) *DB {
	tb.Helper()
	return ownDB(tb, DBServer{Flavor: FlavorMySQL, Flags: append(gtidFlags(false), flags...)})
}

// MariaDB starts a MariaDB for this test, with strict GTIDs.
func MariaDB(tb testing.TB, flags ...string) *DB {
	tb.Helper()
	return ownDB(tb, DBServer{Flavor: FlavorMariaDB, Flags: flags})
}

// MariaDB1011 starts a MariaDB 10.11 for this test, with strict GTIDs.
func MariaDB1011(tb testing.TB, flags ...string) *DB {
	tb.Helper()
	return ownDB(tb, DBServer{Flavor: FlavorMariaDB, Release: release1011, Flags: flags})
}

func gtidFlags(on bool) []string {
	if on {
		return []string{"--gtid-mode=ON", "--enforce-gtid-consistency=ON"}
	}
	return []string{"--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"}
}

func ownDB(tb testing.TB, server DBServer) *DB {
	tb.Helper()
	d, err := startDB(server)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(d.discard)
	return d
}

// startDB gives the server a folder and a port, and starts it.
func startDB(server DBServer) (*DB, error) {
	dir, err := newDir(server.name())
	if err != nil {
		return nil, err
	}
	server.Dir, server.Port = dir, FreePort(0)
	d := &DB{flavor: server.Flavor, dsn: server.DSN(), server: server}
	return d, d.start(server)
}

func (d *DB) start(server DBServer) error {
	proc, err := server.Launch(Launcher{})
	if err != nil {
		return err
	}
	d.proc = proc
	return server.Await(proc)
}

// discard ends the server the fast way and removes its data.
func (d *DB) discard() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc != nil {
		_ = d.proc.Kill() // fails only if it has ended already
	}
	os.RemoveAll(d.server.Dir)
}

// Flavor is FlavorMySQL or FlavorMariaDB.
func (d *DB) Flavor() string { return d.flavor }

// Addr is the server's host:port.
func (d *DB) Addr() string { return d.config().Addr }

// DSN is the go-sql-driver address of a schema ("" for none) for the superuser.
func (d *DB) DSN(schema string) string {
	cfg := d.config()
	cfg.DBName = schema
	return cfg.FormatDSN()
}

// UserDSN is like DSN for another account.
func (d *DB) UserDSN(user, password, schema string) string {
	cfg := d.config()
	cfg.User, cfg.Passwd, cfg.DBName = user, password, schema
	return cfg.FormatDSN()
}

func (d *DB) config() *mysql.Config {
	cfg, err := mysql.ParseDSN(d.dsn)
	if err != nil {
		panic("testservers: a DSN that was parsed before: " + err.Error())
	}
	return cfg
}

// Open gives a pool for a schema ("" for none), closed at the end of the test. It has no
// driver log, so a killed server leaves no noise in the test's output.
func (d *DB) Open(tb testing.TB, schema string) *sql.DB {
	tb.Helper()
	db, err := openDSN(d.DSN(schema))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

// Schema creates a schema for this test alone, dropped at the end of the test.
func (d *DB) Schema(tb testing.TB) string {
	tb.Helper()
	name := strings.ToLower(uniqueName(tb, "_", 60))
	d.Exec(tb, "", "CREATE DATABASE `"+name+"`")
	tb.Cleanup(func() { d.dropSchema(tb, name) })
	return name
}

// dropSchema does nothing when the server is gone, and the schema with it.
func (d *DB) dropSchema(tb testing.TB, name string) {
	d.mu.Lock()
	gone := d.proc != nil && !d.proc.Alive()
	d.mu.Unlock()
	if gone {
		return
	}
	// A transaction that the test left open would make the drop wait without end.
	cfg := d.config()
	cfg.Params = map[string]string{"lock_wait_timeout": "10"}
	if err := execDSN(cfg.FormatDSN(), "DROP DATABASE IF EXISTS `"+name+"`"); err != nil {
		tb.Errorf("dropping schema %s: %v", name, err)
	}
}

// Exec runs one statement as the superuser, on a connection of its own.
func (d *DB) Exec(tb testing.TB, schema, query string, args ...any) {
	tb.Helper()
	if err := execDSN(d.DSN(schema), query, args...); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

func execDSN(dsn, query string, args ...any) error {
	db, err := openDSN(dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.Exec(query, args...)
	return err
}

// Stop shuts the server down cleanly and waits for its end.
func (d *DB) Stop(tb testing.TB) {
	tb.Helper()
	d.control(tb, "stopping", (*Process).Stop)
}

// Kill ends the server as a crash would (SIGKILL).
func (d *DB) Kill(tb testing.TB) {
	tb.Helper()
	d.control(tb, "killing", (*Process).Kill)
}

// Freeze halts the server (SIGSTOP): connections stay open and nothing answers.
func (d *DB) Freeze(tb testing.TB) {
	tb.Helper()
	d.control(tb, "freezing", (*Process).Freeze)
}

// Thaw lets a frozen server go on.
func (d *DB) Thaw(tb testing.TB) {
	tb.Helper()
	d.control(tb, "thawing", (*Process).Thaw)
}

func (d *DB) control(tb testing.TB, what string, act func(*Process) error) {
	tb.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc == nil {
		tb.Fatalf("%s %s: not a server of this test", what, d.flavor)
	}
	if err := act(d.proc); err != nil {
		tb.Fatalf("%s %s: %v", what, d.flavor, err)
	}
}

// Start starts a stopped or killed server again, on the same port and data, with the
// flags it had and the given ones. It returns when the server answers.
func (d *DB) Start(tb testing.TB, flags ...string) {
	tb.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc == nil || d.proc.Alive() {
		tb.Fatalf("starting %s: it has not been stopped", d.flavor)
	}
	again := d.server
	again.Flags = append(append([]string{}, again.Flags...), flags...)
	if err := d.start(again); err != nil {
		tb.Fatal(err)
	}
}

var nameCounter atomic.Uint64

// uniqueName is the test's name in letters, digits and sep, made unique over processes
// and time, and at most max bytes long.
func uniqueName(tb testing.TB, sep string, max int) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, tb.Name())
	suffix := fmt.Sprintf("%s%x%s%x", sep, time.Now().UnixMicro()&0xfffffffffff, sep, nameCounter.Add(1))
	if room := max - len(suffix); len(clean) > room {
		clean = clean[:room]
	}
	return clean + suffix
}
