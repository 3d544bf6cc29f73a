package relay

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// An attempt without an answer may still be in the broker's queue. The retry waits for
// it, and goes with the number of the first attempt: a copy stands beside its original,
// not behind its successors.
func TestTheRetryWaitsForAnAttemptThatMayStillLand(t *testing.T) {
	for _, reason := range []string{"send_timeout", "connection_lost"} {
		t.Run(reason, func(t *testing.T) { retryWaits(t, reason) })
	}
}

func retryWaits(t *testing.T, reason string) {
	synctest.Test(t, func(t *testing.T) {
		const landing = 900 * time.Millisecond
		var seqs []string
		attempts := 0
		r := start(t, func(c *Config, r *rig) {
			c.SendBatchMax = 1
			c.Sink = spy{r.sink, func(msgs []*outbox.Message) { seqs = append(seqs, seqOf(msgs[0])) }}
			r.sink.lanes = 1
			r.sink.answer = func(_ string, _ int, ids []string) error {
				if attempts++; attempts > 1 {
					return nil
				}
				time.AfterFunc(landing, func() { r.sink.store("orders/0", ids) })
				return &outbox.SendError{Class: outbox.Transient, Reason: reason, Err: errors.New("no answer")}
			}
		})
		r.src.push("1:a", "2:a")
		time.Sleep(10 * time.Second)
		if got := r.sink.all(); !slices.Equal(got, []string{"1", "1", "2"}) {
			t.Errorf("stored %v", got)
		}
		if len(seqs) != 3 || seqs[0] != seqs[1] || seqs[1] >= seqs[2] {
			t.Errorf("sent with the numbers %q, want the first twice", seqs)
		}
	})
}

// spy sees what is sent.
type spy struct {
	*scriptedSink
	see func([]*outbox.Message)
}

func (s spy) Send(ctx context.Context, topic string, lane int, msgs []*outbox.Message) error {
	s.see(msgs)
	return s.scriptedSink.Send(ctx, topic, lane, msgs)
}

func seqOf(m *outbox.Message) string {
	for _, p := range m.Properties {
		if p.Name == "outbox_seq" {
			return p.Value
		}
	}
	return ""
}

func (s *scriptedSink) store(name string, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored[name] = append(s.stored[name], ids...)
}
