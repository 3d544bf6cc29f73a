package relay

import (
	"sync/atomic"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// parkState is how a place treats the events of the tail.
//
//	open ──(1)──► parked ──(2)──► draining ──(4)──► holding ──(5)──► open
//	                ▲                │  ▲               │
//	                └──────(3)───────┴──┼──────(3)──────┤
//	                                    └──────(6)──────┘
//
//	open      events are sent.
//	parked    events are deferred: left PENDING, and the position passes them. The
//	          sweep passes over the place's rows. A probe is sent from time to time.
//	draining  events are deferred. A pass of the sweep that begins in this state may
//	          send the place's rows.
//	holding   events wait here, in order, while the last rows are sent.
//
//	(1) The tail's events have waited for ParkAfter (see parkingDue): those that are
//	    here are deferred.
//	(2) The probe was sent, or there is nothing left to probe with.
//	(3) The broker does not take the place's rows: what is held is deferred.
//	(4) A pass has sent all rows that were deferred before it began, and few have
//	    been deferred since: those are sent now (see Reopen).
//	(5) They have been sent: what is held goes, and then what comes.
//	(6) What is held fills a quarter of the budget, or one of those rows could not be
//	    sent: what is held is deferred, and the next pass begins anew.
//
// What must hold: the rows of a key go in the order of the stream, and none is lost
// or sent twice, as far as the sweep's own order is that of the stream. All changes of
// state are made under Engine.mu, together with what happens to the events that they
// concern, so an event is at every moment either deferred (PENDING and not in the
// registry) or held, and the stream is cut into three stretches by the moment M at
// which a pass begins (BeginPass) and the moment H at which holding begins:
//
//   - Deferred before M. A fence written after M is committed before the pass selects
//     its first page, so they all are visible to it, and it sends them in the order of
//     its pages. One that it cannot send makes the place unclean for this pass
//     (gaveBack), and the rows that follow go back as well.
//   - Deferred between M and H. Their keys are noted (later), and the pass may not
//     reserve them: it would see some of them before others that were committed
//     earlier. They are sent behind the pass, in the order of the stream.
//   - Held since H. They go when all of those have been sent, in the order of the stream.
//
// Shown by TestParkingKeepsOrderAndLosesNothing.
type parkState uint8

const (
	placeOpen parkState = iota
	placeParked
	placeDraining
	placeHolding
)

// DeferredParked is the reason for which events of parked lanes are deferred.
const DeferredParked = "parked"

// meanwhile is how long after an attempt that failed another one must have begun to
// show that others can send.
const meanwhile = 100 * time.Millisecond

// Bounds of a reopening.
const (
	holdRowsMax  = 1000   // rows that are sent while the tail's events are held
	laterRowsMax = 50_000 // rows deferred during a pass that are noted
	reopenRounds = 50     // sends of such rows within one pass
)

// place is where events queue up: a lane, a topic whose lanes are not known yet, or a key
// that waits for a dead letter (see block).
// Guarded by Engine.mu unless said otherwise.
type place struct {
	topic string
	name  string
	lane  *lane // nil for a topic

	failing time.Time // when the first attempt began since which events of the tail fail here; zero: they do not
	events  int64     // of the tail, in here and not settled
	bytes   int64     // of those, as they count in the budget

	gaveBack atomic.Uint64 // the pass in which a row of the sweep was given back last; read without the mutex

	state  parkState
	reason string // why it is parked
	since  time.Time
	head   outbox.Key // the oldest row that is left for later: the probe; empty: none
	scan   uint64     // the pass that may send rows; for draining and holding
	gaveUp bool       // an event of the tail was given up here, during a drain: so are those that follow
	block  *block     // of the place of a blocked key; nil: it is another
	held   []*item
}

// leftover is what a change under the mutex leaves to be done without it.
type leftover struct {
	deferred      []settlement
	back          []*item // rows of the sweep to be given back
	events, bytes int64   // of the budget
}

// finish does what leftover says.
func (e *Engine) finish(left leftover, reason string) {
	if left.events > 0 {
		e.budget.release(left.events, left.bytes)
	}
	for _, s := range left.deferred {
		e.observe(s)
	}
	for _, it := range left.back {
		e.giveUp(it, reason)
	}
}

// refusal says why a row of the sweep may not go in a pass; empty: it may. The place
// of a topic is asked too: rows may have gone back there before its lanes were known.
func (p *place) refusal(t *topic, pass uint64) string {
	switch {
	case t.moving != nil:
		return refreezing
	case p.state == placeParked, p.state != placeOpen && p.scan != pass:
		return DeferredParked
	case p.gaveBack.Load() == pass, t.gaveBack.Load() == pass:
		return "predecessor_released"
	}
	return ""
}

// parks reports whether places are parked at all: the events must be findable by a
// sweep, and there must be a position to move on.
func (e *Engine) parks() bool {
	return e.cfg.ParkAfter > 0 && e.cfg.Source != nil && e.cfg.Ledger != nil
}

// parkingDue reports whether a place whose events have waited since a moment is to be
// parked: for ParkAfter, or a tenth of it while what cannot go holds a quarter of the
// budget; and unless the configuration is at fault, only if others could send
// meanwhile. During an outage of everything, events wait: what was under way when it
// began does not count.
func (e *Engine) parkingDue(p *place, since time.Time, class outbox.Class) bool {
	if !e.parks() || e.draining || p.state != placeOpen || since.IsZero() {
		return false
	}
	limit := e.cfg.ParkAfter
	if e.fillsQuarter(p) {
		limit /= 10
	}
	othersWork := e.lastBegan.After(since.Add(meanwhile))
	return time.Since(since) >= limit && (class == outbox.Configuration || othersWork)
}

// fillsQuarter reports whether a place and those that fail hold a quarter of the budget.
func (e *Engine) fillsQuarter(p *place) bool {
	events, bytes := p.events, p.bytes
	for other := range e.fails {
		if other != p {
			events, bytes = events+other.events, bytes+other.bytes
		}
	}
	return e.isQuarter(events, bytes)
}

func (e *Engine) isQuarter(events, bytes int64) bool {
	return events*4 >= e.cfg.InflightMax || bytes*4 >= e.cfg.InflightBytesMax
}

// park parks a place: the items, which are all that is in it, are deferred in their
// order, those of the sweep given back.
func (e *Engine) park(p *place, reason string, items []*item) (left leftover) {
	p.state, p.reason, p.since, p.scan = placeParked, reason, time.Now(), 0
	e.parked[p] = struct{}{}
	e.recovered(p)
	p.head = outbox.Key{}
	for _, it := range items {
		if it.origin == outbox.FromSweep {
			p.gaveBack.Store(it.pass)
			left.back = append(left.back, it)
			continue
		}
		if p.head == (outbox.Key{}) && !it.event.Deleted {
			p.head = it.event.Key()
		}
		e.setAside(p, it, &left)
	}
	return left
}

// recovered forgets that a place fails.
func (e *Engine) recovered(p *place) {
	p.failing = time.Time{}
	delete(e.failing, p.name)
	delete(e.fails, p)
}

// setAside defers an event of the tail, or holds it.
func (e *Engine) setAside(p *place, it *item, left *leftover) {
	e.countOut(it)
	holds := p.state == placeHolding || it.event.Deleted // without a row, no sweep can find it
	switch {
	case holds && e.draining:
		e.giveUp(it, "draining")
	case holds:
		it.state = inLane
		e.countIn(p, it)
		p.held = append(p.held, it)
		e.heldEvents, e.heldBytes = e.heldEvents+1, e.heldBytes+it.admitted
		if p.state == placeHolding && e.isQuarter(e.heldEvents, e.heldBytes) {
			e.unholdAll(left)
		}
	default:
		e.leave(p, it, left)
	}
}

// leave defers an event: its row stays PENDING, and the position passes it. There is
// nothing to be written, so it need not go through the marker.
func (e *Engine) leave(p *place, it *item, left *leftover) {
	s := settlement{item: it, deferred: DeferredParked}
	if p.block != nil {
		s.deferred = DeferredBlocked
	}
	left.deferred = append(left.deferred, s)
	left.events += int64(countAdmitted(it))
	left.bytes += it.admitted
	e.byKey.settled(it)
	e.release(s) // those that waited for its outcome are deferred with it
	if p.state == placeDraining && p.scan == e.pass.Load() {
		e.later.add(p, it.event.Key())
		if e.later.full {
			e.spoil()
		}
	}
}

// spoil ends what this pass can do for the places that it drains: what was deferred
// during the pass is not all noted any more.
func (e *Engine) spoil() {
	pass := e.pass.Load()
	for p := range e.parked {
		if p.scan == pass {
			p.gaveBack.Store(pass)
		}
	}
}

// unhold defers what is held, and has the next pass begin anew.
func (e *Engine) unhold(p *place, left *leftover) {
	held := p.held
	p.held = nil
	if p.state == placeHolding {
		p.state = placeDraining
		p.gaveBack.Store(e.pass.Load())
	}
	for _, it := range held {
		e.heldEvents, e.heldBytes = e.heldEvents-1, e.heldBytes-it.admitted
		e.setAside(p, it, left)
	}
}

func (e *Engine) unholdAll(left *leftover) {
	for p := range e.parked {
		if p.state == placeHolding {
			e.unhold(p, left)
		}
	}
}

// giveUpHeld gives up what is held, for a drain.
func (e *Engine) giveUpHeld() {
	for p := range e.parked {
		for _, it := range p.held {
			e.giveUp(it, "draining")
		}
		p.held = nil
	}
	e.heldEvents, e.heldBytes = 0, 0
}

// countIn counts an event of the tail in its place, and countOut takes it out again.
func (e *Engine) countIn(p *place, it *item) {
	if it.origin == outbox.FromBinlog {
		it.at = p
		p.events, p.bytes = p.events+1, p.bytes+it.admitted
	}
}

func (e *Engine) countOut(it *item) {
	if p := it.at; p != nil {
		it.at = nil
		p.events, p.bytes = p.events-1, p.bytes-it.admitted
	}
}

// later notes the rows that are deferred while a pass runs, in the order of the stream.
type later struct {
	rows []laterRow
	has  map[outbox.Key]struct{}
	full bool // some are not noted
}

type laterRow struct {
	at  *place
	key outbox.Key
}

func (l *later) add(p *place, key outbox.Key) {
	if _, ok := l.has[key]; ok || l.full {
		return
	}
	if len(l.rows) >= laterRowsMax {
		*l = later{full: true}
		return
	}
	if l.has == nil {
		l.has = map[outbox.Key]struct{}{}
	}
	l.has[key] = struct{}{}
	l.rows = append(l.rows, laterRow{p, key})
}

// take returns the rows of some places and forgets all.
func (l *later) take(of map[*place]bool) []outbox.Key {
	var keys []outbox.Key
	for _, row := range l.rows {
		if of[row.at] {
			keys = append(keys, row.key)
		}
	}
	*l = later{}
	return keys
}
