package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// What the broker has acknowledged is written down even if the ledger is slow and
// the time to drain is up.
func TestAcknowledgedIsRecordedThoughTheDrainTimesOut(t *testing.T) {
	const n = 20
	r := start(t, func(c *Config, r *rig) {
		c.DrainTimeout = 50 * time.Millisecond
		r.ledger.hold = make(chan struct{})
	})
	for i := range n {
		r.src.push(fmt.Sprintf("%d:%d", i, i))
	}
	eventually(t, "all stored", func() bool { return len(r.sink.all()) == n })
	time.AfterFunc(300*time.Millisecond, func() { close(r.ledger.hold) })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if st := r.ledger.status(fmt.Sprint(i)); st != outbox.Sent {
			t.Errorf("row %d is %s although it was acknowledged", i, st)
		}
	}
	if got := r.saved.last(); got != fmt.Sprint(n) {
		t.Errorf("position %q saved, want %d", got, n)
	}
}
