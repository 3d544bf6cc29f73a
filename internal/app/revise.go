package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/leader"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// Actions on dead letters.
const (
	actionRequeue = "requeue"
	actionDiscard = "discard"
)

// courier sends what an operator asks for.
type courier interface {
	// Rows sends rows that are PENDING, whatever their age.
	Rows(ctx context.Context, rows []outbox.Key) (outbox.Tally, error)
	// Again sends rows once more that are SENT.
	Again(ctx context.Context, rows []outbox.Key) (outbox.Tally, error)
	// Pass sweeps all tables.
	Pass(ctx context.Context) (outbox.Tally, error)
}

// revise applies an action to the dead letters that a filter selects, page by page.
// Those that were requeued are sent before the next page is; by may be nil: nobody can
// send here.
//
// What must hold: the database is changed first, and what is sent is what is PENDING
// then. So a process that ends in between leaves PENDING rows, which any sweep takes.
func (d *desk) revise(ctx context.Context, action string, by admin.DeadFilter, send courier) (done admin.DeadDone, err error) {
	done = admin.DeadDone{Action: action, DryRun: by.DryRun}
	err = d.walk(ctx, by, "", deadPageMax, func(t outbox.Table, letters []ledger.Letter, _ string) (bool, error) {
		ids := make([]string, 0, len(letters))
		for _, l := range letters {
			if by.Limit > 0 && done.Selected >= int64(by.Limit) {
				break
			}
			ids = append(ids, l.Key.ID)
			done.Selected++
		}
		enough := by.Limit > 0 && done.Selected >= int64(by.Limit)
		if by.DryRun || len(ids) == 0 {
			return enough, nil
		}
		return enough, d.revisePage(ctx, &done, t, ids, send)
	})
	if err == nil && done.Changed > 0 && send != nil && d.blocks() {
		var tally outbox.Tally // keys are reopened by a pass
		tally, err = send.Pass(ctx)
		done.Add(tally)
	}
	return done, err
}

// blocks reports whether keys wait for their dead letters.
func (d *desk) blocks() bool { return d.cfg.OnDead == config.OnDeadBlock }

func (d *desk) revisePage(ctx context.Context, done *admin.DeadDone, t outbox.Table, ids []string, send courier) error {
	if done.Action == actionDiscard {
		got, err := d.ledger.Discard(ctx, t, ids)
		done.Changed += int64(len(got.IDs))
		done.Locked += int64(len(got.Locked))
		return err
	}
	if err := d.refuseRequeue(t); err != nil {
		return err
	}
	got, err := d.ledger.Requeue(ctx, t, ids)
	done.Changed += int64(len(got.IDs))
	done.Locked += int64(len(got.Locked))
	if err != nil || send == nil || d.blocks() {
		return err
	}
	tally, err := send.Rows(ctx, keysOf(t, got.IDs))
	done.Add(tally)
	return err
}

// refuseBlock says why ON_DEAD=block cannot be had with these tables.
func (r *Relay) refuseBlock(kind string) error {
	if r.cfg.OnDead != config.OnDeadBlock || kind != config.LedgerNone && everyStatus(r.store.Layouts) {
		return nil
	}
	return errors.New("ROWFERRY_ON_DEAD=block needs outbox tables that say which of their rows are unsent, so that those that wait are found again: set it to skip, or give every table a status column")
}

// refuseRequeue refuses what no sweep could find again.
func (d *desk) refuseRequeue(t outbox.Table) error {
	for _, l := range d.store.Layouts {
		if l.Table == t && (d.kind == config.LedgerNone || !l.Has(outbox.RoleStatus)) {
			return fmt.Errorf("dead letters of %s cannot be requeued: nothing in the table says that a row is unsent, so what is forgotten as a dead letter would be lost; insert the event anew, and discard this one", t)
		}
	}
	return nil
}

func keysOf(t outbox.Table, ids []string) []outbox.Key {
	keys := make([]outbox.Key, len(ids))
	for i, id := range ids {
		keys[i] = outbox.Key{Table: t, ID: id}
	}
	return keys
}

// Requeue implements admin.Letters.
func (r *Relay) Requeue(ctx context.Context, by admin.DeadFilter) (admin.DeadDone, error) {
	return r.revise(ctx, actionRequeue, by)
}

// Discard implements admin.Letters.
func (r *Relay) Discard(ctx context.Context, by admin.DeadFilter) (admin.DeadDone, error) {
	return r.revise(ctx, actionDiscard, by)
}

func (r *Relay) revise(ctx context.Context, action string, by admin.DeadFilter) (admin.DeadDone, error) {
	d, err := r.desk()
	if err != nil {
		return admin.DeadDone{}, err
	}
	var send courier
	note := ""
	switch s := r.running(); {
	case s == nil:
		note = noteElsewhere
	case r.isPaused():
		note = notePaused
	default:
		send = s.hand
	}
	done, err := d.revise(ctx, action, by, send)
	done.Note = noteOf(done, d, note)
	auditDead(ctx, r.log, by, done, err)
	return done, err
}

