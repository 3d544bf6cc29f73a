package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Claim makes rows PROCESSING under a token, those that are PENDING or whose
// lease has run out, and returns the ids it got, in no order. Rows that somebody
// else keeps locked are passed over. Use a fresh token for each call; the table
// must be able to hold claims (outbox.Layout.Claims).
func (l *Ledger) Claim(ctx context.Context, table outbox.Table, ids []string, token string) ([]string, error) {
	t, err := l.claimable(table)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		claimed, err := l.claim(ctx, t, ids, token)
		if err == nil {
			return claimed, nil
		}
		if transient(err) && try < triesMax {
			ids, err = l.freeOnly(ctx, t, ids, err)
		}
		if err != nil {
			return nil, fmt.Errorf("claiming %d rows of %s: %w", len(ids), table, err)
		}
	}
}

func (l *Ledger) claimable(name outbox.Table) (*table, error) {
	t, err := l.table(name)
	if err == nil && !t.claims() {
		err = fmt.Errorf("rows of %s cannot be claimed: the table needs claim_token, claimed_at and a value for PROCESSING", name)
	}
	return t, err
}

// freeOnly leaves out of ids those that are locked, if it was a lock that failed,
// and waits a little.
func (l *Ledger) freeOnly(ctx context.Context, t *table, ids []string, cause error) ([]string, error) {
	if isNumber(cause, errLockWait) {
		locked, err := l.lockedIDs(ctx, t, ids)
		if err != nil {
			return ids, err
		}
		set := make(map[string]bool, len(locked))
		for _, id := range locked {
			set[id] = true
		}
		ids = without(ids, set)
	}
	return ids, pause(ctx)
}

func (l *Ledger) claim(ctx context.Context, t *table, ids []string, token string) (claimed []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			err = tx.Commit()
		} else if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			err = errors.Join(err, rollback)
		}
	}()
	for _, piece := range chunks(ids, selectIDsMax) {
		if _, err := t.update(ctx, tx, t.setClaimed(token), piece, l.free(t)); err != nil {
			return nil, err
		}
		got, err := l.claimedUnder(ctx, tx, t, piece, token)
		if err != nil {
			return nil, err
		}
		claimed = append(claimed, got...)
	}
	return claimed, nil
}

func (t *table) setClaimed(token string) []clause {
	return append(t.setState(outbox.Processing),
		clause{t.col(outbox.RoleClaimToken) + " = ?", []any{token}},
		clause{text: t.col(outbox.RoleClaimedAt) + " = " + t.now(outbox.RoleClaimedAt)})
}

// free is the condition that a row can be claimed.
func (l *Ledger) free(t *table) clause {
	c := clause{text: "("}
	pending, expired := t.is(outbox.Pending), l.expired(t)
	c.add(pending.text, pending.args...)
	c.add(" OR ("+expired.text+"))", expired.args...)
	return c
}

// expired is the condition that a lease has run out. It counts from the claim,
// never from the creation of the row; a claim without a time belongs to nobody.
func (l *Ledger) expired(t *table) clause {
	claimed := t.col(outbox.RoleClaimedAt)
	c := t.is(outbox.Processing)
	c.add(" AND ("+claimed+" < NOW(6) - INTERVAL ? MICROSECOND OR "+claimed+" IS NULL)", l.leaseMicroseconds())
	return c
}

func (l *Ledger) claimedUnder(ctx context.Context, tx *sql.Tx, t *table, ids []string, token string) ([]string, error) {
	c, err := t.idIn(ids)
	if err != nil {
		return nil, err
	}
	for _, condition := range []clause{t.is(outbox.Processing), t.tokenIs(token)} {
		c.add(" AND "+condition.text, condition.args...)
	}
	return t.ids(ctx, tx, "SELECT "+t.selected(outbox.RoleID)+" FROM "+t.name+t.force+" WHERE "+c.text, c.args)
}

func (t *table) ids(ctx context.Context, db querier, query string, args []any) ([]string, error) {
	var ids []string
	err := each(ctx, db, query, args, func(rows *sql.Rows) error {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, t.key(id))
		return nil
	})
	return ids, err
}

// Expired returns up to limit rows whose lease has run out, oldest first.
func (l *Ledger) Expired(ctx context.Context, table outbox.Table, limit int) ([]string, error) {
	t, err := l.claimable(table)
	if err != nil {
		return nil, err
	}
	order := t.id
	if t.temporal(outbox.RoleCreatedAt) {
		order = t.col(outbox.RoleCreatedAt) + ", " + t.id
	}
	c := l.expired(t)
	c.add(" ORDER BY "+order+" LIMIT ?", limit)
	ids, err := t.ids(ctx, l.db, "SELECT "+t.selected(outbox.RoleID)+" FROM "+t.name+" WHERE "+c.text, c.args)
	if err != nil {
		return nil, fmt.Errorf("reading expired claims of %s: %w", table, err)
	}
	return ids, nil
}

// Reclaim makes up to limit rows (at most 1,000) whose lease has run out PENDING
// again and returns how many it got. No attempt is counted: that a process ended
// says nothing about the row.
func (l *Ledger) Reclaim(ctx context.Context, table outbox.Table, limit int) (int64, error) {
	ids, err := l.Expired(ctx, table, min(limit, updateIDsMax))
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	t, err := l.claimable(table)
	if err != nil {
		return 0, err
	}
	set := append(t.setState(outbox.Pending), t.setUnclaimed()...)
	for try := 1; ; try++ {
		if len(ids) == 0 {
			return 0, nil
		}
		n, err := t.update(ctx, l.db, set, ids, l.expired(t))
		if err == nil {
			return n, nil
		}
		if transient(err) && try < triesMax {
			ids, err = l.freeOnly(ctx, t, ids, err)
		}
		if err != nil {
			return 0, fmt.Errorf("taking back %d expired claims of %s: %w", len(ids), table, err)
		}
	}
}
