package app

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/metrics"
	"github.com/rowferry/rowferry/internal/version"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/relay"
)

// pollEvery is how often the gauges are brought up to date; the backlog, which
// costs the database a query, every backlogEvery.
const (
	pollEvery    = time.Second
	backlogEvery = 5 * time.Second
)

// meters turns what happens into metrics, and keeps what the status page tells.
type meters struct {
	*metrics.Metrics
	registry *prometheus.Registry
	series   *series

	published [2]atomic.Uint64 // by origin

	mu      sync.Mutex
	backlog map[outbox.Table]ledger.Backlog
	fence   time.Duration // round trip of the newest fence
	fenceAt time.Time
	last    binlog.State // at the newest poll, to turn totals into counters
}

func newMeters(cfg *config.Config) *meters {
	registry := metrics.NewRegistry()
	m := &meters{Metrics: metrics.New(registry), registry: registry, backlog: map[outbox.Table]ledger.Backlog{}}
	m.series = &series{of: map[seriesKey]prometheus.Counter{}, vec: m.EventsPublished}
	v := version.Get()
	m.BuildInfo.WithLabelValues(v.Version, v.Commit, v.Go).Set(1)
	m.SendRateMax.Set(float64(cfg.SendRateMax))
	kind := cfg.Ledger
	if kind == "" {
		kind = "auto"
	}
	m.ConfigInfo.WithLabelValues(cfg.Name, cfg.Mode, kind, cfg.Sink, cfg.CheckpointStore.Kind).Set(1)
	return m
}

// series caches the counters of published events: looking one up by its labels
// costs more than counting.
type series struct {
	mu  sync.RWMutex
	of  map[seriesKey]prometheus.Counter
	vec *prometheus.CounterVec
}

type seriesKey struct {
	table  outbox.Table
	topic  string
	origin outbox.Origin
}

