package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/checkpoint"
)

const (
	// pauseEvery is how often a relay looks whether a pause was written down by somebody
	// else, or its end.
	pauseEvery = 2 * time.Second
	// quietWithin is how long the answer to a pause waits for sends under way.
	quietWithin = 10 * time.Second
)

var errPausedNow = errors.New("publishing is paused: `rowferry resume` ends that")

// SetPaused implements admin.Relay. It works on a standby too: the switch binds whoever
// leads.
func (r *Relay) SetPaused(ctx context.Context, on bool) (admin.Pausing, error) {
	r.mu.Lock()
	ready, waiting := r.sink != nil, r.waiting
	r.mu.Unlock()
	if !ready {
		return admin.Pausing{}, errors.New("the relay is not ready for that: " + waiting)
	}
	r.pauses.Lock()
	defer r.pauses.Unlock()
	done, err := r.switchPause(ctx, on)
	line := audit(ctx, r.log, pauseAction(on)).Bool("changed", done.Changed)
	if done.Events != nil {
		line.Int64("events", *done.Events)
	}
	line.Err(err).Send()
	return done, err
}

// pauseAction names what turning the switch is.
func pauseAction(on bool) string {
	if on {
		return "pause"
	}
	return "resume"
}

func (r *Relay) switchPause(ctx context.Context, on bool) (admin.Pausing, error) {
	if err := r.saved.SetPaused(ctx, on); err != nil {
		return admin.Pausing{}, err
	}
	done := admin.Pausing{Paused: on, Changed: r.applyPause(on), By: admin.ByRelay}
	s := r.running()
	if s == nil {
		return done, nil
	}
	within, cancel := context.WithTimeout(ctx, quietWithin)
	defer cancel()
	done.Sending = s.engine.Quiet(within) != nil
	events := s.engine.Usage().Events
	done.Events = &events
	return done, nil
}

// applyPause has the relay do what is written down, and reports whether it did not do
// that already. The caller holds pauses.
func (r *Relay) applyPause(on bool) (changed bool) {
	r.mu.Lock()
	changed = r.paused != on
	r.paused = on
	s := r.current
	r.mu.Unlock()
	if !changed {
		return false
	}
	if s != nil {
		s.engine.SetPaused(on)
	}
	if on {
		r.log.Warn().Msg("paused: nothing is published until `rowferry resume`")
		return true
	}
	r.log.Info().Msg("resumed: publishing goes on")
	if s != nil {
		s.trigger() // passes of the sweep have been left out
	}
	return true
}

// isPaused reports whether publishing is paused, as far as this relay knows.
func (r *Relay) isPaused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

// enter makes s the running session.
//
// What must hold: from here on s is told of every pause, and it has been told of those
// before. Otherwise one that is asked for while a session begins is not kept.
func (r *Relay) enter(s *session) {
	r.pauses.Lock()
	defer r.pauses.Unlock()
	r.mu.Lock()
	r.current = s
	on := r.paused
	r.mu.Unlock()
	s.engine.SetPaused(on)
}

// watchPause follows the switch in the checkpoint row until ctx ends: anyone may turn it.
// Other stores belong to this process alone.
func (r *Relay) watchPause(ctx context.Context) {
	for pause(ctx, pauseEvery) {
		r.mu.Lock()
		ready := r.sink != nil // r.saved is there, too
		r.mu.Unlock()
		if !ready {
			continue
		}
		if row, ok := r.saved.(*checkpoint.MySQL); ok {
			r.lookForPause(ctx, row)
		}
	}
}

// lookForPause keeps what it knows while the store does not answer.
//
// What must hold: between the read and the use of what was read, nobody else writes the
// switch in this process. Otherwise an answer that was old undoes a pause.
func (r *Relay) lookForPause(ctx context.Context, row *checkpoint.MySQL) {
	r.pauses.Lock()
	defer r.pauses.Unlock()
	asking, cancel := context.WithTimeout(ctx, retryEvery)
	defer cancel()
	saved, found, err := row.Load(asking)
	switch {
	case err != nil:
		r.log.Debug().Err(err).Msg("looking for a pause failed")
	case found:
		r.applyPause(saved.Paused)
	}
}

