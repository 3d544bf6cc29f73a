// Package metrics names everything that rowferry counts and measures.
//
// It promises that the names and labels are those that dashboards and alerts
// rely on, and that no label holds an id, a key or the text of an error, so that
// the number of series is bounded by tables, topics and reasons.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

const namespace = "rowferry"

// Metrics holds every metric, registered. The fields are named after the metrics.
type Metrics struct {
	EventsPublished *prometheus.CounterVec // table, topic, path (binlog or sweep)
	EventsFailed    *prometheus.CounterVec // table, reason
	EventsSkipped   *prometheus.CounterVec // table, reason
	EventsDeferred  *prometheus.CounterVec // table, reason
	EventsReadByKey *prometheus.CounterVec // table, reason

	SendBatchEvents     prometheus.Histogram
	SendDurationSeconds prometheus.Histogram
	CommitToAckSeconds  prometheus.Histogram

	SendRateMax prometheus.Gauge

	MarkDurationSeconds prometheus.Histogram
	MarkRestRatio       prometheus.Gauge
	Marked              *prometheus.CounterVec // outcome

	BacklogRows             *prometheus.GaugeVec // table, status
	BacklogOldestAgeSeconds *prometheus.GaugeVec // table
	InflightEvents          prometheus.Gauge
	InflightBytes           prometheus.Gauge
	ParkedLanes             prometheus.Gauge
	BlockedKeys             prometheus.Gauge

	FenceRoundTripSeconds           prometheus.Gauge
	BinlogConnected                 prometheus.Gauge
	BinlogLagSeconds                prometheus.Gauge
	BinlogLastEventTimestampSeconds prometheus.Gauge
	BinlogReconnects                prometheus.Counter
	BinlogBytes                     prometheus.Counter
	BinlogGap                       prometheus.Gauge

	CheckpointAgeSeconds prometheus.Gauge
	Leader               prometheus.Gauge
	LeaderEpoch          prometheus.Gauge
	Paused               prometheus.Gauge

	Purged               *prometheus.CounterVec // table
	SweepRows            *prometheus.CounterVec // outcome
	SweepDurationSeconds prometheus.Histogram

	ConfigInfo *prometheus.GaugeVec // relay, mode, ledger, sink, checkpoint_store
	BuildInfo  *prometheus.GaugeVec // version, commit, go_version
}

// latencies reach from a local ack to a minute of waiting.
var latencies = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// New creates the metrics in reg, which must be empty of them; it panics
// otherwise.
func New(reg prometheus.Registerer) *Metrics {
	m := &Metrics{}
	f := factory{reg}
	m.addEvents(f)
	m.addSending(f)
	m.addBacklog(f)
	m.addBinlog(f)
	m.addRelay(f)
	for _, outcome := range []string{"sent", "failed", "attempt", "released"} {
		// A rate over a series that appears with its first increment misses that increment.
		m.Marked.WithLabelValues(outcome)
		m.SweepRows.WithLabelValues(outcome)
	}
	return m
}

// NewRegistry returns an empty registry with the collectors of the Go runtime and
// of the process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

func (m *Metrics) addEvents(f factory) {
	m.EventsPublished = f.counters("events_published_total", "Events acknowledged by the broker.", "table", "topic", "path")
	m.EventsFailed = f.counters("events_failed_total", "Events that can never go or have used up their attempts.", "table", "reason")
	m.EventsSkipped = f.counters("events_skipped_total", "Events that were not sent on purpose.", "table", "reason")
	m.EventsDeferred = f.counters("events_deferred_total", "Events of the binlog left PENDING for the sweep.", "table", "reason")
	m.EventsReadByKey = f.counters("events_read_by_key_total", "Events that the binlog did not hold whole; their rows were read from the table.", "table", "reason")
}

