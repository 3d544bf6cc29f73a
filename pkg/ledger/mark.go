package ledger

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// writeGroup writes one group inside a transaction.
func (l *Ledger) writeGroup(ctx context.Context, tx *sql.Tx, g *group, ids []string) error {
	if g.kind == outbox.OutcomeSent && g.table.deletes {
		return l.delete(ctx, tx, g.table, ids)
	}
	for _, piece := range chunks(ids, updateIDsMax) {
		if err := l.writePiece(ctx, tx, g, piece); err != nil {
			return err
		}
	}
	return nil
}

func (l *Ledger) writePiece(ctx context.Context, tx *sql.Tx, g *group, ids []string) error {
	t := g.table
	if t.writes {
		set, guard, err := l.change(g)
		if err != nil {
			return err
		}
		n, err := t.update(ctx, tx, set, ids, guard)
		if err != nil {
			return err
		}
		if g.kind == outbox.OutcomeSent {
			return l.checkMarked(ctx, tx, t, ids, n)
		}
	}
	if g.kind == outbox.OutcomeFailed || g.kind == outbox.OutcomeAttempt && t.Has(outbox.RoleAttempts) {
		return l.bury(ctx, tx, g, ids)
	}
	return nil
}

// change returns the assignments of a group and the condition under which a row
// may change.
func (l *Ledger) change(g *group) (set []clause, guard clause, err error) {
	t := g.table
	if g.kind == outbox.OutcomeSent {
		return t.setSent(), t.open(), nil
	}
	if guard, err = t.ownedBy(g.token); err != nil {
		return nil, guard, err
	}
	switch g.kind {
	case outbox.OutcomeFailed:
		set = append(t.setState(outbox.Failed), t.setReason(g.reason)...)
	case outbox.OutcomeAttempt:
		set = append(l.setAttempt(t, g.backoff), t.setReason(g.reason)...)
	default:
		set = t.setState(outbox.Pending)
	}
	return append(set, t.setUnclaimed()...), guard, nil
}

func (t *table) setState(s outbox.Status) []clause {
	return []clause{{t.col(outbox.RoleStatus) + " = ?", []any{t.state(s)}}}
}

func (t *table) setSent() []clause {
	set := t.setState(outbox.Sent)
	if t.temporal(outbox.RoleSentAt) {
		set = append(set, clause{text: t.col(outbox.RoleSentAt) + " = " + t.now(outbox.RoleSentAt)})
	}
	return append(set, t.setUnclaimed()...)
}

// setAttempt counts an attempt. The state goes first and from attempts + 1:
// assignments run from left to right, but not in MariaDB's SIMULTANEOUS_ASSIGNMENT.
func (l *Ledger) setAttempt(t *table, backoffSeconds int) []clause {
	set := t.setState(outbox.Pending)
	if t.Has(outbox.RoleAttempts) {
		attempts := "COALESCE(" + t.col(outbox.RoleAttempts) + ", 0) + 1"
		set = []clause{
			{t.col(outbox.RoleStatus) + " = IF(" + attempts + " >= ?, ?, ?)", []any{l.o.MaxAttempts, t.state(outbox.Failed), t.state(outbox.Pending)}},
			{text: t.col(outbox.RoleAttempts) + " = " + attempts},
		}
	}
	if t.temporal(outbox.RoleNextAttemptAt) {
		set = append(set, clause{t.col(outbox.RoleNextAttemptAt) + " = NOW(6) + INTERVAL ? SECOND", []any{backoffSeconds}})
	}
	return set
}

// setUnclaimed empties what a claim filled.
func (t *table) setUnclaimed() []clause {
	var set []clause
	for _, r := range []outbox.Role{outbox.RoleClaimToken, outbox.RoleClaimedAt} {
		c, ok := t.Column(r)
		switch {
		case ok && c.Nullable:
			set = append(set, clause{text: t.col(r) + " = NULL"})
		case ok && r == outbox.RoleClaimToken:
			set = append(set, clause{text: t.col(r) + " = ''"})
		}
	}
	return set
}

