package reconcile

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// soundSale is a sale of two orders, one of which went on to its third version.
func soundSale() Facts {
	return Facts{
		Orders:    map[string]int{"s-1": 1, "s-2": 3},
		Committed: 2,
		Rows:      map[string]int{"SENT": 4},
		Stock:     []Stock{{Product: "phone", Initial: 10, Left: 0, Sold: 10}},
	}
}

func event(order string, version int) Event {
	return Event{UID: fmt.Sprintf("shop.outbox:%s/%d", order, version), Key: Key{order, version}}
}

func soundEvents() []Event {
	return []Event{event("s-2", 1), event("s-1", 1), event("s-2", 2), event("s-2", 3)}
}

func inboxOf(events []Event) *Inbox {
	in := NewInbox()
	for _, e := range events {
		in.Record(e, time.Time{})
	}
	return in
}

func TestReconcile(t *testing.T) {
	otherUID := event("s-1", 1)
	otherUID.UID = "shop.outbox:again"
	tests := []struct {
		name   string
		facts  func(*Facts)
		events func([]Event) []Event
		rules  Rules
		want   []string // the start of each difference; none: the sale passes
	}{
		{name: "everything agrees"},
		{
			name:   "an event is missing",
			events: func(es []Event) []Event { return es[:3] },
			want:   []string{"distinct events consumed: 3 (the orders say 4)", "missing: 1 (among them s-2 version 3)"},
		},
		{
			name:   "a gap is missing, not reordered",
			events: func(es []Event) []Event { return []Event{es[0], es[1], es[3]} },
			want:   []string{"distinct events consumed: 3", "missing: 1 (among them s-2 version 2)"},
		},
		{
			name:   "a rolled back order was published",
			events: func(es []Event) []Event { return append(es, event("s-9", 1)) },
			want:   []string{"distinct events consumed: 5", "unexpected (rolled back, or never written): 1 (among them s-9 version 1)"},
		},
		{
			name:   "a row undone by a savepoint was published",
			events: func(es []Event) []Event { return append([]Event{event("s-1", 0)}, es...) },
			want:   []string{"distinct events consumed: 5", "unexpected (rolled back, or never written): 1 (among them s-1 version 0)"},
		},
		{
			name:   "an event came under two uids",
			events: func(es []Event) []Event { return append(es, otherUID) },
			want:   []string{"distinct events consumed: 5", "unexpected (rolled back, or never written): 1 (among them s-1 version 1)"},
		},
		{
			name:   "a phantom does not stand in for a missing event",
			events: func(es []Event) []Event { return append(es[:3], event("s-9", 1)) },
			want:   []string{"missing: 1", "unexpected (rolled back, or never written): 1"},
		},
		{
			name:   "a duplicate",
			events: func(es []Event) []Event { return append(es, es[0]) },
			want:   []string{"duplicates (same outbox_uid): 1 (want 0)"},
		},
		{
			name:   "a duplicate after a crash",
			events: func(es []Event) []Event { return append(es, es[0], es[2]) },
			rules:  Rules{DuplicatesAllowed: true},
		},
		{
			name:   "a crash excuses no reordering",
			events: func(es []Event) []Event { return []Event{es[0], es[1], es[3], es[2]} },
			rules:  Rules{DuplicatesAllowed: true},
			want:   []string{"orders whose events changed places: 1 (among them s-2 [1 3 2])"},
		},
		{
			name:  "the stock went below zero and came back",
			facts: func(f *Facts) { f.StockMin = -1 },
			want:  []string{"lowest stock ever seen: -1 (the stock went below zero)"},
		},
		{
			name:  "oversold",
			facts: func(f *Facts) { f.Stock[0] = Stock{Product: "phone", Initial: 10, Left: -1, Sold: 11} },
			want:  []string{"lowest stock ever seen: -1 (phone: 10 in stock, 11 sold, -1 left)"},
		},
		{
			name:  "sold without taking from the stock",
			facts: func(f *Facts) { f.Stock[0].Left = 3 },
			want:  []string{"lowest stock ever seen: 0 (phone: 10 in stock, 10 sold, 3 left)"},
		},
		{
			name:  "a row was never marked",
			facts: func(f *Facts) { f.Rows = map[string]int{"SENT": 3, "PENDING": 1} },
			want:  []string{"outbox rows SENT / PENDING / FAILED: 3 / 1 / 0 (1 rows are not SENT)"},
		},
		{
			name:  "a row vanished from the outbox",
			facts: func(f *Facts) { f.Rows["SENT"] = 3 },
			want:  []string{"outbox rows committed: 3 (the orders say 4)"},
		},
		{
			name:  "the shop lost a committed order",
			facts: func(f *Facts) { f.Committed = 3 },
			want:  []string{"orders committed: 2 (the shop saw 3 committed and does not know of 0)"},
		},
		{
			name:  "a commit of unknown outcome may have happened",
			facts: func(f *Facts) { f.Committed, f.Unknown = 1, 1 },
		},
		{
			name: "an empty sale shows nothing",
			facts: func(f *Facts) {
				*f = Facts{Rows: map[string]int{}}
			},
			events: func([]Event) []Event { return nil },
			want:   []string{"orders committed: 0 (nothing was sold"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			facts, events := soundSale(), soundEvents()
			if tt.facts != nil {
				tt.facts(&facts)
			}
			if tt.events != nil {
				events = tt.events(events)
			}
			got := Reconcile(facts, inboxOf(events), tt.rules).Differences()
			if len(got) != len(tt.want) {
				t.Fatalf("differences %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("difference %q, want %q", got[i], want)
				}
			}
		})
	}
}

