package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/pkg/fallback"
)

// TestParkingKeepsOrderAndLosesNothing lets topics and lanes break, heal and be slow at
// random while rows are written. When all is well again, every row has been stored once
// and in the order of its key, and the position is at the end.
func TestParkingKeepsOrderAndLosesNothing(t *testing.T) {
	var parkings, reopenings atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		var err error
		synctest.Test(t, func(t *testing.T) {
			var parked, reopened int64
			parked, reopened, err = simulate(t, seed, 500*time.Millisecond)
			parkings.Add(parked)
			reopenings.Add(reopened)
		})
		if err != nil {
			rt.Fatalf("seed %d: %v", seed, err)
		}
	})
	if parkings.Load() < 50 || reopenings.Load() < 50 {
		t.Errorf("%d parkings and %d reopenings: the test has not tested", parkings.Load(), reopenings.Load())
	}
}

// counting counts what the log says.
type counting struct{ parked, reopened atomic.Int64 }

func (c *counting) Run(_ *zerolog.Event, _ zerolog.Level, msg string) {
	switch {
	case len(msg) > 6 && msg[:6] == "parked":
		c.parked.Add(1)
	case len(msg) > 4 && msg[:4] == "open":
		c.reopened.Add(1)
	}
}

// simulate runs one town; also is done while rows are written.
func simulate(t *testing.T, seed uint64, parkAfter time.Duration, also ...func(*town, *Engine)) (parked, reopened int64, err error) {
	random := rand.New(rand.NewPCG(seed, 1))
	w := newTown(random)
	inflight := []int64{20, 100, 1000}[random.IntN(3)]
	batch := []int{3, 20, 200}[random.IntN(3)]
	keys, rows, pace := 2+random.IntN(8), 10+random.IntN(70), []time.Duration{2, 20, 100}[random.IntN(3)]*time.Millisecond
	troubles := 1 + random.IntN(4)
	log := &counting{}
	var sweeper *fallback.Sweeper
	e := New(Config{
		Source: w, Router: w, Sink: w, Rows: w, Ledger: w, Checkpoints: w, Fences: w,
		TokenPrefix: "me", InflightMax: inflight, InflightBytesMax: 1 << 20, SendBatchMax: 8, SendBatchBytesMax: 1 << 20,
		CheckpointInterval: 5 * time.Millisecond, DrainTimeout: 5 * time.Second, Lease: time.Minute, MaxAttempts: 5,
		ParkAfter: parkAfter, SourceLagMax: 10 * time.Second, Grace: time.Second,
		Hooks:  Hooks{Recovered: func(string) { sweeper.Trigger() }},
		Logger: zerolog.New(nil).Hook(log),
	})
	sweeper, w.verify = w.sweeper(e, batch), e.Verify
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var runErr error
	running.Go(func() { runErr = e.Run(ctx, "") })
	running.Go(func() { sweeper.Run(ctx) })

	topics := []string{"a", "b", "c"}
	var writing sync.WaitGroup
	for i := range keys {
		writing.Go(func() { w.write(fmt.Sprintf("k%d", i), topics[i%len(topics)], rows, pace) })
	}
	for range 2 {
		writing.Go(func() {
			for range troubles {
				w.misfortune(topics)
			}
		})
	}
	for _, do := range also {
		writing.Go(func() { do(w, e) })
	}
	writing.Wait()
	for deadline := time.Now().Add(10 * time.Minute); !(w.settled() && len(e.Usage().Parked) == 0) && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
	use := e.Usage()
	cancel()
	running.Wait()
	err = errors.Join(runErr, w.audit())
	if use.Events != 0 || use.Bytes != 0 || len(use.Parked) != 0 || len(use.Failing) != 0 || e.heldEvents != 0 || e.heldBytes != 0 {
		err = errors.Join(err, fmt.Errorf("left at the end: %+v, held %d events, %d bytes", use, e.heldEvents, e.heldBytes))
	}
	for _, topic := range e.topics {
		for _, l := range topic.lanes {
			if l.events != 0 || l.bytes != 0 {
				err = errors.Join(err, fmt.Errorf("lane %s counts %d events and %d bytes", l.name, l.events, l.bytes))
			}
		}
	}
	return log.parked.Load(), log.reopened.Load(), err
}
