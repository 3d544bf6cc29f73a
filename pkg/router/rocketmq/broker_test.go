package rocketmq

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mqerrors "github.com/apache/rocketmq-client-go/v2/errors"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// fakeProducer does what the library does with a pin and a route.
type fakeProducer struct {
	pin      *pin
	routes   bool // whether the name servers know the topic
	answer   func() error
	mu       sync.Mutex
	sending  int
	probes   int
	shutdown bool
	misused  bool // shut down under a send
}

func (f *fakeProducer) Start() error { return nil }

func (f *fakeProducer) Shutdown() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shutdown = true
	f.misused = f.misused || f.sending > 0
	return nil
}

func (f *fakeProducer) SendSync(_ context.Context, msgs ...*primitive.Message) (*primitive.SendResult, error) {
	if f.routes {
		f.pin.Select(msgs[0], nil, "")
	}
	if msgs[0].Queue == nil {
		f.mu.Lock()
		f.probes++
		f.mu.Unlock()
		return nil, errors.New("the topic=t route info not found")
	}
	f.enter(1)
	defer f.enter(-1)
	if err := f.answer(); err != nil {
		return nil, err
	}
	return &primitive.SendResult{Status: primitive.SendOK}, nil
}

func (f *fakeProducer) enter(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sending += n
}

// fakeBroker returns a broker whose producers come from the list, in order.
func fakeBroker(producers ...*fakeProducer) *broker {
	built := 0
	return newBroker("a", func() (libraryProducer, *pin, error) {
		p := producers[built]
		p.pin = &pin{}
		built++
		return p, p.pin, nil
	}, zerolog.Nop())
}

var pinned = &primitive.Message{Topic: "t", Queue: &primitive.MessageQueue{Topic: "t", BrokerName: "a"}}

func ok() error { return nil }

func timeout() error { return mqerrors.ErrRequestTimeout }

func TestRouteIsLookedUpOnceBeforeTheFirstSends(t *testing.T) {
	p := &fakeProducer{routes: true, answer: ok}
	b := fakeBroker(p)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := b.send(pinned); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if p.probes != 1 {
		t.Errorf("%d look-ups", p.probes)
	}
}

// TestSendsRunSideBySide: each send waits until all lanes have one in flight.
func TestSendsRunSideBySide(t *testing.T) {
	const lanes = 8
	var inFlight sync.WaitGroup
	inFlight.Add(lanes)
	b := fakeBroker(&fakeProducer{routes: true, answer: func() error { inFlight.Done(); inFlight.Wait(); return nil }})
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			if _, err := b.send(pinned); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestUnknownRouteIsAnErrorAndAskedAgain(t *testing.T) {
	p := &fakeProducer{answer: ok}
	b := fakeBroker(p)
	if _, err := b.send(pinned); err == nil || !strings.Contains(err.Error(), "route info not found") {
		t.Errorf("got %v", err)
	}
	p.routes = true
	if _, err := b.send(pinned); err != nil {
		t.Error(err)
	}
}

// failFor sends until the broker has failed for d.
func failFor(t *testing.T, b *broker, d time.Duration) {
	t.Helper()
	for start := time.Now(); time.Since(start) <= d; time.Sleep(5 * time.Second) {
		if _, err := b.send(pinned); err == nil {
			t.Fatal("the broker works")
		}
	}
}

func TestRebuildAfterLongFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &fakeProducer{routes: true, answer: timeout}
		second := &fakeProducer{routes: true, answer: ok}
		b := fakeBroker(first, second)
		failFor(t, b, rebuildAfter-5*time.Second)
		if first.shutdown {
			t.Fatal("rebuilt too early")
		}
		failFor(t, b, 0)
		if !first.shutdown || second.probes != 1 {
			t.Errorf("not rebuilt: shut down %t, %d look-ups by the new one", first.shutdown, second.probes)
		}
		if _, err := b.send(pinned); err != nil {
			t.Error(err)
		}
	})
}

// TestAnswersAreNoFailure: a broker that refuses is there, and a new producer
// would not change its mind.
func TestAnswersAreNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProducer{routes: true, answer: func() error { return errors.New("CODE: 2, DESC: busy") }}
		failFor(t, fakeBroker(p), 3*rebuildAfter)
		if p.shutdown {
			t.Error("the producer was rebuilt")
		}
	})
}

// TestRebuildKeepsARouteThatCannotBeFoundAgain: with the name servers away, the
// old producer is the only one that knows where the broker is.
func TestRebuildKeepsARouteThatCannotBeFoundAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		working := false
		first := &fakeProducer{routes: true, answer: func() error {
			if working {
				return nil
			}
			return mqerrors.ErrRequestTimeout
		}}
		second := &fakeProducer{routes: false, answer: ok}
		b := fakeBroker(first, second)
		failFor(t, b, rebuildAfter)
		working = true
		if _, err := b.send(pinned); err != nil || first.shutdown || !second.shutdown {
			t.Errorf("%v; first shut down %t, second %t", err, first.shutdown, second.shutdown)
		}
	})
}

func TestRebuildAfterALibraryPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &fakeProducer{routes: true, answer: ok}, &fakeProducer{routes: true, answer: ok}
		b := fakeBroker(first, second)
		for range 2 {
			if _, err := b.send(pinned); err != nil {
				t.Fatal(err)
			}
			panics.Add(1) // a storm of them rebuilds once
		}
		if _, err := b.send(pinned); err != nil || !first.shutdown || second.shutdown {
			t.Errorf("%v; first shut down %t, second %t", err, first.shutdown, second.shutdown)
		}
	})
}

// gate lets one send wait until the test opens it.
type gate struct{ entered, open chan struct{} }

func newGate() gate { return gate{make(chan struct{}), make(chan struct{})} }

func (g gate) pass() {
	close(g.entered)
	<-g.open
}

// awaitWriter returns when somebody waits for the broker's lock for writing:
// from then on no reader gets it.
func awaitWriter(t *testing.T, b *broker) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); b.mu.TryRLock(); {
		b.mu.RUnlock()
		if time.Now().After(deadline) {
			t.Fatal("nobody waits for the sends in flight")
		}
		runtime.Gosched()
	}
}

func TestRebuildWaitsForSends(t *testing.T) {
	hanging, g := true, newGate()
	first := &fakeProducer{routes: true, answer: func() error {
		if hanging {
			hanging = false
			g.pass()
		}
		return mqerrors.ErrRequestTimeout
	}}
	b := fakeBroker(first, &fakeProducer{routes: true, answer: ok})
	var wg sync.WaitGroup
	failing := func() {
		if _, err := b.send(pinned); err == nil {
			t.Error("a send by the broken producer succeeded")
		}
	}
	wg.Go(failing)
	<-g.entered
	failing()
	later := time.Now().Add(rebuildAfter)
	b.now = func() time.Time { return later }
	wg.Go(failing) // its failure is one too many
	awaitWriter(t, b)
	close(g.open)
	wg.Wait()
	if !first.shutdown || first.misused {
		t.Errorf("shut down %t, under a send %t", first.shutdown, first.misused)
	}
	if _, err := b.send(pinned); err != nil {
		t.Error(err)
	}
}

func TestCloseWaitsForSends(t *testing.T) {
	g := newGate()
	p := &fakeProducer{routes: true, answer: func() error { g.pass(); return nil }}
	b := fakeBroker(p)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := b.send(pinned); err != nil {
			t.Errorf("the send in flight: %v", err)
		}
	})
	<-g.entered
	wg.Go(b.close)
	awaitWriter(t, b)
	close(g.open)
	wg.Wait()
	if !p.shutdown || p.misused {
		t.Errorf("shut down %t, under a send %t", p.shutdown, p.misused)
	}
	_, err := b.send(pinned)
	wantError(t, err, outbox.Transient, "sink_closed")
}

func TestLibraryLogIsQuiet(t *testing.T) {
	var out bytes.Buffer
	at := time.Unix(0, 0)
	l := &libraryLog{log: zerolog.New(&out).Level(zerolog.InfoLevel), last: map[string]*logged{}, now: func() time.Time { return at }}
	for range 1000 {
		l.Error("conn error", map[string]interface{}{"addr": "x", "underlayError": errors.New("broken"), "shared": map[string]int{}})
		l.Warning("only for debugging", nil)
		l.Info("only for debugging", nil)
	}
	at = at.Add(logInterval)
	l.Error("conn error", nil)
	l.Fatal("does not end the process", nil)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], `"suppressed":999`) || strings.Contains(out.String(), "shared") ||
		!strings.Contains(lines[0], `"level":"warn"`) || !strings.Contains(lines[2], `"level":"error"`) {
		t.Errorf("got %s", out.String())
	}
}

func TestConfigReportsEveryMistake(t *testing.T) {
	_, err := New(Config{NameServers: []string{"mq", "mq:9876", ":1"}, Group: "a.b", AccessKey: "x", NonOK: "maybe", SendTimeout: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`"mq" is not`, `":1"`, "ROCKETMQ_GROUP", "SECRET_KEY", "NON_OK", "SEND_TIMEOUT"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), `"mq:9876"`) {
		t.Errorf("a good server is reported:\n%v", err)
	}
	if _, err := New(Config{Group: "g"}); err == nil || !strings.Contains(err.Error(), "names no name server") {
		t.Errorf("without name servers: %v", err)
	}
}

// TestOneTLSSwitchForTheProcess: the library would silently give the last value
// to every connection.
func TestOneTLSSwitchForTheProcess(t *testing.T) {
	plain := Config{NameServers: []string{"127.0.0.1:1"}, Group: "g", Logger: zerolog.Nop()}
	if _, err := New(plain); err != nil {
		t.Fatal(err)
	}
	plain.TLS = true
	if _, err := New(plain); err == nil || !strings.Contains(err.Error(), "ROWFERRY_ROCKETMQ_TLS") {
		t.Errorf("got %v", err)
	}
}
