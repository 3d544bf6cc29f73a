package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Sink sends batches to RocketMQ. Use New. Its methods may be called by any
// number of goroutines, but for one lane only one Send may run at a time: the
// broker stores side by side what arrives side by side.
type Sink struct {
	config    Config
	directory *directory
	log       zerolog.Logger

	mu      sync.RWMutex
	topics  map[string]*topic
	brokers map[string]*broker
	closed  bool

	resolving sync.Mutex // one topic at a time
	buffers   sync.Pool  // *[]byte, for batches
}

// New returns a sink. It does not connect: a name server that is away shows in
// Lanes and Ping. The error joins every mistake of the configuration.
func New(c Config) (*Sink, error) {
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	if err := prepareProcess(c.TLS, c.Logger); err != nil {
		return nil, err
	}
	if c.TLS {
		c.Logger.Warn().Msg("connections to RocketMQ are encrypted, but the client library cannot verify whom it talks to; anybody in between can read and change them")
	}
	return &Sink{
		config:    c,
		directory: &directory{remoting: remoting{c.AccessKey, c.SecretKey, c.TLS}, servers: c.NameServers},
		log:       c.Logger,
		topics:    map[string]*topic{},
		brokers:   map[string]*broker{},
		buffers:   sync.Pool{New: func() any { return new([]byte) }},
	}, nil
}

// Lanes returns the number of lanes of a topic, which are its frozen queues.
// After the first success the answer comes from memory. Errors are
// [*outbox.SendError]: topic_missing, topic_read_only, queue_vanished and
// topic_not_created of class Configuration, nameserver_unreachable,
// broker_unreachable and topic_store of class Transient, among others.
func (s *Sink) Lanes(ctx context.Context, name string) (int, error) {
	if t := s.known(name); t != nil {
		return len(t.lanes), nil
	}
	s.resolving.Lock()
	defer s.resolving.Unlock()
	if t := s.known(name); t != nil {
		return len(t.lanes), nil
	}
	t, err := s.resolve(ctx, name)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.topics[name] = t
	s.mu.Unlock()
	s.log.Info().Str("topic", name).Int("queues", len(t.lanes)).Strs("brokers", t.brokers()).Msg("topic resolved")
	return len(t.lanes), nil
}

func (s *Sink) known(name string) *topic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.topics[name]
}

// resolve finds the lanes of a topic, freezes them if they are new, and lets
// every producer learn the route before lanes use it side by side.
func (s *Sink) resolve(ctx context.Context, name string) (*topic, error) {
	if err := checkTopic(name); err != nil {
		return nil, err
	}
	r, err := s.routeOrCreate(ctx, name)
	if err != nil {
		return nil, err
	}
	queues, err := s.frozen(ctx, name, r)
	if err != nil {
		return nil, err
	}
	t, err := newTopic(name, queues)
	if err != nil {
		return nil, err
	}
	if err := t.vanished(ctx, r, s.directory.masters); err != nil {
		return nil, err
	}
	for _, b := range t.brokers() {
		if err := s.prime(b, name); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (s *Sink) routeOrCreate(ctx context.Context, name string) (*route, error) {
	r, err := s.directory.route(ctx, name)
	if !errors.Is(err, errTopicMissing) || !s.config.CreateTopics {
		return r, err
	}
	if err := s.directory.create(ctx, name, s.config.TopicQueues); err != nil {
		return nil, err
	}
	s.log.Info().Str("topic", name).Int("queues_per_broker", s.config.TopicQueues).Msg("topic created")
	return s.directory.route(ctx, name) // a broker tells the name servers before it answers
}

// frozen returns the queue list that holds for the topic: the stored one, else
// the live one, stored. What another process stored in between wins.
func (s *Sink) frozen(ctx context.Context, name string, r *route) ([]string, error) {
	if s.config.Topics == nil {
		return r.writableQueues(name)
	}
	queues, err := s.config.Topics.LoadTopic(ctx, name)
	if err == nil && len(queues) == 0 {
		live, liveErr := r.writableQueues(name)
		if liveErr != nil {
			return nil, liveErr
		}
		if err = s.config.Topics.SaveTopic(ctx, name, live); err == nil {
			queues, err = s.config.Topics.LoadTopic(ctx, name)
		}
		if err == nil && len(queues) == 0 {
			err = errors.New("the list was not kept")
		}
	}
	if err != nil {
		return nil, transient("topic_store", fmt.Errorf("frozen queues of topic %s: %w", name, err), "")
	}
	return queues, nil
}

func (s *Sink) prime(brokerName, topic string) error {
	b, err := s.broker(brokerName)
	if err != nil {
		return err
	}
	if err := b.prime(topic); err != nil {
		return noMessage(s.judge(err, 0))
	}
	return nil
}

func (s *Sink) broker(name string) (*broker, error) {
	s.mu.RLock()
	b, closed := s.brokers[name], s.closed
	s.mu.RUnlock()
	if closed {
		return nil, errSinkClosed
	}
	if b != nil {
		return b, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errSinkClosed
	}
	if s.brokers[name] == nil {
		s.brokers[name] = newBroker(name, buildProducer(&s.config), s.log)
	}
	return s.brokers[name], nil
}

// Check refuses a message that no broker would take: topic, body, properties or
// the sum of it. Call it before the message enters a lane, where it would hold
// up its neighbours.
func (s *Sink) Check(m *outbox.Message) error {
	if err := checkTopic(m.Topic); err != nil {
		return err
	}
	return checkWire(m, s.config.MessageBytesMax, seqBytesMax)
}

// Send sends msgs, in their order, to one lane of a topic, as one request. It
// returns nil when all of them are stored, and else an [*outbox.SendError]. After
// Refused none is stored; after Transient all or none may be; a batch that is
// refused or not understood should be taken apart and sent again in order.
//
// ctx is looked at before the request only. A request on its way is waited for,
// up to SendTimeout, because to give it up would close the connection under the
// other lanes.
func (s *Sink) Send(ctx context.Context, name string, lane int, msgs []*outbox.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return transient("cancelled", err, "")
	}
	if _, err := s.Lanes(ctx, name); err != nil {
		return err
	}
	t := s.known(name)
	if t == nil || lane < 0 || lane >= len(t.lanes) {
		return transient("lane_unknown", fmt.Errorf("topic %s has no lane %d now", name, lane), "")
	}
	return s.sendTo(ctx, &t.lanes[lane], msgs)
}

func (s *Sink) sendTo(ctx context.Context, queue *primitive.MessageQueue, msgs []*outbox.Message) error {
	b, err := s.broker(queue.BrokerName)
	if err != nil {
		return err
	}
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf) // nothing of the library reads the body after SendSync
	if *buf, err = encodeBatch(*buf, msgs, s.config.MessageBytesMax, time.Now()); err != nil {
		return err
	}
	// Batch makes the library send the body as it is, also for one message: a
	// single would have other limits, other error codes and no empty body.
	result, err := b.send(&primitive.Message{Topic: queue.Topic, Queue: queue, Body: *buf, Batch: true})
	switch {
	case err != nil:
		return s.explain(ctx, s.judge(err, len(msgs)), b, queue)
	case result == nil:
		return transient("send_timeout", errors.New("neither an answer nor an error"), "")
	case result.Status == primitive.SendOK, s.config.NonOK == "accept" && storedOnce(result.Status):
		return nil
	}
	return notStoredSafely(result.Status)
}

