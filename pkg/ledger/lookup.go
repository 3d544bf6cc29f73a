package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/rowferry/rowferry/pkg/outbox"
)

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// each runs a query and calls scan for each row.
func each(ctx context.Context, db querier, query string, args []any, scan func(*sql.Rows) error) (err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// shared makes a look-up wait for writers that have not committed. The binlog
// runs ahead of visibility: a plain read at the moment of the XID event misses
// one row in a hundred, this one none (TestLookUpSeesUncommitted). It must never
// get SKIP LOCKED, which hides exactly the rows it is for.
const shared = " LOCK IN SHARE MODE"

// Statuses looks rows up by key. Every id is in the answer: those that are not
// there, neither for a plain read nor for a locking one, are outbox.Missing. A
// table without a status column has pending and missing rows only. PROCESSING in
// a table without claim columns is never held: rowferry does not write it there.
// A row that a stranger keeps locked for some ten seconds is an error.
func (l *Ledger) Statuses(ctx context.Context, table outbox.Table, ids []string) (map[string]outbox.RowState, error) {
	t, err := l.table(table)
	if err != nil {
		return nil, err
	}
	found := make(map[string]outbox.RowState, len(ids))
	rest, err := l.allPending(ctx, t, ids, found)
	if err == nil {
		err = l.twice(ctx, rest, selectIDsMax, func(id string) bool { _, ok := found[id]; return ok },
			func(piece []string, lock string) error { return l.lookUp(ctx, l.db, t, piece, lock, found) })
	}
	if err != nil {
		return nil, fmt.Errorf("looking up %d rows of %s: %w", len(ids), table, err)
	}
	for _, id := range ids {
		if _, ok := found[id]; !ok {
			found[id] = outbox.RowState{Status: outbox.Missing}
		}
	}
	return found, nil
}

// twice reads ids in pieces, and those that were not there again with a lock.
// A lock wait means "ask again", not "absent".
func (l *Ledger) twice(ctx context.Context, ids []string, idsMax int, found func(id string) bool, read func(piece []string, lock string) error) error {
	for _, piece := range chunks(ids, idsMax) {
		if err := read(piece, ""); err != nil {
			return err
		}
	}
	var absent []string
	for _, id := range ids {
		if !found(id) {
			absent = append(absent, id)
		}
	}
	for _, piece := range chunks(absent, idsMax) {
		if err := retryLocked(ctx, func() error { return read(piece, shared) }); err != nil {
			return err
		}
	}
	return nil
}

func retryLocked(ctx context.Context, read func() error) error {
	for try := 1; ; try++ {
		err := read()
		if !transient(err) || try == lookUpsMax {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// lookUp adds the states of rows to found.
func (l *Ledger) lookUp(ctx context.Context, db querier, t *table, ids []string, lock string, found map[string]outbox.RowState) error {
	in, err := t.idIn(ids)
	if err != nil {
		return err
	}
	c := l.stateColumns(t)
	c.add(" FROM "+t.name+t.force+" WHERE "+in.text+lock, in.args...)
	return each(ctx, db, "SELECT "+c.text, c.args, func(rows *sql.Rows) error {
		var id, status []byte
		var token sql.NullString
		var live bool
		if err := rows.Scan(&id, &status, &token, &live); err != nil {
			return err
		}
		s := outbox.RowState{Status: t.StatusOf(status)}
		if s.Status == outbox.Processing {
			s.Token, s.Held = token.String, live
		}
		found[t.key(id)] = s
		return nil
	})
}

func (l *Ledger) stateColumns(t *table) clause {
	c := clause{text: t.selected(outbox.RoleID) + ", " + t.selected(outbox.RoleStatus)}
	if !t.claims() {
		c.add(", NULL, 0")
		return c
	}
	claimed := t.col(outbox.RoleClaimedAt)
	c.add(", "+t.col(outbox.RoleClaimToken)+", COALESCE("+claimed+" >= NOW(6) - INTERVAL ? MICROSECOND, 0)", l.leaseMicroseconds())
	return c
}

// loadRoles are the columns that make an event, and the status last.
var loadRoles = []outbox.Role{
	outbox.RoleID, outbox.RoleAggregateType, outbox.RoleAggregateID, outbox.RoleEventType, outbox.RolePayload, outbox.RoleCreatedAt,
	outbox.RoleAttempts, outbox.RoleHeaders, outbox.RoleTopic, outbox.RoleTag, outbox.RoleStatus,
}

// Load reads rows by key as events, in the order of ids, those that are not
// there left out, and returns the state of each id: outbox.Missing means absent
// for a locking read too. An event has the form that the binlog path gives it.
// The caller bounds memory by how many ids it asks for.
func (l *Ledger) Load(ctx context.Context, table outbox.Table, ids []string) ([]*outbox.Event, map[string]outbox.Status, error) {
	t, err := l.table(table)
	if err != nil {
		return nil, nil, err
	}
	byID := make(map[string]*outbox.Event, len(ids))
	states := make(map[string]outbox.Status, len(ids))
	err = l.twice(ctx, ids, loadIDsMax, func(id string) bool { return byID[id] != nil },
		func(piece []string, lock string) error { return l.load(ctx, t, piece, lock, byID, states) })
	if err != nil {
		return nil, nil, fmt.Errorf("reading %d rows of %s: %w", len(ids), table, err)
	}
	events := make([]*outbox.Event, 0, len(byID))
	for _, id := range ids {
		if e := byID[id]; e != nil {
			events = append(events, e)
		} else {
			states[id] = outbox.Missing
		}
	}
	return events, states, nil
}

func (l *Ledger) load(ctx context.Context, t *table, ids []string, lock string, byID map[string]*outbox.Event, states map[string]outbox.Status) error {
	in, err := t.idIn(ids)
	if err != nil {
		return err
	}
	query := "SELECT "
	for i, r := range loadRoles {
		if i > 0 {
			query += ", "
		}
		query += t.selected(r)
	}
	query += " FROM " + t.name + t.force + " WHERE " + in.text + lock
	return each(ctx, l.db, query, in.args, func(rows *sql.Rows) error {
		var v outbox.Values
		into := make([]any, len(loadRoles))
		for i, r := range loadRoles {
			into[i] = &v[r]
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for _, r := range loadRoles {
			v[r] = t.text(r, v[r])
		}
		e := t.Event(&v)
		byID[e.ID] = e
		states[e.ID] = t.StatusOf(v[outbox.RoleStatus])
		return nil
	})
}
