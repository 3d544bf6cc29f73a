package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/migrations"
)

// table is an outbox table and what its layout calls things.
type table struct {
	name                  string
	pending, sent, failed string // SQL literals
	claims                bool   // a row shows whether it was ever claimed by a sweep
	create                string // empty: made by the migrations
	refused               []refusal
}

// refusal is a row that can never be sent, by the values of its columns.
type refusal struct {
	pad     int    // bytes
	headers string // where the table has the column
	empty   bool   // the payload
}

const oversize = messageBytes + 1000

func tables() []*table {
	return []*table{
		{
			name: "orders", pending: "'PENDING'", sent: "'SENT'", failed: "'FAILED'", claims: true,
			refused: []refusal{{pad: oversize}, {empty: true}},
			create: `CREATE TABLE orders (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  aggregate_id VARCHAR(64) NOT NULL, event_type VARCHAR(128) NOT NULL, payload MEDIUMTEXT NOT NULL,
  status VARCHAR(20) NOT NULL DEFAULT 'PENDING', created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
  sent_at DATETIME NULL, attempts INT NOT NULL DEFAULT 0, claim_token VARCHAR(64) NULL, claimed_at DATETIME(6) NULL,
  KEY idx_status_created (status, created_at))`,
		},
		{
			name: "numbers", pending: "0", sent: "1", failed: "2",
			refused: []refusal{{pad: oversize}},
			create: `CREATE TABLE numbers (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  aggregate_id VARCHAR(64) NOT NULL, event_type VARCHAR(128) NOT NULL, payload JSON NOT NULL,
  status TINYINT NOT NULL DEFAULT 0, retry_count INT NOT NULL DEFAULT 0,
  created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
  updated_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  KEY idx_status_created (status, created_at))`,
		},
		{
			name: "full", pending: "'PENDING'", sent: "'SENT'", failed: "'FAILED'", claims: true,
			refused: []refusal{{pad: oversize}, {headers: `{"outbox_id": "7"}`}},
		},
	}
}

// trigger has the table itself keep account, in columns of ours: how often a row was
// claimed, when it became SENT, and whether it ever left a final state.
func (t *table) trigger() string {
	claims := ""
	if t.claims {
		claims = ", NEW.chaos_claims = OLD.chaos_claims + IF(NEW.claim_token IS NULL OR NEW.claim_token <=> OLD.claim_token, 0, 1)"
	}
	return fmt.Sprintf(`CREATE TRIGGER chaos_%[1]s BEFORE UPDATE ON %[1]s FOR EACH ROW SET
  NEW.chaos_sent_at = IF(OLD.status <> %[2]s AND NEW.status = %[2]s, UTC_TIMESTAMP(6), OLD.chaos_sent_at),
  NEW.chaos_wrong = OLD.chaos_wrong + IF(OLD.status IN (%[2]s, %[3]s) AND NEW.status <> OLD.status, 1, 0)%[4]s`,
		t.name, t.sent, t.failed, claims)
}

// makeTables makes the outbox tables, rowferry's own, and that by which writers learn what
// became of a transaction.
func (w *world) makeTables(ctx context.Context) error {
	w.tables = tables()
	if _, err := w.pool.ExecContext(ctx, "CREATE DATABASE "+schema); err != nil {
		return fmt.Errorf("making the schema: %w", err)
	}
	if err := w.pool.Close(); err != nil {
		return err
	}
	var err error
	if w.pool, err = openPool(w.dsn + schema); err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, w.pool, migrations.Options{Outbox: true}); err != nil {
		return err
	}
	statements := []string{"RENAME TABLE outbox TO full", "CREATE TABLE transactions (id BIGINT NOT NULL PRIMARY KEY, given_up BOOLEAN NOT NULL)"}
	for _, t := range w.tables {
		if t.create != "" {
			statements = append(statements, t.create)
		}
		statements = append(statements, "ALTER TABLE "+t.name+` ADD COLUMN chaos_n INT NOT NULL, ADD COLUMN chaos_tx BIGINT NOT NULL,
  ADD COLUMN chaos_sent_at DATETIME(6) NULL, ADD COLUMN chaos_claims INT NOT NULL DEFAULT 0, ADD COLUMN chaos_wrong INT NOT NULL DEFAULT 0`, t.trigger())
		if err := w.brokerServer.CreateTopic(t.name, topicQueues); err != nil {
			return err
		}
	}
	for _, q := range statements {
		if _, err := w.pool.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return nil
}

// insist repeats a statement that locks, or a server that is away, keep from being done.
func (w *world) insist(ctx context.Context, query string) error {
	for {
		err := w.try(ctx, query)
		if err == nil || isDone(err) {
			return nil
		}
		if ctx.Err() != nil {
			return nil // the run ends; nothing depends on it any more
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// What an ALTER TABLE says when an earlier try, whose answer was lost, has done it.
const errDuplicateColumn, errNoSuchColumn = 1060, 1091

func isDone(err error) bool {
	var answer *mysql.MySQLError
	return errors.As(err, &answer) && (answer.Number == errDuplicateColumn || answer.Number == errNoSuchColumn)
}

func (w *world) try(ctx context.Context, query string) error {
	conn, err := w.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = 2"); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, query)
	return err
}

// purgeBinlogs leaves nothing but a new, empty binlog.
func (w *world) purgeBinlogs() error {
	ctx := context.Background()
	if err := w.insist(ctx, "FLUSH BINARY LOGS"); err != nil {
		return err
	}
	file, err := w.currentBinlog(ctx)
	if err != nil {
		return err
	}
	return w.insist(ctx, "PURGE BINARY LOGS TO '"+file+"'")
}

func (w *world) currentBinlog(ctx context.Context) (string, error) {
	rows, err := w.pool.QueryContext(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return "", fmt.Errorf("listing the binlogs: %w", err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	values := make([]sql.RawBytes, len(columns))
	into := make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	file := ""
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return "", err
		}
		file = string(values[0])
	}
	return file, rows.Err()
}

// unsent is how many rows wait; -1 when the database cannot say.
func (w *world) unsent() int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var parts []string
	for _, t := range w.tables {
		parts = append(parts, fmt.Sprintf("(SELECT COUNT(*) FROM %s WHERE status NOT IN (%s, %s))", t.name, t.sent, t.failed))
	}
	n := -1
	if err := w.pool.QueryRowContext(ctx, "SELECT "+strings.Join(parts, " + ")).Scan(&n); err != nil {
		return -1
	}
	return n
}
