package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Letters is what the server needs of a relay for dead letters and replays.
type Letters interface {
	// Dead returns a page of dead letters.
	Dead(ctx context.Context, by DeadFilter, page DeadPaging) (DeadPage, error)
	// Requeue has dead letters sent again, and waits until that is done.
	Requeue(ctx context.Context, by DeadFilter) (DeadDone, error)
	// Discard notes that dead letters need not be sent.
	Discard(ctx context.Context, by DeadFilter) (DeadDone, error)
	// Replay publishes SENT rows again.
	Replay(ctx context.Context, by ReplayFilter) (Replayed, error)
}

// DeadFilter selects dead letters. What is empty selects all; what an action would
// change must be selected by something, or by All.
type DeadFilter struct {
	Table     string     `json:"table,omitempty"`
	Type      string     `json:"type,omitempty"`
	Key       string     `json:"key,omitempty"`   // the ordering key
	Since     *time.Time `json:"since,omitempty"` // created_at, this moment included
	Until     *time.Time `json:"until,omitempty"` // created_at, this moment excluded
	IDs       []string   `json:"ids,omitempty"`
	All       bool       `json:"all,omitempty"`
	Discarded bool       `json:"discarded,omitempty"` // also those that were discarded
	Limit     int        `json:"limit,omitempty"`     // 0: none
	DryRun    bool       `json:"dry_run,omitempty"`   // only count
}

// Selects reports whether the filter selects something, rather than everything by
// forgetting to.
func (f DeadFilter) Selects() bool {
	return f.All || f.Table != "" || f.Type != "" || f.Key != "" || f.Since != nil || f.Until != nil || len(f.IDs) > 0
}

// Mistake says what is wrong with a filter; empty: nothing.
func (f DeadFilter) Mistake() string {
	switch {
	case f.Limit < 0:
		return "the limit must not be negative"
	case f.Since != nil && f.Until != nil && !f.Since.Before(*f.Until):
		return "since must be before until"
	case len(f.IDs) > DeadIDsMax:
		return fmt.Sprintf("more than %d ids: name fewer at once, or select by something else", DeadIDsMax)
	}
	return ""
}

// DeadIDsMax is how many ids a filter may name.
const DeadIDsMax = 1000

// DeadPaging says which part of the list is wanted.
type DeadPaging struct {
	After   string // Next of the page before; empty: the first
	Payload bool   // with payloads
}

// DeadPage is a part of the list of dead letters.
type DeadPage struct {
	Dead []DeadLetter `json:"dead"`
	Next string       `json:"next"` // where the list goes on; empty: it does not
}

// DeadLetter is a row that can never be published as it is, or nobody knew how.
type DeadLetter struct {
	Table         string     `json:"table"`
	ID            string     `json:"id"`
	AggregateType string     `json:"aggregate_type"`
	AggregateID   string     `json:"aggregate_id"`
	EventType     string     `json:"event_type"`
	Topic         string     `json:"topic"` // the column's value
	Tag           string     `json:"tag"`   // the column's value
	Key           string     `json:"key"`   // the ordering key
	Reason        string     `json:"reason"`
	Attempts      int        `json:"attempts"`
	CreatedAt     *time.Time `json:"created_at"`
	Discarded     bool       `json:"discarded"`
	DiscardedAt   *time.Time `json:"discarded_at"`
	Gone          bool       `json:"gone"` // the row is no longer in the table
	PayloadBytes  int64      `json:"payload_bytes"`
	Headers       []Header   `json:"headers,omitempty"` // with the payload only
	Payload       *string    `json:"payload,omitempty"` // where it was asked for and is UTF-8
	PayloadBase64 []byte     `json:"payload_base64,omitempty"`
}

// Header is an entry of the headers column.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// DeadDone is what requeueing or discarding has done.
type DeadDone struct {
	Action   string `json:"action"` // requeue or discard
	DryRun   bool   `json:"dry_run"`
	Selected int64  `json:"selected"` // dead letters that the filter selects
	Changed  int64  `json:"changed"`  // requeued or discarded
	Locked   int64  `json:"locked"`   // left, because somebody keeps the row locked
	outbox.Tally
	Note string `json:"note"` // what is yet to happen; empty: nothing
}

// ReplayFilter selects SENT rows.
type ReplayFilter struct {
	Since  time.Time `json:"since"` // created_at, this moment included
	Until  time.Time `json:"until"` // created_at, this moment excluded
	Table  string    `json:"table,omitempty"`
	Type   string    `json:"type,omitempty"`
	Key    string    `json:"key,omitempty"`
	DryRun bool      `json:"dry_run,omitempty"`
}

// Mistake says what is wrong with a filter; empty: nothing.
func (f ReplayFilter) Mistake() string {
	if f.Since.IsZero() || f.Until.IsZero() || !f.Since.Before(f.Until) {
		return "since and until are needed, the first before the second"
	}
	return ""
}

// Replayed is what a replay has done.
type Replayed struct {
	DryRun   bool  `json:"dry_run"`
	Selected int64 `json:"selected"` // SENT rows that the filter selects
	outbox.Tally
}

