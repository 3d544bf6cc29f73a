package relay

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Deaths knows the dead letters that keep the later events of their keys waiting.
type Deaths interface {
	// BlockedKeys returns, each once, the ordering keys of the dead letters that were
	// neither requeued nor discarded, and those of which all were, while what has waited
	// for them may not be sent yet: up to most of each.
	BlockedKeys(ctx context.Context, most int) (dead, settled []string, err error)
	// Opened forgets the dead letters of keys that were requeued or discarded: what has
	// waited for them is sent.
	Opened(ctx context.Context, keys []string) error
}

// DeferredBlocked is the reason for which events of blocked keys are deferred.
const DeferredBlocked = "blocked"

// blockedKeysMax bounds the keys that are told apart. While more are blocked, the events
// of all keys wait: to let one go could be to let it overtake.
const blockedKeysMax = 100_000

// digest stands for a key, so that a hundred thousand of any length are a few megabytes.
type digest [16]byte

func digestOf(key string) digest {
	sum := sha256.Sum256([]byte(key))
	return digest(sum[:16])
}

// block makes a place the one of a blocked key instead of a lane's.
//
// A key whose event died is a place like a lane that cannot send, and goes the way of
// parkState: its events are left PENDING (parked); when its last dead letter is requeued or
// discarded, a pass sends its rows, the requeued one among them, by the sweep's order
// (draining); then what came meanwhile (holding); then it is no place any more. It ends in
// two ways that a lane does not know: what begins the draining is what the store says, not
// a probe; and another row of the key that dies leads back to parked.
//
// What must hold: no event of a key enters a lane behind one that died, until the key is
// open again. So, in one step under Engine.mu with the death, the key is closed, and what
// follows of it in the same lane is taken out. Events of the key in lanes of other topics,
// and those that came before the dead one, go: they do not follow it. All of a key's
// events that are deferred are deferred before its draining begins, in whatever order,
// because it cannot begin before the death is recorded. Shown by
// TestBlockedKeysKeepOrderAndLoseNothing.
type block struct {
	of         digest
	key        string // where it is to be opened in the store, too; empty: not
	deaths     int    // that this engine has seen
	unrecorded int    // of those: the store does not know them yet
}

// blocks reports whether dead letters keep later events of their keys waiting.
func (e *Engine) blocks() bool { return e.cfg.Deaths != nil }

// blockOf returns the place of a key that is blocked or not open again; nil: it is open.
func (e *Engine) blockOf(key string) *place {
	if len(e.blocked) == 0 && e.allKeys == nil {
		return nil
	}
	if p := e.blocked[digestOf(key)]; p != nil {
		return p
	}
	return e.allKeys
}

// blockRefusal says why a row of the sweep with this key may not go in a pass.
func (e *Engine) blockRefusal(key string, pass uint64) string {
	p := e.blockOf(key)
	switch {
	case p == nil:
		return ""
	case p.state == placeParked, p.scan != pass:
		return DeferredBlocked
	case p.gaveBack.Load() == pass:
		return "predecessor_released"
	}
	return ""
}

// enterBlocked is enterLane for an item of a key that may be blocked. entered is false if
// the item is to go on to its lane.
func (e *Engine) enterBlocked(it *item, left *leftover) (entered bool, refusal string) {
	p := e.blockOf(it.orderKey())
	switch {
	case it.taken || e.stopped: // given back by enterLane
	case p != nil && it.origin == outbox.FromBinlog:
		e.setAside(p, it, left)
		return true, ""
	case p != nil:
		if refusal = e.blockRefusal(it.orderKey(), it.pass); refusal != "" {
			return true, refusal
		}
	}
	if it.fatal == nil {
		return false, ""
	}
	if it.taken || e.stopped {
		return true, "taken_over"
	}
	e.marks.push(e.close(it, *it.fatal, left))
	return true, ""
}

// close blocks the key of an item that dies, and returns its settlement. What is held of
// the key is deferred.
func (e *Engine) close(it *item, s settlement, left *leftover) settlement {
	s = s.of(it)
	p := e.blockFor(it.orderKey())
	p.block.deaths++
	p.block.unrecorded++
	s.blocks = p
	e.shut(p, left)
	return s
}

