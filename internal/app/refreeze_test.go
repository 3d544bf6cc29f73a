package app

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/relay"
	"github.com/rowferry/rowferry/pkg/router/rocketmq"
)

// drawQueues draws a list of queues, in no particular order.
func drawQueues(rt *rapid.T, name string) []string {
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf("%s:%d", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "broker"), rapid.IntRange(0, 9).Draw(t, "number"))
	}), 1, 12, func(q string) string { return q }).Draw(rt, name)
}

// The shares are those that keys show.
func TestMovesAreWhatKeysDo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := admin.Refreezing{Before: drawQueues(rt, "before"), After: drawQueues(rt, "after")}
		moves(&plan)
		shares := map[string]float64{}
		sum := 0.0
		for _, m := range plan.Moves {
			shares[m.From+" "+m.To] += m.Share
			sum += m.Share
		}
		if math.Abs(sum-plan.MovedShare) > 1e-9 || plan.MovesCount != len(plan.Moves) {
			rt.Fatalf("%d of %d moves, %f of %f", len(plan.Moves), plan.MovesCount, sum, plan.MovedShare)
		}
		const keys = 2000
		moved := 0
		for i := range keys {
			key := fmt.Sprintf("order-%d", i)
			from := plan.Before[relay.LaneOf(key, len(plan.Before))]
			to := plan.After[relay.LaneOf(key, len(plan.After))]
			if from == to {
				continue
			}
			moved++
			if shares[from+" "+to] == 0 {
				rt.Fatalf("key %s moves from %s to %s, which is not among the moves", key, from, to)
			}
		}
		if got := float64(moved) / keys; math.Abs(got-plan.MovedShare) > 0.06 {
			rt.Fatalf("%.3f of the keys move, %.3f were foretold", got, plan.MovedShare)
		}
	})
}

func TestDoublingMovesHalf(t *testing.T) {
	plan := admin.Refreezing{Before: []string{"a:0", "a:1"}, After: []string{"a:0", "a:1", "a:2", "a:3"}}
	moves(&plan)
	want := []admin.Move{{From: "a:0", To: "a:2", Share: 0.25}, {From: "a:1", To: "a:3", Share: 0.25}}
	if plan.MovedShare != 0.5 || len(plan.Moves) != 2 || plan.Moves[0] != want[0] || plan.Moves[1] != want[1] {
		t.Errorf("%+v", plan)
	}
}

// Lists of any length are answered for at once.
func TestManyQueues(t *testing.T) {
	plan := admin.Refreezing{}
	for i := range 10_007 {
		plan.Before = append(plan.Before, fmt.Sprintf("a:%d", i))
	}
	plan.After = plan.Before[:10_000]
	moves(&plan)
	if len(plan.Moves) != 0 || plan.MovesCount < 90_000_000 || plan.MovedShare < 0.99 {
		t.Errorf("%d moves of %d, %f", len(plan.Moves), plan.MovesCount, plan.MovedShare)
	}
}

