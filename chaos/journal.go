package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// journal notes what is done and when, in the clock of the logs of all servers.
type journal struct {
	mu   sync.Mutex
	file *os.File
	out  io.Writer // what a person wants to see of it

	violations []string
	counts     map[string]int // faults by kind
}

func newJournal(dir string, out io.Writer) (*journal, error) {
	f, err := os.Create(filepath.Join(dir, "faults.log"))
	if err != nil {
		return nil, fmt.Errorf("opening the journal: %w", err)
	}
	return &journal{file: f, out: out, counts: map[string]int{}}, nil
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.write(fmt.Sprintf(format, args...))
}

func (j *journal) write(text string) {
	// A journal that cannot be written to must not end the run it tells of.
	_, _ = fmt.Fprintf(j.file, "%s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), text)
}

// count notes a fault that has been done.
func (j *journal) count(kind string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts[kind]++
}

// violation notes a broken promise.
func (j *journal) violation(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	j.violations = append(j.violations, text)
	j.write("VIOLATION: " + text)
}

// broken returns the violations so far.
func (j *journal) broken() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.violations...)
}

// say writes for a person, and into the journal.
func (j *journal) say(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	_, _ = fmt.Fprintln(j.out, text) // nobody reads: no reason to end
	j.write(text)
}
