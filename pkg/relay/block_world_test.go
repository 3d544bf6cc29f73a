package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/fallback"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// parish is a town that keeps its dead letters, with an operator who requeues and discards
// them at any moment, and whose relay is stopped and started.
type parish struct {
	*town
	dead       map[string]string // id -> key, of what is neither requeued nor discarded
	settled    map[string]string // the same, of what was, and is not forgotten
	discarded  map[string]bool
	unroutable map[string]bool
	deaths     int
}

func newParish(w *town) *parish {
	return &parish{town: w, dead: map[string]string{}, settled: map[string]string{}, discarded: map[string]bool{}, unroutable: map[string]bool{}}
}

func (p *parish) Key(e *outbox.Event) string { return e.AggregateID }

// Route refuses some events; others of their key are in their lanes meanwhile.
func (p *parish) Route(e *outbox.Event) (*outbox.Message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bad, asked := p.unroutable[e.ID]
	if !asked {
		bad = p.chance(50)
		p.unroutable[e.ID] = bad
	}
	if bad {
		return nil, &outbox.SendError{Class: outbox.Refused, Reason: "headers_invalid"}
	}
	return p.town.Route(e)
}

func (p *parish) BlockedKeys(context.Context, int) (dead, settled []string, err error) {
	time.Sleep(p.someTime(5 * time.Millisecond))
	p.mu.Lock()
	dead, settled, err = valuesOf(p.dead), valuesOf(p.settled), p.outage()
	p.mu.Unlock()
	time.Sleep(p.someTime(5 * time.Millisecond)) // the answer is on its way
	settled = slices.DeleteFunc(settled, func(key string) bool { return slices.Contains(dead, key) })
	return dead, settled, err
}

func valuesOf(m map[string]string) []string {
	list := slices.Sorted(maps.Values(m))
	return slices.Compact(list)
}

func (p *parish) Opened(_ context.Context, keys []string) error {
	time.Sleep(p.someTime(5 * time.Millisecond))
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.outage(); err != nil {
		return err
	}
	maps.DeleteFunc(p.settled, func(_, key string) bool { return slices.Contains(keys, key) })
	return nil
}

func (p *parish) Record(_ context.Context, outcomes []outbox.Outcome, _ func(context.Context, *sql.Tx) error) ([]outbox.Outcome, error) {
	time.Sleep(p.someTime(20 * time.Millisecond))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range outcomes {
		r := p.byID[o.Key.ID]
		open := r.status == outbox.Pending || r.status == outbox.Processing
		switch {
		case !open:
		case o.Kind == outbox.OutcomeSent:
			r.status = outbox.Sent
		case o.Token != r.token:
		case o.Kind == outbox.OutcomeFailed:
			r.status, r.token = outbox.Failed, ""
			p.dead[r.id] = o.OrderKey
			delete(p.settled, r.id)
			p.deaths++
		default:
			r.status, r.token = outbox.Pending, ""
		}
	}
	return nil, nil
}

// Pages gives rows as an index does: one that is too young is not passed.
func (p *parish) Pages(_ outbox.Table, grace time.Duration, limit int) func(context.Context) ([]string, error) {
	next := 0
	return func(context.Context) ([]string, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		var ids []string
		for ; next < len(p.rows) && len(ids) < limit; next++ {
			r := p.rows[next]
			if r.status == outbox.Processing && time.Since(r.claimed) > time.Minute {
				r.status, r.token = outbox.Pending, ""
			}
			if grace != fallback.AnyAge && time.Since(r.created) <= grace {
				break
			}
			if r.visible && r.status == outbox.Pending {
				ids = append(ids, r.id)
			}
		}
		return ids, p.outage()
	}
}

// operate requeues some dead letters, most of them mended, and discards others.
func (p *parish) operate(mend bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.dead {
		r := p.byID[id]
		switch n := p.random.IntN(6); {
		case n == 0:
			p.settle(id)
			p.discarded[id] = true
		case n < 4 || mend:
			p.bad[id], p.unroutable[id], r.odd = false, false, 0
			fallthrough
		case n == 4:
			p.settle(id)
			r.status = outbox.Pending
		}
	}
}

