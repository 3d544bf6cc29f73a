package relay

import (
	"errors"
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

// A database that is away for longer than a drain costs the leadership, not the marks:
// they are recorded when it is back, and only the end of the process limits that.
func TestMarksOutliveTheLossOfLeadership(t *testing.T) {
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("process ended %v", ended), func(t *testing.T) {
			shutdown := make(chan struct{})
			r := start(t, func(c *Config, r *rig) {
				c.DrainTimeout = 50 * time.Millisecond
				c.Shutdown = shutdown
				r.ledger.hold = make(chan struct{})
			})
			r.src.push("1:a")
			eventually(t, "stored", func() bool { return len(r.sink.all()) == 1 })
			stopped := make(chan error, 1)
			go func() { stopped <- r.stop() }()
			select {
			case err := <-stopped:
				t.Fatalf("Run returned %v before the outcome was recorded", err)
			case <-time.After(1500 * time.Millisecond): // longer than any limit of an ending process
			}
			if ended {
				close(shutdown)
			} else {
				close(r.ledger.hold)
			}
			err := <-stopped
			if recorded := r.ledger.status("1") == outbox.Sent; recorded == ended || errors.Is(err, errMarksLate) != ended {
				t.Errorf("recorded %v, Run returned %v", recorded, err)
			}
		})
	}
}
