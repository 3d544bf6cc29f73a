package relay

import (
	"strings"
	"testing"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// A row that nobody can read any more must not count as absent: there is no row
// because its own transaction deleted it, not because nothing happened.
func TestUnreadEventOfADeletedRowStopsTheRelay(t *testing.T) {
	r := start(t, nil)
	b := outbox.Batch{End: outbox.Position{Seq: 1}, Events: []*outbox.Event{event("1:a")}}
	b.Events[0].Unread, b.Events[0].Deleted = "charset", true
	r.src.batches <- b
	eventually(t, "stopped", func() bool { return r.work.Err() != nil })
	if err := r.stop(); err == nil || !strings.Contains(err.Error(), "event 1 of shop.outbox") {
		t.Fatalf("Run returned %v, want the event that cannot be read", err)
	}
	if got := r.saved.last(); got != "" {
		t.Fatalf("position %s saved: it covers an event that was never sent", got)
	}
}