// addBlock makes the place of a key.
func (e *Engine) addBlock(of digest) *place {
	if len(e.blocked) >= blockedKeysMax {
		return e.blockAll()
	}
	p := &place{block: &block{of: of}, state: placeParked}
	e.blocked[of] = p
	e.parked[p] = struct{}{}
	return p
}

// blockAll has the events of all keys wait that have no place of their own.
func (e *Engine) blockAll() *place {
	if e.allKeys == nil {
		e.allKeys = &place{block: &block{}, state: placeParked}
		e.parked[e.allKeys] = struct{}{}
		e.log.Error().Int("keys_max", blockedKeysMax).
			Msg("more keys are blocked by dead letters than can be told apart: the events of all keys wait; requeue or discard dead letters")
	}
	return e.allKeys
}

// shut leads a key back to parked.
func (e *Engine) shut(p *place, left *leftover) {
	if p.state == placeHolding {
		e.unhold(p, left)
	}
	p.state, p.scan, p.block.key = placeParked, 0, ""
}

// die settles an item that a lane found to be dead and returns what remains of the groups
// behind it: with blocks, what follows of its key is deferred or given back, there and in
// the lane's queue.
func (e *Engine) die(l *lane, it *item, s settlement, behind [][]*item) [][]*item {
	if !e.blocks() {
		e.settle(it, s)
		return behind
	}
	key := it.orderKey()
	var left leftover
	follows := func(other *item) bool { return other.orderKey() == key }
	e.mu.Lock()
	s = e.close(it, s, &left)
	var kept [][]*item
	var followers []*item
	for _, group := range behind {
		var stay []*item
		for _, other := range group {
			if follows(other) {
				followers = append(followers, other)
			} else {
				stay = append(stay, other)
			}
		}
		if len(stay) > 0 {
			kept = append(kept, stay)
		}
	}
	for _, other := range append(followers, l.queue.remove(follows)...) {
		if other.origin == outbox.FromSweep {
			left.back = append(left.back, other)
		} else {
			e.setAside(e.blockOf(key), other, &left)
		}
	}
	e.mu.Unlock()
	e.marks.push(s)
	e.finish(left, DeferredBlocked)
	return kept
}

// dieAll settles events in their order that are all refused for the same reason: with
// blocks, the first of each key, and the others wait for it.
func (e *Engine) dieAll(items []*item, s settlement) {
	if !e.blocks() {
		for _, it := range items {
			e.settle(it, s)
		}
		return
	}
	for _, it := range items {
		it.fatal = &s
	}
	e.enterLanes(items...)
}

// noteDead blocks the key of an event whose row another relay has given up meanwhile,
// until the store has been asked about it.
func (e *Engine) noteDead(it *item) {
	if !e.blocks() || it.event.Unread != "" {
		return
	}
	key := e.keyOf(it.event)
	e.mu.Lock()
	known := e.blockOf(key) != nil
	if !known {
		e.addBlock(digestOf(key))
	}
	e.mu.Unlock()
	if !known {
		e.hooks.Recovered("") // a pass asks the store
	}
}

// keyOf returns the ordering key of an event, also of one that cannot be routed.
func (e *Engine) keyOf(ev *outbox.Event) string {
	if r, ok := e.cfg.Router.(interface{ Key(*outbox.Event) string }); ok {
		return r.Key(ev)
	}
	return ev.AggregateID
}

