package app

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// layout recognises a table of text columns.
func layout(t *testing.T, columns ...string) *outbox.Layout {
	t.Helper()
	var all []outbox.Column
	for i, name := range columns {
		all = append(all, outbox.Column{Name: name, Ordinal: i, DataType: "varchar", FullType: "varchar(64)", Charset: "utf8mb4", LengthMax: 64})
	}
	l, err := outbox.Recognise(outbox.Table{Schema: "shop", Name: "outbox"}, all, map[string]string{"id": "PRIMARY"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func gapped(kind string, layouts ...*outbox.Layout) *Relay {
	cfg := &config.Config{}
	cfg.OnGap, cfg.OutboxGrace = config.OnGapSweep, 30*time.Second
	return &Relay{cfg: cfg, log: zerolog.Nop(), kind: kind, store: &Store{Layouts: layouts}, meters: newMeters(cfg)}
}

// A gap is made good by a sweep, which needs a status to find what is unsent.
func TestGapStopsWhereNoSweepCanFindTheRows(t *testing.T) {
	status := layout(t, "id", "payload", "status", "created_at")
	plain := layout(t, "id", "payload")
	for _, c := range []struct {
		name    string
		kind    string
		layouts []*outbox.Layout
		onGap   string
		stops   bool
	}{
		{"status", config.LedgerStatus, []*outbox.Layout{status}, config.OnGapSweep, false},
		{"status, told to stop", config.LedgerStatus, []*outbox.Layout{status}, config.OnGapStop, true},
		{"delete", config.LedgerDelete, []*outbox.Layout{status}, config.OnGapSweep, false},
		{"delete without a status", config.LedgerDelete, []*outbox.Layout{plain}, config.OnGapSweep, true},
		{"delete, one table without a status", config.LedgerDelete, []*outbox.Layout{status, plain}, config.OnGapSweep, true},
		{"none", config.LedgerNone, []*outbox.Layout{plain}, config.OnGapSweep, true},
	} {
		r := gapped(c.kind, c.layouts...)
		r.cfg.OnGap = c.onGap
		err := r.gapFound(fmt.Errorf("%w: the reason", binlog.ErrGap))
		for _, part := range []string{"the reason", "rowferry checkpoint set", "ROWFERRY_START_AT"} {
			if c.stops && (err == nil || !strings.Contains(err.Error(), part)) {
				t.Errorf("%s: the message lacks %q: %v", c.name, part, err)
			}
		}
		if stops := errors.Is(err, binlog.ErrGap); stops != c.stops || r.gapOpen() == c.stops {
			t.Errorf("%s: stops is %t, gap open is %t, want stops %t", c.name, stops, r.gapOpen(), c.stops)
		}
	}
}

// The gap is said to be open for as long as rows of it may still be unswept.
func TestGapEndsWithACompletePassOneGraceLater(t *testing.T) {
	for _, c := range []struct {
		name     string
		since    time.Duration // from the gap to the end of the pass
		took     time.Duration
		complete bool
		open     bool
	}{
		{"at once", time.Second, time.Second, true, true},
		{"begun too early", 40 * time.Second, 35 * time.Second, true, true},
		{"one grace later", 40 * time.Second, 5 * time.Second, true, false},
		{"failed", 40 * time.Second, 5 * time.Second, false, true},
	} {
		r := gapped(config.LedgerStatus)
		r.gap, r.gapAt = true, time.Now().Add(-c.since)
		r.sweepPassed(outbox.Tally{}, c.took, c.complete)
		if r.gapOpen() != c.open {
			t.Errorf("%s: gap open is %t", c.name, r.gapOpen())
		}
	}
}
