package relay

import (
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// item is one event in the engine's hands. Fields are written by whoever holds
// the item at its stage (intake, router, lane, marker, in that order) unless said
// otherwise; followers, taken and state are guarded by Engine.mu.
type item struct {
	event     *outbox.Event
	msg       *outbox.Message
	key       string      // the ordering key; empty before the item was routed
	fatal     *settlement // it cannot be sent, which is yet to be settled in the order of its key
	origin    outbox.Origin
	slot      *slot     // nil for the sweep: it moves no position
	committed time.Time // zero for the sweep
	pass      uint64    // of the sweep; 0 for the tail
	token     string    // claim token, for the sweep
	claimedAt time.Time // just before the claim was made, by our clock
	attempts  int       // unknown errors so far, those recorded in the row among them
	admitted  int64     // bytes taken from the budget; 0 for the sweep
	byKey     int64     // bytes among them that were read from the table
	at        *place    // where it is counted; nil: nowhere. Guarded by Engine.mu

	state     state
	taken     bool    // reserved by the sweep, then taken over by the tail
	followers []*item // tail items that wait for this one's outcome
	wait      *waiter // the sweep's page, told when the item is settled
}

// state is how far an item has come, as far as the other path must know.
type state uint8

const (
	reserved state = iota // in the registry, not in a lane
	inLane
	settled
)

// registry holds what is in flight, for both paths, by the identity of the row.
//
// What must hold: a key stays in it until its outcome is committed to the ledger.
// Leave it earlier, and a sweep finds the row PENDING and not in flight, and
// sends it again. Shown by TestSweepPassesOverWhatIsInFlight. Guarded by
// Engine.mu.
type registry map[outbox.Key]*item

// enter registers a tail item. It returns false when the item has nothing to do
// but wait for another's outcome: the row is in a lane already, or the tail itself
// has it, because a connection that broke within a transaction repeats its start.
func (r registry) enter(it *item) bool {
	key := it.event.Key()
	other := r[key]
	switch {
	case other == nil:
		r[key] = it
		return true
	case other.state == reserved && other.origin == outbox.FromSweep:
		other.taken = true
		r[key] = it
		return true
	default:
		other.followers = append(other.followers, it)
		return false
	}
}

// reserve registers a row for the sweep, unless it is in flight.
func (r registry) reserve(key outbox.Key) (*item, bool) {
	if r[key] != nil {
		return nil, false
	}
	it := &item{
		event: &outbox.Event{Table: key.Table, ID: key.ID}, origin: outbox.FromSweep, state: reserved,
		claimedAt: time.Now(), // no later than the claim itself, which comes next
	}
	r[key] = it
	return it, true
}

// leave removes an item whose outcome is committed; a taken item has left before.
func (r registry) leave(it *item) {
	if key := it.event.Key(); r[key] == it {
		delete(r, key)
	}
}