// syncBlocked makes the blocked keys what the store says. A key that has no dead letter
// any more begins to be drained.
//
// What must hold: a key whose death is not recorded when the store is asked, or that has
// died since, stays blocked. Otherwise its later events go before its dead letter can be
// seen by anybody. Shown by TestADeathThatIsNotRecordedYetKeepsItsKeyBlocked.
func (e *Engine) syncBlocked(ctx context.Context) error {
	if !e.blocks() {
		return nil
	}
	before := e.recordedDeaths()
	dead, settled, err := e.cfg.Deaths.BlockedKeys(ctx, blockedKeysMax+1)
	if err != nil {
		return fmt.Errorf("asking which keys wait for dead letters: %w", err)
	}
	var left leftover
	e.mu.Lock()
	said := make(map[*place]bool, len(dead))
	for _, key := range dead {
		p := e.blockFor(key)
		said[p] = true
		if p.state != placeParked {
			e.shut(p, &left)
		}
	}
	leased := e.othersClaims()
	claimed := map[*place]bool{} // rows of them may be
	for _, key := range settled {
		p := e.blockFor(key)
		claimed[p] = leased > 0 && p.block.deaths == 0
		if _, known := before[p]; !known && p.block.deaths == 0 { // of another leadership
			before[p] = 0
		}
		if !said[p] && p != e.allKeys {
			p.block.key = key
		}
	}
	for p, deaths := range before {
		if !said[p] && !claimed[p] && p.state == placeParked && p.block.unrecorded == 0 && p.block.deaths == deaths {
			p.state, p.scan = placeDraining, 0
		}
	}
	if leased > 0 && len(settled) > 0 && !e.leased {
		e.leased = true
		time.AfterFunc(leased, func() { e.hooks.Recovered("") })
	}
	e.mu.Unlock()
	e.finish(left, DeferredBlocked)
	return nil
}

// othersClaims returns how long rows may still be claimed by whoever led before.
//
// What must hold: a key that another leadership has left half drained is not drained while
// rows of it may be claimed. Otherwise the pass does not see them, and what comes later
// overtakes them. Shown by TestBlockedKeysKeepOrderAndLoseNothing.
func (e *Engine) othersClaims() time.Duration {
	const margin = time.Second // the database counts the lease by another clock
	if !e.cfg.Claims {
		return 0
	}
	return time.Until(e.began.Add(e.cfg.Lease + margin))
}

// blockFor returns the place of a key, made if need be.
func (e *Engine) blockFor(key string) *place {
	of := digestOf(key)
	if p := e.blocked[of]; p != nil {
		return p
	}
	return e.addBlock(of)
}

// forget has the store forget the settled dead letters of the keys that are about to open.
//
// What must hold: the store forgets a key after all that was deferred for it is sent, and
// before it opens here. Earlier, a relay that ends in between leaves rows for the sweep of
// its successor, whose tail overtakes them; later, it may forget another dead letter of the
// key. Shown by TestBlockedKeysKeepOrderAndLoseNothing.
func (e *Engine) forget(ctx context.Context) error {
	if !e.blocks() {
		return nil
	}
	pass := e.pass.Load()
	var keys []string
	e.mu.Lock()
	for _, p := range e.blocked {
		if p.state == placeHolding && p.scan == pass && p.gaveBack.Load() != pass && p.block.key != "" {
			keys = append(keys, p.block.key)
		}
	}
	e.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	if err := e.cfg.Deaths.Opened(ctx, keys); err != nil {
		return fmt.Errorf("forgetting dead letters that are settled: %w", err)
	}
	return nil
}

// recordedDeaths returns the blocked keys whose deaths are all recorded, each with their
// number.
func (e *Engine) recordedDeaths() map[*place]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := make(map[*place]int, len(e.blocked)+1)
	for _, p := range e.blocked {
		if p.block.unrecorded == 0 {
			before[p] = p.block.deaths
		}
	}
	if p := e.allKeys; p != nil && p.block.unrecorded == 0 {
		before[p] = p.block.deaths
	}
	return before
}

// openKey ends the place of a key, and lets into the lanes what was held there.
func (e *Engine) openKey(p *place, left *leftover) {
	held := e.unpark(p)
	if p == e.allKeys {
		e.allKeys = nil
	} else {
		delete(e.blocked, p.block.of)
	}
	for _, it := range held {
		e.countOut(it)
		wake, refusal := e.enterLane(it, left)
		if refusal != "" {
			left.back = append(left.back, it)
		}
		if wake != nil {
			wake.queue.signal()
		}
	}
}

// spoilKey notes that a row of a key went back in a pass: the key does not open by it.
func (e *Engine) spoilKey(it *item, s settlement) {
	if !e.blocks() || it.origin != outbox.FromSweep || s.kind != outbox.OutcomeReleased && s.kind != outbox.OutcomeAttempt {
		return
	}
	if p := e.blockOf(it.orderKey()); p != nil {
		p.gaveBack.Store(it.pass)
	}
}
