package admin

import (
	"context"
	"net/http"
)

// Pausing is the answer to pause and resume.
type Pausing struct {
	Paused  bool   `json:"paused"`
	Changed bool   `json:"changed"` // it was not so before
	By      string `json:"by"`      // who has written it down: relay or command
	Sending bool   `json:"sending"` // a send that began before the pause has not ended yet
	// Events are those that were read and wait for the end of the pause; null: no relay
	// was asked. Rows that are PENDING in the table come on top.
	Events *int64 `json:"events"`
}

// Values of Pausing.By.
const (
	ByRelay   = "relay"
	ByCommand = "command"
)

// setPaused answers POST /api/v1/pause and /api/v1/resume.
func (s *Server) setPaused(on bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		done, err := s.config.Relay.SetPaused(r.Context(), on)
		if err != nil {
			s.config.Logger.Warn().Err(err).Bool("pause", on).Msg("a pause or its end, asked for over HTTP, failed")
			s.writeJSON(w, http.StatusServiceUnavailable, failure{err.Error()})
			return
		}
		s.writeJSON(w, http.StatusOK, done)
	}
}

// SetPaused has the relay pause or resume publishing.
func (c *Client) SetPaused(ctx context.Context, on bool) (Pausing, error) {
	var answer Pausing
	path := "/api/v1/resume"
	if on {
		path = "/api/v1/pause"
	}
	err := c.ask(ctx, http.MethodPost, path, &answer)
	return answer, err
}
