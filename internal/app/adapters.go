package app

import (
	"context"
	"time"

	"github.com/rowferry/rowferry/pkg/fallback"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

var _ fallback.Rows = sweepRows{}

// sweepRows is the ledger as the sweep sees it.
type sweepRows struct {
	*ledger.Ledger
	claims map[outbox.Table]bool
}

func newSweepRows(l *ledger.Ledger, layouts []*outbox.Layout) sweepRows {
	r := sweepRows{Ledger: l, claims: map[outbox.Table]bool{}}
	for _, layout := range layouts {
		r.claims[layout.Table] = layout.Claims()
	}
	return r
}

// Pages implements fallback.Rows: first the claims whose lease has run out are
// given back, then the pending rows are paged through.
func (r sweepRows) Pages(table outbox.Table, grace time.Duration, limit int) func(context.Context) ([]string, error) {
	var at ledger.Cursor
	begun := false
	return func(ctx context.Context) ([]string, error) {
		if !begun && r.claims[table] {
			if err := r.reclaim(ctx, table); err != nil {
				return nil, err
			}
		}
		begun = true
		found, next, err := r.Candidates(ctx, table, at, int(grace.Seconds()), limit)
		if err != nil {
			return nil, err
		}
		at = next
		ids := make([]string, len(found))
		for i, c := range found {
			ids[i] = c.ID
		}
		return ids, nil
	}
}

func (r sweepRows) reclaim(ctx context.Context, table outbox.Table) error {
	const rowsMax = 1000
	for {
		n, err := r.Reclaim(ctx, table, rowsMax)
		if err != nil || n < rowsMax {
			return err
		}
	}
}

// Claim implements fallback.Rows.
func (r sweepRows) Claim(ctx context.Context, table outbox.Table, ids []string, token string) ([]string, bool, error) {
	if !r.claims[table] {
		return ids, false, nil
	}
	got, err := r.Ledger.Claim(ctx, table, ids, token)
	return got, true, err
}
