package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Requeued is what Requeue and Discard have done, row by row.
type Requeued struct {
	IDs    []string // changed, in the order in which they were given
	Locked []string // left, because somebody keeps them locked
}

// Requeue makes rows PENDING again, those of the ids that are FAILED, as if they had
// never been tried: no attempts, no error, no time of the next attempt; and forgets what
// rowferry_dead knows of them, in the same transaction; with Options.DeadAlways that stays
// until Opened, for the keys that wait. Where the table has no status,
// only that is forgotten. ids are at most a thousand.
func (l *Ledger) Requeue(ctx context.Context, name outbox.Table, ids []string) (Requeued, error) {
	return l.revise(ctx, "requeueing", name, ids, func(tx *sql.Tx, t *table, ids []string) error {
		if t.writes {
			if _, err := t.update(ctx, tx, t.setFresh(), ids, t.is(outbox.Failed)); err != nil {
				return err
			}
		}
		if t.writes && l.o.DeadAlways {
			return l.forget(ctx, tx, t, ids, unkeyed)
		}
		return l.forget(ctx, tx, t, ids, "")
	})
}

// Discard notes of dead letters that they need not be sent: in last_error, which then
// begins with "discarded: ", where the table has it, and in rowferry_dead. The rows
// stay FAILED. ids are at most a thousand; those that were discarded before are changed
// no more.
func (l *Ledger) Discard(ctx context.Context, name outbox.Table, ids []string) (Requeued, error) {
	return l.revise(ctx, "discarding", name, ids, func(tx *sql.Tx, t *table, ids []string) error {
		if t.writes && t.keepsDiscard() {
			guard := t.is(outbox.Failed)
			guard.add(" AND COALESCE("+t.col(outbox.RoleLastError)+", '') NOT LIKE ?", discardedPrefix+"%")
			if _, err := t.update(ctx, tx, t.setDiscarded(), ids, guard); err != nil {
				return err
			}
		}
		return l.noteDiscarded(ctx, tx, t, ids)
	})
}

// revise changes dead letters in one transaction; do is given those that are some.
//
// What must hold: rows are locked while they are looked at, by key. Otherwise what was
// FAILED may be PENDING or SENT again, by somebody else, when it is changed
// (TestRequeueIsGuarded).
func (l *Ledger) revise(ctx context.Context, what string, name outbox.Table, ids []string, do func(*sql.Tx, *table, []string) error) (done Requeued, err error) {
	t, err := l.table(name)
	if err != nil {
		return done, err
	}
	for try := 1; ; try++ {
		if len(ids) == 0 {
			return done, nil
		}
		done.IDs, err = l.reviseOnce(ctx, t, ids, do)
		if err == nil {
			return done, nil
		}
		if !transient(err) || try == triesMax {
			return done, fmt.Errorf("%s %d dead letters of %s: %w", what, len(ids), name, err)
		}
		before := ids
		if ids, err = l.freeOnly(ctx, t, ids, err); err != nil {
			return done, fmt.Errorf("%s %d dead letters of %s: %w", what, len(before), name, err)
		}
		done.Locked = append(done.Locked, without(before, setOf(ids))...)
	}
}

func (l *Ledger) reviseOnce(ctx context.Context, t *table, ids []string, do func(*sql.Tx, *table, []string) error) (dead []string, err error) {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("beginning a transaction: %w", err)
	}
	if dead, err = l.deadAmong(ctx, tx, t, ids); err == nil && len(dead) > 0 {
		err = do(tx, t, dead)
	}
	if err != nil {
		if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("rolling back: %w", rollback))
		}
		return nil, err
	}
	if err := tx.Commit(); err != nil {
		return nil, fmt.Errorf("committing: %w", err)
	}
	return dead, nil
}