// What is yet to happen with what was changed.
const (
	noteElsewhere = "no relay leads here: the one that does takes them with its next sweep"
	notePaused    = "publishing is paused: they go when it is resumed"
	noteClaimed   = "not all could be sent now: rows may still be claimed by the relay that led before; they go when that has run out (ROWFERRY_OUTBOX_LEASE)"
	noteReleased  = "some could not be sent now; they are PENDING, and a later sweep takes them"
)

func noteOf(done admin.DeadDone, d *desk, unsent string) string {
	switch {
	case done.DryRun || done.Changed == 0 || done.Action == actionDiscard && !d.blocks():
		return ""
	case unsent != "":
		return unsent
	case d.blocks() && done.Action == actionRequeue && int64(done.Sent+done.Failed) < done.Changed:
		return noteClaimed
	case done.Released > 0:
		return noteReleased
	}
	return ""
}

// auditDead writes the line of the log.
func auditDead(ctx context.Context, log zerolog.Logger, by admin.DeadFilter, done admin.DeadDone, err error) {
	if by.DryRun {
		return
	}
	line := audit(ctx, log, "dead "+done.Action).Str("table", by.Table).Str("type", by.Type).Str("key", by.Key).
		Int("ids", len(by.IDs)).Bool("all", by.All).Int("limit", by.Limit)
	if by.Since != nil {
		line = line.Time("since", *by.Since)
	}
	if by.Until != nil {
		line = line.Time("until", *by.Until)
	}
	line.Int64("selected", done.Selected).Int64("changed", done.Changed).Int64("locked", done.Locked).
		Int("sent", done.Sent).Int("failed", done.Failed).Int("released", done.Released).Err(err).Msg("dead letters were changed by an operator")
}

// DeadRevise requeues or discards dead letters: through the running relay of this name if
// one answers, else by itself, and then sends what was requeued under the leader lock, if
// it is free.
func DeadRevise(ctx context.Context, cfg *config.Config, discard bool, by admin.DeadFilter, log zerolog.Logger) (done admin.DeadDone, err error) {
	action, ask := actionRequeue, client(cfg).Requeue
	if discard {
		action, ask = actionDiscard, client(cfg).Discard
	}
	if _, err := askRelay(ctx, cfg); err == nil {
		return ask(asCaller(ctx), by)
	}
	if by.DryRun || discard && cfg.OnDead != config.OnDeadBlock {
		d, err := openDesk(ctx, cfg, log)
		if err != nil {
			return done, err
		}
		defer d.store.Close() //nolint:errcheck // what was written is written
		done, err = d.revise(ctx, action, by, nil)
		auditDead(ctx, log, by, done, err)
		return done, err
	}
	err = alone(ctx, cfg, log, func(r *Relay, s *session, note string) error {
		d, err := r.desk()
		if err != nil {
			return err
		}
		var send courier
		if s != nil {
			send = s.hand
		}
		done, err = d.revise(ctx, action, by, send)
		done.Note = noteOf(done, d, note)
		auditDead(ctx, log, by, done, err)
		return err
	})
	return done, err
}

// alone runs work for a command when no relay answers: with an engine under the leader
// lock; or without one, and a note why, where somebody else has the lock or publishing is
// paused.
func alone(ctx context.Context, cfg *config.Config, log zerolog.Logger, work func(r *Relay, s *session, note string) error) error {
	r, err := newOneShot(cfg, log)
	if err != nil {
		return err
	}
	defer r.close() //nolint:errcheck // what was written is written
	if err := r.prepare(ctx); err != nil {
		return err
	}
	lock, err := leader.TryAcquire(ctx, r.store.DB, r.store.Schema, cfg.Name, log)
	if err != nil {
		return err
	}
	if lock == nil {
		return work(r, nil, noteElsewhere)
	}
	defer lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // the server releases it with the connection
	err = r.refusePaused(ctx)
	if errors.Is(err, errPausedNow) {
		return work(r, nil, notePaused)
	}
	if err != nil {
		return err
	}
	return r.withEngine(ctx, lock, func(s *session) error { return work(r, s, "") })
}

// withEngine runs work beside an engine that reads no binlog.
func (r *Relay) withEngine(ctx context.Context, lock *leader.Lock, work func(*session) error) error {
	s := r.newSession(checkpoint.Checkpoint{})
	s.build(r, checkpoint.Checkpoint{}, lock)
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.engine.Run(running, "") }()
	err := work(s)
	stop()
	return errors.Join(err, <-ended)
}

// newOneShot makes a relay that reads no binlog and leads while a command runs.
func newOneShot(cfg *config.Config, log zerolog.Logger) (*Relay, error) {
	one := *cfg
	one.Mode = config.ModePoll // no binlog is read
	one.HA = config.HATrue
	r, err := NewRelay(&one, log)
	if err != nil {
		return nil, usage(err)
	}
	return r, nil
}