func (m *Metrics) addSending(f factory) {
	m.SendBatchEvents = f.histogram("send_batch_events", "Events in one acknowledged batch.",
		[]float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024})
	m.SendDurationSeconds = f.histogram("send_duration_seconds", "Time from sending a batch to its acknowledgement.", latencies)
	m.CommitToAckSeconds = f.histogram("commit_to_ack_seconds",
		"Time from the commit, by the clock of the source, to the acknowledgement; binlog path only.", latencies)
	m.SendRateMax = f.gauge("send_rate_max", "Events a second that may be sent; 0: no limit.")
	m.MarkDurationSeconds = f.histogram("mark_duration_seconds", "Time of one transaction that records outcomes.", latencies)
	m.MarkRestRatio = f.gauge("mark_rest_ratio", "How many times as long as a transaction that records outcomes takes the relay rests after it, to leave room for others in a catch-up; 0: it does not.")
	m.Marked = f.counters("marked_total", "Outcomes recorded in the table.", "outcome")
}

func (m *Metrics) addBacklog(f factory) {
	m.BacklogRows = f.gauges("backlog_rows", "Rows of the table by status.", "table", "status")
	m.BacklogOldestAgeSeconds = f.gauges("backlog_oldest_age_seconds", "Age of the oldest row that is not sent, by the clock of the database.", "table")
	m.InflightEvents = f.gauge("inflight_events", "Events read but not finished.")
	m.InflightBytes = f.gauge("inflight_bytes", "Bytes of the events read but not finished.")
	m.BlockedKeys = f.gauge("blocked_keys", "Ordering keys whose events wait for a dead letter (ON_DEAD=block), or are being caught up with.")
	m.ParkedLanes = f.gauge("parked_lanes", "Topics and lanes whose events are left PENDING until they take messages again.")
}

func (m *Metrics) addBinlog(f factory) {
	m.FenceRoundTripSeconds = f.gauge("fence_round_trip_seconds", "Time the last fence took from the store through the binlog.")
	m.BinlogConnected = f.gauge("binlog_connected", "1 while the replication stream is connected.")
	m.BinlogLagSeconds = f.gauge("binlog_lag_seconds", "How far reading is behind the source; it grows while disconnected.")
	m.BinlogLastEventTimestampSeconds = f.gauge("binlog_last_event_timestamp_seconds", "Unix time at which the last event or heartbeat arrived.")
	m.BinlogReconnects = f.counter("binlog_reconnects_total", "Times the replication stream was opened again.")
	m.BinlogBytes = f.counter("binlog_bytes_total", "Bytes read from the replication stream.")
	m.BinlogGap = f.gauge("binlog_gap", "1 while a part of the stream was lost and is not yet swept.")
}

func (m *Metrics) addRelay(f factory) {
	m.CheckpointAgeSeconds = f.gauge("checkpoint_age_seconds", "Time since the position was last saved or found to be current.")
	m.Leader = f.gauge("leader", "1 while this process may send.")
	m.LeaderEpoch = f.gauge("leader_epoch", "Epoch of the checkpoint that this process writes; 0 without one.")
	m.Paused = f.gauge("paused", "1 while publishing is paused.")
	m.Purged = f.counters("purged_total", "Rows deleted because they were sent longer ago than OUTBOX_RETENTION.", "table")
	m.SweepRows = f.counters("sweep_rows_total", "Rows taken by the sweep, by what became of them.", "outcome")
	m.SweepDurationSeconds = f.histogram("sweep_duration_seconds", "Time of one pass of the sweep.",
		[]float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800})
	m.ConfigInfo = f.gauges("config_info", "Always 1; the labels say how the relay is configured.", "relay", "mode", "ledger", "sink", "checkpoint_store")
	m.BuildInfo = f.gauges("build_info", "Always 1; the labels say which build is running.", "version", "commit", "go_version")
}

// factory creates metrics in one registry.
type factory struct{ reg prometheus.Registerer }

func register[C prometheus.Collector](f factory, c C) C {
	f.reg.MustRegister(c)
	return c
}

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return register(f, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels))
}

func (f factory) counter(name, help string) prometheus.Counter {
	return register(f, prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}))
}

func (f factory) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return register(f, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels))
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	return register(f, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}))
}

func (f factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return register(f, prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}))
}
