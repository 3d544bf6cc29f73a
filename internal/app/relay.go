package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/router"
	"github.com/rowferry/rowferry/pkg/router/rocketmq"
)

// retryEvery is how often a relay that cannot work yet looks again.
const retryEvery = 5 * time.Second

// checkpoints is what the app needs of a checkpoint store.
type checkpoints interface {
	Begin(ctx context.Context, owner string) (checkpoint.Checkpoint, error)
	Load(ctx context.Context) (checkpoint.Checkpoint, bool, error)
	Save(ctx context.Context, position string) error
	SetPaused(ctx context.Context, paused bool) error
	rocketmq.TopicStore
	topicLists
}

// Relay is a running `rowferry run`.
type Relay struct {
	cfg    *config.Config
	log    zerolog.Logger
	owner  string // this process, in the checkpoint row and in claim tokens
	store  *Store
	router *router.Router
	saved  checkpoints       // where positions are kept
	fences *checkpoint.MySQL // the row whose fence comes back; nil where nothing is written to the store
	sink   Sink
	meters *meters
	// sources is where the binlog is read, and which of them is in use.
	sources *binlog.Sources

	shutdown <-chan struct{} // closed when the process is told to end

	mu      sync.Mutex
	waiting string    // what the relay waits for before it can work; empty: it works
	standby bool      // waiting for the leader lock, and nothing is wrong with that
	kind    string    // ledger in force; empty before the tables are known
	gap     bool      // a position was lost, and not everything since is swept yet
	gapAt   time.Time // before it, rows may lie in the gap
	current *session
	lastErr string
	pingErr string // why no name server answers; empty: one does
	paused  bool   // as it is written down, as far as known

	pauses sync.Mutex // held while the switch is read or written and what it says is done
}

// NewRelay checks what can be checked without a connection; its errors are
// mistakes in the configuration.
func NewRelay(cfg *config.Config, log zerolog.Logger) (*Relay, error) {
	r := &Relay{cfg: cfg, log: log, owner: ownerName(), meters: newMeters(cfg), sources: NewSources(cfg), waiting: "starting"}
	var err error
	if r.router, err = NewRouter(cfg); err != nil {
		return nil, err
	}
	if r.store, err = OpenStore(cfg); err != nil {
		return nil, err
	}
	return r, nil
}

// ownerName names this process uniquely: the host, for people, and something
// random, because two processes on one host must not take each other's claims
// for their own. It is short enough for a claim token of CHAR(36).
func ownerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%.12s-%.10s", host, rand.Text())
}

// Run relays until ctx ends and everything in flight is settled. It returns an
// error only for what waiting cannot mend.
func (r *Relay) Run(ctx context.Context) error {
	server, err := r.listen()
	if err != nil {
		return err
	}
	r.shutdown = ctx.Done()
	watching, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { r.meters.watch(watching, r) })
	watchers.Go(func() { r.pingBroker(watching) })
	watchers.Go(func() { r.watchPause(watching) })
	err = r.serve(ctx)
	r.setWaiting("stopped")
	if ctx.Err() != nil {
		r.log.Info().Msg("told to end: stopped")
	}
	stopWatching()
	watchers.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(err, server.Close(closing), r.close())
}

func (r *Relay) close() error {
	var errs []error
	if r.sink != nil {
		errs = append(errs, r.sink.Close())
	}
	return errors.Join(append(errs, r.store.Close())...)
}

// serve prepares what does not change, then leads, steps down and leads again.
func (r *Relay) serve(ctx context.Context) error {
	if !r.insist(ctx, "preparing the store", r.prepare) {
		return nil
	}
	for {
		err := r.lead(ctx)
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errSteppedDown), errors.Is(err, outbox.ErrFenced):
			r.log.Warn().Err(err).Msg("no longer leading; trying to lead again")
			if !pause(ctx, retryEvery) {
				return nil
			}
		default:
			return err
		}
	}
}

// prepare reads the tables and opens what depends on them.
func (r *Relay) prepare(ctx context.Context) error {
	if err := r.store.Learn(ctx); err != nil {
		return err
	}
	kind, err := r.store.LedgerKind()
	if err != nil {
		return err
	}
	if err := r.refuseRetention(kind); err != nil {
		return err
	}
	if err := r.refuseBlock(kind); err != nil {
		return err
	}
	if kind != config.LedgerNone || r.cfg.CheckpointStore.Kind == config.StoreMySQL {
		if err := r.store.refuseReplica(ctx); err != nil {
			return err
		}
	}
	if err := r.openCheckpoints(kind); err != nil {
		return err
	}
	sink := r.sink
	if sink == nil {
		if sink, err = NewSink(r.cfg, r.saved, r.log); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.kind, r.sink = kind, sink
	r.mu.Unlock()
	for _, l := range r.store.Layouts {
		r.log.Info().Str("table", l.Table.String()).Str("ledger", kind).Bool("claims", l.Claims()).
			Int("columns", len(l.Columns)).Msg("outbox table recognised")
	}
	return nil
}

func (r *Relay) openCheckpoints(kind string) error {
	inStore := checkpoint.NewMySQL(r.store.DB, r.store.Schema, r.cfg.Name)
	if kind != config.LedgerNone && r.cfg.Mode != config.ModePoll {
		r.fences = inStore
	}
	if r.saved != nil {
		return nil
	}
	switch r.cfg.CheckpointStore.Kind {
	case config.StoreFile:
		r.saved = checkpoint.NewFile(r.cfg.CheckpointStore.Path, r.cfg.Name)
	case config.StoreMemory:
		r.saved = checkpoint.NewMemory()
	default:
		r.saved = inStore
	}
	return nil
}

// insist tries again every few seconds until do succeeds; false if ctx ended. A
// failure is logged when it changes and when it ends, and is the reason for not
// being ready meanwhile.
func (r *Relay) insist(ctx context.Context, what string, do func(context.Context) error) bool {
	last := ""
	for {
		err := do(ctx)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			if last != "" {
				r.log.Info().Msg(what + " works now")
			}
			r.setError("")
			return true
		}
		text := what + ": " + err.Error()
		r.setWaiting(text)
		r.setError(text)
		if text != last {
			last = text
			r.log.Error().Err(err).Msgf("%s failed; trying again every %s", what, retryEvery)
		}
		if !pause(ctx, retryEvery) {
			return false
		}
	}
}

// running returns the running session; nil while there is none.
func (r *Relay) running() *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

func (r *Relay) gapOpen() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gap
}

func (r *Relay) setStandby(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standby = on
}

func (r *Relay) setWaiting(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = why
}

func (r *Relay) setError(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastErr = text
}

// pause waits; false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
