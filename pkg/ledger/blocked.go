package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// BlockedKeys returns the ordering keys, each once, that rowferry_dead names, for whoever
// keeps later events of a key waiting: dead are those with a letter that is FAILED and was
// not discarded; settled are the others, whose letters were all requeued, discarded, mended
// by hand or deleted, until Opened forgets them. They are up to most of each.
func (l *Ledger) BlockedKeys(ctx context.Context, most int) (dead, settled []string, err error) {
	keys := blockedKeys{dead: map[string]bool{}, settled: map[string]bool{}, most: most}
	for _, t := range l.written() {
		if err := l.eachLetter(ctx, t, keys.full, keys.add); err != nil {
			return nil, nil, fmt.Errorf("reading the keys that wait for dead letters of %s: %w", t.Table, err)
		}
	}
	for key := range keys.dead {
		dead = append(dead, key)
		delete(keys.settled, key)
	}
	for key := range keys.settled {
		settled = append(settled, key)
	}
	return dead, settled, nil
}

// blockedKeys collects keys.
type blockedKeys struct {
	dead, settled map[string]bool
	most          int
}

func (k *blockedKeys) full() bool { return len(k.dead) >= k.most }

func (k *blockedKeys) add(letter Letter, status outbox.Status) {
	switch {
	case letter.OrderKey == "" || k.full():
	case status == outbox.Failed && !letter.Discarded:
		k.dead[letter.OrderKey] = true
	case len(k.settled) < k.most:
		k.settled[letter.OrderKey] = true
	}
}

// written returns the tables in which rows are marked.
func (l *Ledger) written() []*table {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var tables []*table
	for _, t := range l.tables {
		if t.writes {
			tables = append(tables, t)
		}
	}
	return tables
}

// eachLetter calls do with what rowferry_dead holds of a table that names a key, and with
// the state of the row, until enough.
func (l *Ledger) eachLetter(ctx context.Context, t *table, enough func() bool, do func(Letter, outbox.Status)) error {
	for after := ""; !enough(); {
		letters, err := l.letterPage(ctx, t, after)
		if isNumber(err, errNoTable) || err == nil && len(letters) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		ids := make([]string, len(letters))
		for i, letter := range letters {
			ids[i] = letter.Key.ID
		}
		states := map[string]outbox.RowState{}
		if err := l.lookUp(ctx, l.db, t, ids, "", states); err != nil {
			return err
		}
		for _, letter := range letters {
			do(letter, states[letter.Key.ID].Status)
		}
		after = ids[len(ids)-1]
	}
	return nil
}

func (l *Ledger) letterPage(ctx context.Context, t *table, after string) (letters []Letter, err error) {
	query := "SELECT id, order_key, discarded_at IS NOT NULL FROM " + l.dead + " WHERE name = ? AND tbl = ? AND id > ? AND order_key IS NOT NULL ORDER BY id LIMIT ?"
	err = each(ctx, l.db, query, []any{l.o.Name, t.Table.String(), after, selectIDsMax}, func(rows *sql.Rows) error {
		letter := Letter{Key: outbox.Key{Table: t.Table}}
		err := rows.Scan(&letter.Key.ID, &letter.OrderKey, &letter.Discarded)
		letters = append(letters, letter)
		return err
	})
	return letters, err
}

// Opened forgets the settled letters of keys: those that were requeued, mended by hand or
// deleted leave rowferry_dead; of those that were discarded it keeps all but the key.
// Letters that are FAILED and were not discarded stay as they are.
func (l *Ledger) Opened(ctx context.Context, keys []string) error {
	set := setOf(keys)
	for _, t := range l.written() {
		var discarded, gone []string
		err := l.eachLetter(ctx, t, func() bool { return false }, func(letter Letter, status outbox.Status) {
			switch {
			case !set[letter.OrderKey]:
			case status != outbox.Failed:
				gone = append(gone, letter.Key.ID)
			case letter.Discarded:
				discarded = append(discarded, letter.Key.ID)
			}
		})
		if err == nil {
			err = l.forgetKeys(ctx, t, discarded, gone)
		}
		if err != nil {
			return fmt.Errorf("forgetting settled dead letters of %s: %w", t.Table, err)
		}
	}
	return nil
}

func (l *Ledger) forgetKeys(ctx context.Context, t *table, discarded, gone []string) (err error) {
	if len(discarded)+len(gone) == 0 {
		return nil
	}
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = tx.Commit()
		} else if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			err = errors.Join(err, rollback)
		}
	}()
	for _, piece := range chunks(discarded, selectIDsMax) {
		c := l.deadIn(t, piece)
		query := "UPDATE " + l.dead + " FORCE INDEX (PRIMARY) SET order_key = NULL WHERE discarded_at IS NOT NULL AND " + c.text
		if _, err := tx.ExecContext(ctx, query, c.args...); err != nil {
			return err
		}
	}
	return l.forget(ctx, tx, t, gone, "")
}

// unkeyed is the condition that nobody waits for a letter.
const unkeyed = " AND order_key IS NULL"

// forget removes letters from rowferry_dead, if there is one.
func (l *Ledger) forget(ctx context.Context, tx *sql.Tx, t *table, ids []string, condition string) error {
	for _, piece := range chunks(ids, selectIDsMax) {
		c := l.deadIn(t, piece)
		// Hinted as deleteWhere: a scan would wait for every lock in the table.
		query := "DELETE /*+ INDEX(rowferry_dead PRIMARY) */ /*M! o */ FROM " + l.dead + " /*M! AS o FORCE INDEX (PRIMARY) */ WHERE " + c.text + condition
		_, err := tx.ExecContext(ctx, query, c.args...)
		if isNumber(err, errNoTable) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("removing dead letters from %s: %w", l.dead, err)
		}
	}
	return nil
}
