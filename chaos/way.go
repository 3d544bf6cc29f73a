package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// way is a connection between rowferry and a server, on which things go wrong.
type way struct {
	name    string
	proxy   *toxiproxy.Proxy
	corrupt string // the directions in which damage is sure to be noticed: both, down, or none
	toxics  []string
}

// newWay listens on an address and passes connections on.
func newWay(name, listen, upstream, corrupt string) (*way, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	w := &way{name: name, corrupt: corrupt, proxy: toxiproxy.NewProxy(server, name, listen, upstream)}
	if err := w.proxy.Start(); err != nil {
		return nil, fmt.Errorf("opening the way to %s: %w", name, err)
	}
	return w, nil
}

// cut ends all connections and refuses new ones.
func (w *way) cut() error {
	w.proxy.Stop()
	return nil
}

// slow delays what goes either way, or lets little of it through.
func (w *way) slow(n int) error {
	if n%2 == 0 {
		return w.add("latency", fmt.Sprintf(`{"latency": %d, "jitter": %d}`, 50+n%800, 20+n%30), "upstream", "downstream")
	}
	return w.add("bandwidth", fmt.Sprintf(`{"rate": %d}`, 40+n%200), "upstream", "downstream") // KB/s
}

// swallow leaves connections open, and what is sent on them arrives nowhere: in one
// direction or in both.
func (w *way) swallow(n int) error {
	directions := [][]string{{"upstream", "downstream"}, {"upstream"}, {"downstream"}}
	return w.add("timeout", `{"timeout": 0}`, directions[n%3]...)
}

// damage overwrites bytes of what is sent.
func (w *way) damage() error {
	directions := []string{"downstream"}
	if w.corrupt == "both" {
		directions = append(directions, "upstream")
	}
	return w.add("damage", `{"one_in": 4}`, directions...)
}

func (w *way) add(kind, attributes string, directions ...string) error {
	for _, direction := range directions {
		name := kind + "_" + direction
		text := fmt.Sprintf(`{"name": %q, "type": %q, "stream": %q, "toxicity": 1, "attributes": %s}`, name, kind, direction, attributes)
		if _, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
			return fmt.Errorf("%s on the way to %s: %w", kind, w.name, err)
		}
		w.toxics = append(w.toxics, name)
	}
	return nil
}

// heal makes the way a good one again. What was connected through the bad one is cut, as
// it also unblocks whoever still writes to it.
func (w *way) heal() error {
	w.proxy.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, name := range w.toxics {
		if err := w.proxy.Toxics.RemoveToxic(ctx, name); err != nil {
			return fmt.Errorf("healing the way to %s: %w", w.name, err)
		}
	}
	w.toxics = nil
	return w.proxy.Start()
}

// damager overwrites a stretch of one in so many chunks with bytes that no protocol here
// takes for something else: neither text, nor JSON, nor a length that is possible.
type damager struct {
	OneIn int `json:"one_in"`
}

// Pipe implements toxics.Toxic.
func (d *damager) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			if rand.IntN(max(1, d.OneIn)) == 0 {
				spoil(c.Data, rand.IntN(max(1, len(c.Data))))
			}
			stub.Output <- c
		}
	}
}

// spoil overwrites up to 24 bytes from a place on.
func spoil(data []byte, from int) {
	for i := from; i < min(len(data), from+24); i++ {
		data[i] = 0xff
	}
}

func init() {
	toxics.Register("damage", new(damager))
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxics have a logger of their own, and no switch for it
}
