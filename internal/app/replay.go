package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// replay publishes the SENT rows again that a filter selects, in the order of created_at
// and id within a table, page by page; they stay SENT. It holds no more than a page.
func (d *desk) replay(ctx context.Context, by admin.ReplayFilter, send courier) (done admin.Replayed, err error) {
	done.DryRun = by.DryRun
	if d.kind != config.LedgerStatus {
		return done, fmt.Errorf("nothing can be replayed with LEDGER=%s: nothing in the table says which rows were sent", d.kind)
	}
	tables, err := d.tables(by.Table)
	if err != nil {
		return done, err
	}
	for _, t := range tables {
		if err := d.replayTable(ctx, t, by, send, &done); err != nil {
			return done, err
		}
	}
	return done, nil
}

func (d *desk) replayTable(ctx context.Context, t outbox.Table, by admin.ReplayFilter, send courier, done *admin.Replayed) error {
	f := ledger.Filter{Status: outbox.Sent, Type: by.Type, Since: by.Since, Until: by.Until, AggregateID: d.aggregateOf(by.Key, t)}
	at := ledger.Cursor{}
	for more := true; more; {
		var ids []string
		var err error
		if ids, at, more, err = d.ledger.Find(ctx, t, f, at, deadPageMax); err != nil {
			return err
		}
		if ids, err = d.ofKey(ctx, t, ids, by.Key); err != nil {
			return err
		}
		done.Selected += int64(len(ids))
		if by.DryRun || len(ids) == 0 {
			continue
		}
		tally, err := send.Again(ctx, keysOf(t, ids))
		done.Add(tally)
		if err != nil {
			return err
		}
	}
	return nil
}

// ofKey leaves out the rows of other keys.
func (d *desk) ofKey(ctx context.Context, t outbox.Table, ids []string, key string) ([]string, error) {
	if key == "" || len(ids) == 0 {
		return ids, nil
	}
	rows, err := d.ledger.Describe(ctx, t, ids)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ids, func(id string) bool {
		row, there := rows[id]
		return !there || d.router.Key(row.Event) != key
	}), nil
}

// Replay implements admin.Letters.
func (r *Relay) Replay(ctx context.Context, by admin.ReplayFilter) (admin.Replayed, error) {
	d, err := r.desk()
	if err != nil {
		return admin.Replayed{}, err
	}
	s := r.running()
	switch {
	case by.DryRun:
		return d.replay(ctx, by, nil)
	case s == nil:
		return admin.Replayed{}, r.notRelaying()
	case r.isPaused():
		return admin.Replayed{}, errPausedNow
	}
	done, err := d.replay(ctx, by, s.hand)
	auditReplay(ctx, r.log, by, done, err)
	return done, err
}

func auditReplay(ctx context.Context, log zerolog.Logger, by admin.ReplayFilter, done admin.Replayed, err error) {
	audit(ctx, log, "replay").Time("since", by.Since).Time("until", by.Until).Str("table", by.Table).Str("type", by.Type).Str("key", by.Key).
		Int64("selected", done.Selected).Int("sent", done.Sent).Int("failed", done.Failed).Int("released", done.Released).Err(err).
		Msg("rows were published again for an operator")
}

// Replay publishes SENT rows again: through the running relay of this name if one answers,
// else by itself, under the leader lock.
func Replay(ctx context.Context, cfg *config.Config, by admin.ReplayFilter, log zerolog.Logger) (done admin.Replayed, err error) {
	if _, err := askRelay(ctx, cfg); err == nil {
		return client(cfg).Replay(asCaller(ctx), by)
	}
	if by.DryRun {
		d, err := openDesk(ctx, cfg, log)
		if err != nil {
			return done, err
		}
		defer d.store.Close() //nolint:errcheck // nothing was written
		return d.replay(ctx, by, nil)
	}
	err = alone(ctx, cfg, log, func(r *Relay, s *session, note string) error {
		d, err := r.desk()
		switch {
		case err != nil:
			return err
		case s == nil && note == notePaused:
			return errPausedNow
		case s == nil:
			return errHeld(ctx, cfg, r.store)
		}
		done, err = d.replay(ctx, by, s.hand)
		auditReplay(ctx, log, by, done, err)
		return err
	})
	return done, err
}
