package relay

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// TestWatermarkNeverRunsAhead plays random streams with random orders of
// finishing against a model that knows, for each position, what lies before it.
func TestWatermarkNeverRunsAhead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w watermark
		var open []*slot           // one entry per unfinished event
		before := map[uint64]int{} // position -> events that lie before it
		events := 0
		seq := uint64(0)
		order := []*slot{} // by event, in stream order
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "finish") {
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				w.finish(open[i])
				open = append(open[:i], open[i+1:]...)
			} else {
				n := rapid.IntRange(0, 3).Draw(t, "events")
				var end outbox.Position
				if n == 0 || rapid.Bool().Draw(t, "last piece") {
					seq++
					end = outbox.Position{Seq: seq}
				}
				s := w.add(n, end, false)
				for range n {
					open = append(open, s)
					order = append(order, s)
				}
				events += n
				if !end.IsZero() {
					before[seq] = events
				}
			}
			for _, s := range order[:before[w.done.Seq]] {
				if s.pending > 0 {
					t.Fatalf("position %d covers an event that has not finished", w.done.Seq)
				}
			}
		}
		for _, s := range open {
			w.finish(s)
		}
		if seq > 0 && w.done.Seq != seq {
			t.Fatalf("everything finished, position %d, want %d", w.done.Seq, seq)
		}
		if len(w.slots) != 0 {
			t.Fatalf("%d slots kept", len(w.slots))
		}
	})
}

func TestWatermarkHoldsOtherTablesTransactionsWithoutMemory(t *testing.T) {
	var w watermark
	slow := w.add(1, outbox.Position{Seq: 1}, false)
	for seq := uint64(2); seq < 100_000; seq++ {
		w.add(0, outbox.Position{Seq: seq}, false)
	}
	if len(w.slots) != 1 || !w.done.IsZero() {
		t.Fatalf("slots %d, position %d; want 1 and none", len(w.slots), w.done.Seq)
	}
	w.finish(slow)
	if w.done.Seq != 99_999 {
		t.Fatalf("position %d, want 99999", w.done.Seq)
	}
}

func TestWatermarkIsNotMovedByOurOwnWrites(t *testing.T) {
	var w watermark
	w.add(0, outbox.Position{Seq: 1}, true)
	if w.moved || w.done.Seq != 1 {
		t.Fatalf("moved %v at %d; our own write must advance the position without asking to save it", w.moved, w.done.Seq)
	}
	w.add(0, outbox.Position{Seq: 2}, false)
	if !w.moved {
		t.Fatal("somebody else's transaction did not move the watermark")
	}
}

// A stall of a slow event in front of many transactions, and its end.
func BenchmarkWatermark(b *testing.B) {
	const transactions = 1000
	slots := make([]*slot, transactions)
	b.ReportAllocs()
	var w watermark
	for b.Loop() {
		for i := range slots {
			slots[i] = w.add(1, outbox.Position{Seq: uint64(i + 1)}, false)
		}
		for i := range slots { // the oldest last
			w.finish(slots[len(slots)-1-i])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/transactions, "ns/event")
}
