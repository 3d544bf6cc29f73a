package app

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/leader"
	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/migrations"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/fallback"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/relay"
	"github.com/rowferry/rowferry/pkg/router/rocketmq"
)

// session is one life of the engine: from a position to a stop.
type session struct {
	engine  *relay.Engine
	reader  *binlog.Reader    // nil with MODE=poll
	sweeper *fallback.Sweeper // nil where nothing is swept
	hand    *fallback.Sweeper // sends what operators ask for; the sweeper, where there is one
	ledger  *ledger.Ledger
	epoch   int64
	began   time.Time
	pos     atomic.Pointer[outbox.Position] // the newest saved one
	changes sync.WaitGroup                  // of queue lists, under way
	waiting atomic.Bool                     // a sweep will be asked for after a while
	saved   atomic.Int64                    // when a position was last saved, in Unix nanoseconds; 0: not yet
}

// checkpointAge is for how long the saved position has not covered what was read:
// zero while it does, however long ago it was saved.
func (s *session) checkpointAge(use relay.Usage) time.Duration {
	if use.Saved {
		return 0
	}
	return time.Since(maxTime(time.Unix(0, s.saved.Load()), s.began))
}

// trigger asks for a sweep, where there is one.
func (s *session) trigger() {
	if s.sweeper != nil {
		s.sweeper.Trigger()
	}
}

// triggerAfter asks for a sweep after a while; several requests in that time are one.
func (s *session) triggerAfter(d time.Duration) {
	if s.sweeper != nil && s.waiting.CompareAndSwap(false, true) {
		time.AfterFunc(d, func() {
			s.waiting.Store(false)
			s.trigger()
		})
	}
}

func (r *Relay) session(ctx context.Context, lock *leader.Lock, gap bool) error {
	begun, ok := r.begin(ctx)
	if !ok {
		return nil
	}
	if mq, ok := r.sink.(*rocketmq.Sink); ok {
		mq.Forget() // another relay may have led since, and have refrozen a topic
	}
	s := r.newSession(begun)
	from := ""
	if r.cfg.Mode != config.ModePoll {
		var err error
		if s.reader, err = NewReader(r.cfg, r.store, r.sources, r.readerEvents(s), r.log); err != nil {
			return err
		}
		if from, err = r.position(ctx, s.reader, begun.Position, gap); err != nil || from == "" {
			return err
		}
	}
	s.build(r, begun, lock)
	return r.runSession(ctx, s, from)
}

// readerEvents connects the reader of a session. Where the tables say which rows are
// unsent, those that the binlog does not hold are left PENDING and counted, and swept
// once they are old enough.
func (r *Relay) readerEvents(s *session) ReaderEvents {
	tell := ReaderEvents{Connected: func() { s.engine.Verify() }, Altered: s.ledger.SetLayout}
	if r.kind != config.LedgerNone && everyStatus(r.store.Layouts) {
		tell.Unseen = func(table outbox.Table, reason string, rows int) {
			r.meters.EventsDeferred.WithLabelValues(table.String(), reason).Add(float64(rows))
			s.triggerAfter(r.cfg.OutboxGrace + time.Second)
		}
	}
	return tell
}

func (r *Relay) newSession(begun checkpoint.Checkpoint) *session {
	return &session{epoch: begun.Epoch, began: time.Now(), ledger: newLedger(r.cfg, r.store, r.kind, r.log)}
}

// build makes the engine and the sweep of a session.
func (s *session) build(r *Relay, begun checkpoint.Checkpoint, lock *leader.Lock) {
	s.engine = relay.New(r.engineConfig(s, begun, lock))
	s.hand = fallback.New(r.sweeperConfig(s))
	if r.cfg.Mode != config.ModeTail && r.kind != config.LedgerNone {
		s.sweeper = s.hand
	}
}

func (r *Relay) runSession(ctx context.Context, s *session, from string) error {
	r.mu.Lock()
	r.gapAt = time.Now() // if there is a gap, it ends where this session reads on
	r.mu.Unlock()
	sweeping, stopSweeping := context.WithCancel(ctx)
	var swept sync.WaitGroup
	if s.sweeper != nil {
		swept.Go(func() { s.sweeper.Run(sweeping) })
	}
	if r.cfg.OutboxRetention > 0 {
		swept.Go(func() { r.retain(sweeping, s) })
	}
	r.enter(s)
	r.setWaiting("")
	r.log.Info().Str("mode", r.cfg.Mode).Str("ledger", r.kind).Int64("epoch", s.epoch).Str("from", from).Msg("relaying")
	err := s.engine.Run(ctx, from)
	stopSweeping()
	swept.Wait()
	r.mu.Lock()
	r.current = nil
	r.mu.Unlock()
	s.changes.Wait() // or the next session's lanes would not be those of its lists
	r.setWaiting("starting")
	return err
}

