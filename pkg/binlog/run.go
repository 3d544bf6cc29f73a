package binlog

import (
	"context"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Run reads behind from, a text of [Reader.Resolve] or [Reader.Encode], and calls
// emit for each batch in the order of the stream, one call at a time. emit may
// block; then nothing is read, which the server feels. When a connection fails it
// makes another by itself and goes on behind the last transaction whose last batch
// emit accepted; the first pieces of a large one may then come a second time.
//
// It returns ctx.Err() when ctx ends, emit's error when it fails, an error that
// wraps ErrGap when the position is lost, and any other error only when trying
// again would meet the same bytes.
func (r *Reader) Run(ctx context.Context, from string, emit func(context.Context, outbox.Batch) error) error {
	p, err := parsePosition(from)
	if err != nil {
		return err
	}
	r.tracker.start(p)
	r.resume, r.giant = *p, nil
	r.watch.resume(p.layouts)
	if p.gtids != nil {
		r.resume.gtids = p.gtids.clone()
	}
	var try attempts
	for goesOn := false; ; {
		before, began := r.tracker.newest(), time.Now()
		err := r.session(ctx, goesOn, emit)
		if goesOn = errors.Is(err, errReadAgain) && ctx.Err() == nil; goesOn {
			r.cfg.Logger.Info().Int64("hold_bytes_max", r.cfg.HoldBytesMax).Msg("a committed transaction is larger than what is held; it is read a second time")
			continue
		}
		worked := r.tracker.newest() != before || r.State().LastEvent.Sub(began) > pauseMax
		if err := r.afterwards(ctx, err, worked, &try); err != nil {
			return err
		}
	}
}

// session is one connection from its checks to its end. Its error is never nil.
func (r *Reader) session(ctx context.Context, goesOn bool, emit emitFunc) error {
	s, cfg, err := r.check(ctx)
	if err != nil {
		return endOr(ctx, classify(err))
	}
	s.emit, s.ctx, s.goesOn = emit, ctx, goesOn
	s.reader.payloadBytesMax = r.cfg.PayloadBytesMax
	defer s.payload.close()
	watching, stop := context.WithCancel(ctx)
	s.beside = watching
	s.jobs.Go(func() { r.watchRole(watching) })
	err = s.run(ctx, cfg)
	stop()
	s.jobs.Wait()
	r.inside.Store(false)
	r.setState(func(st *State) { st.Connected = false })
	if s.emitErr != nil && ctx.Err() == nil {
		return &emitError{s.emitErr}
	}
	if err = classify(err); errors.Is(err, errTaken) {
		r.evicted, err = true, r.taken()
	}
	return endOr(ctx, err)
}

// endOr returns ctx's own error once it has ended, whatever broke by it.
func endOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// check asks the server by SQL whether it can serve the reader's position, and
// prepares a stream.
func (r *Reader) check(ctx context.Context) (*stream, *mysql.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	srv, cfg, err := r.openServer(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer srv.db.Close() //nolint:errcheck // nothing is written through it
	if err := r.yield(ctx, srv); err != nil {
		return nil, nil, err
	}
	if err := srv.continues(ctx, &r.resume); err != nil {
		return nil, nil, err
	}
	r.watch.index(srv.lowerCase)
	r.watch.connected()
	s := &stream{r: r, server: srv.id, head: srv.head, flavor: srv.flavor, plans: map[uint64]*plan{}}
	if r.cfg.FenceTable != (outbox.Table{}) {
		if s.fenceColumns, err = readColumns(ctx, srv.db, r.cfg.FenceTable); err != nil {
			return nil, nil, err
		}
	}
	return s, cfg, nil
}

// run reads behind the reader's position until the stream ends.
func (s *stream) run(ctx context.Context, cfg *mysql.Config) error {
	return s.r.dumpConfig(s.flavor).run(ctx, cfg, &s.r.resume, s)
}

func (r *Reader) dumpConfig(flavor string) dumpConfig {
	return dumpConfig{
		flavor: flavor, serverID: r.cfg.ServerID, uuid: r.uuid,
		heartbeatPeriod: r.cfg.HeartbeatPeriod, readTimeout: r.cfg.HeartbeatPeriod * 6,
	}
}
