package relay

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// keyRouter orders by another key than the aggregate.
type keyRouter struct{}

func (keyRouter) Route(e *outbox.Event) (*outbox.Message, error) {
	return &outbox.Message{Topic: "orders", Key: "key of " + e.ID, Body: []byte(e.ID)}, nil
}

// An attempt is recorded while its event goes on in the lane. What is recorded is how
// things stood when the attempt failed, however late the ledger comes to it, and the
// marker reads nothing that the lane still writes.
func TestAttemptsAreRecordedAsTheyWereWhenTheyFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const failures = 4
		attempts, hold := 0, make(chan struct{})
		var recorded []outbox.Outcome
		r := start(t, func(c *Config, r *rig) {
			c.Router, c.MaxAttempts = keyRouter{}, failures+1
			r.ledger.hold = hold
			r.ledger.onRecord = func(o []outbox.Outcome) { recorded = append(recorded, o...) }
			r.sink.answer = func(_ string, _ int, ids []string) error {
				if ids[0] != "odd" {
					return nil
				}
				if attempts++; attempts <= failures {
					return errors.New("something nobody understands")
				}
				return nil
			}
		})
		r.src.push("first:a") // keeps the ledger busy
		synctest.Wait()
		r.src.push("odd:a")
		time.Sleep(time.Minute) // all the attempts, and the one that succeeds
		close(hold)
		synctest.Wait()
		var backoffs []int
		for _, o := range recorded {
			if o.Kind != outbox.OutcomeAttempt {
				continue
			}
			backoffs = append(backoffs, o.Backoff)
			if o.OrderKey != "key of odd" {
				t.Errorf("recorded with the order key %q", o.OrderKey)
			}
		}
		if want := []int{1, 2, 4, 8}; !slices.Equal(backoffs, want) {
			t.Errorf("recorded with the pauses %v, want %v", backoffs, want)
		}
	})
}

// The same with a ledger that is in time: then it is the race detector that shows a
// marker that reads what the lane writes. The marker's ticks would order the two.
func TestMarkerReadsNothingThatTheLaneWrites(t *testing.T) {
	r := start(t, func(c *Config, r *rig) {
		c.MaxAttempts, c.CheckpointInterval = 2, time.Hour
		r.sink.answer = func(string, int, []string) error { return errors.New("something nobody understands") }
	})
	r.src.push("odd:a")
	eventually(t, "attempts used up", func() bool { return r.ledger.status("odd") == outbox.Failed })
}
