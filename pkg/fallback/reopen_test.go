package fallback

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Rows of a parked lane may fill any number of pages, also while a broker is away.
func TestParkedLaneHidesNoRows(t *testing.T) {
	w := newWorld()
	w.claims = true
	w.pending(orders, "away", 1)
	w.pending(orders, "parked", 40*3)
	w.pending(orders, "good", 7)
	w.transient["away"] = true
	w.parked = map[string]bool{"parked": true}
	complete := false
	s := w.sweeper(func(c *Config) { c.Passed = func(_ outbox.Tally, _ time.Duration, all bool) { complete = all } })
	tally, err := s.Pass(t.Context())
	if err != nil || tally.Sent != 7 || tally.Released != 1 || !complete {
		t.Fatalf("%+v, %v, complete %t: the rows behind those of the parked lane were not sent", tally, err, complete)
	}
	if n := w.count("claim"); n > 4 {
		t.Errorf("%d claims: rows of the parked lane were claimed", n)
	}
	w.balanced(t)
}

// The pass takes rows of any age, and behind it, in the order and the pages given, what
// was deferred meanwhile.
func TestReopeningPassEndsWithWhatWasDeferredMeanwhile(t *testing.T) {
	w := newWorld()
	w.reopens = true
	w.pending(orders, "a", 2)
	key := func(table outbox.Table, id string) outbox.Key { return outbox.Key{Table: table, ID: id} }
	w.later = [][]outbox.Key{
		{key(orders, "c-9"), key(orders, "c-1"), key(orders, "c-5"), key(orders, "c-2"), key(invoices, "c-7"), key(orders, "c-3")}, {},
	}
	tally, err := w.sweeper(nil).Pass(t.Context())
	if err != nil || tally.Sent != 8 {
		t.Fatalf("%+v, %v", tally, err)
	}
	if want := []string{"a-0", "a-1", "c-9", "c-1", "c-5", "c-2", "c-7", "c-3"}; !slices.Equal(w.sent, want) {
		t.Errorf("sent %v, want %v", w.sent, want)
	}
	if w.graces[0] != AnyAge || w.count("reopen") != 3 {
		t.Errorf("grace %v, %d calls of Reopen", w.graces, w.count("reopen"))
	}
	w.balanced(t)
}

// Without the tail nothing proves what it has passed: no lane reopens, and the grace holds.
func TestNothingReopensBehindATailThatIsDown(t *testing.T) {
	w := newWorld()
	w.reopens = true
	w.pending(orders, "a", 2)
	w.fenceErr = fmt.Errorf("%w: no stream", outbox.ErrTailDown)
	tally, err := w.sweeper(nil).Pass(t.Context())
	if err != nil || tally.Sent != 2 || w.count("reopen") != 0 {
		t.Fatalf("%+v, %v, steps %v", tally, err, w.steps)
	}
	if want := []time.Duration{AnyAge, 30 * time.Second}; !slices.Equal(w.graces, want) {
		t.Errorf("graces %v, want %v", w.graces, want)
	}
}

// A row that somebody keeps locked must not be overtaken while its lane reopens.
func TestLockedRowIsReportedWhileLanesReopen(t *testing.T) {
	for _, reopens := range []bool{true, false} {
		w := newWorld()
		w.claims, w.reopens = true, reopens
		w.pending(orders, "a", 3)
		w.locked = map[string]bool{"a-1": true}
		if _, err := w.sweeper(nil).Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		if (len(w.passed) == 1 && w.passed[0] == "a-1") != reopens {
			t.Errorf("reopening %t: passed over %v", reopens, w.passed)
		}
	}
}
