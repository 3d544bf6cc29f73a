package fallback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Rows is the ledger as the sweep needs it.
type Rows interface {
	// Pages returns a function that gives, call by call, the ids of the rows that
	// may be swept, oldest first: PENDING ones older than grace (by the database's
	// clock) or dated in the future, and claimed ones whose lease has run out. With
	// AnyAge for the grace, all PENDING ones. A page shorter than limit is the last.
	Pages(table outbox.Table, grace time.Duration, limit int) func(context.Context) ([]string, error)
	// Claim makes rows PROCESSING under token and returns those that it got. Where
	// the table has no claim columns it returns all of them, and held is false.
	Claim(ctx context.Context, table outbox.Table, ids []string, token string) (got []string, held bool, err error)
	// Load reads rows by key, with the status of each.
	Load(ctx context.Context, table outbox.Table, ids []string) ([]*outbox.Event, map[string]outbox.Status, error)
}

// Engine sends what the sweep has found.
type Engine interface {
	// BeginPass begins a pass; within one the engine keeps the order of each key. When
	// lanes are to reopen, the pass must take rows of any age.
	BeginPass(ctx context.Context) (reopening bool, err error)
	// BeginRows begins a pass of certain rows, in which no lane reopens.
	BeginRows(ctx context.Context) error
	// Reopen follows a pass with reopening lanes that came to the end of all tables: it
	// gives rows to be sent, in this order, before the next call, while more is true.
	Reopen(ctx context.Context) (rows []outbox.Key, more bool, err error)
	// HasParked reports whether there are lanes whose rows are passed over.
	HasParked() bool
	// PassOver tells that a row of this pass could not be taken, so that those behind
	// it in its lane are not sent before it.
	PassOver(*outbox.Event)
	// Passable leaves out what would be given back unsent in this pass, and says how
	// much of that belongs to parked lanes.
	Passable(events []*outbox.Event) (passable []*outbox.Event, parked int)
	// Away reports whether rows of this pass went back for want of a broker, and
	// not for a reason of their topic's own.
	Away() bool
	Reserve(table outbox.Table, ids []string) []string
	Unreserve(table outbox.Table, ids []string)
	Submit(ctx context.Context, events []*outbox.Event, token string) (outbox.Tally, error)
}

// Tail proves what the binlog path has passed.
type Tail interface {
	// Fence returns when the tail has seen everything that was committed before
	// the call; [outbox.ErrTailDown] when it cannot say.
	Fence(ctx context.Context) error
	// Verify has the tail look up what it sends until it has passed everything that
	// was committed before the call.
	Verify()
}

// Config is what a Sweeper is made of.
type Config struct {
	Rows         Rows
	Engine       Engine
	Tail         Tail // nil: no binlog is read, so nothing else sends these rows
	Tables       []outbox.Table
	TokenPrefix  string // begins every claim token
	PollInterval time.Duration
	Grace        time.Duration
	BatchSize    int
	Paused       func() bool // Run begins no pass while this holds; nil: never. What ends a pause calls Trigger
	// Passed is called after each pass; complete says that it came to the end of
	// every table. It may be nil.
	Passed func(tally outbox.Tally, took time.Duration, complete bool)
	Logger zerolog.Logger
}

// AnyAge is a grace of none: rows are taken whatever their date.
const AnyAge = -time.Second

// stretchPages is how many pages share one fence.
const stretchPages = 10

// barrenMax is how many pages in a row may go nowhere, while no broker answers,
// before a pass lets a table be. More than one, because the oldest rows may all be
// for the one broker that is away.
const barrenMax = 10

// Sweeper runs passes: by a timer, and whenever it is triggered.
type Sweeper struct {
	cfg     Config
	log     zerolog.Logger
	trigger chan struct{}
	pass    sync.Mutex // one pass at a time in a process
	pages   atomic.Uint64
	reopens atomic.Bool // the newest pass had lanes to reopen
	lastErr string
}

