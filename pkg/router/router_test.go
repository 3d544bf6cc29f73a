package router

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// order is an event with every part that matters for routing; edit changes it.
func order(edit ...func(*outbox.Event)) *outbox.Event {
	e := &outbox.Event{
		Table: outbox.Table{Schema: "shop", Name: "outbox"}, ID: "42",
		AggregateType: "order", AggregateID: "o-7", Type: "order.created", Payload: []byte(`{"total":1}`),
		CreatedAt: time.Date(2026, 3, 1, 12, 30, 0, 250_000_000, time.UTC),
		Headers:   []outbox.Header{{Name: "traceparent", Value: "00-ab-cd-01"}},
	}
	for _, f := range edit {
		f(e)
	}
	return e
}

func mustNew(t testing.TB, c Config) *Router {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRouteWholeMessage(t *testing.T) {
	m, err := mustNew(t, Config{UIDPrefix: "eu-"}).Route(order())
	if err != nil {
		t.Fatal(err)
	}
	want := &outbox.Message{
		Topic: "order", Tag: "order.created", Key: "o-7", Keys: []string{"42", "o-7"}, Body: []byte(`{"total":1}`),
		Properties: []outbox.Property{
			{Name: "outbox_uid", Value: "eu-shop.outbox:42"},
			{Name: "outbox_id", Value: "42"},
			{Name: "outbox_table", Value: "shop.outbox"},
			{Name: "aggregate_id", Value: "o-7"},
			{Name: "aggregate_type", Value: "order"},
			{Name: "event_type", Value: "order.created"},
			{Name: "created_at", Value: "2026-03-01T12:30:00.25Z"},
			{Name: "traceparent", Value: "00-ab-cd-01"},
		},
	}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
}

// TestRouteLeavesOutWhatIsEmpty shows that no property without a value is
// written: RocketMQ would drop it silently.
func TestRouteLeavesOutWhatIsEmpty(t *testing.T) {
	m, err := mustNew(t, Config{}).Route(&outbox.Event{
		Table: outbox.Table{Schema: "s", Name: "t"}, ID: "1", Payload: []byte("x"),
		Headers: []outbox.Header{{Name: "empty", Value: ""}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &outbox.Message{Topic: "outbox", Key: "1", Keys: []string{"1"}, Body: []byte("x"),
		Properties: []outbox.Property{{Name: "outbox_uid", Value: "s.t:1"}, {Name: "outbox_id", Value: "1"}, {Name: "outbox_table", Value: "s.t"}}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
}

func TestRouteAddress(t *testing.T) {
	long := strings.Repeat("t", TopicBytesMax)
	cases := []struct {
		name            string
		config          Config
		event           *outbox.Event
		topic, tag, key string
	}{
		{"defaults", Config{}, order(), "order", "order.created", "o-7"},
		{"topic column wins over the aggregate type", Config{}, order(func(e *outbox.Event) { e.Topic = long }), long, "order.created", "o-7"},
		{"topic template wins over the column", Config{Topic: "evt-{schema}-{table}"}, order(func(e *outbox.Event) { e.Topic = "x" }), "evt-shop-outbox", "order.created", "o-7"},
		{"neither column nor type", Config{}, order(func(e *outbox.Event) { e.AggregateType = "" }), "outbox", "order.created", "o-7"},
		{"refused characters in a template value", Config{Topic: "{event_type}"}, order(), "order_created", "order.created", "o-7"},
		{"one _ for each character, not byte", Config{}, order(func(e *outbox.Event) { e.AggregateType = "注文 x" }), "___x", "order.created", "o-7"},
		{"header in a template", Config{Topic: "t_{header:tenant}"}, order(func(e *outbox.Event) { e.Headers = []outbox.Header{{Name: "tenant", Value: "a/b"}} }), "t_a_b", "order.created", "o-7"},
		{"tag column wins over the template", Config{Tag: "x"}, order(func(e *outbox.Event) { e.Tag = "vip" }), "order", "vip", "o-7"},
		{"tag template", Config{Tag: "{aggregate_type}|{schema}"}, order(), "order", "order|shop", "o-7"},
		{"blanks and || in a tag value", Config{}, order(func(e *outbox.Event) { e.Type = "a || b" }), "order", "a___b", "o-7"},
		{"|| that comes about by joining", Config{Tag: "{schema}|{aggregate_type}"}, order(func(e *outbox.Event) { e.AggregateType = "|x" }), "|x", "shop_x", "o-7"},
		{"key template", Config{Key: "{aggregate_type}/{aggregate_id}"}, order(), "order", "order.created", "order/o-7"},
		{"key by id", Config{Key: "{id}"}, order(), "order", "order.created", "42"},
		{"empty key becomes the id", Config{Key: "{header:none}"}, order(), "order", "order.created", "42"},
		{"no aggregate becomes the id", Config{}, order(func(e *outbox.Event) { e.AggregateID = "" }), "order", "order.created", "42"},
		{"rule with a tag wins over columns", Config{Topic: "x", Rules: "order.*=hot:now"}, order(func(e *outbox.Event) { e.Topic, e.Tag = "a", "b" }), "hot", "now", "o-7"},
		{"rule without a tag", Config{Rules: "user.*=u, *=rest"}, order(), "rest", "order.created", "o-7"},
		{"first rule wins", Config{Rules: "order.created=first,order.*=-"}, order(), "first", "order.created", "o-7"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m, err := mustNew(t, c.config).Route(c.event)
			if err != nil {
				t.Fatal(err)
			}
			if m.Topic != c.topic || m.Tag != c.tag || m.Key != c.key {
				t.Errorf("topic %q tag %q key %q, want %q %q %q", m.Topic, m.Tag, m.Key, c.topic, c.tag, c.key)
			}
		})
	}
}

func TestRouteRefuses(t *testing.T) {
	header := func(name, value string) func(*outbox.Event) {
		return func(e *outbox.Event) { e.Headers = []outbox.Header{{Name: name, Value: value}} }
	}
	cases := []struct {
		name, reason string
		config       Config
		edit         func(*outbox.Event)
	}{
		{"NULL payload", "empty_payload", Config{}, func(e *outbox.Event) { e.Payload = nil }},
		{"empty payload", "empty_payload", Config{}, func(e *outbox.Event) { e.Payload = []byte{} }},
		{"unreadable headers", "headers_invalid", Config{}, func(e *outbox.Event) { e.HeadersErr = "headers are not a JSON object" }},
		{"header without a name", "headers_invalid", Config{}, header("", "x")},
		{"header with our name", "header_clash", Config{}, header("outbox_uid", "x")},
		{"header with the name the engine adds", "header_clash", Config{}, header("outbox_seq", "1")},
		{"header twice", "header_clash", Config{}, func(e *outbox.Event) {
			e.Headers = []outbox.Header{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}}
		}},
		{"half message", "header_reserved", Config{}, header("TRAN_MSG", "true")},
		{"delay", "header_reserved", Config{}, header("DELAY", "3")},
		{"timer", "header_reserved", Config{}, header("TIMER_DELIVER_MS", "3")},
		{"reserved prefix", "header_reserved", Config{}, header("__RMQ.anything", "3")},
		{"sharding key", "header_reserved", Config{}, header("__SHARDINGKEY", "3")},
		{"smuggled property", "control_character", Config{}, header("h", "b\x02TRAN_MSG\x01true")},
		{"control character in a name", "control_character", Config{}, header("a\x01b", "x")},
		{"DEL", "control_character", Config{}, header("h", "a\x7f")},
		{"half a character", "invalid_utf8", Config{}, header("h", "a\xf0\x9f")},
		{"surrogate", "invalid_utf8", Config{}, header("h", "\xed\xa0\x80")},
		{"control character in the id", "control_character", Config{}, func(e *outbox.Event) { e.ID = "a\nb" }},
		{"control character in the aggregate", "control_character", Config{}, func(e *outbox.Event) { e.AggregateID = "a\tb" }},
		{"control character in the event type", "control_character", Config{}, func(e *outbox.Event) { e.Type = "a\x00b" }},
		{"control character in the key only", "control_character", Config{Key: "{header:h}"}, header("h", "a\x1fb")},
		{"topic column with a dot", "topic_illegal", Config{}, func(e *outbox.Event) { e.Topic = "a.b" }},
		{"topic column too long", "topic_illegal", Config{}, func(e *outbox.Event) { e.Topic = strings.Repeat("t", TopicBytesMax+1) }},
		{"aggregate type too long for a topic", "topic_illegal", Config{}, func(e *outbox.Event) { e.AggregateType = strings.Repeat("t", TopicBytesMax+1) }},
		{"empty topic", "topic_illegal", Config{Topic: "{header:none}"}, func(*outbox.Event) {}},
		{"tag column with a blank", "tag_illegal", Config{}, func(e *outbox.Event) { e.Tag = "a b" }},
		{"tag column with ||", "tag_illegal", Config{}, func(e *outbox.Event) { e.Tag = "a||b" }},
		{"tag column with a control character", "control_character", Config{}, func(e *outbox.Event) { e.Tag = "a\x02b" }},
		{"properties too large", "properties_too_large", Config{}, header("h", strings.Repeat("v", PropertiesBytesMax))},
		{"too large", "too_large", Config{}, func(e *outbox.Event) { e.Payload = make([]byte, MessageBytesMaxDefault) }},
		{"over a smaller limit", "too_large", Config{MessageBytesMax: 1000}, func(e *outbox.Event) { e.Payload = make([]byte, 1000) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m, err := mustNew(t, c.config).Route(order(c.edit))
			if outbox.ClassOf(err) != outbox.Refused || outbox.ReasonOf(err) != c.reason {
				t.Fatalf("got %+v, %v; want a refusal %s", m, err, c.reason)
			}
		})
	}
}

// TestRefusalsHideValues: the text of a refusal goes to logs and to last_error.
func TestRefusalsHideValues(t *testing.T) {
	_, err := mustNew(t, Config{}).Route(order(func(e *outbox.Event) {
		e.Headers = []outbox.Header{{Name: "auth", Value: "secret\x01value"}}
	}))
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "auth") {
		t.Errorf("want the name of the header and not its value: %v", err)
	}
}

func TestRouteJustFits(t *testing.T) {
	r := mustNew(t, Config{MessageBytesMax: 5000})
	e := order()
	m, err := r.Route(e)
	if err != nil {
		t.Fatal(err)
	}
	e.Payload = make([]byte, 5000-(m.SizeBytes()-len(m.Body)))
	if _, err := r.Route(e); err != nil {
		t.Errorf("exactly the limit: %v", err)
	}
	e.Payload = append(e.Payload, 0)
	if _, err := r.Route(e); outbox.ReasonOf(err) != "too_large" {
		t.Errorf("one byte above the limit: %v", err)
	}
}

func TestRouteDrops(t *testing.T) {
	r := mustNew(t, Config{Rules: "*.internal=-,audit.*=audit"})
	if _, err := r.Route(order(func(e *outbox.Event) { e.Type = "x.internal" })); !errors.Is(err, ErrDropped) {
		t.Errorf("got %v, want ErrDropped", err)
	}
	// A row that could not be sent anyway is refused, not dropped silently, only
	// if no rule drops it: what nobody wants needs no repair.
	if _, err := r.Route(order(func(e *outbox.Event) { e.Type, e.Topic = "x.internal", "a.b" })); !errors.Is(err, ErrDropped) {
		t.Errorf("got %v, want ErrDropped", err)
	}
}

func TestRouteKeysAreWords(t *testing.T) {
	m, err := mustNew(t, Config{}).Route(order(func(e *outbox.Event) { e.ID, e.AggregateID = "a b", "c d  e" }))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a_b", "c_d__e"}; !reflect.DeepEqual(m.Keys, want) {
		t.Errorf("got %q, want %q", m.Keys, want)
	}
	if m.Key != "c d  e" {
		t.Errorf("the ordering key was changed: %q", m.Key)
	}
}

func TestRoutePanicsOnUnread(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an event that was never read went through")
		}
	}()
	m, err := mustNew(t, Config{}).Route(order(func(e *outbox.Event) { e.Unread = "layout unknown" }))
	t.Errorf("got %+v, %v", m, err)
}

