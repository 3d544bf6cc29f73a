package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// kind is what a fault does.
type kind string

const (
	ferryKill    kind = "rowferry killed"
	ferryFreeze  kind = "rowferry frozen"
	ferryRestart kind = "rowferry restarted"
	brokerKill   kind = "broker killed"
	brokerFreeze kind = "broker frozen"
	namesKill    kind = "name server killed"
	dbKill       kind = "database killed"
	dbFreeze     kind = "database frozen"
	wayCut       kind = "way cut"
	waySlow      kind = "way slow"
	waySwallow   kind = "way half open"
	wayDamage    kind = "way corrupting"
	binlogPurge  kind = "binlog purged"
	diskFull     kind = "broker's disk full"
	ddl          kind = "outbox table altered"
)

// instances is how many relays of one name there are.
const instances = 2

// step is one fault of a plan.
type step struct {
	kind  kind
	which int           // the instance, the way or the table, as the kind has it
	n     int           // chooses a detail
	gap   time.Duration // since the step before
	hold  time.Duration // until it is healed
}

func (s step) String() string { return fmt.Sprintf("%s (%d, %d)", s.kind, s.which, s.n) }

// weights are how often each kind comes, in a run with the sweep.
var weights = []struct {
	kind   kind
	weight int
}{
	{ferryKill, 18}, {ferryFreeze, 10}, {ferryRestart, 7},
	{brokerKill, 6}, {brokerFreeze, 6}, {namesKill, 4}, {dbKill, 5}, {dbFreeze, 5},
	{wayCut, 9}, {waySlow, 7}, {waySwallow, 9}, {wayDamage, 6},
	{binlogPurge, 4}, {diskFull, 2}, {ddl, 6},
}

// plan chooses the faults of a run.
func plan(o options) []step {
	rng := rand.New(rand.NewPCG(o.seed, 1))
	var steps []step
	for range o.faults {
		s := step{kind: draw(rng, o.tail), which: rng.IntN(1 << 20), n: rng.IntN(1 << 20)}
		s.gap = time.Duration(rng.ExpFloat64() * float64(900*time.Millisecond))
		s.hold = holdOf(rng, s.kind)
		steps = append(steps, s)
	}
	return steps
}

func draw(rng *rand.Rand, tail bool) kind {
	for {
		sum := 0
		for _, w := range weights {
			sum += w.weight
		}
		n := rng.IntN(sum)
		for _, w := range weights {
			if n -= w.weight; n < 0 {
				if w.kind == binlogPurge && tail {
					break // without a sweep, what is purged unread stays unsent
				}
				return w.kind
			}
		}
	}
}

// holdOf chooses how long a fault lasts: mostly a moment, now and then longer than any
// lease, lock or timeout.
func holdOf(rng *rand.Rand, k kind) time.Duration {
	d := time.Duration(rng.ExpFloat64() * float64(2*time.Second))
	if rng.IntN(10) == 0 {
		d += 15 * time.Second
	}
	d = min(d, 30*time.Second)
	if k == diskFull {
		d = max(d, 12*time.Second) // the broker looks every 10 s
	}
	return d
}
