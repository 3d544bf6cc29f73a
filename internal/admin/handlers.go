package admin

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Limits of the time that an answer may take.
const (
	answerTimeout  = 30 * time.Second
	profileTimeout = 5 * time.Minute
	noTimeout      = 0
)

// handler maps paths to answers.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	open := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, withDeadline(answerTimeout, h)) }
	guarded := func(pattern string, limit time.Duration, h http.HandlerFunc) {
		mux.Handle(pattern, withDeadline(limit, s.guard(h)))
	}
	open("GET /{$}", s.front)
	open("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	open("GET /readyz", s.readyz)
	open("GET /metrics", promhttp.HandlerFor(prometheus.GathererFunc(s.gather), promhttp.HandlerOpts{}).ServeHTTP)
	open("GET /api/v1/status", s.status)
	guarded("POST /api/v1/sweep", noTimeout, s.sweep)
	guarded("POST /api/v1/pause", answerTimeout, s.setPaused(true))
	guarded("POST /api/v1/resume", answerTimeout, s.setPaused(false))
	s.letters(func(pattern string, limit time.Duration, h http.HandlerFunc) {
		mux.Handle(pattern, withDeadline(limit, h))
	}, guarded)
	guarded("GET /api/v1/topics", answerTimeout, s.topics)
	guarded("POST /api/v1/topics/refreeze", noTimeout, s.refreeze)
	guarded("GET /debug/pprof/", profileTimeout, pprof.Index)
	guarded("GET /debug/pprof/cmdline", profileTimeout, pprof.Cmdline)
	guarded("GET /debug/pprof/profile", profileTimeout, pprof.Profile)
	guarded("GET /debug/pprof/symbol", profileTimeout, pprof.Symbol)
	guarded("GET /debug/pprof/trace", profileTimeout, pprof.Trace)
	return mux
}

// withDeadline bounds the time in which the answer must have been written.
func withDeadline(limit time.Duration, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadline := time.Time{}
		if limit != noTimeout {
			deadline = time.Now().Add(limit)
		}
		if err := http.NewResponseController(w).SetWriteDeadline(deadline); err != nil {
			http.Error(w, "no deadline can be set: "+err.Error(), http.StatusInternalServerError)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// gather refreshes the gauges first, so that a scrape tells what is and not what
// was, also while nothing else happens.
func (s *Server) gather() ([]*dto.MetricFamily, error) {
	s.scrapes.Lock()
	defer s.scrapes.Unlock()
	if s.config.Refresh != nil {
		s.config.Refresh()
	}
	return s.config.Metrics.Gather()
}

// readyz answers 503 with the reasons while the relay is not ready, and, only
// where ?leader=1 asks for it, while it does not lead.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	status := s.config.Relay.Status()
	answer := s.readiness(status)
	if r.URL.Query().Get("leader") == "1" && !status.Leader {
		if answer.Status != Unready {
			answer = Readiness{Status: Unready, Reasons: []string{}}
		}
		answer.Reasons = append(answer.Reasons, "this relay does not lead")
	}
	code := http.StatusOK
	if answer.Status == Unready {
		code = http.StatusServiceUnavailable
	}
	s.writeJSON(w, code, answer)
}

// readiness judges without regard to leadership.
func (s *Server) readiness(status Status) Readiness {
	if reasons := s.config.Relay.Ready(); len(reasons) > 0 {
		return Readiness{Status: Unready, Reasons: slices.Clone(reasons)}
	}
	if reasons := degraded(status); len(reasons) > 0 {
		return Readiness{Status: Degraded, Reasons: reasons}
	}
	return Readiness{Status: Ready, Reasons: []string{}}
}

// degraded returns what needs a look although events are published.
func degraded(s Status) []string {
	var reasons []string
	for _, p := range s.Parked {
		reasons = append(reasons, p.Lane+" is parked: "+p.Reason)
	}
	if s.Gap {
		reasons = append(reasons, "a part of the binlog was lost; the sweep is looking for its rows")
	}
	return reasons
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	status := s.config.Relay.Status()
	if status.Parked == nil {
		status.Parked = []Parked{} // a list, also when empty
	}
	s.writeJSON(w, http.StatusOK, status)
}

// sweep runs until the sweep is done, the caller goes away or the server closes.
func (s *Server) sweep(w http.ResponseWriter, r *http.Request) {
	tally, err := s.config.Relay.Sweep(r.Context())
	if err != nil {
		s.config.Logger.Warn().Err(err).Msg("sweep asked for over HTTP failed")
		s.writeJSON(w, http.StatusServiceUnavailable, failure{err.Error()})
		return
	}
	s.writeJSON(w, http.StatusOK, tally)
}

// failure is the JSON of every error.
type failure struct {
	Error string `json:"error"`
}

func (s *Server) writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.config.Logger.Debug().Err(err).Msg("an HTTP answer could not be written; the caller has gone")
	}
}
