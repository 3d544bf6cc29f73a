package outbox

// Status is the state of a row, whatever the table calls it.
type Status uint8

// The states. Missing and Other are answers of a look-up only: the row is not
// there, or its status column holds something that the layout does not know.
const (
	Other Status = iota
	Pending
	Processing
	Sent
	Failed
	Missing
)

var statusNames = [...]string{"OTHER", "PENDING", "PROCESSING", "SENT", "FAILED", "MISSING"}

// String returns the name in capitals, as the tables of the literature spell it.
func (s Status) String() string { return statusNames[s] }

// RowState is what a look-up by key says of one row.
type RowState struct {
	Status Status
	Token  string // claim token, while Status is Processing
	Held   bool   // Status is Processing and the lease has not run out
}

// Outcome is what became of an event; the ledger writes it down.
type Outcome struct {
	Key     Key
	Kind    OutcomeKind
	Token   string // claim token under which the row is held; empty: not claimed
	Reason  string // for OutcomeFailed, OutcomeAttempt and OutcomeReleased; no payload in it
	Backoff int    // seconds before the next attempt, for OutcomeAttempt

	OrderKey string // ordering key, kept with a dead letter where the table has no room for the reason; may be empty
}

// OutcomeKind says what the ledger has to do with a row.
type OutcomeKind uint8

// The kinds. Only OutcomeSent needs no token: that a row was published is a
// fact, whoever holds the claim.
const (
	OutcomeSent     OutcomeKind = iota // PENDING or PROCESSING becomes SENT
	OutcomeFailed                      // the row can never go: FAILED at once
	OutcomeAttempt                     // an unknown error of this row alone: attempts + 1, FAILED at the maximum
	OutcomeReleased                    // nothing happened to the row: back to PENDING, no attempt counted
)

// String returns the label used in metrics and logs.
func (k OutcomeKind) String() string {
	return [...]string{"sent", "failed", "attempt", "released"}[k]
}

// Tally says what became of the rows that a sweep took, in rows.
type Tally struct {
	Sent     int `json:"sent"`
	Failed   int `json:"failed"`
	Attempts int `json:"attempts"` // an unknown error of the row alone; it stays PENDING
	Released int `json:"released"` // not sent, nothing counted: broker away, or the tail has the row
}

// Add adds o to t.
func (t *Tally) Add(o Tally) {
	t.Sent += o.Sent
	t.Failed += o.Failed
	t.Attempts += o.Attempts
	t.Released += o.Released
}
