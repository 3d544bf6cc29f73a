package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/leader"
	"github.com/rowferry/rowferry/migrations"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/fallback"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/relay"
	"github.com/rowferry/rowferry/pkg/router"
)

// retryEvery is how often a relay that cannot work yet looks again.
const retryEvery = 5 * time.Second

// checkpoints is what the app needs of a checkpoint store.
type checkpoints interface {
	Begin(ctx context.Context, owner string) (checkpoint.Checkpoint, error)
	Load(ctx context.Context) (checkpoint.Checkpoint, bool, error)
	Save(ctx context.Context, position string) error
	LoadTopic(ctx context.Context, topic string) ([]string, error)
	SaveTopic(ctx context.Context, topic string, queues []string) error
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

	mu      sync.Mutex
	waiting string // what the relay waits for before it can work; empty: it works
	kind    string // ledger in force; empty before the tables are known
	gap     bool   // a position was lost, and not everything since is swept yet
	current *session
	lastErr string
	pingErr string // why no name server answers; empty: one does
}

// NewRelay checks what can be checked without a connection; its errors are
// mistakes in the configuration.
func NewRelay(cfg *config.Config, log zerolog.Logger) (*Relay, error) {
	r := &Relay{cfg: cfg, log: log, owner: ownerName(), meters: newMeters(cfg), waiting: "starting"}
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
	watching, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { r.meters.watch(watching, r) })
	watchers.Go(func() { r.pingBroker(watching) })
	err = r.serve(ctx)
	r.setWaiting("stopped")
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

var errSteppedDown = errors.New("leadership lost")

