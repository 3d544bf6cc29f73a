package ledger

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// denseMin is from how many ids in a row on one range costs less than the list of
// them. A list costs the server about 5 µs a row, a range 1 µs.
const denseMin = 50

// span is a run of numeric ids without a gap, both ends included.
type span struct{ first, last int64 }

func (s span) len() int64 { return s.last - s.first + 1 }

// allPending finds out which ids need no look at each row: a range whose every number
// is the id of a PENDING row. A backlog mostly consists of such ranges, and while one is being
// read every row is looked up. It adds what it finds and returns the rest.
func (l *Ledger) allPending(ctx context.Context, t *table, ids []string, found map[string]outbox.RowState) (rest []string, err error) {
	if c, _ := t.Column(outbox.RoleID); !strings.HasSuffix(c.DataType, "int") {
		return ids, nil
	}
	var hits []span
	for _, s := range spans(ids) {
		n, err := t.pendingIn(ctx, l.db, s)
		if err != nil {
			return nil, err
		}
		if n == s.len() {
			hits = append(hits, s)
		}
	}
	if len(hits) == 0 {
		return ids, nil
	}
	for _, id := range ids {
		if n, ok := plainNumber(id); ok && slices.ContainsFunc(hits, func(s span) bool { return s.first <= n && n <= s.last }) {
			found[id] = outbox.RowState{Status: outbox.Pending}
		} else {
			rest = append(rest, id)
		}
	}
	return rest, nil
}

// pendingIn counts the PENDING rows of a range.
func (t *table) pendingIn(ctx context.Context, db querier, s span) (n int64, err error) {
	c := clause{"SELECT COUNT(*) FROM " + t.name + t.force + " WHERE " + t.id + " BETWEEN ? AND ?", []any{s.first, s.last}}
	if t.Has(outbox.RoleStatus) {
		pending := t.is(outbox.Pending)
		c.add(" AND "+pending.text, pending.args...)
	}
	err = each(ctx, db, c.text, c.args, func(rows *sql.Rows) error { return rows.Scan(&n) })
	return n, err
}

// spans returns the longer runs of ids without a gap.
func spans(ids []string) []span {
	numbers := make([]int64, 0, len(ids))
	for _, id := range ids {
		if n, ok := plainNumber(id); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	var found []span
	for i := 0; i < len(numbers); {
		s := span{numbers[i], numbers[i]}
		for i++; i < len(numbers) && numbers[i]-s.last <= 1; i++ {
			s.last = numbers[i]
		}
		if s.len() >= denseMin {
			found = append(found, s)
		}
	}
	return found
}

// plainNumber reads an id that is written as the server writes it, and not below 1, so
// that differences cannot overflow.
func plainNumber(id string) (int64, bool) {
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && n > 0 && id[0] != '0' && id[0] != '+'
}