// storedOnce reports whether the broker said that it has the batch.
func storedOnce(status primitive.SendStatus) bool {
	return slices.Contains([]primitive.SendStatus{primitive.SendFlushDiskTimeout, primitive.SendFlushSlaveTimeout, primitive.SendSlaveNotAvailable}, status)
}

// judge classifies what is not classified yet.
func (s *Sink) judge(err error, n int) *outbox.SendError {
	var se *outbox.SendError
	if errors.As(err, &se) {
		return se
	}
	return classify(err, n)
}

// explain names the topic where the broker did not, and looks behind two answers
// of the library that have several causes.
func (s *Sink) explain(ctx context.Context, e *outbox.SendError, b *broker, queue *primitive.MessageQueue) error {
	switch {
	case e.Reason == "topic_missing":
		e.Hint = topicMissing(queue.Topic).Hint
	case e.Reason == "queue_vanished":
		e.Hint = refreezeHint + " " + queue.Topic
	case e.Reason == "send_timeout" && !b.answered.Load():
		e.Hint = "this broker has never answered; a broker that insists on TLS does not answer plain connections (ROWFERRY_ROCKETMQ_TLS)"
	case e.Err != nil && strings.Contains(e.Err.Error(), "route info not found"):
		if cause := s.routeProblem(ctx, queue); cause != nil {
			return cause
		}
	}
	return e
}

// routeProblem asks the name servers why the library finds no way to a queue;
// nil: they see no reason.
func (s *Sink) routeProblem(ctx context.Context, queue *primitive.MessageQueue) error {
	r, err := s.directory.route(ctx, queue.Topic)
	if err != nil {
		return err
	}
	t := &topic{name: queue.Topic, lanes: []primitive.MessageQueue{*queue}}
	if err := t.vanished(ctx, r, s.directory.masters); err != nil {
		return err
	}
	if !slices.ContainsFunc(r.Queues, routeQueues.writable) {
		return readOnly(queue.Topic)
	}
	if r.master(queue.BrokerName) == "" {
		return transient("broker_unreachable", fmt.Errorf("the name servers know no master of broker %s", queue.BrokerName),
			"start it again; if it is gone for good: rowferry topics refreeze "+queue.Topic)
	}
	return nil
}

// Ping reports whether a name server answers.
func (s *Sink) Ping(ctx context.Context) error {
	_, err := s.directory.ask(ctx, reqClusterInfo, nil)
	return err
}

// Close ends all producers. It waits for sends in flight, at most SendTimeout;
// later sends fail with sink_closed.
func (s *Sink) Close() error {
	s.mu.Lock()
	s.closed = true
	brokers := s.brokers
	s.brokers = nil
	s.mu.Unlock()
	for _, b := range brokers {
		b.close()
	}
	return nil
}
