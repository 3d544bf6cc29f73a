package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// reasonColumn describes the column of rowferry_dead that holds the reason.
var reasonColumn = outbox.Column{DataType: "varchar", Charset: "utf8mb4", LengthMax: lastErrorMax}

// bury writes dead letters to rowferry_dead, in the transaction that made them
// FAILED, where the table itself has no room for the reason.
func (l *Ledger) bury(ctx context.Context, tx *sql.Tx, g *group, ids []string) error {
	t := g.table
	if t.writes && t.keepsReason() && !l.o.DeadAlways {
		return nil
	}
	attempts, err := l.failedOf(ctx, tx, t, ids)
	if err != nil {
		return err
	}
	if len(attempts) == 0 {
		return nil
	}
	insert := l.deadInsert(g, attempts)
	_, err = tx.ExecContext(ctx, insert.text, insert.args...)
	missing := isNumber(err, errNoTable)
	if missing && t.writes && !l.o.DeadAlways {
		if l.noDead.changed(true) {
			l.log.Warn().Str("table", t.Table.String()).Msg("rows failed, and their reasons are kept nowhere: the table has no last_error, and rowferry_dead is missing; run `rowferry migrate up`")
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing dead letters to %s: %w", l.dead, err)
	}
	l.noDead.changed(false)
	return nil
}

// failedOf returns which of the ids are dead letters, each with its attempts:
// those that are FAILED in a table that says so, all of them in another.
func (l *Ledger) failedOf(ctx context.Context, tx *sql.Tx, t *table, ids []string) (map[string]int64, error) {
	attempts := map[string]int64{}
	if !t.writes {
		for _, id := range ids {
			attempts[id] = 0
		}
		return attempts, nil
	}
	count := "0"
	if t.Has(outbox.RoleAttempts) {
		count = "COALESCE(" + t.col(outbox.RoleAttempts) + ", 0)"
	}
	for _, piece := range chunks(ids, selectIDsMax) {
		in, err := t.idIn(piece)
		if err != nil {
			return nil, err
		}
		failed := t.is(outbox.Failed)
		in.add(" AND "+failed.text, failed.args...)
		query := "SELECT " + t.selected(outbox.RoleID) + ", " + count + " FROM " + t.name + t.force + " WHERE " + in.text
		err = each(ctx, tx, query, in.args, func(rows *sql.Rows) error {
			var id []byte
			var n int64
			if err := rows.Scan(&id, &n); err != nil {
				return err
			}
			attempts[t.key(id)] = n
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("looking up failed rows: %w", err)
		}
	}
	return attempts, nil
}

func (l *Ledger) deadInsert(g *group, attempts map[string]int64) clause {
	reason := fitReason(g.reason, reasonColumn)
	var values []string
	c := clause{text: "INSERT INTO " + l.dead + " (name, tbl, id, order_key, reason, attempts) VALUES "}
	for _, o := range g.outcomes {
		n, ok := attempts[o.Key.ID]
		if !ok {
			continue
		}
		delete(attempts, o.Key.ID) // once, if the outcome came twice
		values = append(values, "(?, ?, ?, ?, ?, ?)")
		c.args = append(c.args, l.o.Name, g.table.Table.String(), o.Key.ID, o.OrderKey, reason, n)
	}
	c.text += strings.Join(values, ", ") +
		" ON DUPLICATE KEY UPDATE order_key = VALUES(order_key), reason = VALUES(reason), attempts = VALUES(attempts), discarded_at = NULL"
	return c
}
