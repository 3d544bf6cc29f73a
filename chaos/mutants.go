package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mutant is a bug of the kind that must not go unnoticed: a text of the sources is
// replaced. A text that is not there exactly once has changed since, and so must this.
type mutant struct {
	name     string
	file     string
	old, new string
	tail     bool // without the sweep, which makes up for what the bug leaves behind
}

var planted = []mutant{
	{
		name: "the position is saved when a transaction begins", file: "pkg/relay/watermark.go", tail: true,
		old: "\t\ts := &slot{pending: events, end: end}\n",
		new: "\t\ts := &slot{pending: events, end: end}\n\t\tif !end.IsZero() {\n\t\t\tw.advance(end, own)\n\t\t}\n",
	},
	{
		name: "rows are marked before the broker has acknowledged them", file: "pkg/relay/lane.go",
		old: "\tif err != nil {\n\t\treturn err\n\t}\n\tnow := time.Now()\n\te.acknowledged(start, now)\n",
		new: "\t_ = err\n\tnow := time.Now()\n\te.acknowledged(start, now)\n",
	},
	{
		name: "the watermark does not wait for the last event", file: "pkg/relay/watermark.go", tail: true,
		old: "w.slots[w.head].pending == 0 {",
		new: "w.slots[w.head].pending <= 1 {",
	},
	{
		name: "marks regard neither status nor token", file: "pkg/ledger/mark.go",
		old: "\tfor _, part := range []clause{join(\", \", set), {text: \" WHERE \"}, in, {text: \" AND \"}, guard} {",
		new: "\tfor _, part := range []clause{join(\", \", set), {text: \" WHERE \"}, in} {",
	},
}

// mutants builds relays with known bugs, one after the other, and lets chaos loose on each
// until it is caught.
func mutants(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("chaos mutants", flag.ContinueOnError)
	rows := f.Int("rows", 10_000, "rows of a run")
	faults := f.Int("faults", 30, "faults of a run")
	runs := f.Int("runs", 8, "runs, of other seeds, before a bug counts as not caught")
	only := f.String("only", "", "only those whose name holds this")
	if err := f.Parse(args); err != nil {
		return err
	}
	missed := []error{}
	for _, m := range planted {
		if !strings.Contains(m.name, *only) {
			continue
		}
		o := options{rows: *rows, faults: *faults, patience: 20 * time.Second, tail: m.tail, flavor: "mysql", out: io.Discard}
		found, err := hunt(ctx, m, o, *runs)
		if err != nil {
			fmt.Fprintf(out, "NOT caught: %s: %v\n", m.name, err)
			missed = append(missed, fmt.Errorf("%s: %w", m.name, err))
			continue
		}
		fmt.Fprintf(out, "caught: %s\n  %v\n", m.name, found)
	}
	return errors.Join(missed...)
}

// hunt returns what the run that found the bug had to say.
func hunt(ctx context.Context, m mutant, o options, runs int) (found, err error) {
	dir, err := os.MkdirTemp("", "rowferry-mutant-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if o.rowferry, err = m.build(dir); err != nil {
		return nil, err
	}
	for seed := range uint64(runs) {
		o.seed, o.dir = seed+1, filepath.Join(dir, fmt.Sprint(seed))
		err := run(ctx, o)
		if errors.Is(err, errViolation) {
			return err, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("not caught in %d runs", runs)
}

// build builds a relay with the bug from a copy of the sources.
func (m mutant) build(dir string) (string, error) {
	tree := filepath.Join(dir, "tree")
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return "", err
	}
	for _, part := range []string{"cmd", "internal", "pkg", "migrations"} {
		if err := os.CopyFS(filepath.Join(tree, part), os.DirFS(filepath.Join(root, part))); err != nil {
			return "", fmt.Errorf("copying the sources: %w", err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(tree, name), text, 0o644)
		}
		if err != nil {
			return "", fmt.Errorf("copying the sources: %w", err)
		}
	}
	if err := m.plant(tree); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "rowferry-mutant")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/rowferry")
	cmd.Dir = tree
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building: %w\n%s", err, text)
	}
	return binary, nil
}

// plant changes the one file.
func (m mutant) plant(tree string) error {
	path := filepath.Join(tree, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return fmt.Errorf("%s holds the text to be replaced %d times, not once: it has changed, and the mutant must follow:\n%s", m.file, n, m.old)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o644)
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
