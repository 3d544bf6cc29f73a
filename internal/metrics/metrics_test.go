package metrics_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rowferry/rowferry/internal/metrics"
)

// promised is what dashboards and alerts rely on: name, type and labels. Adding
// is free, changing breaks them.
const promised = `
rowferry_backlog_oldest_age_seconds GAUGE table
rowferry_backlog_rows GAUGE status table
rowferry_binlog_bytes_total COUNTER
rowferry_binlog_connected GAUGE
rowferry_binlog_gap GAUGE
rowferry_binlog_lag_seconds GAUGE
rowferry_binlog_last_event_timestamp_seconds GAUGE
rowferry_binlog_reconnects_total COUNTER
rowferry_build_info GAUGE commit go_version version
rowferry_checkpoint_age_seconds GAUGE
rowferry_commit_to_ack_seconds HISTOGRAM
rowferry_config_info GAUGE checkpoint_store ledger mode relay sink
rowferry_events_deferred_total COUNTER reason table
rowferry_events_read_by_key_total COUNTER reason table
rowferry_events_failed_total COUNTER reason table
rowferry_events_published_total COUNTER path table topic
rowferry_events_skipped_total COUNTER reason table
rowferry_fence_round_trip_seconds GAUGE
rowferry_inflight_bytes GAUGE
rowferry_inflight_events GAUGE
rowferry_leader GAUGE
rowferry_leader_epoch GAUGE
rowferry_mark_duration_seconds HISTOGRAM
rowferry_mark_rest_ratio GAUGE
rowferry_marked_total COUNTER outcome
rowferry_blocked_keys GAUGE
rowferry_parked_lanes GAUGE
rowferry_paused GAUGE
rowferry_purged_total COUNTER table
rowferry_send_batch_events HISTOGRAM
rowferry_send_duration_seconds HISTOGRAM
rowferry_send_rate_max GAUGE
rowferry_sweep_duration_seconds HISTOGRAM
rowferry_sweep_rows_total COUNTER outcome
`

// used returns a registry in which every metric has a series.
func used() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	m := metrics.New(reg)
	m.EventsPublished.WithLabelValues("shop.outbox", "orders", "binlog").Inc()
	m.EventsFailed.WithLabelValues("shop.outbox", "too large").Inc()
	m.EventsSkipped.WithLabelValues("shop.outbox", "already sent").Inc()
	m.EventsDeferred.WithLabelValues("shop.outbox", "statement").Inc()
	m.EventsReadByKey.WithLabelValues("shop.outbox", "image").Inc()
	m.Purged.WithLabelValues("shop.outbox").Add(200)
	m.BacklogRows.WithLabelValues("shop.outbox", "pending").Set(3)
	m.BacklogOldestAgeSeconds.WithLabelValues("shop.outbox").Set(1.5)
	m.ConfigInfo.WithLabelValues("rowferry", "auto", "status", "rocketmq", "mysql").Set(1)
	m.BuildInfo.WithLabelValues("devel", "abc", "go1.26").Set(1)
	return reg
}

func TestPromisedMetrics(t *testing.T) {
	families, err := used().Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, f := range families {
		labels := []string{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		have[strings.TrimSpace(f.GetName()+" "+f.GetType().String()+" "+strings.Join(labels, " "))] = true
		if f.GetHelp() == "" || !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("%s: the help is no sentence: %q", f.GetName(), f.GetHelp())
		}
	}
	for line := range strings.SplitSeq(strings.TrimSpace(promised), "\n") {
		if !have[line] {
			t.Errorf("missing: %s", line)
		}
		delete(have, line)
	}
	for _, extra := range slices.Sorted(maps.Keys(have)) {
		t.Errorf("not in the list of promised metrics: %s", extra)
	}
}

func TestNamesFollowConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(used())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Outcomes are there before they happen, so that a rate sees the first one.
func TestOutcomesBeginAtZero(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics.New(reg)
	n, err := testutil.GatherAndCount(reg, "rowferry_marked_total", "rowferry_sweep_rows_total")
	if err != nil || n != 8 {
		t.Errorf("%d series, %v: wanted 8", n, err)
	}
}

func TestRegistryHasRuntime(t *testing.T) {
	n, err := testutil.GatherAndCount(metrics.NewRegistry(), "go_goroutines", "process_start_time_seconds")
	if err != nil || n != 2 {
		t.Errorf("%d series, %v: wanted 2", n, err)
	}
}