// New makes a sweeper; it starts nothing.
func New(cfg Config) *Sweeper {
	return &Sweeper{cfg: cfg, log: cfg.Logger, trigger: make(chan struct{}, 1)}
}

// Trigger asks for a pass soon; several requests before it begins are one.
func (s *Sweeper) Trigger() {
	select {
	case s.trigger <- struct{}{}:
	default:
	}
}

// Run sweeps at once, once more after the grace, then by the timer and on
// triggers, until ctx ends. A pass that fails is tried again with growing pauses.
func (s *Sweeper) Run(ctx context.Context) {
	s.Trigger()
	again := time.AfterFunc(s.cfg.Grace+time.Second, s.Trigger)
	defer again.Stop()
	failures := 0
	for {
		timer := time.NewTimer(s.nextIn(failures))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-s.trigger:
		}
		timer.Stop()
		if s.cfg.Paused != nil && s.cfg.Paused() {
			continue
		}
		tally, err := s.Pass(ctx)
		if ctx.Err() != nil {
			return
		}
		s.report(err)
		// A pass with lanes to reopen may have to be repeated, and is cheap if not.
		if err != nil || (tally.Released > 0 && tally.Sent == 0) || s.reopens.Load() {
			failures++
		} else {
			failures = 0
		}
	}
}

// nextIn returns the pause before the next pass, with a tenth of jitter so that
// many instances do not sweep in step. After failures it starts at a second and
// doubles, but never exceeds the interval by more than half a minute.
func (s *Sweeper) nextIn(failures int) time.Duration {
	d := s.cfg.PollInterval
	if failures > 0 {
		d = min(time.Second<<min(failures-1, 5), max(d, 30*time.Second))
	}
	return d + time.Duration(rand.Int64N(int64(d)/10+1))
}

// report logs an error when it changes and when it ends.
func (s *Sweeper) report(err error) {
	switch {
	case err != nil && err.Error() != s.lastErr:
		s.lastErr = err.Error()
		s.log.Warn().Err(err).Msg("sweep failed; it will be tried again")
	case err == nil && s.lastErr != "":
		s.lastErr = ""
		s.log.Info().Msg("sweep works again")
	}
}

// Pass sweeps all tables once and returns what became of the rows it took. A
// table that cannot be swept does not keep the others from it.
func (s *Sweeper) Pass(ctx context.Context) (outbox.Tally, error) {
	s.pass.Lock()
	defer s.pass.Unlock()
	start := time.Now()
	p := pass{s: s}
	var errs []error
	var err error
	if p.reopening, err = s.cfg.Engine.BeginPass(ctx); err != nil {
		return outbox.Tally{}, fmt.Errorf("beginning to reopen lanes: %w", err)
	}
	s.reopens.Store(p.reopening)
	for _, t := range s.cfg.Tables {
		if err := p.sweepTable(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("sweeping %s: %w", t, err))
		}
	}
	if p.reopening && len(errs) == 0 && !p.cut {
		if err := p.reopen(ctx); err != nil {
			errs = append(errs, fmt.Errorf("reopening lanes: %w", err))
		}
	}
	if p.unfenced && s.cfg.Tail != nil {
		s.cfg.Tail.Verify()
	}
	if s.cfg.Passed != nil {
		s.cfg.Passed(p.tally, time.Since(start), len(errs) == 0 && !p.cut)
	}
	if p.tally != (outbox.Tally{}) {
		s.log.Info().Int("sent", p.tally.Sent).Int("failed", p.tally.Failed).Int("attempts", p.tally.Attempts).
			Int("released", p.tally.Released).Dur("took", time.Since(start)).Msg("sweep took rows")
	}
	return p.tally, errors.Join(errs...)
}