func (p *parish) settle(id string) {
	p.settled[id] = p.dead[id]
	delete(p.dead, id)
}

// rewind makes the stream what comes behind the saved position.
func (p *parish) rewind() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	saved := uint64(0)
	if p.saved != "" {
		var err error
		if saved, err = strconv.ParseUint(p.saved, 10, 64); err != nil {
			return err
		}
	}
	p.binlog = make(chan outbox.Batch, 100_000)
	for _, b := range p.history {
		if b.End.Seq > saved {
			b.Events = copyOf(b.Events)
			p.binlog <- b
		}
	}
	return nil
}

// over reports whether every row is SENT or discarded.
func (p *parish) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.dead)+len(p.settled) == 0 && !slices.ContainsFunc(p.rows, func(r *townRow) bool {
		return r.status != outbox.Sent && !(r.status == outbox.Failed && p.discarded[r.id])
	})
}

// audit compares what was stored with what was committed.
func (p *parish) audit() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, committed := range p.commit {
		want := slices.DeleteFunc(slices.Clone(committed), func(id string) bool { return p.discarded[id] })
		if got := p.stored[key]; !slices.Equal(got, want) {
			return fmt.Errorf("key %s:\nstored    %v\ncommitted %v", key, got, want)
		}
	}
	if p.saved != fmt.Sprint(p.seq) {
		return fmt.Errorf("position %s saved, want %d", p.saved, p.seq)
	}
	return nil
}

// life is one run of the relay.
type life struct {
	engine  *Engine
	sweeper *fallback.Sweeper
	end     func() error
}

func (p *parish) live(ctx context.Context, cfg Config, batch int, tail bool) *life {
	l := &life{}
	cfg.LastFence = p.fences()
	cfg.Hooks = Hooks{Recovered: func(string) { l.sweeper.Trigger() }}
	l.engine = New(cfg)
	rows := fallback.Config{
		Rows: p, Engine: l.engine, Tables: []outbox.Table{orders}, TokenPrefix: "me",
		PollInterval: 5 * time.Minute, Grace: time.Second, BatchSize: batch, Logger: cfg.Logger,
	}
	if tail {
		rows.Tail = l.engine
	}
	l.sweeper = fallback.New(rows)
	p.verify = l.engine.Verify
	l.engine.Verify()
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var err error
	running.Go(func() { err = l.engine.Run(ctx, "") })
	running.Go(func() { l.sweeper.Run(ctx) })
	l.end = func() error {
		cancel()
		running.Wait()
		return errors.Join(err, l.leftBehind())
	}
	return l
}

// leftBehind says what a drained engine still counts.
func (l *life) leftBehind() error {
	e := l.engine
	use := e.Usage()
	if use.Events != 0 || use.Bytes != 0 || e.heldEvents != 0 || e.heldBytes != 0 {
		return fmt.Errorf("left at the end: %+v, held %d events, %d bytes", use, e.heldEvents, e.heldBytes)
	}
	for p := range e.parked {
		if p.block != nil && (p.events != 0 || p.block.unrecorded != 0) {
			return fmt.Errorf("a blocked key counts %d events, %d unrecorded deaths", p.events, p.block.unrecorded)
		}
	}
	return nil
}

func (w *town) fences() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fence
}

// quietConfig is a configuration of an engine in a parish.
func (p *parish) config(inflight int64) Config {
	return Config{
		Source: p, Router: p, Sink: p, Rows: p, Ledger: p, Checkpoints: p, Fences: p, Deaths: p, Claims: p.claims,
		TokenPrefix: "me", InflightMax: inflight, InflightBytesMax: 1 << 20, SendBatchMax: 8, SendBatchBytesMax: 1 << 20,
		CheckpointInterval: 5 * time.Millisecond, DrainTimeout: 5 * time.Second, Lease: time.Minute, MaxAttempts: 3,
		ParkAfter: 500 * time.Millisecond, SourceLagMax: 10 * time.Second, Grace: time.Second, Logger: zerolog.Nop(),
	}
}
