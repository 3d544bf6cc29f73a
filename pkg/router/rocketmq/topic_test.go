package rocketmq

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func twoBrokers() *route {
	return &route{
		Queues: []routeQueues{{"b", 2, 6}, {"a", 11, 6}},
		Brokers: []brokerData{{"a", map[string]string{"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}},
			{"b", map[string]string{"0": "10.0.0.3:10911"}}},
	}
}

func TestWritableQueuesAreSorted(t *testing.T) {
	got, err := twoBrokers().writableQueues("t")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 11 { // by number: 10 comes after 9
		want = append(want, fmt.Sprintf("a:%d", i))
	}
	if want = append(want, "b:0", "b:1"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNothingIsFrozenWithoutAllMasters(t *testing.T) {
	r := twoBrokers()
	delete(r.Brokers[0].Addrs, "0") // only the replica is left
	_, err := r.writableQueues("orders")
	wantError(t, err, outbox.Transient, "broker_unreachable", "orders", "broker a")
}

func TestUnwritableQueuesAreNotFrozen(t *testing.T) {
	r := twoBrokers()
	r.Queues[1].Perm = 4
	delete(r.Brokers[0].Addrs, "0") // nobody needs the master of a read-only broker
	if got, err := r.writableQueues("t"); err != nil || !reflect.DeepEqual(got, []string{"b:0", "b:1"}) {
		t.Errorf("got %q, %v", got, err)
	}
	r.Queues[0].Perm = 4
	_, err := r.writableQueues("orders")
	wantError(t, err, outbox.Configuration, "topic_read_only", "orders")
}

func TestNewTopic(t *testing.T) {
	got, err := newTopic("t", []string{"a:0", "broker:with:colons:12"})
	if err != nil {
		t.Fatal(err)
	}
	if l := got.lanes[1]; l.BrokerName != "broker:with:colons" || l.QueueId != 12 || l.Topic != "t" {
		t.Errorf("got %+v", l)
	}
	for _, bad := range []string{"", "a", "a:", ":1", "a:x", "a:-1"} { // a negative queue is a random one
		_, err := newTopic("t", []string{bad})
		wantError(t, err, outbox.Configuration, "frozen_list_invalid", "rowferry topics refreeze t")
	}
}

func TestVanished(t *testing.T) {
	registered := func(names ...string) func(context.Context) (map[string]string, error) {
		return func(context.Context) (map[string]string, error) {
			m := map[string]string{}
			for _, n := range names {
				m[n] = "10.0.0.1:10911"
			}
			return m, nil
		}
	}
	broken := errors.New("no answer")
	cases := map[string]struct {
		frozen  []string
		masters func(context.Context) (map[string]string, error)
		want    string // reason; empty: all is well
	}{
		"all there":                       {[]string{"a:0", "a:10", "b:1"}, nil, ""},
		"fewer queues than frozen":        {[]string{"a:11"}, nil, "queue_vanished"},
		"broker away":                     {[]string{"a:0", "c:0"}, registered("a", "b"), ""},
		"broker there, topic not":         {[]string{"c:0"}, registered("a", "b", "c"), "queue_vanished"},
		"nobody can tell about the rest":  {[]string{"c:0"}, func(context.Context) (map[string]string, error) { return nil, broken }, "unknown"},
		"more queues than frozen is fine": {[]string{"a:0"}, nil, ""},
	}
	for name, c := range cases {
		topic, err := newTopic("orders", c.frozen)
		if err != nil {
			t.Fatal(err)
		}
		err = topic.vanished(t.Context(), twoBrokers(), c.masters)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == "queue_vanished":
			wantError(t, err, outbox.Configuration, "queue_vanished", "rowferry topics refreeze orders")
		case c.want == "unknown" && !errors.Is(err, broken):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestQuoteNames(t *testing.T) {
	cases := map[string]string{
		`{0:"a",1:"b"}`:                `{"0":"a","1":"b"}`,
		`{"x":{0:"10.0.0.1:1"},"y":1}`: `{"x":{"0":"10.0.0.1:1"},"y":1}`,
		`{"a":"{0:,1:\",2:"}`:          `{"a":"{0:,1:\",2:"}`,
		`[1,2,3]`:                      `[1,2,3]`,
		`{"0":"a"}`:                    `{"0":"a"}`,
		`{12`:                          `{12`,
		`"\`:                           `"\`,
	}
	for in, want := range cases {
		if got := string(quoteNames([]byte(in))); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}

// FuzzQuoteNames: JSON stays the JSON it was.
func FuzzQuoteNames(f *testing.F) {
	f.Add([]byte(`{"a":[1,2,{"0":"x,1:"}],"b":"\"{0:"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if json.Valid(b) && string(quoteNames(b)) != string(b) {
			t.Fatalf("%q became %q", b, quoteNames(b))
		}
	})
}

// FuzzReadReply: whatever a server sends is an answer or an error.
func FuzzReadReply(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x10\x00\x00\x00\x0b{\"code\":17}b"))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add([]byte("\x00\x00\x00\x04\x00\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, err := readReply(bytes.NewReader(b))
		if (answer == nil) == (err == nil) {
			t.Fatalf("%+v, %v", answer, err)
		}
	})
}

func TestReadReply(t *testing.T) {
	answer, err := readReply(strings.NewReader("\x00\x00\x00\x10\x00\x00\x00\x0b{\"code\":17}b"))
	if err != nil || answer.Code != 17 || string(answer.body) != "b" {
		t.Errorf("%+v, %v", answer, err)
	}
	for _, bad := range []string{"", "HTTP/1.1 400 Bad Request", "\x00\x00\x00\x04\x00\xff\xff\xff", "\x7f\xff\xff\xff\x00\x00\x00\x00", "\x00\x00\x00\x05\x00\x00\x00\x01{"} {
		if answer, err := readReply(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is an answer: %+v", bad, answer)
		}
	}
}