// letters maps the paths of dead letters.
func (s *Server) letters(open, guarded func(pattern string, limit time.Duration, h http.HandlerFunc)) {
	if s.config.Letters == nil {
		return
	}
	withPayload := s.guard(s.dead(true))
	open("GET /api/v1/dead", answerTimeout, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("payload") == "1" {
			withPayload.ServeHTTP(w, r)
			return
		}
		s.dead(false)(w, r)
	})
	guarded("POST /api/v1/dead/requeue", noTimeout, s.reviseDead("requeue", s.config.Letters.Requeue))
	guarded("POST /api/v1/dead/discard", noTimeout, s.reviseDead("discard", s.config.Letters.Discard))
	guarded("POST /api/v1/replay", noTimeout, s.replay)
}

// dead answers with a page of the list.
func (s *Server) dead(payload bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		by, after, err := deadQuery(r.URL.Query())
		if err != nil {
			s.writeJSON(w, http.StatusBadRequest, failure{err.Error()})
			return
		}
		page, err := s.config.Letters.Dead(r.Context(), by, DeadPaging{After: after, Payload: payload})
		if err != nil {
			s.writeJSON(w, http.StatusServiceUnavailable, failure{err.Error()})
			return
		}
		s.writeJSON(w, http.StatusOK, page)
	}
}

// deadQuery reads a filter from the query of a request.
func deadQuery(q url.Values) (by DeadFilter, after string, err error) {
	known := []string{"table", "type", "key", "id", "since", "until", "limit", "discarded", "after", "payload", "all"}
	for name := range q {
		if !slices.Contains(known, name) {
			return by, "", fmt.Errorf("%.40q is no filter: known are %v", name, known)
		}
	}
	by = DeadFilter{Table: q.Get("table"), Type: q.Get("type"), Key: q.Get("key"), IDs: q["id"], Discarded: q.Get("discarded") == "1"}
	for name, at := range map[string]**time.Time{"since": &by.Since, "until": &by.Until} {
		if text := q.Get(name); text != "" {
			t, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return by, "", fmt.Errorf("%s=%.40q: wanted a time as 2026-01-31T15:04:05Z", name, text)
			}
			*at = &t
		}
	}
	if text := q.Get("limit"); text != "" {
		if by.Limit, err = strconv.Atoi(text); err != nil {
			return by, "", fmt.Errorf("limit=%.40q: wanted a number", text)
		}
	}
	if mistake := by.Mistake(); mistake != "" {
		return by, "", errors.New(mistake)
	}
	return by, q.Get("after"), nil
}

// reviseDead runs until it is done, the caller goes away or the server closes.
func (s *Server) reviseDead(action string, do func(context.Context, DeadFilter) (DeadDone, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var by DeadFilter
		if !s.read(w, r, &by, `{"ids": ["4711"]} or {"all": true}`) {
			return
		}
		mistake := by.Mistake()
		if mistake == "" && !by.Selects() {
			mistake = "nothing is selected: name what, or say all"
		}
		if mistake != "" {
			s.writeJSON(w, http.StatusBadRequest, failure{mistake})
			return
		}
		done, err := do(r.Context(), by)
		s.answer(w, action, done, err)
	}
}

// replay runs until it is done, the caller goes away or the server closes.
func (s *Server) replay(w http.ResponseWriter, r *http.Request) {
	var by ReplayFilter
	if !s.read(w, r, &by, `{"since": "2026-01-31T00:00:00Z", "until": "2026-02-01T00:00:00Z"}`) {
		return
	}
	if mistake := by.Mistake(); mistake != "" {
		s.writeJSON(w, http.StatusBadRequest, failure{mistake})
		return
	}
	done, err := s.config.Letters.Replay(r.Context(), by)
	s.answer(w, "replay", done, err)
}

// read reads the JSON of a request; false: it was refused.
func (s *Server) read(w http.ResponseWriter, r *http.Request, into any, example string) bool {
	const bytesMax = 1 << 20
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, bytesMax))
	body.DisallowUnknownFields()
	if err := body.Decode(into); err != nil {
		s.writeJSON(w, http.StatusBadRequest, failure{"the request must be JSON such as " + example})
		return false
	}
	return true
}

func (s *Server) answer(w http.ResponseWriter, action string, done any, err error) {
	if err != nil {
		s.config.Logger.Warn().Err(err).Str("action", action).Msg("an action asked for over HTTP failed")
		s.writeJSON(w, http.StatusServiceUnavailable, failure{err.Error()})
		return
	}
	s.writeJSON(w, http.StatusOK, done)
}

// Requeue has the relay requeue dead letters, and waits as long as ctx allows.
func (c *Client) Requeue(ctx context.Context, by DeadFilter) (DeadDone, error) {
	var done DeadDone
	err := c.post(ctx, "/api/v1/dead/requeue", by, &done)
	return done, err
}

// Discard has the relay discard dead letters, and waits as long as ctx allows.
func (c *Client) Discard(ctx context.Context, by DeadFilter) (DeadDone, error) {
	var done DeadDone
	err := c.post(ctx, "/api/v1/dead/discard", by, &done)
	return done, err
}

// Replay has the relay publish SENT rows again, and waits as long as ctx allows.
func (c *Client) Replay(ctx context.Context, by ReplayFilter) (Replayed, error) {
	var done Replayed
	err := c.post(ctx, "/api/v1/replay", by, &done)
	return done, err
}

func (c *Client) post(ctx context.Context, path string, ask, answer any) error {
	text, err := json.Marshal(ask)
	if err != nil {
		return fmt.Errorf("asking the relay: %w", err)
	}
	return c.askWith(ctx, http.MethodPost, path, string(text), answer)
}
