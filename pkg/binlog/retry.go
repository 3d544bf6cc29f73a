package binlog

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Pauses between connections.
const (
	pauseMin    = 500 * time.Millisecond
	pauseMax    = 30 * time.Second
	doubtfulMax = 3 // times an unreadable place is tried before it counts as lost
)

// final reports whether err ends Run.
func final(ctx context.Context, err error) bool {
	var fatal *fatalError
	var stopped *emitError
	return ctx.Err() != nil || errors.As(err, &stopped) || errors.Is(err, ErrGap) || errors.As(err, &fatal)
}

// emitError marks an error of the caller's own.
type emitError struct{ err error }

func (e *emitError) Error() string { return e.err.Error() }
func (e *emitError) Unwrap() error { return e.err }

// attempts counts failures in a row.
type attempts struct {
	failed int
	doubts int
	shown  string // text of the failure in the log
}

func (a *attempts) doubtful() bool {
	a.doubts++
	return a.doubts >= doubtfulMax
}

// wait is the pause before the next try: doubling, with a quarter of jitter either
// way; at once the longest for what only an operator can mend.
func (a *attempts) wait(err error) time.Duration {
	var config *configError
	if errors.As(err, &config) {
		return pauseMax
	}
	d := min(pauseMin<<min(a.failed, 10), pauseMax)
	a.failed++
	return d*3/4 + rand.N(d/2)
}

// afterwards decides what the end of a connection means: its result ends Run, nil
// means another try, perhaps at another server, after a pause.
func (r *Reader) afterwards(ctx context.Context, err error, worked bool, try *attempts) error {
	if worked {
		*try = attempts{}
		r.cfg.Sources.worked()
	}
	if isDoubtful(err) && try.doubtful() {
		err = gap("the same place failed %d times: %s", doubtfulMax, brief(err))
	}
	if final(ctx, err) && !errors.Is(err, ErrGap) {
		return err
	}
	files := r.resume.gtids == nil
	verdict, moved := r.cfg.Sources.failed(err, files)
	if errors.Is(verdict, ErrGap) && !moved {
		return verdict
	}
	return r.pause(ctx, err, moved, files, try)
}

// pause logs a failure when it is another than the last one, and waits.
func (r *Reader) pause(ctx context.Context, err error, moved, files bool, try *attempts) error {
	text := brief(err)
	r.setState(func(st *State) { st.Connected, st.LastError, st.Reconnects = false, text, st.Reconnects+1 })
	wait := r.cfg.Sources.wait(try.wait(err), files)
	if moved {
		*try = attempts{}
		wait = pauseMin
	}
	if text != try.shown {
		try.shown = text
		r.cfg.Logger.Warn().Str("reason", text).Dur("retry_in", wait).Bool("next_source", moved).Msg("binlog connection lost; the failure is logged again only when it changes")
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
