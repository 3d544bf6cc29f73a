package relay

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Rows that the reader could not read are admitted by their keys; what the table then
// says of them is bounded all the same, counts as in flight, and keeps its order.
func TestWhatIsReadByKeyIsBounded(t *testing.T) {
	const rows, payloadBytes = 200, 100 << 10
	answer := make(chan struct{})
	r := start(t, func(c *Config, r *rig) {
		c.InflightBytesMax = 2 << 20
		c.SendBatchBytesMax = 64 << 10
		r.ledger.payloadBytes = payloadBytes
		r.sink.answer = func(string, int, []string) error { <-answer; return nil }
		for i := range rows {
			r.ledger.rows[strconv.Itoa(i)] = outbox.Pending
		}
	})
	b := outbox.Batch{End: outbox.Position{Seq: 1}}
	for i := range rows {
		b.Events = append(b.Events, &outbox.Event{Table: orders, ID: strconv.Itoa(i), Unread: "image"})
	}
	r.src.batches <- b
	eventually(t, "the router waits for room", func() bool { return r.byKey.blockedFor() > 0 })
	r.ledger.mu.Lock()
	loaded := r.ledger.loaded
	r.ledger.mu.Unlock()
	// Half of the 2 MiB fits besides what one look brings, of which the first is a guess.
	if most := (1<<19 + 2*readBytesMax) / payloadBytes; loaded > most {
		t.Errorf("%d rows were read while nothing could be sent, want at most %d", loaded, most)
	}
	if use := r.Usage(); use.Bytes < payloadBytes {
		t.Errorf("%d bytes count as in flight", use.Bytes)
	}
	close(answer)
	eventually(t, "all stored", func() bool { return len(r.sink.all()) == rows })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if use := r.Usage(); use.Bytes != 0 || use.Events != 0 {
		t.Errorf("in flight after the end: %+v", use)
	}
	if held, _ := r.byKey.use(); held != 0 {
		t.Errorf("%d rows still count as read by key", held)
	}
	if ids := r.sink.all(); !slices.IsSortedFunc(ids, byNumber) {
		t.Errorf("stored in the order %s", fmt.Sprint(ids))
	}
}

func byNumber(a, b string) int {
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	return x - y
}