func (s *series) counter(k seriesKey) prometheus.Counter {
	s.mu.RLock()
	c := s.of[k]
	s.mu.RUnlock()
	if c != nil {
		return c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c = s.vec.WithLabelValues(k.table.String(), k.topic, k.origin.String())
	s.of[k] = c
	return c
}

// hooks connects the engine of a session to the metrics.
func (r *Relay) hooks(s *session) relay.Hooks {
	m := r.meters
	return relay.Hooks{
		Sent: func(_ string, events int, took time.Duration) {
			m.SendBatchEvents.Observe(float64(events))
			m.SendDurationSeconds.Observe(took.Seconds())
		},
		Published: func(table outbox.Table, topic string, origin outbox.Origin, since time.Duration) {
			m.series.counter(seriesKey{table, topic, origin}).Inc()
			if origin == outbox.FromBinlog {
				m.CommitToAckSeconds.Observe(since.Seconds())
			}
			m.published[origin].Add(1)
		},
		Failed: func(table outbox.Table, reason string) { m.EventsFailed.WithLabelValues(table.String(), reason).Inc() },
		Skipped: func(table outbox.Table, reason string, events int) {
			m.EventsSkipped.WithLabelValues(table.String(), reason).Add(float64(events))
		},
		ReadByKey: func(table outbox.Table, reason string) {
			m.EventsReadByKey.WithLabelValues(table.String(), reason).Inc()
		},
		Deferred: func(table outbox.Table, reason string) {
			m.EventsDeferred.WithLabelValues(table.String(), reason).Inc()
			if reason != relay.DeferredParked && reason != relay.DeferredBlocked { // those wait for their lane or key
				s.trigger()
			}
		},
		Marked:   func(kind outbox.OutcomeKind, rows int) { m.Marked.WithLabelValues(kind.String()).Add(float64(rows)) },
		Recorded: func(took time.Duration) { m.MarkDurationSeconds.Observe(took.Seconds()) },
		Saved: func(p outbox.Position) {
			s.pos.Store(&p)
			s.saved.Store(time.Now().UnixNano())
		},
		FenceReturned: func(took time.Duration) {
			m.FenceRoundTripSeconds.Set(took.Seconds())
			m.mu.Lock()
			m.fence, m.fenceAt = took, time.Now()
			m.mu.Unlock()
		},
		Recovered: func(string) { s.trigger() },
	}
}

func (m *meters) swept(t outbox.Tally, took time.Duration) {
	m.SweepDurationSeconds.Observe(took.Seconds())
	m.SweepRows.WithLabelValues("sent").Add(float64(t.Sent))
	m.SweepRows.WithLabelValues("failed").Add(float64(t.Failed))
	m.SweepRows.WithLabelValues("attempt").Add(float64(t.Attempts))
	m.SweepRows.WithLabelValues("released").Add(float64(t.Released))
}

// watch keeps the gauges up to date until ctx ends.
func (m *meters) watch(ctx context.Context, r *Relay) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var counted time.Time
	for {
		m.poll(r)
		if s := r.running(); s != nil && time.Since(counted) >= backlogEvery {
			counted = time.Now()
			m.count(ctx, r, s)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// poll sets the gauges from what the session says now.
func (m *meters) poll(r *Relay) {
	s := r.running()
	m.BinlogGap.Set(boolean(r.gapOpen()))
	m.Leader.Set(boolean(s != nil))
	m.Paused.Set(boolean(r.isPaused()))
	if s == nil {
		m.BinlogConnected.Set(0)
		m.LeaderEpoch.Set(0)
		m.ParkedLanes.Set(0)
		m.BlockedKeys.Set(0)
		m.MarkRestRatio.Set(0)
		return
	}
	m.LeaderEpoch.Set(float64(s.epoch))
	use := s.engine.Usage()
	m.InflightEvents.Set(float64(use.Events))
	m.InflightBytes.Set(float64(use.Bytes))
	m.ParkedLanes.Set(float64(len(use.Parked)))
	m.BlockedKeys.Set(float64(use.BlockedKeys))
	m.MarkRestRatio.Set(use.Resting)
	m.CheckpointAgeSeconds.Set(s.checkpointAge(use).Seconds())
	if s.reader != nil {
		m.pollReader(s.reader.State())
	}
}

func (m *meters) pollReader(st binlog.State) {
	m.BinlogConnected.Set(boolean(st.Connected))
	m.BinlogLagSeconds.Set(lagSeconds(st))
	if !st.LastEvent.IsZero() {
		m.BinlogLastEventTimestampSeconds.Set(float64(st.LastEvent.UnixNano()) / 1e9)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if st.Reconnects < m.last.Reconnects || st.BytesRead < m.last.BytesRead {
		m.last = binlog.State{} // a new session's reader starts at zero
	}
	m.BinlogReconnects.Add(float64(st.Reconnects - m.last.Reconnects))
	m.BinlogBytes.Add(float64(st.BytesRead - m.last.BytesRead))
	m.last = st
}

// lagSeconds is how far reading is behind: while disconnected, at least the time
// since anything arrived. It is never negative.
func lagSeconds(st binlog.State) float64 {
	lag := st.CommitLag
	if !st.Connected && !st.LastEvent.IsZero() {
		lag = max(lag, time.Since(st.LastEvent))
	}
	return max(0, lag.Seconds())
}

// count asks the ledger for the backlog. A failure keeps the old numbers: the
// engine says that the database is away.
func (m *meters) count(ctx context.Context, r *Relay, s *session) {
	ctx, cancel := context.WithTimeout(ctx, backlogEvery)
	defer cancel()
	for _, t := range r.store.Tables() {
		b, err := s.ledger.Backlog(ctx, t)
		if err != nil {
			r.log.Debug().Err(err).Msg("counting the backlog failed")
			continue
		}
		m.mu.Lock()
		m.backlog[t] = b
		m.mu.Unlock()
		m.BacklogRows.WithLabelValues(t.String(), "pending").Set(float64(b.Pending))
		m.BacklogRows.WithLabelValues(t.String(), "failed").Set(float64(b.Failed))
		m.BacklogOldestAgeSeconds.WithLabelValues(t.String()).Set(b.OldestSeconds)
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