// lead waits for leadership where it is asked for, and runs sessions until it is
// lost or ctx ends.
func (r *Relay) lead(ctx context.Context) error {
	lock, err := r.acquire(ctx)
	if err != nil || ctx.Err() != nil {
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
	r.setWaiting("another relay of this name leads, or the store does not answer")
	ok := r.insist(ctx, "taking the leader lock", func(ctx context.Context) (err error) {
		lock, err = leader.Acquire(ctx, r.store.DB, r.store.Schema, r.cfg.Name, r.log)
		return err
	})
	if !ok {
		return nil, nil
	}
	return lock, nil
}

// tryLock takes the leader lock or says who has it.
func (r *Relay) tryLock(ctx context.Context) (*leader.Lock, error) {
	lock, err := leader.TryAcquire(ctx, r.store.DB, r.store.Schema, r.cfg.Name, r.log)
	if err == nil && lock == nil {
		holder, _, _ := leader.HolderOf(ctx, r.store.DB, r.store.Schema, r.cfg.Name) // only to name it
		err = fmt.Errorf("a relay called %s is running (%s) but does not answer on %s", r.cfg.Name, holder, r.cfg.HTTPAddr)
	}
	return lock, err
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

// gapFound decides what a lost position means: going on from the present, with a
// sweep of everything PENDING, or the end of the process.
func (r *Relay) gapFound(err error) error {
	if r.cfg.OnGap == config.OnGapStop || r.kind == config.LedgerNone {
		return fmt.Errorf("%w; rows committed since may be unsent: look at them, then begin anew with `rowferry checkpoint reset` or ROWFERRY_START_AT", err)
	}
	r.mu.Lock()
	r.gap = true
	r.mu.Unlock()
	r.log.Error().Err(err).Msg("position lost; reading goes on from the present, and everything PENDING is swept")
	return nil
}

// session is one life of the engine: from a position to a stop.
type session struct {
	engine  *relay.Engine
	reader  *binlog.Reader // nil with MODE=poll
	sweeper *fallback.Sweeper
	ledger  *ledger.Ledger
	epoch   int64
	began   time.Time
	pos     atomic.Pointer[outbox.Position] // the newest saved one
	saved   atomic.Int64                    // when a position was last saved, in Unix nanoseconds; 0: not yet
}

// trigger asks for a sweep, where there is one.
func (s *session) trigger() {
	if s.sweeper != nil {
		s.sweeper.Trigger()
	}
}

func (r *Relay) session(ctx context.Context, lock *leader.Lock, gap bool) error {
	begun, ok := r.begin(ctx)
	if !ok {
		return nil
	}
	s := r.newSession(begun)
	from := ""
	if r.cfg.Mode != config.ModePoll {
		var err error
		if s.reader, err = NewReader(r.cfg, r.store, func() { s.engine.Verify() }, r.log); err != nil {
			return err
		}
		if from, err = r.position(ctx, s.reader, begun.Position, gap); err != nil || from == "" {
			return err
		}
	}
	s.build(r, begun, lock)
	return r.runSession(ctx, s, from)
}

func (r *Relay) newSession(begun checkpoint.Checkpoint) *session {
	return &session{epoch: begun.Epoch, began: time.Now(), ledger: ledger.New(r.store.DB, r.store.Layouts, ledger.Options{
		Name: r.cfg.Name, Schema: r.store.Schema, MaxAttempts: r.cfg.OutboxMaxAttempts, Lease: r.cfg.OutboxLease,
		Delete: r.kind == config.LedgerDelete, None: r.kind == config.LedgerNone, Logger: r.log,
	})}
}

// build makes the engine and the sweep of a session.
func (s *session) build(r *Relay, begun checkpoint.Checkpoint, lock *leader.Lock) {
	s.engine = relay.New(r.engineConfig(s, begun, lock))
	if r.cfg.Mode != config.ModeTail && r.kind != config.LedgerNone {
		s.sweeper = fallback.New(r.sweeperConfig(s))
	}
}

func (r *Relay) runSession(ctx context.Context, s *session, from string) error {
	sweeping, stopSweeping := context.WithCancel(ctx)
	var swept sync.WaitGroup
	if s.sweeper != nil {
		swept.Go(func() { s.sweeper.Run(sweeping) })
	}
	r.mu.Lock()
	r.current = s
	r.mu.Unlock()
	r.setWaiting("")
	r.log.Info().Str("mode", r.cfg.Mode).Str("ledger", r.kind).Int64("epoch", s.epoch).Str("from", from).Msg("relaying")
	err := s.engine.Run(ctx, from)
	stopSweeping()
	swept.Wait()
	r.mu.Lock()
	r.current = nil
	r.mu.Unlock()
	r.setWaiting("starting")
	return err
}

// begin takes the checkpoint row over. Missing tables are waited for, with the
// SQL that makes them.
func (r *Relay) begin(ctx context.Context) (begun checkpoint.Checkpoint, ok bool) {
	r.setWaiting("the checkpoint store does not answer")
	told := false
	ok = r.insist(ctx, "opening the checkpoint", func(ctx context.Context) (err error) {
		begun, err = r.saved.Begin(ctx, r.owner)
		if err == nil && r.fences != nil && checkpoints(r.fences) != r.saved {
			var f checkpoint.Checkpoint
			f, err = r.fences.Begin(ctx, r.owner)
			begun.Fence = f.Fence
		}
		if errors.Is(err, checkpoint.ErrNoTables) && !told {
			told = true
			r.log.Error().Msg("rowferry's own tables are missing; run `rowferry migrate up`, or run the SQL below; looking again every 5 s")
			_ = migrations.Print(os.Stderr, migrations.Options{}) // a hint only; the log line above says the same
		}
		return err
	})
	return begun, ok
}

// position returns where to read from, as text. The position of a first start is
// saved before the first event is read, so that a crash in between does not turn
// "now" into a later now.
func (r *Relay) position(ctx context.Context, reader *binlog.Reader, saved string, gap bool) (string, error) {
	from := saved
	first := saved == ""
	if first {
		from = string(r.cfg.StartAt)
	}
	for gapSeen := gap; ; {
		if gapSeen {
			from, first = "now", true
		}
		var text string
		var lost, fenced error
		if !r.insist(ctx, "finding the position in the binlog", func(ctx context.Context) (err error) {
			text, err = reader.Resolve(ctx, from)
			if errors.Is(err, binlog.ErrGap) {
				lost = err
				return nil
			}
			if err == nil && first {
				err = r.saved.Save(ctx, text)
			}
			if errors.Is(err, outbox.ErrFenced) {
				fenced, err = err, nil
			}
			return err
		}) {
			return "", nil
		}
		if fenced != nil {
			return "", fenced
		}
		if lost == nil {
			return text, nil
		}
		if gapSeen {
			return "", lost // the present end cannot be a gap
		}
		if err := r.gapFound(lost); err != nil {
			return "", err
		}
		gapSeen = true
	}
}

func (r *Relay) engineConfig(s *session, begun checkpoint.Checkpoint, lock *leader.Lock) relay.Config {
	c := relay.Config{
		Router: r.router, Sink: r.sink, Rows: s.ledger, Checkpoints: r.saved,
		Epoch: begun.Epoch, LastFence: begun.Fence, TokenPrefix: r.owner,
		InflightMax: int64(r.cfg.InflightMax), InflightBytesMax: int64(r.cfg.InflightBytesMax),
		SendBatchMax: r.cfg.SendBatchMax, SendBatchBytesMax: int(r.cfg.SendBatchBytesMax),
		CheckpointInterval: r.cfg.CheckpointInterval, DrainTimeout: r.cfg.DrainTimeout,
		Lease: r.cfg.OutboxLease, MaxAttempts: r.cfg.OutboxMaxAttempts,
		SourceLagMax: r.cfg.SourceLagMax, Grace: r.cfg.OutboxGrace,
		Hooks: r.hooks(s), Logger: r.log,
	}
	if s.reader != nil {
		c.Source = s.reader
		c.Disconnected = disconnected(s.reader)
	}
	if r.kind != config.LedgerNone {
		c.Ledger = s.ledger
	}
	if r.fences != nil {
		c.Fences = r.fences
	}
	if lock != nil {
		c.MaySend = lock.Fresh
	}
	return c
}

// disconnected returns for how long a reader has had no stream. A heartbeat comes
// every ten seconds, so the answer is at most that much too long.
func disconnected(reader *binlog.Reader) func() time.Duration {
	begin := time.Now()
	return func() time.Duration {
		state := reader.State()
		if state.Connected {
			return 0
		}
		if state.LastEvent.IsZero() {
			return time.Since(begin)
		}
		return time.Since(state.LastEvent)
	}
}

func (r *Relay) sweeperConfig(s *session) fallback.Config {
	c := fallback.Config{
		Rows: newSweepRows(s.ledger, r.store.Layouts), Engine: s.engine, Tables: r.store.Tables(),
		TokenPrefix: r.owner, PollInterval: r.cfg.OutboxPollInterval, Grace: r.cfg.OutboxGrace,
		BatchSize: r.cfg.OutboxBatchSize, Passed: r.sweepPassed, Logger: r.log,
	}
	if s.reader != nil {
		c.Tail = s.engine
	}
	return c
}

// sweepPassed counts what a pass did. A pass ends a gap: what the tail could not
// read has been looked for in the table.
func (r *Relay) sweepPassed(t outbox.Tally, took time.Duration) {
	r.meters.swept(t, took)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gap = false
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
