// Package sinktest holds what every sink must do, as tests that each sink's
// package runs against the real thing.
package sinktest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Sink is what the engine needs of a sink.
type Sink interface {
	Lanes(ctx context.Context, topic string) (int, error)
	Check(m *outbox.Message) error
	Send(ctx context.Context, topic string, lane int, msgs []*outbox.Message) error
	Ping(ctx context.Context) error
	Close() error
}

// Got is a message as it came out at the other end.
type Got struct {
	Lane       int
	Body       []byte
	Tag, Key   string
	Keys       []string          // nil where the sink does not carry them; then they are not compared
	Properties map[string]string // without what the sink itself adds
}

// Run tests a sink. newSink returns a new one, which creates topics when it
// meets them and refuses messages above 4 MiB; read returns what a topic holds,
// in the order of each lane.
func Run(t *testing.T, newSink func(t *testing.T) Sink, read func(t *testing.T, topic string) []Got) {
	s := suite{newSink, read}
	t.Run("content", s.content)
	t.Run("one like many", s.oneLikeMany)
	t.Run("order", s.order)
	t.Run("all or nothing", s.allOrNothing)
	t.Run("refused by Check", s.check)
	t.Run("cancelled", s.cancelled)
	t.Run("close", s.close)
}

type suite struct {
	newSink func(t *testing.T) Sink
	read    func(t *testing.T, topic string) []Got
}

// open returns a sink and a topic with its number of lanes.
func (s suite) open(t *testing.T) (sink Sink, topic string, lanes int) {
	t.Helper()
	sink = s.newSink(t)
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	topic = "sinktest-" + rand.Text()
	lanes, err := sink.Lanes(t.Context(), topic)
	if err != nil || lanes < 1 {
		t.Fatalf("%d lanes, %v", lanes, err)
	}
	if err := sink.Ping(t.Context()); err != nil {
		t.Fatalf("a sink that has lanes does not answer a ping: %v", err)
	}
	return sink, topic, lanes
}

func mustSend(t *testing.T, sink Sink, topic string, lane int, msgs ...*outbox.Message) {
	t.Helper()
	for _, m := range msgs {
		if err := sink.Check(m); err != nil {
			t.Fatalf("refused: %v", err)
		}
	}
	if err := sink.Send(t.Context(), topic, lane, msgs); err != nil {
		t.Fatalf("sending %d messages: %v", len(msgs), err)
	}
}

func message(topic, id string, body []byte, more ...outbox.Property) *outbox.Message {
	return &outbox.Message{Topic: topic, Tag: "order.created", Key: "o-" + id, Keys: []string{id, "o-" + id}, Body: body,
		Properties: append([]outbox.Property{
			{Name: "outbox_uid", Value: "shop.outbox:" + id}, {Name: "outbox_id", Value: id}, {Name: "outbox_table", Value: "shop.outbox"},
			{Name: "aggregate_id", Value: "o-" + id}, {Name: "aggregate_type", Value: "order"}, {Name: "event_type", Value: "order.created"},
		}, more...)}
}

// withoutAggregate is what a table without aggregate columns gives.
func withoutAggregate(topic, id string) *outbox.Message {
	return &outbox.Message{Topic: topic, Key: id, Keys: []string{id}, Body: []byte("x"),
		Properties: []outbox.Property{{Name: "outbox_uid", Value: "s.t:" + id}, {Name: "outbox_id", Value: id}, {Name: "outbox_table", Value: "s.t"}}}
}

