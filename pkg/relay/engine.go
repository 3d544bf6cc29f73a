package relay

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Source is the binlog path.
type Source interface {
	// Run reads from a position and hands over every transaction behind it, in
	// order and from one goroutine, until ctx ends, accept fails or the position
	// is lost. It reconnects by itself.
	Run(ctx context.Context, from string, accept func(context.Context, outbox.Batch) error) error
	// Encode returns the text to save for a position; positions are given in
	// growing order.
	Encode(outbox.Position) string
}

// Router turns an event into a message: [outbox.ErrDropped] when a rule drops
// it, an [outbox.SendError] of class Refused when it can never be sent.
type Router interface {
	Route(*outbox.Event) (*outbox.Message, error)
}

// Sink is the broker. A topic has a fixed number of lanes; within one, messages
// are stored in the order of the calls. Send is all or nothing.
type Sink interface {
	Lanes(ctx context.Context, topic string) (int, error)
	Check(*outbox.Message) error
	Send(ctx context.Context, topic string, lane int, msgs []*outbox.Message) error
}

// Ledger writes outcomes down.
type Ledger interface {
	// Record writes outcomes in one transaction and runs also (which may be nil)
	// as its last step. Outcomes of rows that somebody keeps locked are returned.
	Record(ctx context.Context, outcomes []outbox.Outcome, also func(context.Context, *sql.Tx) error) (locked []outbox.Outcome, err error)
}

// Rows reads the outbox tables by key.
type Rows interface {
	// Statuses looks rows up by key; a row that is not there is Missing.
	Statuses(ctx context.Context, table outbox.Table, ids []string) (map[string]outbox.RowState, error)
	// Load reads rows by key as events.
	Load(ctx context.Context, table outbox.Table, ids []string) ([]*outbox.Event, map[string]outbox.Status, error)
}

// Checkpoints saves positions; [outbox.ErrFenced] when another relay leads.
type Checkpoints interface {
	Save(ctx context.Context, position string) error
}

// txCheckpoints is what a checkpoint store in the ledger's own database adds: the
// position goes into the transaction that marks rows, at no cost of its own.
type txCheckpoints interface {
	SaveTx(ctx context.Context, tx *sql.Tx, position string) error
}

// Fences writes the number that comes back through the binlog.
type Fences interface {
	WriteFence(ctx context.Context, fence uint64) error
}

// Config is what an Engine is made of. Durations and bounds must be positive.
type Config struct {
	Source      Source // nil: no binlog is read (MODE=poll)
	Router      Router
	Sink        Sink
	Rows        Rows
	Ledger      Ledger // nil: nothing is written to the table (LEDGER=none)
	Deaths      Deaths // later events of a key wait for its dead letters; nil: they go on
	Claims      bool   // rows of the sweep are claimed
	Dead        Ledger // without a Ledger: is given what can never go; nil: that stops the relay
	Checkpoints Checkpoints
	Fences      Fences // nil only where Ledger or Source is nil
	Epoch       int64  // of this leadership; the first part of outbox_seq
	LastFence   uint64 // newest fence that was ever written
	TokenPrefix string // begins every claim token of this process

	InflightMax        int64
	InflightBytesMax   int64
	SendBatchMax       int
	SendBatchBytesMax  int
	CheckpointInterval time.Duration
	DrainTimeout       time.Duration
	Lease              time.Duration // of a claimed row
	SendTimeout        time.Duration // the longest that one Send may take
	MaxAttempts        int
	SendRateMax        int                                   // events a second; 0: no limit
	Inserted           func(context.Context) (uint64, error) // rows that all sessions of the ledger's server have inserted since its start: makes a catch-up gentle; nil: it is fast
	ParkAfter          time.Duration                         // events that cannot go for this long while others can are left to the sweep; 0: they wait
	SourceLagMax       time.Duration                         // a fence not back within this: the tail counts as down
	Grace              time.Duration                         // no stream for this long: the tail counts as down
	Disconnected       func() time.Duration                  // for how long the source has had no stream; nil: never
	MaySend            func() bool                           // whether leadership is certain at this moment; nil: always
	Paused             bool                                  // nothing is sent before SetPaused(false)
	Shutdown           <-chan struct{}                       // closed when the process is told to end, not only this engine; nil: Run's ctx ends with the process
	Hooks              Hooks
	Logger             zerolog.Logger
}

