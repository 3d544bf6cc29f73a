package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// A short run with a seed that stays, and one without the sweep with a seed of its own,
// which is printed: what it finds can be replayed.
func TestNothingBreaksInAShortRun(t *testing.T) {
	if err := testservers.NoteSources(".."); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]options{
		"with the sweep": {seed: 7},
		"the tail alone": {seed: rand.Uint64N(1_000_000_000), tail: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.rows, o.faults, o.duration, o.patience, o.flavor = 3000, 12, 15*time.Second, 2*time.Minute, testservers.FlavorMySQL
			o.out = t.Output()
			if err := run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAPlanFollowsFromItsSeed(t *testing.T) {
	o := options{seed: 3, faults: 500}
	a, b := plan(o), plan(o)
	if !reflect.DeepEqual(a, b) {
		t.Error("two plans of one seed differ")
	}
	o.seed++
	if reflect.DeepEqual(a, plan(o)) {
		t.Error("plans of two seeds are the same")
	}
	kinds := map[kind]int{}
	for _, s := range a {
		kinds[s.kind]++
		if s.hold < 0 || s.hold > 30*time.Second {
			t.Errorf("%v lasts %v", s, s.hold)
		}
	}
	if len(kinds) != len(weights) {
		t.Errorf("500 faults are of %d kinds, there are %d", len(kinds), len(weights))
	}
	o.tail = true
	for _, s := range plan(o) {
		if s.kind == binlogPurge {
			t.Fatal("a binlog is purged though nothing is swept")
		}
	}
}

// The planted bugs must follow the sources: each text is replaced in a copy of its file.
func TestEveryMutantStillFitsTheSources(t *testing.T) {
	for _, m := range planted {
		t.Run(m.name, func(t *testing.T) {
			tree := t.TempDir()
			text, err := os.ReadFile(filepath.Join("..", m.file))
			if err != nil {
				t.Fatal(err)
			}
			copied := filepath.Join(tree, m.file)
			if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(copied, text, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := m.plant(tree); err != nil {
				t.Fatal(err)
			}
			changed, err := os.ReadFile(copied)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(text, changed) {
				t.Error("nothing was changed")
			}
			if err := os.WriteFile(copied, []byte("package other\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := m.plant(tree); err == nil {
				t.Error("a text that is gone was found")
			}
		})
	}
}

func TestDamageStaysInsideTheChunk(t *testing.T) {
	for _, from := range []int{0, 10, 39} {
		data := bytes.Repeat([]byte("a"), 40)
		spoil(data, from)
		for i, b := range data {
			if (b == 0xff) != (i >= from && i < from+24) {
				t.Errorf("damage from %d on: byte %d is %x", from, i, b)
			}
		}
	}
	spoil(nil, 0)
}

func TestCopiesAreOwedToFaultsThatCanMakeThem(t *testing.T) {
	for _, c := range []struct {
		kind   kind
		detail string
		lasted time.Duration
		want   int
	}{
		{ddl, "orders", time.Minute, 0},
		{namesKill, "", time.Minute, 0},
		{waySwallow, "name-server-1", time.Minute, 0},
		{waySwallow, "database-1", time.Minute, 1},
		{waySwallow, brokerWay, 5 * sendTimeout, 7},
		{brokerFreeze, "", 3 * sendTimeout, 5},
		{ferryKill, "rowferry-0", time.Minute, 1},
		{binlogPurge, "", time.Second, instances},
	} {
		if got := attempts(c.kind, c.detail, c.lasted); got != c.want {
			t.Errorf("%s %s for %v: %d, want %d", c.kind, c.detail, c.lasted, got, c.want)
		}
	}
}