func TestReconcileUnreadable(t *testing.T) {
	in := inboxOf(soundEvents())
	in.RecordUnreadable()
	got := Reconcile(soundSale(), in, Rules{DuplicatesAllowed: true}).Differences()
	if len(got) != 1 || !strings.HasPrefix(got[0], "messages that cannot be read: 1") {
		t.Fatalf("differences %q", got)
	}
}

// Any way of merging the orders passes as long as each order keeps its own
// sequence, and no loss, whatever else is copied, ever passes.
func TestReconcileProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		facts := Facts{Orders: map[string]int{}, Rows: map[string]int{}}
		next := map[string]int{}
		var open []string
		for i := range rapid.IntRange(1, 8).Draw(t, "orders") {
			order := fmt.Sprintf("s-%d", i)
			facts.Orders[order] = rapid.IntRange(1, 3).Draw(t, "events")
			facts.Rows["SENT"] += facts.Orders[order]
			facts.Committed++
			open = append(open, order)
		}
		var events []Event
		for len(open) > 0 {
			i := rapid.IntRange(0, len(open)-1).Draw(t, "next")
			order := open[i]
			next[order]++
			events = append(events, event(order, next[order]))
			if next[order] == facts.Orders[order] {
				open = append(open[:i], open[i+1:]...)
			}
		}
		if got := Reconcile(facts, inboxOf(events), Rules{}).Differences(); len(got) > 0 {
			t.Fatalf("a sound sale differs: %q", got)
		}
		lost := rapid.IntRange(0, len(events)-1).Draw(t, "lost")
		rest := append(append([]Event(nil), events[:lost]...), events[lost+1:]...)
		rest = append(rest, rest...)
		if got := Reconcile(facts, inboxOf(rest), Rules{DuplicatesAllowed: true}).Differences(); len(got) == 0 {
			t.Fatalf("the loss of %v passed", events[lost])
		}
	})
}

func TestMeasure(t *testing.T) {
	var arrivals []Arrival
	start := time.Unix(0, 0)
	for i := 1; i <= 200; i++ {
		arrivals = append(arrivals, Arrival{Key: Key{"s", i}, At: start.Add(time.Duration(i) * time.Millisecond)})
	}
	since := func(a Arrival) (time.Time, bool) { return start, a.Version <= 100 }
	got := Measure(arrivals, since)
	if want := (Latencies{Count: 100, P50: 50 * time.Millisecond, P99: 99 * time.Millisecond, Max: 100 * time.Millisecond}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	late := func(Arrival) (time.Time, bool) { return start.Add(time.Hour), true }
	if got := Measure(arrivals, late); got.Max != 0 {
		t.Errorf("a commit seen after the arrival gives %v, want 0", got.Max)
	}
	if got := Measure(nil, late); got.Count != 0 || got.String() != "no event measured" {
		t.Errorf("no arrivals give %v", got)
	}
}

func TestPrint(t *testing.T) {
	facts := soundSale()
	facts.Rows = map[string]int{"SENT": 3, "FAILED": 1}
	r := Reconcile(facts, inboxOf(soundEvents()), Rules{})
	r.Clock = "commit to consumer"
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"DIFFERS: 1 rows are not SENT", "3 / 0 / 1", "latency, commit to consumer"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}
