package relay

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// lookupMax bounds one look-up by key, in rows.
const lookupMax = 900

// routeLoop takes what the source has handed over, in order, and sends each
// event on to its lane.
func (e *Engine) routeLoop(ctx context.Context) error {
	var units []unit
	for {
		var err error
		if units, err = e.intake.take(ctx, units); err != nil {
			return nil // told to stop; what is left stays PENDING
		}
		if err := e.routeUnits(ctx, units); err != nil {
			return err
		}
	}
}

// routeUnits groups the events between two fences, so that look-ups are few.
func (e *Engine) routeUnits(ctx context.Context, units []unit) error {
	var run []*item
	flush := func() error {
		err := e.routeItems(ctx, run)
		run = run[:0]
		return err
	}
	for _, u := range units {
		run = append(run, u.items...)
		if len(run) < lookupMax && u.fence == 0 {
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		if u.fence > 0 {
			e.fence.returned(u.fence, e.hooks.FenceReturned)
		}
	}
	return flush()
}

// routeItems registers tail items, looks them up where that is due, and enters
// the rest into their lanes. The order of the three steps is what keeps the two
// paths from sending one row twice: whoever is registered first has it, and what
// the other path did before that shows in the look-up.
func (e *Engine) routeItems(ctx context.Context, items []*item) error {
	items, err := e.lookUp(ctx, e.register(items))
	if err != nil {
		return err
	}
	for len(items) > 0 {
		n := e.unreadLen(items)
		if err := e.dispatchAll(ctx, items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// dispatchAll sends items on to their lanes: together, but for those before a row that
// was read by key, since fill may wait for those that have gone.
func (e *Engine) dispatchAll(ctx context.Context, items []*item) error {
	rows, err := e.readByKey(ctx, items)
	if err != nil {
		return err
	}
	ready := make([]*item, 0, len(items))
	for _, it := range items {
		if it.event.Unread != "" {
			e.dispatch(ready...)
			ready = ready[:0]
		}
		ok, err := e.fill(ctx, it, rows)
		if err != nil {
			return err
		}
		if ok {
			ready = append(ready, it)
		}
	}
	e.dispatch(ready...)
	return nil
}

// register drops the items whose row is in a lane already: they wait for that
// outcome. Without a ledger there is no second path and nothing to register.
func (e *Engine) register(items []*item) []*item {
	if e.cfg.Ledger == nil {
		return items
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := items[:0]
	for _, it := range items {
		if e.inflight.enter(it) {
			kept = append(kept, it)
		}
	}
	return kept
}

// lookUp asks the ledger for the status of items: of all of them while the fence
// of this connection is out, else only of those that must be read by key anyway.
// It returns those that are still to be sent, in the same order.
func (e *Engine) lookUp(ctx context.Context, items []*item) ([]*item, error) {
	asked := map[outbox.Table][]string{}
	all := e.cfg.Ledger != nil && e.fence.outstanding()
	for _, it := range items {
		if it.event.Deleted && it.event.Unread != "" {
			return nil, unreadable(it.event)
		}
		if it.event.Deleted {
			continue // there is no row any more; the image is all there is
		}
		if all || it.event.Unread != "" {
			asked[it.event.Table] = append(asked[it.event.Table], it.event.ID)
		}
	}
	if len(asked) == 0 {
		return items, nil
	}
	states, err := e.statuses(ctx, asked)
	if err != nil {
		return nil, err
	}
	kept := items[:0]
	for _, it := range items {
		st, ok := states[it.event.Key()]
		if st.Status == outbox.Missing && e.cfg.Ledger == nil {
			return nil, unreadable(it.event)
		}
		if !ok || e.sendable(it, st) {
			kept = append(kept, it)
		}
	}
	return kept, nil
}

// unreadable stops a relay whose position is all it has for this event: there is
// no ledger, or the transaction that inserted the row deleted it again. To pass the
// event would lose it.
func unreadable(e *outbox.Event) error {
	return fmt.Errorf("event %s of %s cannot be read for certain from the binlog (%s), and its row is gone, so it can neither be sent nor left for later (set binlog_row_image=FULL; to go on without the event, set a position behind it)",
		e.ID, e.Table, e.Unread)
}

// sendable settles an item that is not to be sent, and reports whether it is.
func (e *Engine) sendable(it *item, st outbox.RowState) bool {
	switch st.Status {
	case outbox.Pending:
		return true
	case outbox.Processing:
		if !st.Held || strings.HasPrefix(st.Token, e.cfg.TokenPrefix) {
			return true
		}
		e.settle(it, settlement{deferred: "claimed_elsewhere"})
	case outbox.Sent, outbox.Failed:
		if st.Status == outbox.Failed {
			e.noteDead(it)
		}
		e.settle(it, settlement{skipped: "already_" + strings.ToLower(st.Status.String())})
	case outbox.Missing:
		e.settle(it, settlement{skipped: "absent"})
	case outbox.Other:
		e.settle(it, settlement{skipped: "not_pending"})
	}
	return false
}

func (e *Engine) statuses(ctx context.Context, asked map[outbox.Table][]string) (map[outbox.Key]outbox.RowState, error) {
	states := map[outbox.Key]outbox.RowState{}
	for table, ids := range asked {
		err := e.insist(ctx, "looking rows up before sending", func() error {
			got, err := e.cfg.Rows.Statuses(ctx, table, ids)
			for id, st := range got {
				states[outbox.Key{Table: table, ID: id}] = st
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return states, nil
}

// dispatch routes items, in order, and puts them into their lanes, or into the waiting
// list of a topic whose lanes are not known yet. It uses the slice up.
func (e *Engine) dispatch(items ...*item) {
	addressed := items[:0]
	for _, it := range items {
		err := e.address(it)
		switch {
		case errors.Is(err, outbox.ErrDropped):
			e.settle(it, settlement{kind: outbox.OutcomeSent, write: true, skipped: "rule"})
		case err != nil && e.blocks(): // in its place among the others of its key
			it.fatal = new(failure(err))
			addressed = append(addressed, it)
		case err != nil:
			e.settle(it, failure(err))
		default:
			addressed = append(addressed, it)
		}
	}
	e.enterLanes(addressed...)
}

// address makes the message of an item.
func (e *Engine) address(it *item) error {
	msg, err := e.cfg.Router.Route(it.event)
	if err != nil {
		it.key = e.keyOf(it.event)
		return err
	}
	if err := e.cfg.Sink.Check(msg); err != nil {
		it.key = msg.Key
		return err
	}
	seq := fmt.Sprintf("%08x-%012x", e.cfg.Epoch, e.seq.Add(1))
	msg.Properties = append(msg.Properties, outbox.Property{Name: "outbox_seq", Value: seq})
	it.msg = msg
	return nil
}

// laneOf places a key among n lanes. Changing it moves keys to other queues, so
// it is part of the wire format.
func laneOf(key string, n int) int {
	h := fnv.New64a()
	_, _ = io.WriteString(h, key) // hash.Hash never returns an error
	return int(h.Sum64() % uint64(n))
}

// insist repeats do until it succeeds or ctx ends. An outage of the database
// costs nobody anything: the stream waits.
func (e *Engine) insist(ctx context.Context, what string, do func() error) error {
	last := ""
	pause := newBackOff(50*time.Millisecond, 5*time.Second)
	for {
		err := do()
		if err == nil || errors.Is(err, outbox.ErrFenced) || ctx.Err() != nil {
			if last != "" && err == nil {
				e.log.Info().Msg(what + " works again")
			}
			return errors.Join(err, ctx.Err())
		}
		if err.Error() != last {
			last = err.Error()
			e.log.Warn().Err(err).Msg(what + " failed; trying again until it works")
		}
		if !sleep(ctx, pause.NextBackOff()) {
			return errors.Join(err, ctx.Err())
		}
	}
}

func newBackOff(first, most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = first, most
	b.Reset()
	return b
}

// sleep waits for d and reports false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
