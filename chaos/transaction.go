package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

type ending int

const (
	endCommit ending = iota
	endRollback
)

// transaction is what a writer is about to do.
type transaction struct {
	rows      []planned
	size      int // of a payload, in bytes
	ending    ending
	savepoint int  // rows written behind a savepoint that is rolled back to
	skewHours int  // by which the session's clock, or its zone, is off
	zone      bool // it is the zone
}

type planned struct {
	key     string
	refusal *refusal // nil: it can be sent
}

// errBadSession has the pool drop a connection.
var errBadSession = driver.ErrBadConn

// attempt does a transaction once; false: it is certain that nothing of it is committed,
// and it is to be done again.
func (wr *writer) attempt(t transaction) bool {
	id := wr.ws.nextTx.Add(1)
	err := wr.fill(t, id)
	switch {
	case err != nil:
		// The session is gone, or its transaction rolled back; COMMIT was never said.
		wr.hangUp()
		pause(context.Background(), 100*time.Millisecond)
		return false
	case t.ending == endRollback:
		if err := wr.exec("ROLLBACK"); err != nil {
			wr.hangUp()
		}
		wr.ws.gone.Add(int64(len(t.rows)))
		return true
	}
	if err := wr.exec("COMMIT"); err != nil {
		wr.hangUp()
		wr.ws.unsure.Add(1)
		if !wr.resolve(id) {
			return false
		}
	}
	wr.remember(t, id)
	return true
}

// fill does all but the end of a transaction.
func (wr *writer) fill(t transaction, id int64) error {
	if err := wr.connect(); err != nil {
		return err
	}
	statements := []string{wr.clock(t), "BEGIN", fmt.Sprintf("INSERT INTO transactions (id, given_up) VALUES (%d, 0)", id)}
	for _, q := range statements {
		if err := wr.exec(q); err != nil {
			return err
		}
	}
	half := len(t.rows) / 2
	counts := map[string]int{}
	if err := wr.insert(t, t.rows[:half], counts, id); err != nil {
		return err
	}
	if t.savepoint > 0 {
		if err := wr.digress(t, id); err != nil {
			return err
		}
	}
	return wr.insert(t, t.rows[half:], counts, id)
}

// digress writes rows that are taken back within the transaction.
func (wr *writer) digress(t transaction, id int64) error {
	if err := wr.exec("SAVEPOINT here"); err != nil {
		return err
	}
	rows := make([]planned, t.savepoint)
	for i := range rows {
		rows[i].key = wr.table.name + "-gone"
	}
	if err := wr.insert(t, rows, map[string]int{}, id); err != nil {
		return err
	}
	wr.ws.gone.Add(int64(t.savepoint))
	return wr.exec("ROLLBACK TO SAVEPOINT here")
}

func (wr *writer) connect() error {
	if wr.conn != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := wr.ws.w.pool.Conn(ctx)
	if err != nil {
		return err
	}
	wr.conn = conn
	return wr.exec("SET SESSION innodb_lock_wait_timeout = 3, lock_wait_timeout = 5")
}

// clock sets the session's clock as the transaction has it.
func (wr *writer) clock(t transaction) string {
	switch {
	case t.skewHours == 0:
		return "SET time_zone = @@GLOBAL.time_zone, timestamp = DEFAULT"
	case t.zone:
		return fmt.Sprintf("SET time_zone = '%+03d:00', timestamp = DEFAULT", t.skewHours)
	default:
		return fmt.Sprintf("SET time_zone = @@GLOBAL.time_zone, timestamp = %d", time.Now().Add(time.Duration(t.skewHours)*time.Hour).Unix())
	}
}

// exec relies on the driver's timeouts.
func (wr *writer) exec(query string, args ...any) error {
	_, err := wr.conn.ExecContext(context.Background(), query, args...)
	return err
}

// insert writes rows in statements of moderate size; counts are the rows of each key that
// the transaction holds already.
func (wr *writer) insert(t transaction, rows []planned, counts map[string]int, id int64) error {
	const perStatement = 200
	for len(rows) > 0 {
		piece := rows[:min(len(rows), perStatement)]
		rows = rows[len(piece):]
		columns, marks := "aggregate_id, event_type, payload, chaos_n, chaos_tx", "(?, ?, ?, ?, ?)"
		full := wr.table.create == ""
		if full {
			columns, marks = columns+", aggregate_type, headers", "(?, ?, ?, ?, ?, 'thing', ?)"
		}
		var args []any
		for _, r := range piece {
			n := len(wr.own[r.key]) + counts[r.key]
			counts[r.key]++
			args = append(args, r.key, "Told", payload(r, n, id, t.size), n, id)
			if full {
				args = append(args, headers(r))
			}
		}
		query := "INSERT INTO " + wr.table.name + " (" + columns + ") VALUES " + marks + strings.Repeat(", "+marks, len(piece)-1)
		if err := wr.exec(query, args...); err != nil {
			return err
		}
	}
	return nil
}

func payload(r planned, n int, id int64, size int) string {
	if r.refusal != nil && r.refusal.empty {
		return ""
	}
	if r.refusal != nil {
		size = max(size, r.refusal.pad)
	}
	return fmt.Sprintf(`{"n": %d, "tx": %d, "pad": "%s"}`, n, id, strings.Repeat("x", size))
}

func headers(r planned) any {
	if r.refusal == nil || r.refusal.headers == "" {
		return nil
	}
	return r.refusal.headers
}

const errDuplicateKey = 1062

// resolve finds out what became of a transaction whose COMMIT had no answer. It takes the
// transaction's id itself: as long as the other may still be committed, it holds the lock
// on that id, and once it is not, it can never be.
func (wr *writer) resolve(id int64) (committed bool) {
	for ; ; pause(context.Background(), 200*time.Millisecond) {
		if err := wr.connect(); err != nil {
			wr.hangUp()
			continue
		}
		err := wr.exec(fmt.Sprintf("INSERT INTO transactions (id, given_up) VALUES (%d, 1)", id))
		var answer *mysql.MySQLError
		if err != nil && (!errors.As(err, &answer) || answer.Number != errDuplicateKey) {
			wr.hangUp()
			continue
		}
		var givenUp bool
		err = wr.conn.QueryRowContext(context.Background(), "SELECT given_up FROM transactions WHERE id = ?", id).Scan(&givenUp)
		if err == nil {
			return !givenUp
		}
		wr.hangUp()
	}
}

// remember notes what is committed.
func (wr *writer) remember(t transaction, id int64) {
	at := time.Now()
	for _, r := range t.rows {
		wr.own[r.key] = append(wr.own[r.key], fact{tx: id, at: at, refused: r.refusal != nil, skewed: t.skewHours != 0})
		if r.refusal != nil {
			wr.ws.refused.Add(1)
		}
	}
	if t.skewHours != 0 {
		wr.ws.skewed.Add(1)
	}
}
