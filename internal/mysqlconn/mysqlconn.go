// Package mysqlconn opens the connection pools of rowferry.
//
// It promises that every session of a pool, the first and the one opened after
// a failure alike, is set up in the same way: READ COMMITTED, short lock waits,
// a short idle life on the server (a frozen process must not hold a lock for
// hours), utf8mb4, strict SQL mode, and the time zone in which the application
// writes its DATETIME columns.
package mysqlconn

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// IdleTimeoutSeconds is the wait_timeout of every session. The pool drops idle
// connections earlier, so that the server's cut is never seen in normal work.
const IdleTimeoutSeconds = 9

const (
	maxIdle     = 5 * time.Second
	maxConns    = 4
	dialTimeout = 10 * time.Second
	ioTimeout   = 30 * time.Second // far above lock_wait_timeout: the server answers first
)

// Values of Options.MarkImage, as in MARK_ROW_IMAGE.
const (
	ImageAuto    = "auto"    // MINIMAL where the rights allow it
	ImageMinimal = "minimal" // MINIMAL, or no connection
	ImageFull    = "full"    // as the server is set
)

// ErrRowImage says that MARK_ROW_IMAGE=minimal was asked for and refused.
var ErrRowImage = errors.New("binlog_row_image=MINIMAL was refused: grant SESSION_VARIABLES_ADMIN (MariaDB: BINLOG ADMIN), or set ROWFERRY_MARK_ROW_IMAGE=auto")

// Options say what a pool is for.
type Options struct {
	Zone      *time.Location // zone in which the application writes DATETIME; nil: UTC
	MarkImage string         // ImageAuto or ImageMinimal for sessions that mark rows; empty: ImageFull
	MaxConns  int            // connections of the pool; 0: 4
	Role      string         // what the pool is for, shown in performance_schema.session_connect_attrs

	// Credentials, if set, is asked before each new connection, so that a rotated
	// password works without a restart.
	Credentials func(context.Context) (user, password string, err error)
}

// ParseDSN reads a DSN in the form of go-sql-driver/mysql. Its error never holds
// a part of the DSN, because a misplaced slash or bracket can make the password
// a part of any field.
func ParseDSN(dsn string) (*mysql.Config, error) {
	c, err := mysql.ParseDSN(dsn)
	if err == nil {
		return c, nil
	}
	const form = "the DSN is not of the form user:password@tcp(host:3306)/schema?name=value"
	if strings.HasPrefix(err.Error(), "invalid DSN: ") { // fixed texts
		return nil, fmt.Errorf("%s: %w", form, err)
	}
	return nil, errors.New(form + ": a parameter has no valid value, or the network is neither tcp nor unix")
}

// Open makes a pool for a DSN. It does not connect.
func Open(dsn string, o Options) (*sql.DB, error) {
	c, err := ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	return OpenConfig(c, o)
}

// OpenConfig makes a pool for a parsed DSN, whose TLS settings are taken as they
// are. It does not connect, and leaves c alone.
func OpenConfig(c *mysql.Config, o Options) (*sql.DB, error) {
	inner, err := newConnector(c, o, false)
	if err != nil {
		return nil, err
	}
	return limits(sql.OpenDB(inner), o), nil
}

func newConnector(c *mysql.Config, o Options, rejectReadOnly bool) (*connector, error) {
	c = c.Clone()
	if err := prepare(c, o); err != nil {
		return nil, err
	}
	c.RejectReadOnly = rejectReadOnly
	inner, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("connection to %s: the driver refuses the settings", c.Addr)
	}
	return &connector{Connector: inner, zone: o.Zone, image: o.MarkImage}, nil
}

func limits(db *sql.DB, o Options) *sql.DB {
	n := o.MaxConns
	if n == 0 {
		n = maxConns
	}
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	db.SetConnMaxIdleTime(maxIdle)
	return db
}

// prepare sets what the ledger's SQL relies on, whatever the DSN says.
func prepare(c *mysql.Config, o Options) error {
	switch o.MarkImage {
	case "", ImageAuto, ImageMinimal, ImageFull:
	default:
		return fmt.Errorf("row image %q is none of auto, minimal, full", o.MarkImage)
	}
	c.ClientFoundRows = true   // an update that changes nothing is not "no such row"
	c.InterpolateParams = true // one round trip, and no limit of 65,535 placeholders
	c.ParseTime = false        // times are read as MySQL prints them
	c.MultiStatements = false
	c.Logger = &mysql.NopLogger{} // what it has to say comes back as an error too
	c.Timeout = either(c.Timeout, dialTimeout)
	c.ReadTimeout = either(c.ReadTimeout, ioTimeout)
	c.WriteTimeout = either(c.WriteTimeout, ioTimeout)
	CheckGreeting(c)
	c.ConnectionAttributes = attributes(c.ConnectionAttributes, o.Role)
	options := []mysql.Option{mysql.Charset("utf8mb4", "")}
	if o.Credentials != nil {
		options = append(options, mysql.BeforeConnect(credentials(o.Credentials)))
	}
	return c.Apply(options...)
}

func either(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}

func attributes(given, role string) string {
	parts := []string{"program_name:rowferry"}
	if role != "" {
		parts = append(parts, "rowferry_role:"+role)
	}
	if given != "" {
		parts = append(parts, given)
	}
	return strings.Join(parts, ",")
}

func credentials(ask func(context.Context) (string, string, error)) func(context.Context, *mysql.Config) error {
	return func(ctx context.Context, c *mysql.Config) error {
		user, password, err := ask(ctx)
		if err != nil {
			return fmt.Errorf("reading the credentials for %s: %w", c.Addr, err)
		}
		c.User, c.Passwd = user, password
		return nil
	}
}

// RowImage returns what a session of the pool writes to the binlog for a row:
// FULL, MINIMAL or NOBLOB. Under ImageAuto anything but MINIMAL means that the
// account lacks the right.
func RowImage(ctx context.Context, db *sql.DB) (string, error) {
	var image string
	if err := db.QueryRowContext(ctx, "SELECT @@SESSION.binlog_row_image").Scan(&image); err != nil {
		return "", fmt.Errorf("asking for binlog_row_image: %w", err)
	}
	return image, nil
}

// RowsInserted returns how many rows all sessions of the server have inserted since
// its start. It needs no right.
func RowsInserted(ctx context.Context, db *sql.DB) (uint64, error) {
	// MySQL counts the rows of its own temporary tables as Handler_write, MariaDB does not.
	const query = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_rows_inserted' /*M! , 'Handler_write' */)"
	var name string
	var rows uint64
	if err := db.QueryRowContext(ctx, query).Scan(&name, &rows); err != nil {
		return 0, fmt.Errorf("asking how many rows were inserted: %w", err)
	}
	return rows, nil
}
