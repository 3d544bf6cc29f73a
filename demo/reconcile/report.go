package reconcile

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Facts is what the database of the shop says about a sale when it is over.
type Facts struct {
	Orders    map[string]int // each committed order, with the number of its committed events
	Committed int            // orders whose COMMIT the shop saw succeed
	Unknown   int            // orders whose COMMIT failed with an outcome the shop cannot know
	Rows      map[string]int // outbox rows of the sale, by status
	Stock     []Stock
	StockMin  int // lowest stock of any product ever seen
}

// Stock is the account of one product. Initial = Left + Sold in a sound shop.
type Stock struct {
	Product             string
	Initial, Left, Sold int
}

// Rules say what a sale may have done and still pass.
type Rules struct {
	DuplicatesAllowed bool // after a crash: at least once means that copies may come
}

// Line is one line of the table at the end.
type Line struct {
	What       string
	Found      string
	Difference string // what is wrong; empty if nothing is
}

// Report is the outcome of a reconciliation.
type Report struct {
	Lines     []Line
	Latencies Latencies
	Clock     string // what the latencies are measured from
}

// Reconcile compares the two sides. It must be called when both are at rest.
func Reconcile(f Facts, in *Inbox, rules Rules) Report {
	in.mu.Lock()
	defer in.mu.Unlock()
	expected := 0
	for _, events := range f.Orders {
		expected += events
	}
	missing, unexpected := compare(f.Orders, in.versions)
	return Report{Lines: []Line{
		ordersLine(f),
		equalLine("outbox rows committed", sum(f.Rows), expected, "the orders say"),
		equalLine("distinct events consumed", len(in.arrivals), expected, "the orders say"),
		noneLine("missing", missing),
		noneLine("unexpected (rolled back, or never written)", unexpected),
		countLine("messages that cannot be read", in.unreadable),
		duplicatesLine(in.duplicates, rules),
		noneLine("orders whose events changed places", reordered(in.versions)),
		stockLine(f),
		rowsLine(f.Rows),
	}}
}

// compare lists the events that should have come and did not, and those that
// came and should not have. An event that came under two uids is unexpected the
// second time: to a consumer it looks like news.
func compare(orders map[string]int, versions map[string][]int) (missing, unexpected []string) {
	for order, events := range orders {
		for v := 1; v <= events; v++ {
			if !slices.Contains(versions[order], v) {
				missing = append(missing, name(order, v))
			}
		}
	}
	for order, got := range versions {
		for i, v := range got {
			if v < 1 || v > orders[order] || slices.Contains(got[:i], v) {
				unexpected = append(unexpected, name(order, v))
			}
		}
	}
	return missing, unexpected
}

// reordered lists the orders of which an event came after a later one.
func reordered(versions map[string][]int) []string {
	var orders []string
	for order, got := range versions {
		if !slices.IsSorted(got) {
			orders = append(orders, fmt.Sprintf("%s %v", order, got))
		}
	}
	return orders
}

func name(order string, version int) string { return fmt.Sprintf("%s version %d", order, version) }

func sum(rows map[string]int) int {
	n := 0
	for _, count := range rows {
		n += count
	}
	return n
}

func ordersLine(f Facts) Line {
	l := Line{What: "orders committed", Found: fmt.Sprint(len(f.Orders))}
	if n := len(f.Orders); n < f.Committed || n > f.Committed+f.Unknown {
		l.Difference = fmt.Sprintf("the shop saw %d committed and does not know of %d", f.Committed, f.Unknown)
	}
	if len(f.Orders) == 0 {
		l.Difference = "nothing was sold, so nothing was shown"
	}
	return l
}

func equalLine(what string, found, want int, source string) Line {
	l := Line{What: what, Found: fmt.Sprint(found)}
	if found != want {
		l.Difference = fmt.Sprintf("%s %d", source, want)
	}
	return l
}

// noneLine is for a list that must be empty; it shows the first three.
func noneLine(what string, list []string) Line {
	l := countLine(what, len(list))
	if len(list) > 0 {
		slices.Sort(list)
		l.Difference = "among them " + strings.Join(list[:min(3, len(list))], ", ")
	}
	return l
}

func countLine(what string, n int) Line {
	l := Line{What: what, Found: fmt.Sprint(n)}
	if n > 0 {
		l.Difference = "want 0"
	}
	return l
}

func duplicatesLine(n int, rules Rules) Line {
	l := countLine("duplicates (same outbox_uid)", n)
	if rules.DuplicatesAllowed {
		l.Found, l.Difference = fmt.Sprintf("%d, allowed after a crash", n), ""
	}
	return l
}

func stockLine(f Facts) Line {
	l := Line{What: "lowest stock ever seen", Found: fmt.Sprint(f.StockMin)}
	for _, s := range f.Stock {
		if s.Left < 0 || s.Initial != s.Left+s.Sold {
			l.Difference = fmt.Sprintf("%s: %d in stock, %d sold, %d left", s.Product, s.Initial, s.Sold, s.Left)
		}
		l.Found = fmt.Sprint(min(f.StockMin, s.Left))
	}
	if f.StockMin < 0 {
		l.Difference = "the stock went below zero"
	}
	return l
}

func rowsLine(rows map[string]int) Line {
	l := Line{
		What:  "outbox rows SENT / PENDING / FAILED",
		Found: fmt.Sprintf("%d / %d / %d", rows["SENT"], rows["PENDING"], rows["FAILED"]),
	}
	if rest := sum(rows) - rows["SENT"]; rest != 0 {
		l.Difference = fmt.Sprintf("%d rows are not SENT", rest)
	}
	return l
}

// Differences lists what does not agree; empty means that the sale passed.
func (r Report) Differences() []string {
	var list []string
	for _, l := range r.Lines {
		if l.Difference != "" {
			list = append(list, fmt.Sprintf("%s: %s (%s)", l.What, l.Found, l.Difference))
		}
	}
	return list
}

// Print writes the table.
func (r Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range r.Lines {
		verdict := "ok"
		if l.Difference != "" {
			verdict = "DIFFERS: " + l.Difference
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", l.What, l.Found, verdict)
	}
	fmt.Fprintf(t, "  latency, %s\t%s\t\n", r.Clock, r.Latencies)
	if err := t.Flush(); err != nil {
		return fmt.Errorf("printing the reconciliation: %w", err)
	}
	return nil
}
