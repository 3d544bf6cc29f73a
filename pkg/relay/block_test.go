package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestBlockedKeysKeepOrderAndLoseNothing lets rows die in every way while lanes break and
// heal, an operator requeues and discards, and the relay restarts. At the end every row has
// been stored once, or was discarded, in the order of its key.
func TestBlockedKeysKeepOrderAndLoseNothing(t *testing.T) {
	for _, tail := range []bool{true, false} {
		t.Run(fmt.Sprintf("tail %t", tail), func(t *testing.T) {
			var deaths, restarts atomic.Int64
			rapid.Check(t, func(rt *rapid.T) {
				seed := rapid.Uint64().Draw(rt, "seed")
				var err error
				synctest.Test(t, func(t *testing.T) {
					var died, restarted int
					died, restarted, err = simulateBlocks(t, seed, tail)
					deaths.Add(int64(died))
					restarts.Add(int64(restarted))
				})
				if err != nil {
					rt.Fatalf("seed %d: %v", seed, err)
				}
			})
			if deaths.Load() < 100 || restarts.Load() < 20 {
				t.Errorf("%d deaths and %d restarts: the test has not tested", deaths.Load(), restarts.Load())
			}
		})
	}
}

func simulateBlocks(t *testing.T, seed uint64, tail bool) (deaths, restarts int, err error) {
	random := rand.New(rand.NewPCG(seed, 2))
	p := newParish(newTown(random))
	cfg := p.config([]int64{20, 100, 1000}[random.IntN(3)])
	p.plain = !tail
	if p.plain {
		p.claims = false // what is claimed by a relay that ends comes back after its lease, behind others
	}
	if !tail {
		cfg.Source, cfg.Fences, cfg.ParkAfter = nil, nil, 0
	}
	batch := []int{3, 20, 200}[random.IntN(3)]
	keys, rows, pace := 2+random.IntN(6), 10+random.IntN(40), []time.Duration{2, 20, 100}[random.IntN(3)]*time.Millisecond
	troubles, lives := random.IntN(3), 0
	if troubles == 0 || !tail { // a relay that restarts forgets which lanes were parked
		lives, cfg.ParkAfter = 1+random.IntN(3), 0
	}
	l := p.live(t.Context(), cfg, batch, tail)

	topics := []string{"a", "b", "c"}
	var writing sync.WaitGroup
	for i := range keys {
		writing.Go(func() { p.write(fmt.Sprintf("k%d", i), topics[i%len(topics)], rows, pace) })
	}
	writing.Go(func() {
		for range troubles {
			p.misfortune(topics)
		}
	})
	var written atomic.Bool
	go func() { writing.Wait(); written.Store(true) }()
	for deadline := time.Now().Add(30 * time.Minute); !(written.Load() && p.over() && l.engine.Usage().BlockedKeys == 0) && time.Now().Before(deadline); {
		time.Sleep(p.someTime(2 * time.Second))
		if p.happens(3) {
			p.operate(written.Load())
			l.sweeper.Trigger()
		}
		if restarts < lives && p.happens(4) {
			restarts++
			if err := errors.Join(l.end(), p.rewind()); err != nil {
				return p.deaths, restarts, err
			}
			l = p.live(t.Context(), cfg, batch, tail)
		}
	}
	writing.Wait()
	time.Sleep(time.Minute) // the position is saved
	use := l.engine.Usage()
	err = l.end()
	if !tail {
		p.saved = fmt.Sprint(p.seq)
	}
	err = errors.Join(err, p.audit())
	if use.BlockedKeys != 0 || len(use.Parked) != 0 {
		err = errors.Join(err, fmt.Errorf("still closed: %+v", use))
	}
	return p.deaths, restarts, err
}
