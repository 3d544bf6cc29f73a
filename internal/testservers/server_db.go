package testservers

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"
)

// The two kinds of database server.
const (
	FlavorMySQL   = "mysql"
	FlavorMariaDB = "mariadb"
)

// release1011 is the older of the two releases of MariaDB.
const release1011 = "1011"

const (
	startTimeout = 3 * time.Minute // generous: many packages start servers at once
	pollInterval = 50 * time.Millisecond
)

// DBServer is what it takes to start a database server, and to start it again.
type DBServer struct {
	Flavor  string
	Release string   // empty: the newest that is provisioned
	Dir     string   // the data folder is below it; log and socket are here too
	Port    int      // on 127.0.0.1
	Flags   []string // further flags of the server; the last of equal ones holds
}

// name is what scripts/provision calls the server.
func (s DBServer) name() string { return s.Flavor + s.Release }

// commonFlags suit both flavors. Durability is left at the servers' defaults.
var commonFlags = []string{
	"--bind-address=127.0.0.1", "--socket=server.sock", "--pid-file=server.pid",
	"--log-bin=binlog", "--max-connections=200", "--skip-name-resolve",
	"--innodb-buffer-pool-size=128M", "--performance-schema=OFF",
}

// flavorFlags start faster (a redo log of the template's size, no key pair made for TLS
// at each start of MariaDB) and switch on what a relay needs.
var flavorFlags = map[string][]string{
	FlavorMySQL: {"--innodb-redo-log-capacity=64M"},
	FlavorMariaDB: {
		"--innodb-log-file-size=32M", "--skip-ssl", "--binlog-format=ROW",
		"--gtid-strict-mode=1",
	},
}

// Launch starts the server, on first use with fresh data. It does not wait; see Await.
func (s DBServer) Launch(l Launcher) (*Process, error) {
	if err := provision(s.name()); err != nil {
		return nil, err
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	name := map[string]string{FlavorMySQL: "mysqld", FlavorMariaDB: "mariadbd"}[s.Flavor]
	return l.Start(s.Dir, exec.Command(program(s.name(), name), s.arguments()...))
}

func (s DBServer) dataDir() string { return filepath.Join(s.Dir, "data") }

// prepare copies the initialised data folder, unless there are data already.
func (s DBServer) prepare() error {
	if _, err := os.Stat(s.dataDir()); err == nil {
		return nil
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of the server: %w", err)
	}
	template := filepath.Join(serversDir(), s.name(), "data")
	half := s.dataDir() + ".copying"
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("removing an interrupted copy: %w", err)
	}
	out, err := exec.Command("cp", "-a", "--reflink=auto", template, half).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copying the data folder: %w: %s", err, out)
	}
	return os.Rename(half, s.dataDir())
}

func (s DBServer) arguments() []string {
	args := []string{
		"--datadir=" + s.dataDir(), "--tmpdir=" + s.Dir,
		"--port=" + strconv.Itoa(s.Port),
		"--server-id=" + strconv.Itoa(1+rand.IntN(1<<30)),
	}
	if os.Geteuid() == 0 {
		args = append(args, "--user=root")
	}
	args = append(args, commonFlags...)
	args = append(args, flavorFlags[s.Flavor]...)
	return append(args, s.Flags...)
}

// Addr is the server's host:port.
func (s DBServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// DSN is the go-sql-driver address of the server for its superuser.
func (s DBServer) DSN() string { return "root@tcp(" + s.Addr() + ")/" }

// Await waits until the server answers a query.
func (s DBServer) Await(p *Process) error {
	return p.await(s.name(), func() error { return ping(s.DSN()) })
}

func ping(dsn string) error {
	db, err := openDSN(dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return db.PingContext(ctx)
}

// openDSN opens a pool whose driver keeps quiet about the servers that tests kill.
func openDSN(dsn string) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("reading the DSN: %w", err)
	}
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	return sql.OpenDB(connector), nil
}
