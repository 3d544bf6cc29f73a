package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rowferry/rowferry/internal/testservers"
)

// ferry is one rowferry, through all its lives.
type ferry struct {
	server
	dir string
}

// newFerry does not start it. Its log, over all lives, is server.log in dir.
func newFerry(name, binary, dir string, env map[string]string) *ferry {
	f := &ferry{dir: dir}
	f.name = name
	f.await = func(*testservers.Process) error { return nil }
	f.launch = func() (*testservers.Process, error) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		cmd := exec.Command(binary, "run")
		cmd.Env = environment(env)
		return testservers.Launcher{}.Start(dir, cmd)
	}
	return f
}

// environment is ours without settings for rowferry, and with these.
func environment(env map[string]string) []string {
	all := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		return strings.HasPrefix(pair, "ROWFERRY_") || strings.HasPrefix(pair, "OTEL_")
	})
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, "ROWFERRY_"+name+"="+env[name])
	}
	return all
}

// stop asks it to end, and waits for that.
func (f *ferry) stop() error {
	if err := f.process().Stop(); err != nil {
		return fmt.Errorf("stopping %s: %w", f.name, err)
	}
	return nil
}

// ended says how it ended by itself; empty while it runs, as it always must.
func (f *ferry) ended() string {
	ended, err := f.process().Ended()
	if !ended {
		return ""
	}
	return fmt.Sprintf("%s has ended by itself (%v); its log ends:\n%s", f.name, err, f.process().LogTail())
}

// damageSigns are what no log of rowferry may hold.
var damageSigns = []string{"WARNING: DATA RACE", "panic:", "fatal error:"}

// logSigns returns those that the log holds.
func (f *ferry) logSigns() ([]string, error) {
	text, err := os.ReadFile(filepath.Join(f.dir, "server.log"))
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s: %w", f.name, err)
	}
	return slices.DeleteFunc(slices.Clone(damageSigns), func(sign string) bool { return !strings.Contains(string(text), sign) }), nil
}
