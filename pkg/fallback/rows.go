package fallback

import (
	"context"
	"fmt"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Rows sends rows that somebody asks for, in their order and whatever their age, those
// that are PENDING: behind a fence, as in a pass. It waits until a pass that is under way
// has ended.
func (s *Sweeper) Rows(ctx context.Context, rows []outbox.Key) (outbox.Tally, error) {
	return s.byHand(ctx, func(p *pass) error {
		if err := p.waitForTail(ctx); err != nil {
			return err
		}
		return p.pages(rows, func(table outbox.Table, ids []string) error { return p.sendPage(ctx, table, ids) })
	})
}

// Again sends rows once more that are SENT, in their order; whatever becomes of that,
// they stay SENT. Rows of parked lanes are not sent, nor those that are in flight.
func (s *Sweeper) Again(ctx context.Context, rows []outbox.Key) (outbox.Tally, error) {
	return s.byHand(ctx, func(p *pass) error {
		return p.pages(rows, func(table outbox.Table, ids []string) error { return p.sendAgain(ctx, table, ids) })
	})
}

// byHand does work as a pass of its own.
//
// What must hold: no pass runs beside it. Otherwise two of them send one row, and a lane
// that reopens takes rows of the other one for its own.
func (s *Sweeper) byHand(ctx context.Context, work func(*pass) error) (outbox.Tally, error) {
	s.pass.Lock()
	defer s.pass.Unlock()
	p := pass{s: s}
	start := time.Now()
	if err := s.cfg.Engine.BeginRows(ctx); err != nil {
		return p.tally, err
	}
	err := work(&p)
	if p.unfenced {
		s.cfg.Tail.Verify()
	}
	if s.cfg.Passed != nil {
		s.cfg.Passed(p.tally, time.Since(start), false)
	}
	return p.tally, err
}

// pages cuts rows into pages of one table each.
func (p *pass) pages(rows []outbox.Key, send func(outbox.Table, []string) error) error {
	for len(rows) > 0 {
		table, ids := rows[0].Table, []string(nil)
		for len(rows) > 0 && rows[0].Table == table && len(ids) < p.s.cfg.BatchSize {
			ids, rows = append(ids, rows[0].ID), rows[1:]
		}
		if err := send(table, ids); err != nil {
			return err
		}
	}
	return nil
}

// sendAgain sends the SENT rows of a page. They are registered before they are read, so
// that the tail does not send them at the same time.
func (p *pass) sendAgain(ctx context.Context, table outbox.Table, ids []string) error {
	cfg := &p.s.cfg
	free := cfg.Engine.Reserve(table, ids)
	if len(free) == 0 {
		return nil
	}
	rows, status, err := cfg.Rows.Load(ctx, table, free)
	var events []*outbox.Event
	for _, ev := range rows {
		if err == nil && status[ev.ID] == outbox.Sent {
			events = append(events, ev)
		}
	}
	cfg.Engine.Unreserve(table, notIn(free, events))
	if err != nil {
		return fmt.Errorf("reading rows: %w", err)
	}
	tally, err := cfg.Engine.Submit(ctx, events, "")
	p.tally.Add(tally)
	return err
}
