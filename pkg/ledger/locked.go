package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// lockedIDs returns which of the ids cannot be locked at present. It keeps no
// lock itself. On a server without SKIP LOCKED, or behind a DDL statement, all
// of them count as locked.
//
// A row that SKIP LOCKED passes over is locked or absent, and one that a plain
// read does not see either may be inserted but not visible yet, so those are
// asked for one by one, by a read that fails where it would have to wait.
func (l *Ledger) lockedIDs(ctx context.Context, t *table, ids []string) ([]string, error) {
	found := map[string]bool{}
	err := l.present(ctx, t, ids, " FOR UPDATE SKIP LOCKED", found)
	if isNumber(err, errSyntax, errLockWait) {
		return ids, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the free rows of %s: %w", t.Table, err)
	}
	held := without(ids, found)

	visible := map[string]bool{}
	if err := l.present(ctx, t, held, "", visible); err != nil {
		return nil, fmt.Errorf("looking for the locked rows of %s: %w", t.Table, err)
	}
	locked := slices.DeleteFunc(slices.Clone(held), func(id string) bool { return !visible[id] })
	for _, id := range without(held, visible) {
		err := l.present(ctx, t, []string{id}, " FOR UPDATE NOWAIT", map[string]bool{})
		switch {
		case isNumber(err, errNoWait, errLockWait):
			locked = append(locked, id)
		case err != nil && !transient(err):
			return nil, fmt.Errorf("asking for a row of %s: %w", t.Table, err)
		}
	}
	return locked, nil
}

func without(ids []string, set map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return set[id] })
}

// present adds to found those ids that the read gives, one statement a piece, so
// that locks go at once.
func (l *Ledger) present(ctx context.Context, t *table, ids []string, lock string, found map[string]bool) error {
	for _, piece := range chunks(ids, selectIDsMax) {
		in, err := t.idIn(piece)
		if err != nil {
			return err
		}
		query := "SELECT " + t.selected(outbox.RoleID) + " FROM " + t.name + t.force + " WHERE " + in.text + lock
		err = each(ctx, l.db, query, in.args, func(rows *sql.Rows) error {
			var id []byte
			if err := rows.Scan(&id); err != nil {
				return err
			}
			found[t.key(id)] = true
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
