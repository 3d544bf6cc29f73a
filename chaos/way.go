package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// way is a connection between rowferry and a server, on which things go wrong.
//
// Its proxy has one toxic in each direction for all of its life, whose behaviour changes:
// to add and remove toxics while data flow, toxiproxy stops each link and waits for it, and
// waits forever where a frozen server takes nothing more.
type way struct {
	name    string
	proxy   *toxiproxy.Proxy
	corrupt string // the directions in which damage is sure to be noticed: both, down, or none
	mood    *mood
}

// newWay listens on an address and passes connections on.
func newWay(name, listen, upstream, corrupt string) (*way, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	w := &way{name: name, corrupt: corrupt, proxy: toxiproxy.NewProxy(server, name, listen, upstream), mood: &mood{}}
	id := moods.add(w.mood)
	for _, direction := range []string{"upstream", "downstream"} {
		text := fmt.Sprintf(`{"name": %q, "type": "fickle", "stream": %q, "toxicity": 1, "attributes": {"mood": %d, "up": %t}}`,
			direction, direction, id, direction == "upstream")
		if _, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
			return nil, fmt.Errorf("preparing the way to %s: %w", name, err)
		}
	}
	if err := w.open(); err != nil {
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
func (w *way) slow(n int) {
	if n%2 == 0 {
		w.mood.set(behaviour{delayMillis: 50 + n%800})
	} else {
		w.mood.set(behaviour{bytesPerSecond: (5 + n%200) << 10})
	}
}

// swallow leaves connections open, and what is sent on them arrives nowhere: in one
// direction or in both.
func (w *way) swallow(n int) {
	w.mood.set(behaviour{swallowUp: n%3 != 2, swallowDown: n%3 != 1})
}

// damage overwrites bytes of what is sent.
func (w *way) damage() {
	w.mood.set(behaviour{damageUp: w.corrupt == "both", damageDown: true})
}

// heal makes the way a good one again. Connections that miss something are cut; those
// that were slow or damaged go on, if both sides still want them.
func (w *way) heal() error {
	before := w.mood.set(behaviour{})
	if w.proxy.Enabled && !before.swallowUp && !before.swallowDown {
		return nil
	}
	w.proxy.Stop()
	return w.open()
}

// open listens. Whoever looks for a free port may hold this one for a moment.
func (w *way) open() error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := w.proxy.Start()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		pause(context.Background(), 50*time.Millisecond)
	}
}