// deadAmong locks the dead letters among ids and returns them.
func (l *Ledger) deadAmong(ctx context.Context, tx *sql.Tx, t *table, ids []string) ([]string, error) {
	found := map[string]bool{}
	for _, piece := range chunks(ids, selectIDsMax) {
		var got []string
		var err error
		if t.writes {
			var c clause
			if c, err = t.idIn(piece); err != nil {
				return nil, err
			}
			failed := t.is(outbox.Failed)
			c.add(" AND "+failed.text+" FOR UPDATE", failed.args...)
			got, err = t.ids(ctx, tx, "SELECT "+t.selected(outbox.RoleID)+" FROM "+t.name+t.force+" WHERE "+c.text, c.args)
		} else {
			c := l.deadIn(t, piece)
			err = each(ctx, tx, "SELECT id FROM "+l.dead+" FORCE INDEX (PRIMARY) WHERE "+c.text+" FOR UPDATE", c.args, func(rows *sql.Rows) error {
				var id string
				err := rows.Scan(&id)
				got = append(got, id)
				return err
			})
		}
		if err != nil {
			return nil, err
		}
		for _, id := range got {
			found[id] = true
		}
	}
	return slices.DeleteFunc(distinct(ids), func(id string) bool { return !found[id] }), nil
}

// setFresh makes a row one that was never tried.
func (t *table) setFresh() []clause {
	set := append(t.setState(outbox.Pending), t.setUnclaimed()...)
	if t.Has(outbox.RoleAttempts) {
		set = append(set, clause{text: t.col(outbox.RoleAttempts) + " = 0"})
	}
	if c, ok := t.Column(outbox.RoleLastError); ok && t.keepsReason() {
		set = append(set, clause{text: t.col(outbox.RoleLastError) + " = " + nullOr(c, "''")})
	}
	if c, ok := t.Column(outbox.RoleNextAttemptAt); ok && t.temporal(outbox.RoleNextAttemptAt) {
		set = append(set, clause{text: t.col(outbox.RoleNextAttemptAt) + " = " + nullOr(c, t.now(outbox.RoleNextAttemptAt))})
	}
	return set
}

func nullOr(c outbox.Column, other string) string {
	if c.Nullable {
		return "NULL"
	}
	return other
}

// keepsDiscard reports whether the table itself has room for saying so.
func (t *table) keepsDiscard() bool {
	c, _ := t.Column(outbox.RoleLastError)
	return t.keepsReason() && c.LengthMax >= int64(len(discardedPrefix)) // a TEXT holds 255 bytes at least
}

// setDiscarded writes what fits of the old reason behind the prefix.
func (t *table) setDiscarded() []clause {
	c, _ := t.Column(outbox.RoleLastError)
	chars := min(c.LengthMax, lastErrorMax)
	if strings.HasSuffix(c.DataType, "text") { // its length counts bytes
		chars = min(c.LengthMax/4, lastErrorMax)
	}
	column := t.col(outbox.RoleLastError)
	return []clause{{column + " = LEFT(CONCAT(?, COALESCE(" + column + ", '')), " + strconv.FormatInt(chars, 10) + ")", []any{discardedPrefix}}}
}

// noteDiscarded notes it in rowferry_dead: of letters that are in there, and of all where
// the table itself has no room for it.
func (l *Ledger) noteDiscarded(ctx context.Context, tx *sql.Tx, t *table, ids []string) error {
	optional := t.writes && t.keepsDiscard()
	for _, piece := range chunks(ids, selectIDsMax) {
		var c clause
		if optional {
			c = clause{text: "UPDATE " + l.dead + " FORCE INDEX (PRIMARY) SET discarded_at = UTC_TIMESTAMP(6) WHERE discarded_at IS NULL AND "}
			in := l.deadIn(t, piece)
			c.add(in.text, in.args...)
		} else {
			c = clause{text: "INSERT INTO " + l.dead + " (name, tbl, id, reason, discarded_at) VALUES (?, ?, ?, '', UTC_TIMESTAMP(6))" +
				strings.Repeat(", (?, ?, ?, '', UTC_TIMESTAMP(6))", len(piece)-1) +
				" ON DUPLICATE KEY UPDATE discarded_at = COALESCE(discarded_at, VALUES(discarded_at))"}
			for _, id := range piece {
				c.args = append(c.args, l.o.Name, t.Table.String(), id)
			}
		}
		_, err := tx.ExecContext(ctx, c.text, c.args...)
		if optional && isNumber(err, errNoTable) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("noting in %s what was discarded: %w", l.dead, err)
		}
	}
	return nil
}
