package relay

import (
	"context"
	"math"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// byKey bounds what is read from the table for events that the reader could not read.
// They were admitted with the size of their key, and may be of any size.
//
// What must hold: only the router waits here, and only for items that have left it.
// Were it to wait for items behind it, they would never be settled.
type byKey struct {
	*budget
	rowBytes int64 // size of the rows read last, on average; for the router only
}

const (
	readBytesMax  = 1 << 20  // of one look at the table, as far as can be foreseen
	rowBytesFirst = 64 << 10 // expected of a row before the first was seen
)

func newByKey(bytesMax int64) *byKey {
	return &byKey{newBudget(math.MaxInt64, bytesMax), rowBytesFirst}
}

// rowsMax is how many rows may be read at once.
func (b *byKey) rowsMax() int { return int(min(max(1, readBytesMax/max(1, b.rowBytes)), lookupMax)) }

// settled gives back what an item holds.
func (b *byKey) settled(it *item) {
	if it.byKey > 0 {
		b.release(1, it.byKey)
	}
}

// unreadLen returns how many of the items may be taken together: all, or as many as
// hold the rows that may be read at once.
func (e *Engine) unreadLen(items []*item) int {
	rows := 0
	for i, it := range items {
		if it.event.Unread == "" {
			continue
		}
		if rows++; rows > e.byKey.rowsMax() {
			return i
		}
	}
	return len(items)
}

// readByKey reads the rows of the events that the reader could not read for certain.
func (e *Engine) readByKey(ctx context.Context, items []*item) (map[outbox.Key]*outbox.Event, error) {
	unread := map[outbox.Table][]string{}
	for _, it := range items {
		if it.event.Unread != "" {
			unread[it.event.Table] = append(unread[it.event.Table], it.event.ID)
		}
	}
	if len(unread) == 0 {
		return nil, nil
	}
	return e.loadAll(ctx, unread)
}

// fill gives an item what was read of its row, once there is room for it. It reports
// false if there is no row, which settles the item.
func (e *Engine) fill(ctx context.Context, it *item, rows map[outbox.Key]*outbox.Event) (bool, error) {
	if it.event.Unread == "" {
		return true, nil
	}
	ev := rows[it.event.Key()]
	switch {
	case ev == nil && e.cfg.Ledger == nil:
		return false, unreadable(it.event)
	case ev == nil:
		e.settle(it, settlement{skipped: "absent"})
		return false, nil
	}
	more := max(1, ev.SizeBytes()-it.admitted)
	if err := e.byKey.acquire(ctx, 1, more); err != nil {
		return false, err
	}
	e.budget.add(more)
	it.event, it.attempts = ev, ev.Attempts
	it.byKey = more
	it.admitted += more
	return true, nil
}

func (e *Engine) loadAll(ctx context.Context, unread map[outbox.Table][]string) (map[outbox.Key]*outbox.Event, error) {
	rows := map[outbox.Key]*outbox.Event{}
	var bytes int64
	for table, ids := range unread {
		err := e.insist(ctx, "reading rows by key", func() error {
			events, _, err := e.cfg.Rows.Load(ctx, table, ids)
			for _, ev := range events {
				rows[ev.Key()] = ev
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for _, ev := range rows {
		bytes += ev.SizeBytes()
	}
	if len(rows) > 0 {
		e.byKey.rowBytes = bytes / int64(len(rows))
	}
	return rows, nil
}
