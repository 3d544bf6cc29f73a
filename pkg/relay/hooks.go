package relay

import (
	"reflect"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Hooks tell an observer what happens; each may be nil and none may block.
type Hooks struct {
	// Sent: a batch was acknowledged. Batches hold events of one topic; table and
	// origin are given event by event through Published.
	Sent func(topic string, events int, took time.Duration)
	// Published: one event was acknowledged; sinceCommit is zero for the sweep.
	Published func(table outbox.Table, topic string, origin outbox.Origin, sinceCommit time.Duration)
	// Failed: an event can never go, or has used up its attempts.
	Failed func(table outbox.Table, reason string)
	// Skipped: events that were not sent on purpose.
	Skipped func(table outbox.Table, reason string, events int)
	// ReadByKey: the source could not read an event for certain, so its row is read.
	ReadByKey func(table outbox.Table, reason string)
	// Deferred: an event was left PENDING for the sweep; DeferredParked is the reason of
	// those that wait for their lane, which need no sweep yet.
	Deferred func(table outbox.Table, reason string)
	// Marked: outcomes were committed to the ledger.
	Marked func(kind outbox.OutcomeKind, rows int)
	// Recorded: one transaction of the ledger took this long.
	Recorded func(took time.Duration)
	// Saved: a position is saved.
	Saved func(outbox.Position)
	// FenceReturned: a fence came back through the binlog.
	FenceReturned func(roundTrip time.Duration)
	// Recovered: a topic that could not be sent to takes messages again, so there may be
	// rows to be swept; parked lanes reopen by a pass.
	Recovered func(topic string)
}

func (h Hooks) withDefaults() Hooks {
	def(&h.Sent, func(string, int, time.Duration) {})
	def(&h.Published, func(outbox.Table, string, outbox.Origin, time.Duration) {})
	def(&h.Failed, func(outbox.Table, string) {})
	def(&h.Skipped, func(outbox.Table, string, int) {})
	def(&h.ReadByKey, func(outbox.Table, string) {})
	def(&h.Deferred, func(outbox.Table, string) {})
	def(&h.Marked, func(outbox.OutcomeKind, int) {})
	def(&h.Recorded, func(time.Duration) {})
	def(&h.Saved, func(outbox.Position) {})
	def(&h.FenceReturned, func(time.Duration) {})
	def(&h.Recovered, func(string) {})
	return h
}

func def[F any](f *F, fallback F) {
	if reflect.ValueOf(*f).IsNil() {
		*f = fallback
	}
}
