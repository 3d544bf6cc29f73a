package outbox

import (
	"time"
)

// Table names a table together with its schema.
type Table struct {
	Schema string
	Name   string
}

// String returns schema.name, as it stands in metrics, logs and outbox_table.
func (t Table) String() string { return t.Schema + "." + t.Name }

// Header is one entry of the headers column, to be published as a property of
// its own.
type Header struct {
	Name  string
	Value string
}

// Event is one outbox row on its way to the broker. It is built once, by
// [Layout.Event], and not changed afterwards. It has no position: positions
// belong to whole transactions, so they travel in [Batch].
type Event struct {
	Table         Table
	ID            string // primary key as text; BINARY(16) as lower-case hex
	AggregateType string
	AggregateID   string
	Type          string
	Topic         string // value of a topic column; empty where the table has none
	Tag           string // value of a tag column; empty where the table has none
	Payload       []byte
	Headers       []Header  // in the order of the column
	HeadersErr    string    // why the headers column could not be read; the row is refused
	CreatedAt     time.Time // UTC; zero where the table has no such column
	Attempts      int       // failed attempts so far, as the row said when it was read

	// Unread says why nothing but Table and ID is known for certain (a column
	// missing from the row image, an unknown layout, a character set that the
	// reader does not convert). The engine then reads the row by key before it
	// routes the event. Empty: the event is complete.
	Unread string

	// OversizeBytes is the size of a payload that is larger than any message may be and
	// was therefore not kept; Payload is nil then, and the event is refused. 0: Payload
	// is what the column holds.
	OversizeBytes int64

	// Deleted says that the transaction which inserted the row deleted it again,
	// in a table without a status, where that is a habit and no retraction. There
	// is no row to look up or to defer to: the event is published as it is.
	Deleted bool
}

// Key identifies the row within the whole installation.
type Key struct {
	Table Table
	ID    string
}

// Key returns the identity of the row.
func (e *Event) Key() Key { return Key{e.Table, e.ID} }

// SizeBytes is what the event counts for in every bound on bytes: its variable
// parts and a flat allowance for the rest.
func (e *Event) SizeBytes() int64 {
	const overhead = 256
	n := overhead + len(e.ID) + len(e.AggregateType) + len(e.AggregateID) +
		len(e.Type) + len(e.Topic) + len(e.Tag) + len(e.Payload)
	for _, h := range e.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return int64(n)
}

// Origin says which path found an event.
type Origin uint8

// The two paths.
const (
	FromBinlog Origin = iota
	FromSweep
)

// String returns the label used in metrics.
func (o Origin) String() string {
	if o == FromSweep {
		return "sweep"
	}
	return "binlog"
}

// Position is a place in the source's stream, just after a whole committed
// transaction. Only the source that made it can turn it into the text that is
// saved, because a GTID set is too large to be carried by every transaction.
// The zero Position means "none" and never moves a checkpoint.
type Position struct {
	Seq    uint64 // grows with every transaction that this process has read
	File   string // binlog file, for people
	Offset uint64 // bytes from the start of File, for people
}

// IsZero reports whether p is no position at all.
func (p Position) IsZero() bool { return p.Seq == 0 }

// Batch is what a path hands to the engine: some events and, if they complete a
// transaction, the position behind it. A Batch with no events and an End is how
// the transactions of other tables move the checkpoint.
type Batch struct {
	Events      []*Event
	End         Position
	Origin      Origin
	Fence       uint64    // newest fence of this relay seen in the transaction; 0: none
	CommittedAt time.Time // by the source's clock; zero for the sweep
	Own         bool      // the transaction wrote this relay's own checkpoint row
	Skipped     int       // rows inserted in the transaction that are no events (not PENDING)
}
