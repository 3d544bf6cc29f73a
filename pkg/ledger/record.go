package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Record writes outcomes, of any tables, in one transaction, and then calls also
// (which may be nil) in it, as its last step. Deadlocks and lock waits are
// retried, so also may be called several times.
//
// Rows that somebody else keeps locked are set aside: everything else is
// written, and their outcomes are returned as locked, to be recorded later. Also
// is called all the same, so what it saves must not rely on these outcomes.
//
// An error of also rolls everything back and is returned wrapped, except one
// that is outbox.ErrFenced: then the marks are committed all the same, because
// they are facts, and the error is returned.
//
// Outcomes whose row is not in a state that allows them change nothing: see the
// package comment. Where the table has no attempts column, OutcomeAttempt leaves
// the row PENDING and is counted nowhere; where the ledger does not write to the
// table, only OutcomeFailed leaves a trace, in rowferry_dead. Of two outcomes
// for one row, SENT wins. After an error of the connection the transaction may
// have been committed or not; recording the same outcomes again is harmless, but
// for an unclaimed row's OutcomeAttempt, which is then counted twice.
func (l *Ledger) Record(ctx context.Context, outcomes []outbox.Outcome, also func(context.Context, *sql.Tx) error) (locked []outbox.Outcome, err error) {
	groups, err := l.group(outcomes)
	if err != nil {
		return nil, err
	}
	aside := map[outbox.Key]bool{}
	for try := 1; ; try++ {
		err = l.write(ctx, groups, aside, also)
		if err == nil || errors.Is(err, outbox.ErrFenced) {
			return lockedOf(outcomes, aside), err
		}
		if !transient(err) || try == triesMax {
			return nil, fmt.Errorf("recording %d outcomes: %w", len(outcomes), err)
		}
		if err := l.beforeRetry(ctx, err, groups, aside); err != nil {
			return nil, fmt.Errorf("recording %d outcomes: %w", len(outcomes), err)
		}
	}
}

// beforeRetry adds to aside what is locked, if it was a lock that failed, and
// waits a little.
func (l *Ledger) beforeRetry(ctx context.Context, cause error, groups []*group, aside map[outbox.Key]bool) error {
	if isNumber(cause, errLockWait) {
		for _, g := range groups {
			if err := l.setAside(ctx, g, aside); err != nil {
				return err
			}
		}
	}
	return pause(ctx)
}

func (l *Ledger) setAside(ctx context.Context, g *group, aside map[outbox.Key]bool) error {
	ids, err := l.lockedIDs(ctx, g.table, g.ids(aside))
	for _, id := range ids {
		aside[outbox.Key{Table: g.table.Table, ID: id}] = true
	}
	return err
}

func lockedOf(outcomes []outbox.Outcome, aside map[outbox.Key]bool) []outbox.Outcome {
	var locked []outbox.Outcome
	for _, o := range outcomes {
		if aside[o.Key] {
			locked = append(locked, o)
		}
	}
	return locked
}

// group is a set of outcomes that one form of statement writes.
type group struct {
	groupKey
	outcomes []outbox.Outcome
}

type groupKey struct {
	table   *table
	kind    outbox.OutcomeKind
	token   string
	reason  string
	backoff int
}

// group sorts outcomes by statement, in the same order of tables and kinds for
// everybody, and leaves out those for which there is nothing to write.
func (l *Ledger) group(outcomes []outbox.Outcome) ([]*group, error) {
	byKey := map[groupKey]*group{}
	var groups []*group
	for _, o := range outcomes {
		t, err := l.table(o.Key.Table)
		if err != nil {
			return nil, err
		}
		k, write := l.keyOf(t, o)
		if !write {
			continue
		}
		g, ok := byKey[k]
		if !ok {
			g = &group{groupKey: k}
			byKey[k] = g
			groups = append(groups, g)
		}
		g.outcomes = append(g.outcomes, o)
	}
	slices.SortStableFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.table.name, b.table.name), cmp.Compare(rank(a.kind), rank(b.kind)))
	})
	return groups, nil
}

// rank orders outcomes for the same row: SENT wins over all, and an attempt is
// counted before the row is given up.
func rank(k outbox.OutcomeKind) int {
	return slices.Index([]outbox.OutcomeKind{outbox.OutcomeSent, outbox.OutcomeAttempt, outbox.OutcomeFailed, outbox.OutcomeReleased}, k)
}

// keyOf says which group an outcome belongs to, and whether it is written at all.
func (l *Ledger) keyOf(t *table, o outbox.Outcome) (k groupKey, write bool) {
	k = groupKey{table: t, kind: o.Kind}
	switch o.Kind {
	case outbox.OutcomeSent:
		return k, t.writes || t.deletes // whatever the token
	case outbox.OutcomeFailed:
		k.token, k.reason = o.Token, o.Reason
		return k, true
	case outbox.OutcomeAttempt:
		k.token, k.reason, k.backoff = o.Token, o.Reason, o.Backoff
		return k, t.writes
	default:
		k.token = o.Token
		return k, t.writes && o.Token != "" // an unclaimed row is PENDING already
	}
}

// ids returns the distinct ids of the group, without those set aside.
func (g *group) ids(aside map[outbox.Key]bool) []string {
	ids := make([]string, 0, len(g.outcomes))
	for _, o := range g.outcomes {
		if !aside[o.Key] {
			ids = append(ids, o.Key.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// write is one try: one transaction. After any error it must be rolled back as
// a whole, also after a lock wait, which ends the statement only: a COMMIT would
// save the statements before it without the failed one.
func (l *Ledger) write(ctx context.Context, groups []*group, aside map[outbox.Key]bool, also func(context.Context, *sql.Tx) error) error {
	if len(groups) == 0 && also == nil {
		return nil
	}
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	fenced, err := l.fill(ctx, tx, groups, aside, also)
	if err != nil {
		if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("rolling back: %w", rollback))
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("committing: %w", err)
	}
	return fenced
}

// fill runs the statements of a transaction. An error of also that lets the
// marks be committed comes back as fenced.
func (l *Ledger) fill(ctx context.Context, tx *sql.Tx, groups []*group, aside map[outbox.Key]bool, also func(context.Context, *sql.Tx) error) (fenced, err error) {
	for _, g := range groups {
		if err := l.writeGroup(ctx, tx, g, g.ids(aside)); err != nil {
			return nil, fmt.Errorf("table %s, %s: %w", g.table.Table, g.kind, err)
		}
	}
	if also == nil {
		return nil, nil
	}
	err = also(ctx, tx)
	if errors.Is(err, outbox.ErrFenced) {
		return err, nil
	}
	if err != nil {
		return nil, fmt.Errorf("what goes with the outcomes: %w", err)
	}
	return nil, nil
}