// open is the condition that a row can still be sent.
func (t *table) open() clause {
	if t.StatusText(outbox.Processing) == "" {
		return t.is(outbox.Pending)
	}
	return clause{t.col(outbox.RoleStatus) + " IN (?, ?)", []any{t.state(outbox.Pending), t.state(outbox.Processing)}}
}

// ownedBy is the condition that nobody but the holder of the token has the row.
func (t *table) ownedBy(token string) (clause, error) {
	if token == "" {
		return t.is(outbox.Pending), nil
	}
	if !t.claims() {
		return clause{}, fmt.Errorf("an outcome carries a claim token, but rows of %s cannot be claimed", t.Table)
	}
	return join(" AND ", []clause{t.is(outbox.Processing), t.tokenIs(token)}), nil
}

func (t *table) tokenIs(token string) clause {
	return clause{t.col(outbox.RoleClaimToken) + " = ?", []any{token}}
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// update changes the rows with these ids that meet the guard, and returns how
// many did.
func (t *table) update(ctx context.Context, db execer, set []clause, ids []string, guard clause) (int64, error) {
	in, err := t.idIn(ids)
	if err != nil {
		return 0, err
	}
	c := clause{text: "UPDATE " + t.name + t.force + " SET "}
	for _, part := range []clause{join(", ", set), {text: " WHERE "}, in, {text: " AND "}, guard} {
		c.add(part.text, part.args...)
	}
	r, err := db.ExecContext(ctx, c.text, c.args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// deleteWhere is a DELETE by key. On a small table a plain one is a
// scan, on both servers, and waits for every lock in the table. MySQL obeys the
// hint, in a DELETE from one table only; MariaDB, which runs what stands between
// /*M! and */, obeys FORCE INDEX, which is not allowed there (TestPlans).
func (t *table) deleteWhere(in clause) clause {
	return clause{"DELETE /*+ INDEX(" + quote(t.Table.Name) + " " + quote(t.KeyIndex) + ") */ /*M! o */ FROM " + t.name + " /*M! AS o" + t.force + " */ WHERE " + in.text, in.args}
}

// delete removes rows that were sent.
func (l *Ledger) delete(ctx context.Context, tx execer, t *table, ids []string) error {
	for _, piece := range chunks(ids, selectIDsMax) {
		in, err := t.idIn(piece)
		if err != nil {
			return err
		}
		c := t.deleteWhere(in)
		if _, err := tx.ExecContext(ctx, c.text, c.args...); err != nil {
			return err
		}
	}
	return nil
}

// checkMarked looks up what kept rows from being marked SENT. SENT already, FAILED
// or gone is nothing special; a row that still looks unsent to StatusOf, but not
// to the server, would be sent again after each restart.
func (l *Ledger) checkMarked(ctx context.Context, tx *sql.Tx, t *table, ids []string, marked int64) error {
	var stuck int
	if marked < int64(len(ids)) {
		found := map[string]outbox.RowState{}
		for _, piece := range chunks(ids, selectIDsMax) {
			if err := l.lookUp(ctx, tx, t, piece, "", found); err != nil {
				return fmt.Errorf("looking up unmarked rows: %w", err)
			}
		}
		for _, s := range found {
			if s.Status == outbox.Pending || s.Status == outbox.Processing {
				stuck++
			}
		}
	}
	if t.stuck.changed(stuck > 0) {
		if stuck > 0 {
			l.log.Error().Str("table", t.Table.String()).Int("rows", stuck).
				Msg("rows cannot be marked as sent: does the status column spell its states in another case than ROWFERRY_OUTBOX_STATUS_VALUES?")
		} else {
			l.log.Info().Str("table", t.Table.String()).Msg("rows can be marked as sent again")
		}
	}
	return nil
}
