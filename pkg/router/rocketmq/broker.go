package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// libraryProducer is what is used of the library's producer.
type libraryProducer interface {
	Start() error
	Shutdown() error
	SendSync(ctx context.Context, msgs ...*primitive.Message) (*primitive.SendResult, error)
}

// rebuildAfter is how long a broker must fail before its producer is replaced:
// longer than the library's own refresh of routes (30 s) takes to mend things.
const rebuildAfter = 45 * time.Second

// broker holds the producer of one broker, and replaces it when it stays broken.
type broker struct {
	name  string
	build func() (libraryProducer, *pin, error)
	log   zerolog.Logger
	now   func() time.Time

	// mu is held for reading during a send and for writing while the producer is
	// exchanged or shut down: the library does not drain, and to shut it down
	// under a send is a data race. TestRebuildWaitsForSends shows it.
	mu     sync.RWMutex
	client *client
	closed bool

	priming sync.Mutex // one look-up of a route at a time

	healthMu  sync.Mutex
	failing   time.Time // since when nothing got through; zero: all is well
	rebuiltAt time.Time
	answered  atomic.Bool // the broker has answered a send, whatever it said
}

// client is a producer with what it knows.
type client struct {
	libraryProducer
	pin    *pin
	panics int64 // panics of the library before it was built
}

// pin sends a message to the queue that it names, and notes which topics'
// routes the producer knows: the library calls it only when it has the route.
type pin struct{ topics sync.Map }

// Select implements producer.QueueSelector.
func (p *pin) Select(m *primitive.Message, _ []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	if m.Queue == nil {
		p.topics.Store(m.Topic, true) // a probe: nothing is sent
	}
	return m.Queue
}

func (p *pin) knows(topic string) bool {
	_, ok := p.topics.Load(topic)
	return ok
}

func newBroker(name string, build func() (libraryProducer, *pin, error), log zerolog.Logger) *broker {
	return &broker{name: name, build: build, log: log.With().Str("broker", name).Logger(), now: time.Now}
}

// open builds the first producer, if there is none.
func (b *broker) open() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errSinkClosed
	}
	if b.client != nil {
		return nil
	}
	c, err := b.start()
	b.client = c
	return err
}

func (b *broker) start() (*client, error) {
	seen := panics.Load()
	p, pin, err := b.build()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		return nil, transient("producer_not_started", fmt.Errorf("starting the producer for broker %s: %w", b.name, err), "")
	}
	return &client{libraryProducer: p, pin: pin, panics: seen}, nil
}

var errSinkClosed = &outbox.SendError{Class: outbox.Transient, Reason: "sink_closed"}

// acquire returns the producer with b.mu held for reading; the caller unlocks.
// The lock is taken for writing only when there is no producer yet: a writer
// waits for every send in flight.
func (b *broker) acquire() (*client, error) {
	for {
		b.mu.RLock()
		if b.client != nil {
			return b.client, nil
		}
		b.mu.RUnlock()
		if err := b.open(); err != nil {
			return nil, err
		}
	}
}

// send sends one encoded batch. It keeps to a context that never expires: the
// library answers an expired deadline by closing the connection under every
// other lane, and a cancelled one by sending again.
func (b *broker) send(m *primitive.Message) (*primitive.SendResult, error) {
	c, result, err := b.sendOnce(m)
	if c != nil && b.note(c, err) {
		b.rebuild()
	}
	return result, err
}

func (b *broker) sendOnce(m *primitive.Message) (*client, *primitive.SendResult, error) {
	c, err := b.acquire()
	if err != nil {
		return nil, nil, err
	}
	defer b.mu.RUnlock()
	if err := b.primeClient(c, m.Topic); err != nil {
		return c, nil, err
	}
	result, err := c.SendSync(context.Background(), m)
	return c, result, err
}

// prime makes the producer look up the route of a topic before the first send.
func (b *broker) prime(topic string) error {
	c, err := b.acquire()
	if err != nil {
		return err
	}
	defer b.mu.RUnlock()
	return b.primeClient(c, topic)
}

// primeClient looks up a route once, however many lanes ask. Side by side their
// first sends would fail: the library publishes the queues of a route before the
// addresses of its brokers.
func (b *broker) primeClient(c *client, topic string) error {
	if c.pin.knows(topic) {
		return nil
	}
	b.priming.Lock()
	defer b.priming.Unlock()
	return c.prime(topic)
}

