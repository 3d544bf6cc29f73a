package relay

import (
	"slices"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestWithoutLedgerThePositionFollowsTheAcknowledgements(t *testing.T) {
	r := start(t, func(c *Config, r *rig) { c.Ledger, c.Fences, c.Dead = nil, nil, r.ledger })
	r.src.push("1:a")
	r.src.push("2:x:refuse")
	eventually(t, "position saved", func() bool { return r.saved.last() == "2" })
	if r.ledger.status("2") != outbox.Failed || r.ledger.status("1") != outbox.Other {
		t.Fatalf("recorded %v, want the dead letter and nothing else", r.ledger.rows)
	}
}

func TestWithoutAnyPlaceForADeadLetterTheRelayStops(t *testing.T) {
	r := start(t, func(c *Config, _ *rig) { c.Ledger, c.Fences = nil, nil })
	r.src.push("1:a")
	eventually(t, "1 saved", func() bool { return r.saved.last() == "1" })
	r.src.push("2:x:refuse")
	eventually(t, "stopped", func() bool { return r.work.Err() != nil })
	if err := r.stop(); err == nil || !strings.Contains(err.Error(), "event 2 of shop.outbox") {
		t.Fatalf("Run returned %v, want the event that can never be sent", err)
	}
	if got := r.saved.last(); got != "1" {
		t.Fatalf("position %s saved: it covers an event that left no trace", got)
	}
}

func TestWithoutLedgerAnUnreadEventIsReadByKeyOrStopsTheRelay(t *testing.T) {
	r := start(t, func(c *Config, r *rig) {
		c.Ledger, c.Fences = nil, nil
		r.ledger.rows["1"] = outbox.Pending
	})
	for seq, id := range []string{"1", "gone"} {
		b := outbox.Batch{End: outbox.Position{Seq: uint64(seq + 1)}, Events: []*outbox.Event{event(id + ":a")}}
		b.Events[0].Unread = "image"
		r.src.batches <- b
		eventually(t, "1 saved", func() bool { return r.saved.last() == "1" })
	}
	eventually(t, "stopped", func() bool { return r.work.Err() != nil })
	if err := r.stop(); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Fatalf("Run returned %v, want the event that cannot be read", err)
	}
	if got := r.saved.last(); got > "1" || !slices.Equal(r.sink.all(), []string{"1"}) {
		t.Fatalf("position %s, stored %v: the position must stay before the unread event", got, r.sink.all())
	}
}
