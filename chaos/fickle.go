package main

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// behaviour is how a way treats what goes over it; the zero value is a good way.
type behaviour struct {
	swallowUp, swallowDown bool
	damageUp, damageDown   bool
	delayMillis            int
	bytesPerSecond         int // 0: as many as come
}

// mood is the behaviour of one way, changed while data flow.
type mood struct{ now atomic.Pointer[behaviour] }

// set returns the behaviour before.
func (m *mood) set(b behaviour) behaviour {
	if before := m.now.Swap(&b); before != nil {
		return *before
	}
	return behaviour{}
}

func (m *mood) get() behaviour {
	if b := m.now.Load(); b != nil {
		return *b
	}
	return behaviour{}
}

// moodList gives moods numbers, since a toxic is made from JSON.
type moodList struct {
	mu  sync.Mutex
	all []*mood
}

var moods moodList

func (l *moodList) add(m *mood) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, m)
	return len(l.all) - 1
}

func (l *moodList) get(n int) *mood {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[n]
}

// fickle is the toxic of one direction of a way.
type fickle struct {
	Mood int  `json:"mood"`
	Up   bool `json:"up"`
}

// damageOneIn is how many chunks there are to one that is damaged.
const damageOneIn = 4

// Pipe implements toxics.Toxic.
func (f *fickle) Pipe(stub *toxics.ToxicStub) {
	m := moods.get(f.Mood)
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			b := m.get()
			if f.Up && b.swallowUp || !f.Up && b.swallowDown {
				continue
			}
			if (f.Up && b.damageUp || !f.Up && b.damageDown) && rand.IntN(damageOneIn) == 0 {
				spoil(c.Data, rand.IntN(max(1, len(c.Data))))
			}
			linger(b, c)
			stub.Output <- c
		}
	}
}

// linger waits as long as a chunk takes on a slow way.
func linger(b behaviour, c *stream.StreamChunk) {
	var d time.Duration
	if b.delayMillis > 0 {
		d = time.Duration(b.delayMillis)*time.Millisecond - time.Since(c.Timestamp)
	}
	if b.bytesPerSecond > 0 {
		d += time.Duration(len(c.Data)) * time.Second / time.Duration(b.bytesPerSecond)
	}
	if d > 0 {
		<-time.After(d)
	}
}

// spoil overwrites up to 24 bytes from a place on, with bytes that no protocol here takes
// for something else: neither text, nor JSON, nor a length that is possible.
func spoil(data []byte, from int) {
	for i := from; i < min(len(data), from+24); i++ {
		data[i] = 0xff
	}
}

func init() {
	toxics.Register("fickle", new(fickle))
	zerolog.SetGlobalLevel(zerolog.Disabled) // the proxy's own log has no other switch
}
