package fallback

import (
	"slices"
	"testing"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func keys(table outbox.Table, ids ...string) []outbox.Key {
	list := make([]outbox.Key, len(ids))
	for i, id := range ids {
		list[i] = outbox.Key{Table: table, ID: id}
	}
	return list
}

// Rows that are asked for go in the order of asking, whatever their age, behind one
// fence, and no others with them.
func TestRowsThatAreAskedForAreSent(t *testing.T) {
	w := newWorld()
	w.claims = true
	w.pending(orders, "a", 10)
	w.status["a-3"], w.status["a-4"] = outbox.Failed, outbox.Sent
	w.inFlight["a-5"] = true
	asked := append(keys(orders, "a-9", "a-1", "a-3", "a-4", "a-5", "a-2"), keys(invoices, "i-1")...)
	tally, err := w.sweeper(nil).Rows(t.Context(), asked)
	if err != nil || tally.Sent != 4 {
		t.Fatalf("%+v, %v", tally, err)
	}
	if want := []string{"a-9", "a-1", "a-2", "i-1"}; !slices.Equal(w.sent, want) {
		t.Errorf("sent %v, want %v", w.sent, want)
	}
	if w.count("fence") != 1 || w.count("candidates") != 0 || w.count("begin rows") != 1 || w.steps[0] != "begin rows" {
		t.Errorf("steps %v", w.steps)
	}
	w.balanced(t)
}

// What is SENT is sent again; nothing else is, and nothing is claimed.
func TestSentRowsAreSentAgain(t *testing.T) {
	w := newWorld()
	w.claims = true
	w.status["a-1"], w.status["a-2"], w.status["a-3"] = outbox.Sent, outbox.Sent, outbox.Failed
	w.status["a-6"] = outbox.Sent
	w.inFlight["a-6"] = true
	tally, err := w.sweeper(nil).Again(t.Context(), keys(orders, "a-2", "a-0", "a-3", "a-6", "a-1"))
	if err != nil || tally.Sent != 2 {
		t.Fatalf("%+v, %v", tally, err)
	}
	if want := []string{"a-2", "a-1"}; !slices.Equal(w.sent, want) || w.count("claim") != 0 {
		t.Errorf("sent %v, want %v; steps %v", w.sent, want, w.steps)
	}
	w.balanced(t)
}
