package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// figure is one measured quantity. What is measured once a round has a sample for
// each round.
type figure struct {
	Name    string    `json:"name"`
	Median  float64   `json:"median"`
	Unit    string    `json:"unit"`           // "ratio": of two others of the same run
	Goal    string    `json:"goal,omitempty"` // what it should be, for ratios
	Samples []float64 `json:"samples"`
}

// results is what a run writes down.
type results struct {
	At       time.Time `json:"at"`
	Commit   string    `json:"commit"`
	Machine  machine   `json:"machine"`
	Settings []string  `json:"settings"`
	Options  string    `json:"options"`
	Notes    []string  `json:"notes,omitempty"` // what went otherwise than meant
	Figures  []*figure `json:"figures"`
}

// add keeps one more sample of a quantity.
func (r *results) add(name string, value float64, unit string) {
	f := r.find(name)
	if f == nil {
		f = &figure{Name: name, Unit: unit}
		r.Figures = append(r.Figures, f)
	}
	f.Samples = append(f.Samples, value)
	f.Median = median(f.Samples)
	fmt.Fprintf(os.Stderr, "  %-52s %12.1f %s\n", name, value, unit)
}

// note keeps a sentence about the run.
func (r *results) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.Notes = append(r.Notes, text)
	fmt.Fprintln(os.Stderr, "  NOTE:", text)
}

func (r *results) find(name string) *figure {
	for _, f := range r.Figures {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// ratio compares two quantities round by round, so that what disturbs a whole round
// disturbs both sides. Nothing is added when one of them was not measured.
func (r *results) ratio(of, to, goal string) {
	a, b := r.find(of), r.find(to)
	if a == nil || b == nil {
		return
	}
	f := &figure{Name: of + " / " + to, Unit: "ratio", Goal: goal}
	for i := range min(len(a.Samples), len(b.Samples)) {
		if b.Samples[i] != 0 {
			f.Samples = append(f.Samples, a.Samples[i]/b.Samples[i])
		}
	}
	if len(f.Samples) > 0 {
		f.Median = median(f.Samples)
		r.Figures = append(r.Figures, f)
	}
}

// median returns the middle of v, the upper one of two; v must not be empty.
func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// table writes the figures for a reader, ratios first: they are what means something
// beyond this machine.
func (r *results) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	for _, ratios := range []bool{true, false} {
		for _, f := range r.Figures {
			if (f.Unit == "ratio") != ratios {
				continue
			}
			if _, err := fmt.Fprintf(w, "%s\t%.2f\t%s\t%s\t\n", f.Name, f.Median, f.Unit, f.remark()); err != nil {
				return err
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range r.Notes {
		if _, err := fmt.Fprintln(out, "note:", n); err != nil {
			return err
		}
	}
	return nil
}

// remark tells how far the samples lie apart, and the goal.
func (f *figure) remark() string {
	var s string
	if len(f.Samples) > 1 {
		s = fmt.Sprintf("%.2f..%.2f", slices.Min(f.Samples), slices.Max(f.Samples))
	}
	if f.Goal != "" {
		s += " goal " + f.Goal
	}
	return s
}

// write prints the table and keeps the raw numbers and the plot in dir.
func (r *results) write(dir string) error {
	if err := r.table(os.Stdout); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of results: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "latest.json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("keeping the raw numbers: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "latest.svg"), r.plot(), 0o644); err != nil {
		return fmt.Errorf("keeping the plot: %w", err)
	}
	return nil
}