// samples are messages whose bytes are easily changed on the way.
func samples(topic string) []*outbox.Message {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	prop := func(name, value string) outbox.Property { return outbox.Property{Name: name, Value: value} }
	emoji := message(topic, "4-🚀", []byte(`{"name":"🚀 注文 \u0000"}`), prop("h🚀", "v🚀"), prop("quote", `a"b\c=d&<e>`))
	emoji.Tag = "注文🚀"
	return []*outbox.Message{
		message(topic, "1", []byte("x")),
		message(topic, "2", every),
		message(topic, "3", []byte("a\x01b\x02c\x00")),
		emoji,
		message(topic, "5", bytes.Repeat([]byte("payload "), 20_000), prop("long", strings.Repeat("v", 8000))),
		message(topic, "6", []byte("\xef\xbb\xbf{}"), prop("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), prop("outbox_seq", "3-17")),
		withoutAggregate(topic, "7"),
		message(topic, "8", []byte(" \n")),
	}
}

func (s suite) content(t *testing.T) {
	sink, topic, lanes := s.open(t)
	want := samples(topic)
	mustSend(t, sink, topic, lanes-1, want...)
	compare(t, s.read(t, topic), want, lanes-1)
}

// oneLikeMany sends the same messages one by one: nothing may depend on the
// number of neighbours.
func (s suite) oneLikeMany(t *testing.T) {
	sink, topic, _ := s.open(t)
	want := samples(topic)
	for _, m := range want {
		mustSend(t, sink, topic, 0, m)
	}
	compare(t, s.read(t, topic), want, 0)
	if err := sink.Send(t.Context(), topic, 0, nil); err != nil {
		t.Errorf("sending nothing: %v", err)
	}
}

func compare(t *testing.T, got []Got, want []*outbox.Message, lane int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d messages arrived, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		properties := map[string]string{}
		for _, p := range w.Properties {
			properties[p.Name] = p.Value
		}
		if !bytes.Equal(g.Body, w.Body) {
			t.Errorf("message %d: body %.80q, want %.80q", i, g.Body, w.Body)
		}
		if g.Tag != w.Tag || g.Key != w.Key || g.Lane != lane {
			t.Errorf("message %d: tag %q key %q lane %d, want %q %q %d", i, g.Tag, g.Key, g.Lane, w.Tag, w.Key, lane)
		}
		if g.Keys != nil && !slices.Equal(g.Keys, w.Keys) {
			t.Errorf("message %d: keys %q, want %q", i, g.Keys, w.Keys)
		}
		if !maps.Equal(g.Properties, properties) {
			t.Errorf("message %d: properties %q, want %q", i, g.Properties, properties)
		}
	}
}

// order sends to all lanes side by side, in batches of changing size.
func (s suite) order(t *testing.T) {
	const perLane = 1000
	sink, topic, lanes := s.open(t)
	var g errgroup.Group
	for lane := range lanes {
		g.Go(func() error {
			for sent, size := 0, 1; sent < perLane; size = size%97 + 13 {
				var batch []*outbox.Message
				for ; len(batch) < size && sent < perLane; sent++ {
					batch = append(batch, message(topic, fmt.Sprintf("%d-%d", lane, sent), []byte("x")))
				}
				if err := sink.Send(t.Context(), topic, lane, batch); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	next := make([]int, lanes)
	for _, got := range s.read(t, topic) {
		if want := fmt.Sprintf("%d-%d", got.Lane, next[got.Lane]); got.Properties["outbox_id"] != want {
			t.Fatalf("lane %d: %s arrived, want %s", got.Lane, got.Properties["outbox_id"], want)
		}
		next[got.Lane]++
	}
	for lane, n := range next {
		if n != perLane {
			t.Errorf("lane %d: %d messages arrived, want %d", lane, n, perLane)
		}
	}
}

func tooLarge(topic string) *outbox.Message { return message(topic, "big", make([]byte, 5<<20)) }

func (s suite) allOrNothing(t *testing.T) {
	sink, topic, _ := s.open(t)
	err := sink.Send(t.Context(), topic, 0, []*outbox.Message{message(topic, "1", []byte("x")), tooLarge(topic), message(topic, "3", []byte("x"))})
	if outbox.ClassOf(err) != outbox.Refused {
		t.Errorf("a batch with a message that is too large: %v", err)
	}
	if got := s.read(t, topic); len(got) != 0 {
		t.Errorf("%d messages of a refused batch arrived", len(got))
	}
	want := message(topic, "1", []byte("x"))
	mustSend(t, sink, topic, 0, want)
	compare(t, s.read(t, topic), []*outbox.Message{want}, 0)
}

func (s suite) check(t *testing.T) {
	sink, topic, _ := s.open(t)
	err := sink.Check(tooLarge(topic))
	if outbox.ClassOf(err) != outbox.Refused || outbox.ReasonOf(err) != "too_large" {
		t.Errorf("got %v, want a refusal too_large", err)
	}
	if err := sink.Check(message(topic, "1", []byte("x"))); err != nil {
		t.Errorf("an ordinary message is refused: %v", err)
	}
}

func (s suite) cancelled(t *testing.T) {
	sink, topic, _ := s.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := sink.Send(ctx, topic, 0, []*outbox.Message{message(topic, "1", []byte("x"))})
	if outbox.ClassOf(err) != outbox.Transient || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want a transient error with the cause", err)
	}
	if got := s.read(t, topic); len(got) != 0 {
		t.Errorf("%d messages arrived after the cancellation", len(got))
	}
}

func (s suite) close(t *testing.T) {
	sink, topic, _ := s.open(t)
	want := message(topic, "1", []byte("x"))
	mustSend(t, sink, topic, 0, want)
	for range 2 {
		if err := sink.Close(); err != nil {
			t.Fatalf("closing: %v", err)
		}
	}
	err := sink.Send(t.Context(), topic, 0, []*outbox.Message{message(topic, "2", []byte("x"))})
	if outbox.ClassOf(err) != outbox.Transient {
		t.Errorf("sending after Close: %v, want a transient error", err)
	}
	compare(t, s.read(t, topic), []*outbox.Message{want}, 0)
}
