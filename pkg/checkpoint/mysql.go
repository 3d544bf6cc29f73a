package checkpoint

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Error numbers of the server that decide something here.
const (
	errDuplicate  = 1062
	errDenied     = 1142
	errNoSuchTab  = 1146
	errNoSuchBase = 1049
)

// MySQL keeps the checkpoint in the tables rowferry_checkpoint and
// rowferry_topic. It may be used by several goroutines at once.
type MySQL struct {
	db         *sql.DB
	name       string
	checkpoint string // quoted name of the table
	topic      string

	mu   sync.Mutex
	term term
}

// NewMySQL returns the store for one name in a schema (empty: the schema of the
// connection). The pool's sessions must report found rows (clientFoundRows), not
// changed ones, or a repeated fence looks like a lost leadership.
func NewMySQL(db *sql.DB, schema, name string) *MySQL {
	return &MySQL{db: db, name: name, checkpoint: quote(schema, "rowferry_checkpoint"), topic: quote(schema, "rowferry_topic")}
}

func quote(schema, table string) string {
	if schema == "" {
		return "`" + table + "`"
	}
	return "`" + strings.ReplaceAll(schema, "`", "``") + "`.`" + table + "`"
}

func (s *MySQL) current() term {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term
}

// Begin takes the leadership for owner and returns what is saved. It creates the
// row if there is none. ErrNoTables: the tables are missing.
func (s *MySQL) Begin(ctx context.Context, owner string) (Checkpoint, error) {
	c, err := s.begin(ctx, owner)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("taking the leadership of %q: %w", s.name, explain(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term = term{c.Epoch, owner}
	return c, nil
}

func (s *MySQL) begin(ctx context.Context, owner string) (Checkpoint, error) {
	epoch, err := s.raise(ctx, owner)
	if err == nil && epoch == 0 {
		if err = s.create(ctx); err == nil {
			epoch, err = s.raise(ctx, owner)
		}
	}
	if err != nil {
		return Checkpoint{}, err
	}
	c, found, err := s.load(ctx)
	if err == nil && (!found || c.Epoch != epoch || c.Owner != owner) {
		err = outbox.ErrFenced // someone else came between the two statements
	}
	return c, err
}

// raise counts the epoch up and returns it, 0 if there is no row.
func (s *MySQL) raise(ctx context.Context, owner string) (int64, error) {
	r, err := s.db.ExecContext(ctx, "UPDATE "+s.checkpoint+" SET epoch = LAST_INSERT_ID(epoch + 1), owner = ? WHERE name = ?", owner, s.name)
	if err != nil {
		return 0, err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return 0, err
	}
	return r.LastInsertId()
}

// create adds the row; that another process was faster is no error.
func (s *MySQL) create(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, "INSERT INTO "+s.checkpoint+" (name, epoch, owner, `position`, fence, paused) VALUES (?, 0, '', '', 0, 0)", s.name)
	if isNumber(err, errDuplicate) {
		return nil
	}
	return err
}

// Load returns what is saved, and whether there is anything.
func (s *MySQL) Load(ctx context.Context) (Checkpoint, bool, error) {
	c, found, err := s.load(ctx)
	if err != nil {
		return Checkpoint{}, false, fmt.Errorf("loading the checkpoint %q: %w", s.name, explain(err))
	}
	return c, found, nil
}

func (s *MySQL) load(ctx context.Context) (Checkpoint, bool, error) {
	var c Checkpoint
	var updated sql.NullString
	err := s.db.QueryRowContext(ctx, "SELECT `position`, epoch, owner, fence, paused, updated_at FROM "+s.checkpoint+" WHERE name = ?", s.name).
		Scan(&c.Position, &c.Epoch, &c.Owner, &c.Fence, &c.Paused, &updated)
	if errors.Is(err, sql.ErrNoRows) {
		return Checkpoint{}, false, nil
	}
	if err != nil {
		return Checkpoint{}, false, err
	}
	if updated.Valid {
		c.UpdatedAt, err = time.Parse("2006-01-02 15:04:05.999999", updated.String)
	}
	return c, true, err
}

// saveSQL writes UTC, so that the column means the same in every session zone.
func (s *MySQL) saveSQL() string {
	return "UPDATE " + s.checkpoint + " SET `position` = ?, updated_at = UTC_TIMESTAMP(6) WHERE name = ? AND epoch = ? AND owner = ?"
}

// Save saves a position. outbox.ErrFenced: another relay leads now.
func (s *MySQL) Save(ctx context.Context, position string) error {
	return s.fenced(ctx, s.db, "saving the position", s.saveSQL(), position)
}

// SaveTx saves a position inside a transaction, whose last statement it should
// be: the row is then locked for the commit only. outbox.ErrFenced: another
// relay leads now; nothing was changed, and the transaction can be committed.
func (s *MySQL) SaveTx(ctx context.Context, tx *sql.Tx, position string) error {
	return s.fenced(ctx, tx, "saving the position", s.saveSQL(), position)
}

// WriteFence writes a fence, to be seen again in the binlog. outbox.ErrFenced:
// another relay leads now. Fences must grow.
func (s *MySQL) WriteFence(ctx context.Context, fence uint64) error {
	return s.fenced(ctx, s.db, "writing a fence", "UPDATE "+s.checkpoint+" SET fence = ? WHERE name = ? AND epoch = ? AND owner = ?", fence)
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// fenced runs an update that only the newest leader may make.
func (s *MySQL) fenced(ctx context.Context, db execer, what, query string, value any) error {
	t := s.current()
	if err := t.check(what); err != nil {
		return err
	}
	r, err := db.ExecContext(ctx, query, value, s.name, t.epoch, t.owner)
	if err != nil {
		return fmt.Errorf("%s of %q: %w", what, s.name, explain(err))
	}
	n, err := r.RowsAffected()
	if err == nil && n == 0 {
		err = outbox.ErrFenced
	}
	if err != nil {
		return fmt.Errorf("%s of %q, epoch %d: %w", what, s.name, t.epoch, err)
	}
	return nil
}

// SetPaused turns the pause switch. Anyone may; it binds whoever leads.
func (s *MySQL) SetPaused(ctx context.Context, paused bool) error {
	err := s.create(ctx)
	if err == nil {
		_, err = s.db.ExecContext(ctx, "UPDATE "+s.checkpoint+" SET paused = ? WHERE name = ?", paused, s.name)
	}
	if err != nil {
		return fmt.Errorf("setting the pause of %q: %w", s.name, explain(err))
	}
	return nil
}

func isNumber(err error, numbers ...uint16) bool {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return false
	}
	for _, n := range numbers {
		if e.Number == n {
			return true
		}
	}
	return false
}

// explain adds what the operator can do. To an account without rights the server
// does not say whether the table exists.
func explain(err error) error {
	switch {
	case isNumber(err, errNoSuchTab, errNoSuchBase):
		return fmt.Errorf("%w (%w)", ErrNoTables, err)
	case isNumber(err, errDenied):
		return fmt.Errorf("%w (grant SELECT, INSERT, UPDATE on rowferry_checkpoint and rowferry_topic; if they do not exist yet, run `rowferry migrate up`)", err)
	}
	return err
}
