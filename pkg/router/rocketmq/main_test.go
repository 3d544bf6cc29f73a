package rocketmq

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestMain(m *testing.M) { testservers.Main(m) }

// memoryTopics is a TopicStore.
type memoryTopics struct {
	mu     sync.Mutex
	lists  map[string][]string
	err    error
	saving func(topic string) // called before the first save is looked at

	replaceErr error // answer of ReplaceTopic
	loses      bool  // ReplaceTopic does nothing
}

func (s *memoryTopics) LoadTopic(_ context.Context, topic string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists[topic], s.err
}

func (s *memoryTopics) SaveTopic(_ context.Context, topic string, queues []string) error {
	if s.saving != nil {
		s.saving(topic)
	}
	s.put(topic, queues)
	return nil
}

func (s *memoryTopics) ReplaceTopic(_ context.Context, topic string, _ int, queues []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loses {
		s.lists[topic] = slices.Clone(queues)
	}
	return s.replaceErr
}

func (s *memoryTopics) put(topic string, queues []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists == nil {
		s.lists = map[string][]string{}
	}
	if s.lists[topic] == nil {
		s.lists[topic] = slices.Clone(queues)
	}
}

// newSink returns a sink for a real broker, closed when the test ends.
func newSink(t testing.TB, nameServer string, edit ...func(*Config)) *Sink {
	t.Helper()
	c := Config{NameServers: []string{nameServer}, Group: "rowferry-test", Logger: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.InfoLevel)}
	for _, f := range edit {
		f(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return s
}

// numbered makes n messages of one lane, first being the number of the first.
func numbered(topic string, lane, first, n int) []*outbox.Message {
	msgs := make([]*outbox.Message, n)
	for i := range msgs {
		id := fmt.Sprintf("%d-%d", lane, first+i)
		msgs[i] = &outbox.Message{Topic: topic, Tag: "order.created", Key: "o-" + id, Keys: []string{id, "o-" + id},
			Body: []byte(strings.Repeat("x", 500)),
			Properties: []outbox.Property{
				{Name: "outbox_uid", Value: "shop.outbox:" + id}, {Name: "outbox_id", Value: id}, {Name: "outbox_table", Value: "shop.outbox"},
				{Name: "aggregate_id", Value: "o-" + id}, {Name: "aggregate_type", Value: "order"}, {Name: "event_type", Value: "order.created"},
				{Name: "created_at", Value: "2026-03-01T12:30:00.25Z"}, {Name: "outbox_seq", Value: "1-" + id},
			}}
	}
	return msgs
}

// wantError checks class and reason, and that the text names what it should.
func wantError(t *testing.T, err error, class outbox.Class, reason string, names ...string) {
	t.Helper()
	if err == nil || outbox.ClassOf(err) != class || outbox.ReasonOf(err) != reason {
		t.Fatalf("got %v (%s), want %s %s", err, outbox.ClassOf(err), class, reason)
	}
	for _, n := range names {
		if !strings.Contains(err.Error(), n) {
			t.Errorf("%q is not named in: %v", n, err)
		}
	}
}
