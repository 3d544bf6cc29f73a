package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Letter is a dead letter.
type Letter struct {
	Key         outbox.Key
	Row         *Described // what the table says of it; nil: the row is gone
	Reason      string     // why it failed
	Attempts    int
	OrderKey    string    // its ordering key when it failed; empty: not recorded
	Discarded   bool      // somebody has said that it need not be sent
	DiscardedAt time.Time // UTC; zero: not, or not known when
}

// DeadLetters returns up to limit dead letters of a table, in the order and with the
// paging of [Ledger.Find]: its FAILED rows, with the reasons that rowferry_dead keeps for
// those for which the table has no room, and, where the table has no status or is not
// written, what rowferry_dead alone knows. Of Filter, a table without a status obeys IDs
// and Discarded only. A page may be shorter than limit, or empty, while more is true.
func (l *Ledger) DeadLetters(ctx context.Context, table outbox.Table, f Filter, after Cursor, limit int) (letters []Letter, next Cursor, more bool, err error) {
	t, err := l.table(table)
	if err != nil {
		return nil, after, false, err
	}
	f.Status = outbox.Failed
	var ids []string
	if t.writes {
		ids, next, more, err = l.Find(ctx, table, f, after, limit)
	} else {
		ids, next, more, err = l.deadIDs(ctx, t, f, after, limit)
	}
	if err != nil || len(ids) == 0 {
		return nil, next, more, err
	}
	rows, err := l.Describe(ctx, table, ids)
	if err != nil {
		return nil, after, false, err
	}
	reasons, err := l.reasons(ctx, t, ids)
	if err != nil {
		return nil, after, false, err
	}
	for _, id := range ids {
		if letter, ok := t.letter(id, rows, reasons); ok && (f.Discarded || !letter.Discarded) {
			letters = append(letters, letter)
		}
	}
	return letters, next, more, nil
}

// letter joins what the two tables say; false: it is none any more.
func (t *table) letter(id string, rows map[string]Described, reasons map[string]Letter) (Letter, bool) {
	letter, recorded := reasons[id]
	letter.Key = outbox.Key{Table: t.Table, ID: id}
	row, there := rows[id]
	if !there {
		return letter, !t.writes && recorded
	}
	letter.Row = &row
	if !t.writes {
		return letter, recorded
	}
	if t.Has(outbox.RoleAttempts) {
		letter.Attempts = row.Event.Attempts
	}
	if text, discarded := strings.CutPrefix(row.LastError, discardedPrefix); t.keepsReason() {
		letter.Reason, letter.Discarded = text, discarded || letter.Discarded
	}
	return letter, row.Status == outbox.Failed
}

// deadIDs pages through rowferry_dead.
func (l *Ledger) deadIDs(ctx context.Context, t *table, f Filter, after Cursor, limit int) (ids []string, next Cursor, more bool, err error) {
	if len(f.IDs) > 0 {
		return distinct(f.IDs), after, false, nil
	}
	query := "SELECT id FROM " + l.dead + " WHERE name = ? AND tbl = ? AND id > ?"
	if !f.Discarded {
		query += " AND discarded_at IS NULL"
	}
	err = each(ctx, l.db, query+" ORDER BY id LIMIT ?", []any{l.o.Name, t.Table.String(), after.id, limit}, func(rows *sql.Rows) error {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
		return nil
	})
	if isNumber(err, errNoTable) {
		return nil, after, false, nil
	}
	if err != nil {
		return nil, after, false, fmt.Errorf("reading %s: %w", l.dead, err)
	}
	if len(ids) > 0 {
		after = Cursor{id: ids[len(ids)-1], begun: true}
	}
	return ids, after, len(ids) == limit, nil
}

// reasons reads what rowferry_dead knows of rows. Where it is missing, it knows nothing.
func (l *Ledger) reasons(ctx context.Context, t *table, ids []string) (map[string]Letter, error) {
	found := map[string]Letter{}
	for _, piece := range chunks(ids, selectIDsMax) {
		c := l.deadIn(t, piece)
		query := "SELECT id, COALESCE(order_key, ''), reason, attempts, discarded_at IS NOT NULL, COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', discarded_at), 0) FROM " + l.dead + " WHERE " + c.text
		err := each(ctx, l.db, query, c.args, func(rows *sql.Rows) error {
			var one Letter
			var micros int64
			if err := rows.Scan(&one.Key.ID, &one.OrderKey, &one.Reason, &one.Attempts, &one.Discarded, &micros); err != nil {
				return err
			}
			if one.Discarded {
				one.DiscardedAt = time.UnixMicro(micros).UTC()
			}
			found[one.Key.ID] = one
			return nil
		})
		if isNumber(err, errNoTable) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", l.dead, err)
		}
	}
	return found, nil
}

// deadIn is the condition on rowferry_dead that a letter is one of ids.
func (l *Ledger) deadIn(t *table, ids []string) clause {
	c := clause{"name = ? AND tbl = ? AND id IN (?" + strings.Repeat(",?", len(ids)-1) + ")", []any{l.o.Name, t.Table.String()}}
	for _, id := range ids {
		c.args = append(c.args, id)
	}
	return c
}

// distinct returns ids without repetitions, in their order.
func distinct(ids []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
}