// begin takes the checkpoint row over. Missing tables are waited for, with the
// SQL that makes them.
func (r *Relay) begin(ctx context.Context) (begun checkpoint.Checkpoint, ok bool) {
	r.setWaiting("the checkpoint store does not answer")
	told := false
	ok = r.insist(ctx, "opening the checkpoint", func(ctx context.Context) (err error) {
		begun, err = r.takeOver(ctx)
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

// takeOver takes the leadership, and notes whether publishing is paused.
func (r *Relay) takeOver(ctx context.Context) (checkpoint.Checkpoint, error) {
	r.pauses.Lock()
	defer r.pauses.Unlock()
	begun, err := r.saved.Begin(ctx, r.owner)
	if err == nil {
		r.applyPause(begun.Paused)
	}
	return begun, err
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
		InflightMax: int64(r.withinLease(r.cfg.InflightMax)), InflightBytesMax: int64(r.cfg.InflightBytesMax) - heldBytesMax(r.cfg),
		SendBatchMax: r.cfg.SendBatchMax, SendBatchBytesMax: int(r.cfg.SendBatchBytesMax), SendRateMax: r.cfg.SendRateMax,
		Paused:             r.isPaused(),
		CheckpointInterval: r.cfg.CheckpointInterval, DrainTimeout: r.cfg.DrainTimeout,
		Lease: r.cfg.OutboxLease, SendTimeout: r.cfg.SendTimeout, MaxAttempts: r.cfg.OutboxMaxAttempts,
		SourceLagMax: r.cfg.SourceLagMax, Grace: r.cfg.OutboxGrace, Shutdown: r.shutdown,
		Hooks: r.hooks(s), Logger: r.log,
	}
	if s.reader != nil {
		c.Source = s.reader
		c.Disconnected = disconnected(s.reader)
	}
	if r.kind != config.LedgerNone {
		c.Ledger = s.ledger
		if r.cfg.CatchUp == config.CatchUpGentle {
			c.Inserted = func(ctx context.Context) (uint64, error) { return mysqlconn.RowsInserted(ctx, r.store.DB) }
		}
		if r.cfg.Mode == config.ModeAuto && everyStatus(r.store.Layouts) { // a sweep finds what is left PENDING
			c.ParkAfter = r.cfg.LaneParkAfter
		}
		if r.cfg.OnDead == config.OnDeadBlock {
			c.Deaths = s.ledger
			c.Claims = slices.ContainsFunc(r.store.Layouts, func(l *outbox.Layout) bool { return l.Claims() })
		}
	} else {
		c.Dead = r.deadLetters(s)
	}
	if r.fences != nil {
		c.Fences = r.fences
	}
	if lock != nil {
		c.MaySend = lock.Fresh
	}
	return c
}

// withinLease bounds a number of events to those that can be sent, at the rate that is
// allowed, in a quarter of the lease of a claimed row. Were more of them before such a
// row, it would be given back unsent, over and over.
func (r *Relay) withinLease(events int) int {
	if r.cfg.SendRateMax == 0 {
		return events
	}
	return min(events, max(1, int(float64(r.cfg.SendRateMax)*r.cfg.OutboxLease.Seconds()/4)))
}

// deadLetters is where a relay without a ledger records what can never be sent: with
// its positions, so that nothing else needs to be writable. Nil: nowhere.
func (r *Relay) deadLetters(s *session) relay.Ledger {
	switch saved := r.saved.(type) {
	case *checkpoint.File:
		return saved
	case *checkpoint.MySQL:
		return s.ledger // writes nothing but dead letters
	default:
		return nil
	}
}

// disconnected returns for how long a reader has had no stream. A heartbeat comes
// every five seconds, so the answer is at most that much too long.
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
		BatchSize: r.withinLease(r.cfg.OutboxBatchSize), Paused: r.isPaused, Passed: r.sweepPassed, Logger: r.log,
	}
	if s.reader != nil && r.fences != nil {
		c.Tail = s.engine
	}
	return c
}

// sweepPassed counts what a pass did. A gap ends with a pass over whole tables that
// began one grace after it, when no row from before the gap was too young for it:
// then what the tail could not read has been looked for.
func (r *Relay) sweepPassed(t outbox.Tally, took time.Duration, complete bool) {
	r.meters.swept(t, took)
	r.mu.Lock()
	defer r.mu.Unlock()
	if complete && time.Since(r.gapAt)-took > r.cfg.OutboxGrace {
		r.gap = false
	}
}