// prime sends a probe for which the selector names no queue, so that nothing
// leaves: the error is expected, what counts is whether the route became known.
func (c *client) prime(topic string) error {
	if c.pin.knows(topic) {
		return nil
	}
	_, err := c.SendSync(context.Background(), primitive.NewMessage(topic, []byte("probe")))
	if c.pin.knows(topic) {
		return nil
	}
	if err == nil {
		err = errors.New("the probe was answered")
	}
	return fmt.Errorf("looking up topic %s: %w", topic, err)
}

// note keeps count of failures and reports whether the producer is to be rebuilt.
// An answer of the broker, whatever it says, shows that the way to it is open.
func (b *broker) note(c *client, err error) bool {
	b.healthMu.Lock()
	defer b.healthMu.Unlock()
	now := b.now()
	if c.panics != panics.Load() && now.Sub(b.rebuiltAt) >= rebuildAfter {
		b.rebuiltAt = now
		return true
	}
	if err == nil || codeText.MatchString(err.Error()) {
		b.failing = time.Time{}
		b.answered.Store(true)
		return false
	}
	if b.failing.IsZero() {
		b.failing = now
	}
	if now.Sub(b.failing) < rebuildAfter {
		return false
	}
	b.failing, b.rebuiltAt = now, now
	return true
}

// rebuild replaces the producer by one that knows the same topics. If they
// cannot be looked up the old one stays: it still has its routes.
func (b *broker) rebuild() {
	b.mu.RLock()
	old := b.client
	b.mu.RUnlock()
	if old == nil {
		return // closed
	}
	fresh, err := b.start()
	if err != nil {
		b.log.Warn().Err(err).Msg("the producer of a failing broker could not be rebuilt")
		return
	}
	if err := fresh.primeLike(old); err != nil {
		b.log.Warn().Err(err).Msg("the producer of a failing broker could not be rebuilt")
		b.shutdown(fresh)
		return
	}
	if b.exchange(old, fresh) {
		b.log.Warn().Msg("the producer of a failing broker was rebuilt")
		b.shutdown(old)
	} else {
		b.shutdown(fresh)
	}
}

// primeLike looks up every topic that old knows.
func (c *client) primeLike(old *client) error {
	var err error
	old.pin.topics.Range(func(topic, _ any) bool {
		err = c.prime(topic.(string))
		return err == nil
	})
	return err
}

// exchange puts fresh in the place of old, unless old is not in place any more.
// When it returns true no send uses old.
func (b *broker) exchange(old, fresh *client) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.client != old {
		return false
	}
	b.client = fresh
	return true
}

// shutdown ends a producer that no send uses any more.
func (b *broker) shutdown(c *client) {
	if err := c.Shutdown(); err != nil {
		b.log.Warn().Err(err).Msg("shutting a producer down")
	}
}

// close waits for the sends in flight and ends the producer.
func (b *broker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.client != nil {
		b.shutdown(b.client)
		b.client = nil
	}
}

// instances numbers the producers of the process: those with equal instance
// names would share connections, credentials and their end.
var instances atomic.Int64

// buildProducer returns a function that builds producers for one broker.
func buildProducer(c *Config) func() (libraryProducer, *pin, error) {
	return func() (libraryProducer, *pin, error) {
		pin := &pin{}
		p, err := newLibraryProducer(
			producer.WithNsResolver(resolver(c.NameServers)),
			producer.WithGroupName(c.Group),
			producer.WithInstanceName(fmt.Sprintf("rowferry-%x-%d", processSalt, instances.Add(1))),
			producer.WithQueueSelector(pin),
			producer.WithRetry(0), // its retries are blind and immediate; the engine has better ones
			producer.WithSendMsgTimeout(c.SendTimeout),
			producer.WithCreateTopicKey(""),
			producer.WithCompressMsgBodyOverHowmuch(math.MaxInt32),
			producer.WithCredentials(primitive.Credentials{AccessKey: c.AccessKey, SecretKey: c.SecretKey}),
		)
		return p, pin, err
	}
}

// resolver hands host:port to the library. It refuses host names unless they
// look like a URL, whose scheme it then cuts off; so each new connection looks
// the name up, and a name server that moved is found again.
type resolver []string

// Resolve implements primitive.NsResolver with a fresh slice: the library sorts it.
func (r resolver) Resolve() []string {
	urls := make([]string, len(r))
	for i, s := range r {
		urls[i] = "http://" + s
	}
	return urls
}

// Description implements primitive.NsResolver.
func (r resolver) Description() string { return "ROWFERRY_ROCKETMQ_NAMESRV" }