// pass is the state of one Pass.
type pass struct {
	s         *Sweeper
	reopening bool // lanes are to reopen: rows of any age
	unfenced  bool // the tail was down: go on without fences
	barren    int  // pages in a row of which nothing could be sent
	cut       bool // a table was not swept to its end
	tally     outbox.Tally
}

// sweepTable takes a stretch of candidates, waits until the tail has passed them,
// and sends what is left of it, until there are no more.
//
// What must hold: the fence is written after the candidates were selected, and
// their status is read after it has returned. Otherwise a row that the tail is
// about to send is sent by both. Shown by TestSweepTakesNothingTheTailWillSend.
func (p *pass) sweepTable(ctx context.Context, table outbox.Table) error {
	cfg := &p.s.cfg
	grace := cfg.Grace
	if p.reopening {
		grace = AnyAge
	}
	next := cfg.Rows.Pages(table, grace, cfg.BatchSize)
	for last := false; !last; {
		var pages [][]string
		for len(pages) < stretchPages && !last {
			ids, err := next(ctx)
			if err != nil {
				return fmt.Errorf("looking for candidates: %w", err)
			}
			last = len(ids) < cfg.BatchSize
			if len(ids) > 0 {
				pages = append(pages, ids)
			}
		}
		if len(pages) == 0 {
			return nil
		}
		if err := p.waitForTail(ctx); err != nil {
			return err
		}
		if p.reopening && p.unfenced { // lanes reopen only behind a tail that is there
			p.reopening = false
			return p.sweepTable(ctx, table)
		}
		for _, ids := range pages {
			if err := p.sendPage(ctx, table, ids); err != nil {
				return err
			}
			if p.barren >= barrenMax && cfg.Engine.Away() {
				p.cut = true
				return nil
			}
		}
	}
	return nil
}

// waitForTail returns when the tail has passed the candidates, or when it cannot
// say.
//
// What must hold: from a tail that was not waited for, the candidates are verified
// before the first of them is taken. Otherwise a tail that comes up meanwhile sends
// again what this pass has sent. Shown by TestUnfencedPassHasTheTailVerify.
func (p *pass) waitForTail(ctx context.Context) error {
	tail := p.s.cfg.Tail
	if tail == nil {
		return nil
	}
	if !p.unfenced {
		err := tail.Fence(ctx)
		if !errors.Is(err, outbox.ErrTailDown) {
			return err
		}
		p.s.log.Warn().Err(err).Msg("sweeping without waiting for the tail")
		p.unfenced = true
	}
	tail.Verify()
	return nil
}

// sendPage sends what may be sent of one page.
//
// What must hold: a page that goes nowhere does not end the pass while only some
// topics cannot be sent to, and however many of their rows there are. Otherwise these,
// which become the oldest ones, hide all others. Shown by TestDeadTopicHidesNoRows and
// TestParkedLaneHidesNoRows.
func (p *pass) sendPage(ctx context.Context, table outbox.Table, ids []string) error {
	cfg := &p.s.cfg
	free := cfg.Engine.Reserve(table, ids)
	if len(free) == 0 {
		return nil
	}
	token := fmt.Sprintf("%s-%d", cfg.TokenPrefix, p.s.pages.Add(1))
	got, err := p.take(ctx, table, free, token)
	cfg.Engine.Unreserve(table, notIn(free, got.events))
	if err != nil {
		return err
	}
	if !got.held {
		token = ""
	}
	tally, err := cfg.Engine.Submit(ctx, got.events[:got.before], token)
	if len(got.locked) > 0 && err == nil {
		for _, ev := range got.locked {
			cfg.Engine.PassOver(ev)
		}
		var more outbox.Tally
		more, err = cfg.Engine.Submit(ctx, got.events[got.before:], token)
		tally.Add(more)
	}
	p.tally.Add(tally)
	switch {
	case tally.Sent+tally.Failed+tally.Attempts > 0:
		p.barren = 0
	case !got.parked:
		p.barren++
	}
	return err
}