// Engine carries events from both paths through their lanes. Make it with New,
// start it with Run; Accept, Fence, BeginPass, Reserve and Submit work while Run does.
type Engine struct {
	cfg    Config
	log    zerolog.Logger
	hooks  Hooks
	budget *budget
	byKey  *byKey
	pacer  *pacer
	valve  *valve
	intake *queue[unit]
	marks  *queue[settlement]
	fence  fence
	seq    atomic.Uint64 // counter part of outbox_seq
	pass   atomic.Uint64 // of the sweep
	away   atomic.Uint64 // the pass in which a row went back for want of a broker
	group  errgroup.Group
	work   context.Context // ends when lanes and router must stop
	stop   context.CancelCauseFunc

	drainStarted chan struct{}

	mu       sync.Mutex
	wm       watermark
	inflight registry
	topics   map[string]*topic
	count    int           // items not settled, both paths
	idle     chan struct{} // closed and replaced when count becomes 0
	draining bool          // lanes that cannot send give up
	stopped  bool          // no lane or resolver may be started any more
	lastAck  time.Time
	failing  map[string]string // topic or lane -> why it cannot be sent to now

	fails     map[*place]struct{} // where events of the tail fail
	parked    map[*place]struct{} // those that are not open
	blocked   map[digest]*place   // keys that wait for a dead letter, or are not open again
	began     time.Time
	leased    bool   // a pass is asked for when claims of another leadership have run out
	allKeys   *place // where more of them are blocked than can be told apart; nil: not
	later     later
	rounds    int       // of the reopening at the end of this pass
	lastBegan time.Time // when the newest of the sends began that were acknowledged

	heldEvents, heldBytes int64 // in all places

	resting float64 // how many times as long as a transaction of the ledger took is rested after it
}

// New makes an engine; it starts nothing.
func New(cfg Config) *Engine {
	if cfg.Source != nil && cfg.Ledger != nil && cfg.Fences == nil {
		panic("relay: a source and a ledger need fences")
	}
	e := &Engine{
		cfg:      cfg,
		log:      cfg.Logger,
		hooks:    cfg.Hooks.withDefaults(),
		budget:   newBudget(cfg.InflightMax, cfg.InflightBytesMax),
		valve:    newValve(cfg.Paused),
		byKey:    newByKey(cfg.InflightBytesMax / 4),
		intake:   newQueue[unit](),
		marks:    newQueue[settlement](),
		inflight: registry{},
		topics:   map[string]*topic{},
		idle:     make(chan struct{}),
		failing:  map[string]string{},
		fails:    map[*place]struct{}{},
		parked:   map[*place]struct{}{},
		blocked:  map[digest]*place{},

		drainStarted: make(chan struct{}),
	}
	e.began = time.Now()
	e.pacer = newPacer(cfg.SendRateMax, e.drainStarted)
	e.fence.init(cfg.LastFence)
	e.pass.Store(1) // 0 means that no row has gone back yet
	e.work, e.stop = context.WithCancelCause(context.Background())
	return e
}

// Run relays until ctx ends, then drains: it stops reading, lets the lanes send
// what they hold, has the outcomes recorded and saves the position, all within
// DrainTimeout, of which a third is kept for the last two. Only a send that is
// running when the lanes' time is up is waited for beyond that. It returns nil after a clean drain; otherwise what stopped it,
// [outbox.ErrFenced] or the source's error among others.
func (e *Engine) Run(ctx context.Context, from string) error {
	marking, stopMarking := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopMarking(nil)
	lanesEnded, marked := make(chan struct{}), make(chan error, 1)
	go func() { marked <- e.orStop(e.markLoop(marking, lanesEnded)) }()
	e.group.Go(func() error { return e.orStop(e.routeLoop(e.work)) })

	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	context.AfterFunc(e.work, stopReading)
	readErr := e.read(reading, from)
	end := time.Now().Add(e.cfg.DrainTimeout)
	e.drain(end.Add(-e.cfg.DrainTimeout / 3))
	e.stop(errDrained)
	groupErr := e.waitForLanes()
	close(lanesEnded) // now it is known what was acknowledged; all of that is still recorded
	unlimited := e.limitMarks(ctx, end, func() { stopMarking(errMarksLate) })
	markErr := <-marked
	unlimited()
	if errors.Is(readErr, context.Canceled) {
		readErr = nil // it was told to stop: by ctx, or because something else failed
	}
	return errors.Join(readErr, groupErr, markErr, context.Cause(marking), e.finalSave(ctx, leftUntil(end)))
}

// leftUntil returns the time until end, and a second at least: without any, what
// was acknowledged would surely be sent again.
func leftUntil(end time.Time) time.Duration { return max(time.Until(end), time.Second) }

