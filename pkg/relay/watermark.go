package relay

import "github.com/rowferry/rowferry/pkg/outbox"

// watermark turns events that finish in any order into a position that moves in
// stream order.
//
// What must hold: the position it gives covers a transaction only when every
// event of that transaction, and of all transactions before it, has finished.
// Otherwise a restart would skip the unfinished ones: events lost. Shown by
// TestWatermarkNeverRunsAhead.
//
// It is not safe for concurrent use; the engine's mutex guards it.
type watermark struct {
	slots []*slot // stream order; slots[:head] are done
	head  int
	done  outbox.Position // behind the finished prefix
	moved bool            // done moved for another reason than our own writes
}

// slot stands for one piece of a transaction, or for the last piece and all the
// transactions without events that came right behind it.
type slot struct {
	pending int // events not yet finished
	end     outbox.Position
}

// add takes the next piece of the stream. For a piece without events it returns
// nil: there is nothing to finish.
func (w *watermark) add(events int, end outbox.Position, own bool) *slot {
	if events > 0 {
		s := &slot{pending: events, end: end}
		w.slots = append(w.slots, s)
		return s
	}
	if end.IsZero() {
		return nil
	}
	if w.head == len(w.slots) {
		w.advance(end, own)
		return nil
	}
	// Nothing of ours lies between the newest slot and this end, so that slot may
	// carry it: a stream of other tables' transactions behind a slow event costs
	// no memory.
	last := w.slots[len(w.slots)-1]
	last.end = end
	return nil
}

// finish records that one event of s is settled.
func (w *watermark) finish(s *slot) {
	s.pending--
	for w.head < len(w.slots) && w.slots[w.head].pending == 0 {
		if end := w.slots[w.head].end; !end.IsZero() {
			w.advance(end, false)
		}
		w.slots[w.head] = nil
		w.head++
	}
	w.compact()
}

func (w *watermark) advance(end outbox.Position, own bool) {
	w.done = end
	w.moved = w.moved || !own
}

// compact drops the finished prefix once it is the larger half.
func (w *watermark) compact() {
	if w.head == len(w.slots) {
		w.slots, w.head = w.slots[:0], 0
		return
	}
	if w.head > 1024 && w.head > len(w.slots)/2 {
		n := copy(w.slots, w.slots[w.head:])
		clear(w.slots[n:])
		w.slots, w.head = w.slots[:n], 0
	}
}