func TestMayFreeze(t *testing.T) {
	frozen := checkpoint.Topic{Name: "orders", Queues: []string{"a:0", "a:1", "b:0"}}
	for _, c := range []struct {
		name  string
		drift rocketmq.Drift
		gone  []string
		want  string // in the error; empty: none
	}{
		{"all there", rocketmq.Drift{Live: frozen.Queues}, nil, ""},
		{"one away", rocketmq.Drift{Live: frozen.Queues[2:], Away: []string{"a"}}, nil, "broker a, which has 2 of the 3 frozen queues of topic orders, is not there"},
		{"how to go on", rocketmq.Drift{Live: frozen.Queues[2:], Away: []string{"a"}}, nil, "rowferry topics refreeze orders --gone a"},
		{"one gone for good", rocketmq.Drift{Live: frozen.Queues[2:], Away: []string{"a"}}, []string{"a"}, ""},
		{"one of two", rocketmq.Drift{Live: frozen.Queues[2:], Away: []string{"a", "c"}}, []string{"a"}, "broker c, which has 0 of the 3"},
		{"gone, but there", rocketmq.Drift{Live: frozen.Queues}, []string{"a"}, "broker a is not away"},
		{"nothing left", rocketmq.Drift{ReadOnly: frozen.Queues}, nil, "no queue that may be written"},
		{"nothing left but what is gone", rocketmq.Drift{Away: []string{"a"}}, []string{"a"}, "no queue that may be written"},
	} {
		err := mayFreeze(frozen, c.drift, c.gone)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestTopicState(t *testing.T) {
	list := []string{"a:0"}
	for want, c := range map[string]struct {
		drift rocketmq.Drift
		err   error
	}{
		admin.TopicSame:     {drift: rocketmq.Drift{Live: list}},
		admin.TopicChanged:  {drift: rocketmq.Drift{Live: list, Gone: list}},
		admin.TopicReadOnly: {drift: rocketmq.Drift{ReadOnly: list}},
		admin.TopicAway:     {drift: rocketmq.Drift{Away: list}},
		admin.TopicMissing:  {err: &outbox.SendError{Reason: "topic_missing"}},
		admin.TopicUnknown:  {err: &outbox.SendError{Reason: "nameserver_unreachable"}},
	} {
		if got := topicState(c.drift, c.err); got != want {
			t.Errorf("%+v, %v is %s, want %s", c.drift, c.err, got, want)
		}
	}
}

func TestQueueRanges(t *testing.T) {
	for want, queues := range map[string][]string{
		"":                     nil,
		"a:0":                  {"a:0"},
		"a:0-2 a:4 b:5-6":      {"a:0", "a:1", "a:2", "a:4", "b:5", "b:6"},
		"x:y:8-11":             {"x:y:8", "x:y:9", "x:y:10", "x:y:11"},
		"odd a:1 a:0 odd:1x z": {"odd", "a:1", "a:0", "odd:1x", "z"},
	} {
		if got := queueRanges(queues); got != want {
			t.Errorf("%v is written %q, want %q", queues, got, want)
		}
	}
}

func TestPrintedTopics(t *testing.T) {
	var all admin.Topics
	if text := printed(t, func(w io.Writer) error { return PrintTopics(w, all) }); !strings.Contains(text, "no queue list is frozen yet") {
		t.Errorf("of none it prints %s", text)
	}
	all.Topics = []admin.Topic{
		{Topic: "orders", Version: 3, Queues: []string{"a:0", "a:1"}, State: admin.TopicChanged, Drift: admin.Drift{Added: []string{"a:2"}, Gone: []string{"b:0"}, ReadOnly: []string{"a:0"}}},
		{Topic: "gone", Queues: []string{"a:0"}, State: admin.TopicMissing},
		{Topic: "dark", State: admin.TopicUnknown, Error: "no name server answers"},
		{Topic: "away", State: admin.TopicAway, Drift: admin.Drift{Away: []string{"c", "d"}}},
		{Topic: "fine", State: admin.TopicSame},
	}
	text := printed(t, func(w io.Writer) error { return PrintTopics(w, all) })
	for _, want := range []string{"a:0-1", "1 added (a:2); 1 gone (b:0); 1 read-only (a:0)", "there is no such topic", "unknown: no name server answers",
		"brokers that are not there: c, d", "the same"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestPrintedRefreezing(t *testing.T) {
	p := admin.Refreezing{Topic: "orders", Version: 2, Before: []string{"a:0"}, Changes: true}
	for i := range 60 {
		p.After = append(p.After, fmt.Sprintf("a:%d", i))
	}
	p.Added = p.After[1:]
	moves(&p)
	p.Keys = []admin.KeyMove{{Key: "k 1", From: "a:0", To: "a:7"}, {Key: "k 2", From: "a:0", To: "a:0"}}
	would := printed(t, func(w io.Writer) error { return PrintRefreezing(w, p) })
	p.Applied, p.Version = true, 3
	done := printed(t, func(w io.Writer) error { return PrintRefreezing(w, p) })
	for _, text := range []string{would, done} {
		for _, want := range []string{"the frozen list, version 2, has 1: a:0", "the brokers have 60: 59 added (a:1-59)", "98.3% of all keys",
			"a:0 -> a:20  1.67%", "and 39 more", `key "k 1": a:0 -> a:7`, `key "k 2" stays in a:0`} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
	}
	if !strings.Contains(would, "would change") || strings.Contains(would, "done") || !strings.Contains(done, "done: version 3 holds") {
		t.Errorf("before:\n%s\nafter:\n%s", would, done)
	}
	if err := PrintRefreezing(failing{}, p); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func printed(t *testing.T, do func(io.Writer) error) string {
	t.Helper()
	var b strings.Builder
	if err := do(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
