package router

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// encodeProperties and decodeProperties are RocketMQ's property encoding, which
// escapes nothing and drops what is empty.
func encodeProperties(m *outbox.Message) string {
	var b strings.Builder
	put := func(name, value string) { b.WriteString(name + "\x01" + value + "\x02") }
	put("KEYS", strings.Join(m.Keys, " "))
	put("TAGS", m.Tag)
	put("SHARDING_KEY", m.Key)
	for _, p := range m.Properties {
		put(p.Name, p.Value)
	}
	return b.String()
}

func decodeProperties(s string) map[string]string {
	m := map[string]string{}
	for _, item := range strings.Split(s, "\x02") {
		if kv := strings.Split(item, "\x01"); len(kv) == 2 && kv[1] != "" {
			m[kv[0]] = kv[1]
		}
	}
	return m
}

// FuzzRoute: whatever a row holds, it is refused, or every name and value that
// it should have arrives, and nothing else does.
func FuzzRoute(f *testing.F) {
	f.Add("42", "order", "o-7", "order.created", "", "", "traceparent", "00-ab", []byte("x"))
	f.Add("4 2", "", "a b", "a || b", "topic", "tag", "h", "b\x02TRAN_MSG\x01true", []byte("x"))
	f.Add("\xff", "注文", "\x00", "", "a.b", "x||y", "KEYS", "", []byte{})
	f.Add("1", "t", "k", "e", "", "", "", "v", []byte("x"))
	routers := []*Router{mustNew(f, Config{}), mustNew(f, Config{Topic: "{event_type}{header:h}", Tag: "{schema}|{event_type}", Key: "{header:h}", Rules: "drop*=-"})}
	f.Fuzz(func(t *testing.T, id, aggregateType, aggregateID, eventType, topic, tag, name, value string, payload []byte) {
		e := &outbox.Event{Table: outbox.Table{Schema: "s", Name: "t"}, ID: id, AggregateType: aggregateType, AggregateID: aggregateID,
			Type: eventType, Topic: topic, Tag: tag, Payload: payload, Headers: []outbox.Header{{Name: name, Value: value}},
			CreatedAt: time.Unix(int64(len(id)), 0)}
		for _, r := range routers {
			m, err := r.Route(e)
			if err != nil {
				if outbox.ClassOf(err) != outbox.Refused && !errors.Is(err, ErrDropped) {
					t.Fatalf("neither a message nor a refusal: %v", err)
				}
				continue
			}
			checkLossless(t, m)
			checkAddress(t, m)
		}
	})
}

func checkLossless(t *testing.T, m *outbox.Message) {
	t.Helper()
	want := map[string]string{"KEYS": strings.Join(m.Keys, " "), "TAGS": m.Tag, "SHARDING_KEY": m.Key}
	for _, p := range m.Properties {
		if _, twice := want[p.Name]; twice || p.Value == "" {
			t.Fatalf("property %q twice or empty in %+v", p.Name, m)
		}
		want[p.Name] = p.Value
	}
	for name, value := range want {
		if value == "" {
			delete(want, name)
		}
	}
	if got := decodeProperties(encodeProperties(m)); !reflect.DeepEqual(got, want) {
		t.Fatalf("arrives as %q, was %q", got, want)
	}
}

func checkAddress(t *testing.T, m *outbox.Message) {
	t.Helper()
	if topicProblem(m.Topic) != "" || tagProblem(m.Tag) != "" || m.Key == "" && m.Keys[0] != "" || len(m.Body) == 0 {
		t.Fatalf("not for RocketMQ: %+v", m)
	}
	for _, k := range m.Keys {
		if strings.Contains(k, " ") {
			t.Fatalf("the key %q is two words", k)
		}
	}
}

// FuzzConfig: any configuration is refused or routes an ordinary event.
func FuzzConfig(f *testing.F) {
	f.Add("{table}", "{header:x}", "{id}", "a=b,c*=d:e,f=-")
	f.Add("{", "a||b", "}", ",=,")
	f.Fuzz(func(t *testing.T, topic, tag, key, rules string) {
		r, err := New(Config{Topic: topic, Tag: tag, Key: key, Rules: rules})
		if err != nil {
			return
		}
		m, err := r.Route(order())
		switch {
		case err == nil:
			checkLossless(t, m)
			checkAddress(t, m)
		case outbox.ClassOf(err) != outbox.Refused && !errors.Is(err, ErrDropped):
			t.Fatal(err)
		}
	})
}
