package relay

import (
	"context"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// unit is what the router takes in order: some events, or a fence.
type unit struct {
	items []*item
	fence uint64
}

// Accept takes the next batch of the stream. It blocks while what is in flight
// fills the budget, which holds up the source and, through it, the server. It is
// the accept function of [Source.Run]: one goroutine calls it, in stream order.
func (e *Engine) Accept(ctx context.Context, b outbox.Batch) error {
	var bytes int64
	for _, ev := range b.Events {
		bytes += ev.SizeBytes()
		if ev.Unread != "" {
			e.hooks.ReadByKey(ev.Table, ev.Unread)
		}
	}
	if len(b.Events) > 0 {
		if err := e.budget.acquire(ctx, int64(len(b.Events)), bytes); err != nil {
			return err
		}
	}
	if b.Skipped > 0 {
		e.hooks.Skipped(outbox.Table{}, "not_pending", b.Skipped)
	}
	e.mu.Lock()
	slot := e.wm.add(len(b.Events), b.End, b.Own)
	e.count += len(b.Events)
	e.mu.Unlock()
	if len(b.Events) > 0 {
		e.intake.push(unit{items: newItems(b, slot)})
	}
	if b.Fence > 0 {
		e.intake.push(unit{fence: b.Fence})
	}
	return nil
}

func newItems(b outbox.Batch, s *slot) []*item {
	store := make([]item, len(b.Events))
	items := make([]*item, len(b.Events))
	for i, ev := range b.Events {
		store[i] = item{
			event: ev, origin: b.Origin, slot: s, committed: b.CommittedAt,
			attempts: ev.Attempts, admitted: ev.SizeBytes(),
		}
		items[i] = &store[i]
	}
	return items
}