func TestNewReportsEveryMistake(t *testing.T) {
	_, err := New(Config{
		Topic: "a.{table}", Tag: "{aggregate_id}", Key: "{nope", Rules: "x,y=a.b,z=t:a b,w=t:", UIDPrefix: "a\x01", MessageBytesMax: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"ROWFERRY_ROUTE_TOPIC", `"a."`, "ROWFERRY_ROUTE_TAG", "{aggregate_id}", "ROWFERRY_ROUTE_KEY", "braces",
		`ROWFERRY_ROUTE_RULES: "x"`, `"y=a.b"`, `"z=t:a b"`, `"w=t:"`, "ROWFERRY_UID_PREFIX", "ROWFERRY_MESSAGE_BYTES_MAX"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

func TestTemplateMistakes(t *testing.T) {
	for _, s := range []string{"{", "}", "{}", "a}b", "{table", "{{table}}", "{header:}", "{header}", "{Table}", "{unknown}", "{aggregate_id}"} {
		if _, err := New(Config{Topic: s}); err == nil {
			t.Errorf("ROUTE_TOPIC=%q was accepted", s)
		}
	}
	for _, s := range []string{"a b", "a||b", "a\x01"} {
		if _, err := New(Config{Tag: s}); err == nil {
			t.Errorf("ROUTE_TAG=%q was accepted", s)
		}
	}
}

func TestGlob(t *testing.T) {
	cases := []struct {
		pattern, s string
		want       bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "anything", true},
		{"order.*", "order.created", true}, {"order.*", "order.", true}, {"order.*", "orders.x", false},
		{"*.created", "order.created", true}, {"*.created", "order.created.v2", false},
		{"a*b*c", "aXbYc", true}, {"a*b*c", "abbc", true}, {"a*b*c", "acb", false}, {"*a*", "bab", true}, {"**a", "a", true},
		{"a*a", "a", false}, {"*ab", "aab", true}, {"*aab", "aaab", true}, {"a*", "*", false}, {"*x", "xxx", true},
	}
	for _, c := range cases {
		if got := glob(c.pattern, c.s); got != c.want {
			t.Errorf("glob(%q, %q) = %t", c.pattern, c.s, got)
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	for _, c := range []struct {
		name   string
		config Config
	}{{"defaults", Config{}}, {"templates", Config{Topic: "{schema}_{aggregate_type}", Key: "{aggregate_type}:{aggregate_id}", Rules: "user.*=users,audit.*=-"}}} {
		b.Run(c.name, func(b *testing.B) {
			r, e := mustNew(b, c.config), order()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Route(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A payload that the reader did not keep is refused like one that is too large here,
// with the same words, so that both paths say the same.
func TestOversizeIsRefusedAlike(t *testing.T) {
	r, err := New(Config{MessageBytesMax: 1000})
	if err != nil {
		t.Fatal(err)
	}
	base := outbox.Event{Table: outbox.Table{Schema: "s", Name: "outbox"}, ID: "1", Type: "e"}
	kept, dropped := base, base
	kept.Payload, dropped.OversizeBytes = make([]byte, 2000), 2000
	_, err1 := r.Route(&kept)
	_, err2 := r.Route(&dropped)
	if err1 == nil || err2 == nil || err1.Error() != err2.Error() || !strings.Contains(err1.Error(), "2000 bytes") {
		t.Errorf("kept: %v; not kept: %v", err1, err2)
	}
}
