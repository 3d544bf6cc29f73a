package binlog

import (
	"math"
	"sync"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// tracker turns positions into the text that is saved. The stream appends one
// entry per transaction; Encode takes them off again, in order, and adds them to
// the one set it owns. So no transaction carries or copies a GTID set, and runs
// of consecutive transactions of one source, which is what a stall of hours
// consists of, are a single entry.
type tracker struct {
	mu      sync.Mutex
	durable position // what Encode has been told is done
	runs    []run    // from head on: read, not yet done
	head    int
	seq     uint64 // newest given out, over the whole life of the process
	text    string // of durable; empty: not printed since it changed
}

// run is some transactions with consecutive numbers, read one after the other
// from one file.
type run struct {
	first, last uint64 // Seq
	gtid        gtid   // of the first; the others follow by number
	log         *logFile
}

// logFile is one binlog file of one server, as one connection met it.
type logFile struct {
	server string // identity, see position
	fileHead
	layouts string // see position
}

// start forgets everything and begins behind p. Positions given out before it
// count as lying behind p: after a gap, what they stood for is the sweep's.
func (t *tracker) start(p *position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.durable = *p
	if p.gtids != nil {
		t.durable.gtids = p.gtids.clone()
	}
	t.runs, t.head, t.text = nil, 0, ""
}

// newest is the number of the transaction read last.
func (t *tracker) newest() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seq
}

// append gives the next transaction its number. g is zero where the source has
// no GTIDs.
func (t *tracker) append(g gtid, log *logFile) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq++
	if len(t.runs) > t.head {
		if r := &t.runs[len(t.runs)-1]; r.continues(t.seq, g, log) {
			r.last = t.seq
			return t.seq
		}
	}
	if t.head > 64 && t.head*2 > len(t.runs) {
		t.runs = t.runs[:copy(t.runs, t.runs[t.head:])]
		t.head = 0
	}
	t.runs = append(t.runs, run{t.seq, t.seq, g, log})
	return t.seq
}

func (r *run) continues(seq uint64, g gtid, log *logFile) bool {
	if seq != r.last+1 || log != r.log || (g.gno == 0) != (r.gtid.gno == 0) {
		return false
	}
	if g.gno == 0 {
		return true
	}
	want := r.gtid
	want.gno += seq - r.first
	return g == want
}

// encode marks everything up to p as done and returns the text to save.
func (t *tracker) encode(p outbox.Position) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.head < len(t.runs) && t.runs[t.head].first <= p.Seq {
		t.take(p)
	}
	if t.text == "" {
		t.text = t.durable.String()
	}
	return t.text
}

// take moves the part of the oldest run up to p into the durable position.
func (t *tracker) take(p outbox.Position) {
	r := &t.runs[t.head]
	last := min(r.last, p.Seq)
	if t.durable.gtids != nil && r.gtid.gno != 0 {
		t.addRun(r.gtid, last-r.first)
	}
	// A file may outgrow 4 GiB by one transaction. No reader can start there, so
	// the last place before it stays the saved one until the next file begins.
	if last == p.Seq && (t.durable.gtids != nil || p.Offset <= math.MaxUint32) {
		t.durable.file, t.durable.offset = p.File, p.Offset
		t.durable.server, t.durable.fileHead, t.durable.layouts = r.log.server, r.log.fileHead, r.log.layouts
	}
	t.text = ""
	if r.gtid.gno != 0 {
		r.gtid.gno += last - r.first + 1
	}
	r.first = last + 1
	if r.first > r.last {
		t.head++
	}
}

// addRun adds g and the more transactions after it.
func (t *tracker) addRun(g gtid, more uint64) {
	if s, ok := t.durable.gtids.(*mysqlSet); ok {
		s.addInterval(g.source, interval{g.gno, g.gno + more})
		return
	}
	g.gno += more
	t.durable.gtids.add(g)
}

// Encode returns the text to save for p. Positions must be given in growing
// order (equal is fine), from one goroutine at a time: what lies before p is then
// forgotten. The zero Position asks for the text of the last one given.
func (r *Reader) Encode(p outbox.Position) string { return r.tracker.encode(p) }
