package ledger

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Backlog is what a table still holds. Counts stop at 10,001, which stands for
// "more than 10,000": counting on would cost the database half a second.
type Backlog struct {
	Pending       int64
	Failed        int64
	OldestSeconds float64 // age of the oldest PENDING row by the database's clock; 0: none, or of no known age
}

// Backlog counts. In a table without a status column all rows are pending if the
// ledger deletes what was sent, and none if it does not.
func (l *Ledger) Backlog(ctx context.Context, table outbox.Table) (Backlog, error) {
	b, err := l.backlog(ctx, table)
	if err != nil {
		return Backlog{}, fmt.Errorf("counting the backlog of %s: %w", table, err)
	}
	return b, nil
}

func (l *Ledger) backlog(ctx context.Context, name outbox.Table) (b Backlog, err error) {
	t, err := l.table(name)
	if err != nil {
		return b, err
	}
	if !t.Has(outbox.RoleStatus) {
		if t.deletes {
			b.Pending, err = l.count(ctx, t, clause{text: "1 = 1"})
		}
		return b, err
	}
	if b.Pending, err = l.count(ctx, t, t.is(outbox.Pending)); err != nil {
		return b, err
	}
	if b.Failed, err = l.count(ctx, t, t.is(outbox.Failed)); err != nil {
		return b, err
	}
	b.OldestSeconds, err = l.oldest(ctx, t)
	return b, err
}

func (l *Ledger) count(ctx context.Context, t *table, where clause) (n int64, err error) {
	query := "SELECT COUNT(*) FROM (SELECT 1 FROM " + t.name + " WHERE " + where.text + " LIMIT ?) x"
	err = l.db.QueryRowContext(ctx, query, append(where.args, countedMax)...).Scan(&n)
	return n, err
}

// oldest asks for MIN alone, which is one dive into the index.
func (l *Ledger) oldest(ctx context.Context, t *table) (float64, error) {
	if !t.temporal(outbox.RoleCreatedAt) {
		return 0, nil
	}
	pending := t.is(outbox.Pending)
	query := "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(" + t.col(outbox.RoleCreatedAt) + "), NOW(6)) FROM " + t.name + " WHERE " + pending.text
	var micros sql.NullInt64
	if err := l.db.QueryRowContext(ctx, query, pending.args...).Scan(&micros); err != nil {
		return 0, err
	}
	return max(0, float64(micros.Int64)/1e6), nil
}
