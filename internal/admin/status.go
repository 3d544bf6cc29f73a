package admin

import "time"

// Status is what a relay says about itself. A number that is not known, such as
// the lag before the first event, is null and not zero.
type Status struct {
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	Leader     bool       `json:"leader"`
	Mode       string     `json:"mode"`
	Paused     bool       `json:"paused"`
	Source     Source     `json:"source"`
	Checkpoint Checkpoint `json:"checkpoint"`
	Gap        bool       `json:"gap"` // a part of the binlog was lost and is not yet swept
	Backlog    Backlog    `json:"backlog"`
	Published  Published  `json:"published"`
	Inflight   Inflight   `json:"inflight"`
	Parked     []Parked   `json:"parked"`
	LastError  string     `json:"last_error"` // without secrets and payloads; empty: none
}

// Source is where the binlog is read.
type Source struct {
	Address          string   `json:"address"`
	Flavor           string   `json:"flavor"` // mysql or mariadb
	Connected        bool     `json:"connected"`
	Position         string   `json:"position"`
	LagSeconds       *float64 `json:"lag_seconds"`        // grows while disconnected
	LastEventSeconds *float64 `json:"last_event_seconds"` // since the last event or heartbeat
	FenceSeconds     *float64 `json:"fence_seconds"`      // round trip of the last fence
}

// Checkpoint is the saved position.
type Checkpoint struct {
	Position   string   `json:"position"`
	AgeSeconds *float64 `json:"age_seconds"`
	Epoch      int64    `json:"epoch"`
}

// Backlog counts rows over all tables.
type Backlog struct {
	Pending       int64    `json:"pending"`
	OldestSeconds *float64 `json:"oldest_seconds"` // age of the oldest row not sent; null: none
	Failed        int64    `json:"failed"`
}

// Published counts events since the process began.
type Published struct {
	Binlog uint64 `json:"binlog"`
	Sweep  uint64 `json:"sweep"`
}

// Inflight is what was read and is not finished.
type Inflight struct {
	Events int64 `json:"events"`
	Bytes  int64 `json:"bytes"`
}

// Parked is a topic or a lane whose events are left PENDING until it takes messages again.
type Parked struct {
	Lane   string    `json:"lane"`   // topic/number, or a topic whose lanes are not known
	Reason string    `json:"reason"` // of the newest failure
	Since  time.Time `json:"since"`
}

// Seconds turns a duration into what Status holds, to the millisecond.
func Seconds(d time.Duration) *float64 {
	s := d.Round(time.Millisecond).Seconds()
	return &s
}

// Readiness is the answer of /readyz. Status is ready, degraded (it publishes,
// but Reasons need a look) or unready.
type Readiness struct {
	Status  string   `json:"status"`
	Reasons []string `json:"reasons"`
}

// Values of Readiness.Status.
const (
	Ready    = "ready"
	Degraded = "degraded"
	Unready  = "unready"
)
