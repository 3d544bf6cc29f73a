package doctor

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// columnMax is the width, in characters, up to which a column is aligned; longer
// values push the rest of their own line to the right.
const columnMax = 46

var heads = []string{"STATUS", "CHECK", "FOUND", "WANTED", "FIX"}

// Print writes a line for each check and one that sums up. The verdicts are
// coloured on a terminal, unless NO_COLOR is set.
func (r Report) Print(w io.Writer) error {
	lines := [][]string{heads}
	for _, c := range r.Checks {
		line := []string{string(c.Status), c.Name, c.Found, "", ""}
		if c.Status == Warn || c.Status == Fail {
			line[3], line[4] = c.Wanted, c.Fix
		}
		lines = append(lines, line)
	}
	widths := measure(lines)
	colour := isTerminal(w) && os.Getenv("NO_COLOR") == ""
	for _, line := range lines {
		text := align(line, widths)
		if colour {
			text = paint(text, Status(line[0]))
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return fmt.Errorf("printing the report: %w", err)
		}
	}
	if _, err := fmt.Fprintf(w, "\n%s\n", r.summary()); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	return nil
}

// summary counts the verdicts.
func (r Report) summary() string {
	counts := map[Status]int{}
	for _, c := range r.Checks {
		counts[c.Status]++
	}
	return fmt.Sprintf("%d ok, %d warn, %d fail, %d skipped", counts[OK], counts[Warn], counts[Fail], counts[Skipped])
}

func measure(lines [][]string) []int {
	widths := make([]int, len(heads))
	for _, line := range lines {
		for i, cell := range line {
			if n := utf8.RuneCountInString(cell); n <= columnMax {
				widths[i] = max(widths[i], n)
			}
		}
	}
	return widths
}

func align(cells []string, widths []int) string {
	var b strings.Builder
	for i, cell := range cells {
		b.WriteString(cell)
		b.WriteString(strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell))+2))
	}
	return strings.TrimRight(b.String(), " ")
}

var colours = map[Status]string{OK: "32", Warn: "33", Fail: "31", Skipped: "2"}

// paint colours the verdict at the beginning of a line.
func paint(line string, s Status) string {
	code, known := colours[s]
	if !known {
		return line
	}
	return "\x1b[" + code + "m" + string(s) + "\x1b[0m" + strings.TrimPrefix(line, string(s))
}

func isTerminal(w io.Writer) bool {
	f, is := w.(*os.File)
	if !is {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
