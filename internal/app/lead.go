package app

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/leader"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/outbox"
)

var errSteppedDown = errors.New("leadership lost")

// lead waits for leadership where it is asked for, and runs sessions until it is
// lost or ctx ends.
func (r *Relay) lead(ctx context.Context) error {
	lock, err := r.acquire(ctx)
	if err != nil || lock == nil && ctx.Err() != nil {
		return err
	}
	if lock != nil {
		defer lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // the server releases it with the connection
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() {
			select {
			case <-lock.Lost():
				cancel(errSteppedDown)
			case <-ctx.Done():
			}
		}()
	}
	gap := false
	for {
		err := r.session(ctx, lock, gap)
		if cause := context.Cause(ctx); errors.Is(cause, errSteppedDown) {
			return errors.Join(cause, err)
		}
		if gap = errors.Is(err, binlog.ErrGap); !gap || ctx.Err() != nil {
			return err
		}
		if err := r.gapFound(err); err != nil {
			return err
		}
	}
}

// acquire takes the leader lock; nil where none is needed or ctx has ended.
func (r *Relay) acquire(ctx context.Context) (*leader.Lock, error) {
	if !NeedsLock(r.cfg, r.store.Layouts) {
		return nil, nil
	}
	var lock *leader.Lock
	r.setWaiting("another relay of this name leads")
	r.setStandby(true)
	defer r.setStandby(false)
	ok := r.insist(ctx, "taking the leader lock", func(ctx context.Context) (err error) {
		lock, err = leader.Acquire(ctx, r.store.DB, r.store.Schema, r.cfg.Name, r.log)
		return err
	})
	if !ok && lock != nil { // it came while the process was told to stop
		return nil, lock.Release(context.WithoutCancel(ctx))
	}
	return lock, nil
}

// leadAlone takes the leader lock or says who has it.
func leadAlone(ctx context.Context, cfg *config.Config, store *Store, log zerolog.Logger) (*leader.Lock, error) {
	lock, err := leader.TryAcquire(ctx, store.DB, store.Schema, cfg.Name, log)
	if err == nil && lock == nil {
		err = errHeld(ctx, cfg, store)
	}
	return lock, err
}

// errHeld says who has the leader lock.
func errHeld(ctx context.Context, cfg *config.Config, store *Store) error {
	holder, _, _ := leader.HolderOf(ctx, store.DB, store.Schema, cfg.Name) // only to name it
	return fmt.Errorf("a relay called %s is running (%s) but does not answer on %s", cfg.Name, holder, cfg.HTTPAddr)
}

// NeedsLock applies HA=auto: without a checkpoint in the store there is nothing
// to fence, and pollers with claim columns keep out of each other's way.
func NeedsLock(cfg *config.Config, layouts []*outbox.Layout) bool {
	switch {
	case cfg.HA != config.HAAuto:
		return cfg.HA == config.HATrue
	case cfg.Mode == config.ModePoll:
		return slices.ContainsFunc(layouts, func(l *outbox.Layout) bool { return !l.Claims() })
	default:
		return cfg.CheckpointStore.Kind == config.StoreMySQL
	}
}

// everyStatus reports whether all tables say which of their rows are unsent, so that
// a sweep can find them.
func everyStatus(layouts []*outbox.Layout) bool {
	return !slices.ContainsFunc(layouts, func(l *outbox.Layout) bool { return !l.Has(outbox.RoleStatus) })
}

// gapFound decides what a lost position means: going on from the present, with a
// sweep of everything PENDING, or the end of the process.
func (r *Relay) gapFound(err error) error {
	if r.cfg.OnGap == config.OnGapStop || r.kind == config.LedgerNone || !everyStatus(r.store.Layouts) {
		return fmt.Errorf("%w; rows committed since may be unsent: look at them, then say where to go on: `rowferry checkpoint set POSITION`, or `rowferry checkpoint reset` and ROWFERRY_START_AT", err)
	}
	r.mu.Lock()
	r.gap = true
	r.mu.Unlock()
	r.log.Error().Err(err).Msg("position lost; reading goes on from the present, and everything PENDING is swept")
	return nil
}
