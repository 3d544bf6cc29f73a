// Package migrations holds the SQL of rowferry's own tables and applies it.
//
// It promises that Up may be run any number of times, by several processes at
// once, over tables that were made by hand from what Print wrote, and that only
// Up changes anything. What is applied is noted in the table rowferry_migrations.
package migrations

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

//go:embed *.sql
var files embed.FS

// Examples holds, under examples/, tables in the layouts of the literature.
//
//go:embed examples/*.sql
var Examples embed.FS

const (
	versionTable = "rowferry_migrations"
	outboxFile   = "00004_outbox.sql"
)

// Options say what is wanted beyond rowferry's own tables.
type Options struct {
	Outbox bool // an outbox table too
}

// Migration is one step and what has become of it.
type Migration struct {
	Name    string `json:"name"`    // of its file
	Table   string `json:"table"`   // that it makes
	Applied bool   `json:"applied"` // noted as applied by Up
	Exists  bool   `json:"exists"`  // the table is there, whoever made it
}

// Up applies what is missing in the connection's schema and returns the names of
// the steps it applied.
func Up(ctx context.Context, db *sql.DB, o Options) (applied []string, err error) {
	p, err := provider(db, o)
	if err != nil {
		return nil, err
	}
	var results []*goose.MigrationResult
	err = locked(ctx, db, func() error {
		results, err = p.Up(ctx)
		return err
	})
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		results = partial.Applied
	}
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	if err != nil {
		return applied, fmt.Errorf("creating the tables of rowferry: %w", hint(err))
	}
	return applied, nil
}

func provider(db *sql.DB, o Options) (*goose.Provider, error) {
	store, err := database.NewStore(database.DialectMySQL, versionTable)
	if err != nil {
		return nil, fmt.Errorf("preparing migrations: %w", err)
	}
	options := []goose.ProviderOption{
		goose.WithStore(store),
		goose.WithDisableGlobalRegistry(true),
		goose.WithAllowOutofOrder(true), // the outbox table may come after later steps
	}
	if !o.Outbox {
		options = append(options, goose.WithExcludeNames([]string{outboxFile}))
	}
	p, err := goose.NewProvider("", db, files, options...)
	if err != nil {
		return nil, fmt.Errorf("preparing migrations: %w", err)
	}
	return p, nil
}

// Errors of the server.
const (
	tableDenied = 1142
	noSuchTable = 1146
)

// hint adds what the operator can do about a refusal.
func hint(err error) error {
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Number {
	case 1044, tableDenied, 1227:
		return fmt.Errorf("%w (the account needs CREATE, SELECT and INSERT on the schema; or have the SQL of `rowferry migrate print` executed by someone who may)", err)
	case 1046:
		return fmt.Errorf("%w (name the schema in the DSN)", err)
	}
	return err
}

const lockSQL = "CONCAT('rowferry:', LEFT(SHA2(CONCAT('migrate:', COALESCE(DATABASE(), '')), 256), 40))"

// locked keeps several processes from migrating one schema at once. The locks of
// goose come too late: it has looked at its table before it takes one
// (TestUpByManyAtOnce). The pool must have a second connection.
func locked(ctx context.Context, db *sql.DB, do func() error) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() { // the session is not given back: it may hold the lock and lives longer than others
		if drop := conn.Raw(func(any) error { return driver.ErrBadConn }); !errors.Is(drop, driver.ErrBadConn) && !errors.Is(drop, sql.ErrConnDone) {
			err = errors.Join(err, drop)
		}
	}()
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = 600"); err != nil {
		return fmt.Errorf("setting up the lock's session: %w", err)
	}
	var got sql.NullBool
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK("+lockSQL+", 10)").Scan(&got); err != nil {
		return fmt.Errorf("waiting for other migrations: %w", err)
	}
	if !got.Bool {
		return errors.New("another process has been migrating this schema for 10 seconds")
	}
	return do()
}

// Status returns all steps, in order. It changes nothing.
func Status(ctx context.Context, db *sql.DB) ([]Migration, error) {
	steps, err := list(Options{Outbox: true})
	if err != nil {
		return nil, err
	}
	noted, err := versions(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", versionTable, err)
	}
	all := make([]Migration, len(steps))
	for i, s := range steps {
		all[i] = Migration{Name: s.name, Table: s.table(), Applied: noted[s.version()]}
		if all[i].Exists, err = exists(ctx, db, all[i].Table); err != nil {
			return nil, fmt.Errorf("looking for table %s: %w", all[i].Table, err)
		}
	}
	return all, nil
}

func exists(ctx context.Context, db *sql.DB, table string) (found bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) > 0 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?", table).Scan(&found)
	return found, err
}

// versions returns what is noted as applied; nothing if the table is missing.
func versions(ctx context.Context, db *sql.DB) (noted map[int64]bool, err error) {
	noted = map[int64]bool{}
	rows, err := db.QueryContext(ctx, "SELECT version_id FROM "+versionTable+" WHERE is_applied")
	var refused *mysql.MySQLError
	switch {
	case errors.As(err, &refused) && refused.Number == noSuchTable:
		return noted, nil
	case errors.As(err, &refused) && refused.Number == tableDenied: // said of a missing table, too
		return nil, fmt.Errorf("%w (ask with an account that may read the schema; `rowferry doctor` says whether the tables that this one needs are there)", err)
	case err != nil:
		return nil, hint(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var v int64
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		noted[v] = true
	}
	return noted, rows.Err()
}

// Print writes the SQL that Up would execute in an empty schema.
func Print(w io.Writer, o Options) error {
	steps, err := list(o)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if _, err := fmt.Fprintf(w, "%s\n", s.sql); err != nil {
			return fmt.Errorf("printing migrations: %w", err)
		}
	}
	return nil
}

type step struct {
	name string
	sql  string // without the annotations of goose
}

func (s step) version() int64 {
	digits, _, _ := strings.Cut(s.name, "_")
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		panic("migrations: " + s.name + " has no number")
	}
	return v
}

// table is the table that the step creates.
func (s step) table() string {
	_, rest, ok := strings.Cut(s.sql, "CREATE TABLE IF NOT EXISTS ")
	if !ok {
		panic("migrations: " + s.name + " creates no table")
	}
	return strings.Fields(rest)[0]
}

func list(o Options) ([]step, error) {
	names, err := fs.Glob(files, "*.sql") // in order
	if err != nil {
		return nil, fmt.Errorf("listing migrations: %w", err)
	}
	var steps []step
	for _, name := range names {
		if name == outboxFile && !o.Outbox {
			continue
		}
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading migration %s: %w", name, err)
		}
		steps = append(steps, step{name, withoutAnnotations(text)})
	}
	return steps, nil
}

func withoutAnnotations(text []byte) string {
	var b strings.Builder
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("-- +goose")) {
			b.Write(line)
		}
	}
	return b.String()
}