// refusePaused keeps a command from publishing beside a pause.
func (r *Relay) refusePaused(ctx context.Context) error {
	saved, _, err := r.saved.Load(ctx)
	if err == nil && saved.Paused {
		err = errPausedNow
	}
	if errors.Is(err, checkpoint.ErrNoTables) {
		return nil // what is not there cannot say so
	}
	return err
}

// SetPaused pauses publishing or resumes it: through the running relay of this name if
// one answers, else by writing it down where whoever leads, now or later, finds it.
func SetPaused(ctx context.Context, cfg *config.Config, on bool, log zerolog.Logger) (admin.Pausing, error) {
	if _, err := askRelay(ctx, cfg); err == nil {
		return client(cfg).SetPaused(asCaller(ctx), on)
	}
	done, err := writePause(ctx, cfg, on)
	audit(ctx, log, pauseAction(on)).Bool("changed", done.Changed).Err(err).Send()
	return done, err
}

// writePause turns the switch without a relay.
func writePause(ctx context.Context, cfg *config.Config, on bool) (admin.Pausing, error) {
	done := admin.Pausing{Paused: on, By: admin.ByCommand}
	saved, closing, err := openSwitch(ctx, cfg)
	if err != nil {
		return done, err
	}
	defer closing() //nolint:errcheck // what was written has been answered
	before, _, err := saved.Load(ctx)
	if err != nil {
		return done, err
	}
	done.Changed = before.Paused != on
	if err := saved.SetPaused(ctx, on); err != nil {
		if errors.Is(err, checkpoint.ErrInUse) {
			err = fmt.Errorf("%w: a relay runs with it that does not answer on %s (ROWFERRY_HTTP_ADDR)", err, cfg.HTTPAddr)
		}
		return done, err
	}
	return done, nil
}

// pauseSwitch is where a pause is written down.
type pauseSwitch interface {
	Load(ctx context.Context) (checkpoint.Checkpoint, bool, error)
	SetPaused(ctx context.Context, on bool) error
}

func openSwitch(ctx context.Context, cfg *config.Config) (pauseSwitch, func() error, error) {
	switch cfg.CheckpointStore.Kind {
	case config.StoreMemory:
		return nil, nil, fmt.Errorf("with ROWFERRY_CHECKPOINT_STORE=memory only the running relay can be paused, and none answers on %s", cfg.HTTPAddr)
	case config.StoreFile:
		return checkpoint.NewFile(cfg.CheckpointStore.Path, cfg.Name), func() error { return nil }, nil
	}
	store, err := OpenStore(cfg)
	if err != nil {
		return nil, nil, usage(err)
	}
	if err := store.refuseReplica(ctx); err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return checkpoint.NewMySQL(store.DB, store.Schema, cfg.Name), store.Close, nil
}

// PrintPausing writes what a pause or its end has done.
func PrintPausing(w io.Writer, p admin.Pausing) error {
	text := "resumed: publishing goes on"
	switch {
	case p.Paused && p.By == admin.ByCommand:
		text = fmt.Sprintf("paused: no relay answers here; one that runs elsewhere sends nothing %s from now at the latest", pauseEvery)
	case p.Paused && p.Sending:
		text = "paused: nothing more is sent; a send that had begun has not ended yet"
	case p.Paused:
		text = "paused: nothing is being sent any more"
	case p.By == admin.ByCommand:
		text = fmt.Sprintf("resumed: no relay answers here; one that runs elsewhere goes on within %s", pauseEvery)
	}
	if !p.Changed {
		text += " (it was so before)"
	}
	if p.Paused && p.Events != nil {
		text += fmt.Sprintf("\n%d events wait in the relay; what comes on top waits in the binlog and the table", *p.Events)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
