package app

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rowferry/rowferry/internal/admin"
)

// reasonShown is how much of a reason a list shows, in characters.
const reasonShown = 60

// PrintDead writes a list of dead letters as a table.
func PrintDead(w io.Writer, page admin.DeadPage) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "TABLE\tID\tTYPE\tKEY\tCREATED\tATTEMPTS\tREASON") //nolint:errcheck // Flush says it
	for _, l := range page.Dead {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", l.Table, l.ID, oneLine(l.EventType), oneLine(l.Key), when(l.CreatedAt), l.Attempts, shortReason(l)) //nolint:errcheck // as above
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if page.Next == "" {
		return nil
	}
	_, err := fmt.Fprintln(w, "there are more: see --limit")
	return err
}

func shortReason(l admin.DeadLetter) string {
	text := oneLine(l.Reason)
	if l.Discarded {
		text = "discarded: " + text
	}
	if l.Gone {
		text = "(the row is gone) " + text
	}
	if r := []rune(text); len(r) > reasonShown {
		text = string(r[:reasonShown]) + "…"
	}
	return text
}

// oneLine keeps what others have written from breaking a table.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}

// PrintDeadLetter writes every field of a dead letter, the payload if it was read.
func PrintDeadLetter(w io.Writer, l admin.DeadLetter) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	rows := [][2]any{
		{"table", l.Table}, {"id", l.ID}, {"aggregate type", oneLine(l.AggregateType)}, {"aggregate id", oneLine(l.AggregateID)},
		{"event type", oneLine(l.EventType)}, {"topic column", oneLine(l.Topic)}, {"tag column", oneLine(l.Tag)}, {"ordering key", oneLine(l.Key)},
		{"reason", oneLine(l.Reason)}, {"attempts", l.Attempts}, {"created at", when(l.CreatedAt)},
		{"discarded", l.Discarded}, {"discarded at", when(l.DiscardedAt)}, {"row is gone", l.Gone}, {"payload bytes", l.PayloadBytes},
	}
	for _, h := range l.Headers {
		rows = append(rows, [2]any{"header " + oneLine(h.Name), oneLine(h.Value)})
	}
	for _, row := range rows {
		fmt.Fprintf(t, "%s\t%v\n", row[0], row[1]) //nolint:errcheck // Flush says it
	}
	if err := t.Flush(); err != nil {
		return err
	}
	switch {
	case l.Payload != nil:
		_, err := fmt.Fprintf(w, "\n%s\n", *l.Payload)
		return err
	case l.PayloadBase64 != nil:
		_, err := fmt.Fprintf(w, "\n(not UTF-8; --json gives it in base64)\n")
		return err
	}
	return nil
}

// PrintDeadDone writes what requeueing or discarding has done.
func PrintDeadDone(w io.Writer, d admin.DeadDone) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	verb := map[string]string{actionRequeue: "requeued", actionDiscard: "discarded"}[d.Action]
	rows := [][2]any{{"selected", d.Selected}, {verb, d.Changed}, {"locked", d.Locked}}
	if d.DryRun {
		rows = [][2]any{{"would be " + verb, d.Selected}}
	} else if d.Tally != (admin.DeadDone{}).Tally || d.Action == actionRequeue {
		rows = append(rows, [2]any{"sent", d.Sent}, [2]any{"failed", d.Failed}, [2]any{"attempts", d.Attempts}, [2]any{"released", d.Released})
	}
	if d.Note != "" {
		rows = append(rows, [2]any{"note", d.Note})
	}
	for _, row := range rows {
		fmt.Fprintf(t, "%s\t%v\n", row[0], row[1]) //nolint:errcheck // Flush says it
	}
	return t.Flush()
}

// PrintReplayed writes what a replay has done.
func PrintReplayed(w io.Writer, r admin.Replayed) error {
	if r.DryRun {
		_, err := fmt.Fprintf(w, "would be published again  %d\n", r.Selected)
		return err
	}
	_, err := fmt.Fprintf(w, "selected   %d\nsent       %d\nfailed     %d\nattempts   %d\nreleased   %d\n", r.Selected, r.Sent, r.Failed, r.Attempts, r.Released)
	return err
}
