package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(args, &out); err != nil {
		t.Fatalf("services %s: %v", strings.Join(args, " "), err)
	}
	return out.String()
}

func TestUpStartsWhatDoesNotRunAndDownStopsIt(t *testing.T) {
	dir := "--dir=" + t.TempDir()
	t.Cleanup(func() { mustRun(t, "down", dir) })
	first := mustRun(t, "up", dir)
	if n := strings.Count(first, " runs on port "); n != 3 {
		t.Fatalf("up reports %d running servers:\n%s", n, first)
	}
	if second := mustRun(t, "up", dir); second != first {
		t.Errorf("the second up changed\n%sinto\n%s", first, second)
	}
	killMySQL(t, strings.TrimPrefix(dir, "--dir="))
	if status := mustRun(t, "status", dir); !strings.Contains(status, "mysql        does not run") {
		t.Errorf("status after a crash of MySQL:\n%s", status)
	}
	if third := mustRun(t, "up", dir); strings.Count(third, " runs on port ") != 3 {
		t.Errorf("up after a crash of MySQL:\n%s", third)
	}
	mustRun(t, "down", dir)
	if status := mustRun(t, "status", dir); strings.Count(status, "does not run") != 3 {
		t.Errorf("status after down:\n%s", status)
	}
}

func killMySQL(t *testing.T, dir string) {
	t.Helper()
	s, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.members() {
		if p, alive := m.process(); m.name == "mysql" && alive {
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDownSparesAProcessThatHasTakenThePID(t *testing.T) {
	dir := t.TempDir()
	// This very process, under a start time that is not its own.
	s := &services{dir: dir, state: state{MySQL: record{PID: os.Getpid(), StartTime: 1}}}
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "down", "--dir="+dir)
	if _, err := os.Stat(filepath.Join(dir, "state.json")); err != nil {
		t.Error(err)
	}
}
