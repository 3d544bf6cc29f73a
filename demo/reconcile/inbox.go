package reconcile

import (
	"sync"
	"time"
)

// Key names one event of the sale: the order it belongs to, and the version that
// the order had after it, counted from 1.
type Key struct {
	Order   string
	Version int
}

// Event is what a message says about itself.
type Event struct {
	UID string // property outbox_uid, by which a consumer knows a copy
	Key
	WrittenAt time.Time // when the shop wrote the row, inside its transaction
}

// Arrival is the first receipt of an event.
type Arrival struct {
	Key
	WrittenAt time.Time
	At        time.Time
}

// Inbox is the memory of an idempotent consumer. A service would keep the seen
// uids in a table, in the transaction that does the work; this one lives as long
// as its sale and keeps them in memory. It is safe for concurrent use.
type Inbox struct {
	mu         sync.Mutex
	seen       map[string]struct{}
	versions   map[string][]int // per order, in order of first arrival
	arrivals   []Arrival
	duplicates int
	unreadable int
}

// NewInbox returns an empty inbox.
func NewInbox() *Inbox {
	return &Inbox{seen: map[string]struct{}{}, versions: map[string][]int{}}
}

// Record takes note of a message received at the given time and reports whether
// it is the first with its uid. Only then may a consumer act on it.
func (in *Inbox) Record(e Event, at time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, copied := in.seen[e.UID]; copied {
		in.duplicates++
		return false
	}
	in.seen[e.UID] = struct{}{}
	in.versions[e.Order] = append(in.versions[e.Order], e.Version)
	in.arrivals = append(in.arrivals, Arrival{Key: e.Key, WrittenAt: e.WrittenAt, At: at})
	return true
}

// RecordUnreadable counts a message that does not say what it is.
func (in *Inbox) RecordUnreadable() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.unreadable++
}

// Len returns the number of distinct events received.
func (in *Inbox) Len() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.arrivals)
}

// Arrivals returns the first receipts from the n-th on, in the order in which
// they came.
func (in *Inbox) Arrivals(n int) []Arrival {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]Arrival(nil), in.arrivals[min(n, len(in.arrivals)):]...)
}
