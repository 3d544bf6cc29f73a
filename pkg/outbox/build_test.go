package outbox

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

func TestEventIsBuiltFromTheTextOfARow(t *testing.T) {
	cs := append(columns(), append(numeric, columns("headers json", "topic varchar(64)", "tag varchar(64)")...)...)
	l := recognise(t, cs, Options{Zone: time.FixedZone("", 2*3600)})
	v := Values{
		RoleID: []byte("18446744073709551615"), RoleAggregateType: []byte("order"), RoleAggregateID: []byte("o-1"),
		RoleEventType: []byte("OrderPlaced"), RolePayload: []byte(`{"a": 1}`), RoleStatus: []byte("0"), RoleAttempts: []byte("3"),
		RoleCreatedAt: []byte("2026-03-01 01:02:03.000400"), RoleTopic: []byte("orders"), RoleTag: []byte("new"),
		RoleHeaders: []byte(`{"traceparent": "00-a-b-01", "retries": 2, "vip": true, "none": null}`),
	}
	want := &Event{
		Table: shop, ID: "18446744073709551615", AggregateType: "order", AggregateID: "o-1", Type: "OrderPlaced",
		Topic: "orders", Tag: "new", Payload: []byte(`{"a": 1}`), Attempts: 3,
		Headers:   []Header{{"traceparent", "00-a-b-01"}, {"retries", "2"}, {"vip", "true"}},
		CreatedAt: time.Date(2026, 2, 28, 23, 2, 3, 400_000, time.UTC),
	}
	if got := l.Event(&v); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestBinaryIdsAreHex(t *testing.T) {
	l := recognise(t, columns("id binary(16)", "aggregateid varbinary(4)", "payload blob"), Options{})
	v := Values{RoleID: []byte("\xDE\xAD\x00"), RoleAggregateID: []byte{0, 1}, RolePayload: []byte("\x00\xff")}
	if e := l.Event(&v); e.ID != "dead00" || e.AggregateID != "0001" || string(e.Payload) != "\x00\xff" {
		t.Errorf("got %+v", e)
	}
}

func TestTimesThatAreNoInstant(t *testing.T) {
	l := recognise(t, pragmatic, Options{})
	for _, text := range []string{"", "0000-00-00 00:00:00", "2026-00-10 00:00:00", "yesterday"} {
		if got := l.time([]byte(text)); !got.IsZero() {
			t.Errorf("%q became %v", text, got)
		}
	}
}

func TestHeadersThatCannotBeProperties(t *testing.T) {
	for _, text := range []string{`[]`, `"x"`, `1`, `{"a":`, `{"a":[1]}`, `{"a":{}}`, `{} {}`, `{"a":1}x`, `{`} {
		if hs, err := parseHeaders([]byte(text)); err == nil {
			t.Errorf("%s gave %v", text, hs)
		}
	}
	for _, text := range []string{``, `null`, ` {} `, `{"a":null}`} {
		if hs, err := parseHeaders([]byte(text)); err != nil || len(hs) != 0 {
			t.Errorf("%s gave %v, %v", text, hs, err)
		}
	}
}

// FuzzHeaders: whatever is accepted is what encoding/json reads, entry by entry.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{`{"a":"b"}`, `{"a":1e9,"b":true}`, `null`, `{"a":[]}`, `{"\ud800":"x"}`, "{\"a\":\"\xff\"}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		hs, err := parseHeaders(b)
		if err != nil {
			return
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil && len(bytes.TrimSpace(b)) > 0 {
			t.Fatalf("%q is accepted, but %v", b, err)
		}
		for _, h := range hs {
			if _, ok := m[h.Name]; !ok {
				t.Fatalf("%q has no entry %q", b, h.Name)
			}
		}
	})
}

func TestErrorsKeepClassAndReason(t *testing.T) {
	cause := &SendError{Class: Configuration, Reason: "topic_missing", Hint: "create it", Err: ErrNoTable}
	if ClassOf(cause) != Configuration || ReasonOf(cause) != "topic_missing" {
		t.Errorf("%s, %s", ClassOf(cause), ReasonOf(cause))
	}
	if got, want := cause.Error(), "topic_missing: no such table, or no right to read it (create it)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if ClassOf(ErrNoTable) != Unknown || ReasonOf(ErrNoTable) != "unknown" {
		t.Error("any other error is of unknown class")
	}
}
