package rocketmq

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestCompare(t *testing.T) {
	all := map[string]string{"a": "10.0.0.1:10911", "b": "10.0.0.3:10911", "c": "10.0.0.4:10911"}
	few := func() *route { // a:0 a:1 b:0 b:1
		r := twoBrokers()
		r.Queues[1].Write = 2
		return r
	}
	live := []string{"a:0", "a:1", "b:0", "b:1"}
	cases := map[string]struct {
		route   *route
		change  func(*route)
		frozen  []string
		masters map[string]string
		want    Drift
	}{
		"the same":         {few(), nil, live, all, Drift{Live: live}},
		"a broker is new":  {few(), nil, live[:2], all, Drift{Live: live, Added: live[2:]}},
		"queues are new":   {few(), nil, []string{"a:0", "b:0"}, all, Drift{Live: live, Added: []string{"a:1", "b:1"}}},
		"queues are gone":  {few(), nil, append([]string{"a:2"}, live...), all, Drift{Live: live, Gone: []string{"a:2"}}},
		"not on a broker":  {few(), nil, append([]string{"c:0"}, live...), all, Drift{Live: live, Gone: []string{"c:0"}}},
		"a damaged list":   {few(), nil, append([]string{"a"}, live...), all, Drift{Live: live, Gone: []string{"a"}}},
		"a broker is away": {few(), nil, append([]string{"x:0", "x:1"}, live...), all, Drift{Live: live, Away: []string{"x"}}},
		"without a master": {
			few(), func(r *route) { delete(r.Brokers[0].Addrs, "0") }, live, all,
			Drift{Live: live[2:], Away: []string{"a"}},
		},
		"a new one without a master": {
			few(), func(r *route) { delete(r.Brokers[0].Addrs, "0") }, live[2:], all,
			Drift{Live: live[2:], Away: []string{"a"}},
		},
		"read-only": {
			few(), func(r *route) { r.Queues[0].Perm = 4 }, live, all,
			Drift{Live: live[:2], ReadOnly: live[2:]},
		},
		"no queue for writing": {
			few(), func(r *route) { r.Queues[0].Write = 0 }, live, all,
			Drift{Live: live[:2], Gone: live[2:]},
		},
	}
	for name, c := range cases {
		if c.change != nil {
			c.change(c.route)
		}
		if got := c.route.compare(c.frozen, c.masters); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestCompareOnARealBroker(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 2)
	s := newSink(t, mq.NameServer())
	queues, err := s.LiveQueues(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := s.Compare(t.Context(), topic, queues); err != nil || !reflect.DeepEqual(d, Drift{Live: queues}) {
		t.Errorf("%+v, %v", d, err)
	}
	// Of a topic that nobody knows, the broker that has it may be away; else it is missing.
	if d, err := s.Compare(t.Context(), topic+"-none", []string{"elsewhere:0"}); err != nil || !slices.Equal(d.Away, []string{"elsewhere"}) {
		t.Errorf("%+v, %v", d, err)
	}
	_, err = s.Compare(t.Context(), topic+"-none", queues)
	wantError(t, err, outbox.Configuration, "topic_missing", topic+"-none")
	setPermission(t, s, topic, "4")
	if d, err := s.Compare(t.Context(), topic, queues); err != nil || !reflect.DeepEqual(d, Drift{ReadOnly: queues}) {
		t.Errorf("%+v, %v", d, err)
	}
}

// What the store answers is not always what it did.
func TestRefreezeBelievesTheStore(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	failed := errors.New("connection lost")
	for name, c := range map[string]struct {
		loses   bool // the list is not replaced
		away    bool // and cannot be read
		changed bool
		err     error
		lanes   int
	}{
		"done, and the answer lost": {changed: true, lanes: 2},
		"not done":                  {loses: true, err: failed, lanes: 4},
		"nobody knows":              {loses: true, away: true, changed: true, err: failed, lanes: 4},
	} {
		topic := mq.Topic(t, 4)
		store := &memoryTopics{}
		s := newSink(t, mq.NameServer(), func(c *Config) { c.Topics = store })
		if _, err := s.Lanes(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		store.replaceErr, store.loses = failed, c.loses
		if c.away {
			store.err = errors.New("away")
		}
		changed, err := s.Refreeze(t.Context(), topic, 1, s.InUse(topic)[:2])
		if changed != c.changed || !errors.Is(err, c.err) {
			t.Errorf("%s: changed %t, %v", name, changed, err)
		}
		if (s.InUse(topic) == nil) != changed {
			t.Errorf("%s: %v is in use", name, s.InUse(topic))
		}
		store.err = nil
		if n, err := s.Lanes(t.Context(), topic); n != c.lanes || err != nil {
			t.Errorf("%s: %d lanes, %v", name, n, err)
		}
	}
}

// Another relay may have changed lists while it led.
func TestForgottenListsAreReadAgain(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 4)
	store := &memoryTopics{}
	s := newSink(t, mq.NameServer(), func(c *Config) { c.Topics = store })
	if n, err := s.Lanes(t.Context(), topic); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	if err := store.ReplaceTopic(t.Context(), topic, 1, s.InUse(topic)[:3]); err != nil {
		t.Fatal(err)
	}
	s.Forget()
	if n, err := s.Lanes(t.Context(), topic); n != 3 || err != nil {
		t.Errorf("%d lanes, %v", n, err)
	}
}