// limitMarks calls late when the last outcomes have had their time. A process that
// ends gives them the drain timeout. One that only lost its leadership, mostly because
// the database is away, has time until it is told to end: what was sent is a fact
// whoever leads, and forgotten it would be sent again. The limit is lifted by the
// function returned. Shown by TestMarksOutliveTheLossOfLeadership.
func (e *Engine) limitMarks(ctx context.Context, end time.Time, late func()) (lift func()) {
	if ctx.Err() == nil || e.cfg.Shutdown == nil || isClosed(e.cfg.Shutdown) {
		timer := time.AfterFunc(leftUntil(end), late)
		return func() { timer.Stop() }
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-e.cfg.Shutdown:
			if sleep(ctx, e.cfg.DrainTimeout) {
				late()
			}
		case <-ctx.Done():
		}
	})
	return func() {
		cancel()
		waiting.Wait()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

var errMarksLate = errors.New("recording the last outcomes took more than the drain timeout; what is not recorded will be sent again")

func (e *Engine) waitForLanes() error {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.fence.close()
	return e.group.Wait()
}

var errDrained = errors.New("drained")

// orStop stops the engine for an error that is more than the echo of a stop.
func (e *Engine) orStop(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return nil
	}
	e.stop(err)
	return err
}

func (e *Engine) read(ctx context.Context, from string) error {
	err := e.insist(ctx, "asking for blocked keys", func() error { return e.syncBlocked(ctx) })
	if err != nil {
		return err
	}
	if e.cfg.Source == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := e.cfg.Source.Run(ctx, from, e.Accept); err != nil {
		return fmt.Errorf("reading the binlog: %w", err)
	}
	return nil
}

// drain waits until nothing is in flight or the time is up. Lanes that cannot
// send give their events up meanwhile: those stay PENDING, and the position
// stays before them.
func (e *Engine) drain(until time.Time) {
	e.mu.Lock()
	e.draining = true
	e.giveUpHeld()
	e.mu.Unlock()
	close(e.drainStarted)
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		e.mu.Lock()
		idle, count := e.idle, e.count
		e.mu.Unlock()
		if count == 0 {
			return
		}
		select {
		case <-idle:
		case <-e.work.Done():
			return
		case <-timer.C:
			e.log.Warn().Int("events", count).Dur("drain_timeout", e.cfg.DrainTimeout).
				Msg("drain timed out; what was not acknowledged stays PENDING")
			return
		}
	}
}

// finalSave saves the position once more, on a context that the shutdown does
// not cancel. Everybody else who could save has stopped by now.
func (e *Engine) finalSave(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), within,
		errors.New("the drain timeout has passed"))
	defer cancel()
	e.mu.Lock()
	pos, moved := e.wm.done, e.wm.moved
	e.mu.Unlock()
	if !moved {
		return nil
	}
	if err := e.cfg.Checkpoints.Save(ctx, e.cfg.Source.Encode(pos)); err != nil {
		return fmt.Errorf("saving the last position: %w", err)
	}
	return nil
}

// Usage is what an engine holds at a moment, for status and metrics.
type Usage struct {
	Events      int64
	Bytes       int64
	LastAck     time.Time         // zero before the first
	Saved       bool              // the saved position covers all that was read, but for our own writes
	Failing     map[string]string // topic or topic/lane -> why it cannot be sent to now
	Parked      []Parked          // in the order of their names
	BlockedKeys int               // that wait for a dead letter, or are being caught up with
	Resting     float64           // how many times as long as the ledger's transactions take is rested after each; 0: no catch-up is slowed down
}

// Parked is a topic or a lane whose events are left to the sweep, or were until now
// and are being caught up with.
type Parked struct {
	Name   string // topic, or topic/lane
	Reason string // of the newest failure
	Since  time.Time
}

// Usage returns what is in flight now.
func (e *Engine) Usage() Usage {
	u := Usage{Failing: map[string]string{}}
	u.Events, u.Bytes = e.budget.use()
	e.mu.Lock()
	defer e.mu.Unlock()
	u.LastAck = e.lastAck
	u.Resting = e.resting
	u.Saved = !e.wm.moved && len(e.wm.slots) == 0
	for t, why := range e.failing {
		u.Failing[t] = why
	}
	u.BlockedKeys = len(e.blocked)
	for p := range e.parked {
		if p.block != nil {
			continue
		}
		u.Parked = append(u.Parked, Parked{p.name, p.reason, p.since})
	}
	slices.SortFunc(u.Parked, func(a, b Parked) int { return cmp.Compare(a.Name, b.Name) })
	return u
}