// reopen sends what was deferred during the pass, until the engine has opened the lanes.
func (p *pass) reopen(ctx context.Context) error {
	for {
		rows, more, err := p.s.cfg.Engine.Reopen(ctx)
		if err != nil || !more {
			return err
		}
		err = p.pages(rows, func(table outbox.Table, ids []string) error { return p.sendPage(ctx, table, ids) })
		if err != nil {
			return err
		}
	}
}

// taken is what a page has come to.
type taken struct {
	events []*outbox.Event // to be sent, in the order of the page
	held   bool            // they are claimed
	parked bool            // none was asked for: all rows belong to parked lanes
	locked []*outbox.Event // rows that somebody keeps locked; looked for only while lanes reopen
	before int             // so many of the events come before the first of those
}

// take claims rows and reads those that it got and that are still to be sent.
func (p *pass) take(ctx context.Context, table outbox.Table, ids []string, token string) (t taken, err error) {
	rows := p.s.cfg.Rows
	if p.tally.Released > 0 || p.s.cfg.Engine.HasParked() {
		ids, t.parked, err = p.passable(ctx, table, ids)
		if err != nil || len(ids) == 0 {
			return t, err
		}
	}
	got, held, err := rows.Claim(ctx, table, ids, token)
	if err != nil {
		return t, fmt.Errorf("claiming rows: %w", err)
	}
	t.held = held
	looked := inOrder(ids, got)
	missed := p.reopening && len(looked) < len(ids)
	if missed {
		looked = ids // the others may be PENDING still
	}
	if len(looked) == 0 {
		return t, nil
	}
	events, status, err := rows.Load(ctx, table, looked)
	if err != nil {
		return t, fmt.Errorf("reading rows: %w", err)
	}
	t.sort(events, status, got)
	return t, nil
}

// sort tells the rows that were got from those that are PENDING and were not.
func (t *taken) sort(events []*outbox.Event, status map[string]outbox.Status, got []string) {
	mine := make(map[string]bool, len(got))
	for _, id := range got {
		mine[id] = true
	}
	for _, ev := range events {
		st := status[ev.ID]
		switch {
		case mine[ev.ID] && (st == outbox.Pending || t.held && st == outbox.Processing):
			t.events = append(t.events, ev)
			if len(t.locked) == 0 {
				t.before++
			}
		case !mine[ev.ID] && st == outbox.Pending:
			t.locked = append(t.locked, ev)
		}
	}
}

// passable leaves out the rows that would only be claimed to be given back, and reports
// whether all rows belong to parked lanes. It reads them once more than needed, so it
// is for passes that meet trouble.
func (p *pass) passable(ctx context.Context, table outbox.Table, ids []string) (passable []string, parked bool, err error) {
	rows, _, err := p.s.cfg.Rows.Load(ctx, table, ids)
	if err != nil {
		return nil, false, fmt.Errorf("reading rows: %w", err)
	}
	events, n := p.s.cfg.Engine.Passable(rows)
	for _, ev := range events {
		passable = append(passable, ev.ID)
	}
	return passable, n > 0 && n == len(rows), nil
}

// inOrder returns got in the order of ids.
func inOrder(ids, got []string) []string {
	have := make(map[string]bool, len(got))
	for _, id := range got {
		have[id] = true
	}
	var ordered []string
	for _, id := range ids {
		if have[id] {
			ordered = append(ordered, id)
		}
	}
	return ordered
}

// notIn returns the ids that none of the events has.
func notIn(ids []string, events []*outbox.Event) []string {
	have := make([]string, len(events))
	for i, ev := range events {
		have[i] = ev.ID
	}
	return without(ids, have)
}

// without returns the ids that are not among others.
func without(ids, others []string) []string {
	have := make(map[string]bool, len(others))
	for _, id := range others {
		have[id] = true
	}
	var left []string
	for _, id := range ids {
		if !have[id] {
			left = append(left, id)
		}
	}
	return left
}
