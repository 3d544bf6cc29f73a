package rocketmq

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/rowferry/rowferry/pkg/outbox"
)

var now = time.Date(2026, 3, 15, 10, 0, 0, 0, time.UTC)

type decoded struct {
	body       string
	properties map[string]string
}

// decodeBatch reads a batch as a broker does.
func decodeBatch(t testing.TB, b []byte) []decoded {
	t.Helper()
	var all []decoded
	for len(b) > 0 {
		total := int(binary.BigEndian.Uint32(b))
		bodyLength := int(binary.BigEndian.Uint32(b[16:]))
		propertiesLength := int(int16(binary.BigEndian.Uint16(b[20+bodyLength:])))
		if total != messageOverheadBytes+bodyLength+propertiesLength || binary.BigEndian.Uint64(b[4:]) != 0 || binary.BigEndian.Uint32(b[12:]) != 0 {
			t.Fatalf("total %d, body %d, properties %d", total, bodyLength, propertiesLength)
		}
		d := decoded{body: string(b[20 : 20+bodyLength]), properties: map[string]string{}}
		for _, item := range strings.Split(strings.TrimSuffix(string(b[22+bodyLength:total]), "\x02"), "\x02") {
			name, value, ok := strings.Cut(item, "\x01")
			if _, twice := d.properties[name]; twice || !ok {
				t.Fatalf("property %q twice or without a value", item)
			}
			d.properties[name] = value
		}
		all = append(all, d)
		b = b[total:]
	}
	return all
}

// TestEncodeIsWhatTheLibraryWrites compares our encoding of a batch with the
// library's own; its order of properties is random.
func TestEncodeIsWhatTheLibraryWrites(t *testing.T) {
	msgs := append(numbered("t", 0, 0, 3), &outbox.Message{Topic: "t", Key: "k", Body: []byte("\x00\x01\x02🚀"),
		Properties: []outbox.Property{{Name: "outbox_uid", Value: "s.t:9"}, {Name: "empty"}}})
	var theirs []*primitive.Message
	for _, m := range msgs {
		p := primitive.NewMessage(m.Topic, m.Body)
		p.WithKeys(m.Keys)
		p.WithTag(m.Tag)
		p.WithShardingKey(m.Key)
		p.WithProperty("__SHARDINGKEY", m.Key)
		p.WithProperty("UNIQ_KEY", string(appendUniqKey(nil, m, now)))
		for _, x := range m.Properties {
			p.WithProperty(x.Name, x.Value)
		}
		theirs = append(theirs, p)
	}
	ours, err := encodeBatch(nil, msgs, 4<<20, now)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := decodeBatch(t, ours), decodeBatch(t, producer.MarshalMessageBatch(theirs...)); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestEncodeReusesItsBuffer(t *testing.T) {
	big, err := encodeBatch(nil, numbered("t", 0, 0, 10), 4<<20, now)
	if err != nil {
		t.Fatal(err)
	}
	small, err := encodeBatch(big, numbered("t", 0, 7, 1), 4<<20, now)
	if err != nil {
		t.Fatal(err)
	}
	if &small[0] != &big[0] {
		t.Error("a large buffer was not used again")
	}
	if got := decodeBatch(t, small); len(got) != 1 || got[0].properties["outbox_id"] != "0-7" {
		t.Errorf("the buffer still holds %q", got)
	}
}

// TestEncodeRefusesWhatWouldBreakTheBatch: beyond 32,767 bytes the length wraps
// and the broker reads the neighbours at the wrong place.
func TestEncodeRefusesWhatWouldBreakTheBatch(t *testing.T) {
	with := func(edit func(m *outbox.Message)) []*outbox.Message {
		msgs := numbered("t", 0, 0, 3)
		edit(msgs[1])
		return msgs
	}
	cases := map[string][]*outbox.Message{
		"properties_too_large": with(func(m *outbox.Message) { m.Properties[0].Value = strings.Repeat("v", propertiesBytesMax) }),
		"too_large":            with(func(m *outbox.Message) { m.Body = make([]byte, 4<<20) }),
		"empty_payload":        with(func(m *outbox.Message) { m.Body = nil }),
	}
	for reason, msgs := range cases {
		_, err := encodeBatch(nil, msgs, 4<<20, now)
		wantError(t, err, outbox.Refused, reason)
	}
	_, err := encodeBatch(nil, numbered("t", 0, 0, 3), 2000, now)
	wantError(t, err, outbox.Refused, "too_large", "batch")
}

func TestCheckLeavesRoomForTheSequence(t *testing.T) {
	m := numbered("t", 0, 0, 1)[0]
	limit := int64(messageOverheadBytes + len(m.Body) + propertiesBytes(m))
	s := &Sink{config: Config{MessageBytesMax: limit}}
	wantError(t, s.Check(m), outbox.Refused, "too_large", fmt.Sprint(limit))
	s.config.MessageBytesMax += seqBytesMax
	if err := s.Check(m); err != nil {
		t.Error(err)
	}
	wantError(t, s.Check(&outbox.Message{Topic: "a.b", Body: []byte("x")}), outbox.Refused, "topic_illegal")
}

func TestCheckTopic(t *testing.T) {
	for _, topic := range []string{"", "a.b", "a b", "注文", strings.Repeat("t", 128), "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "%RETRY%group", "%DLQ%group"} {
		wantError(t, checkTopic(topic), outbox.Refused, "topic_illegal")
	}
	for _, topic := range []string{"a", "A-z_0%|", strings.Repeat("t", 127)} {
		if err := checkTopic(topic); err != nil {
			t.Error(err)
		}
	}
}

func TestUniqKeyIsTheSameOnEveryAttempt(t *testing.T) {
	m := numbered("t", 0, 0, 1)[0]
	m.Properties[6].Value = now.Add(-26 * 24 * time.Hour).Format(time.RFC3339Nano)
	first := string(appendUniqKey(nil, m, now))
	if len(first) != uniqKeyBytes || strings.Trim(first, "0123456789ABCDEF") != "" {
		t.Errorf("%q is not %d hex digits", first, uniqKeyBytes)
	}
	m.Properties[7].Value = "2-99" // a new leader numbers anew
	if again := string(appendUniqKey(nil, m, now.Add(time.Hour))); again != first {
		t.Errorf("%s became %s", first, again)
	}
	other := string(appendUniqKey(nil, numbered("t", 0, 1, 1)[0], now))
	if other[:20] == first[:20] {
		t.Error("two events have one key")
	}
}

// TestUniqKeyTime reads the time back as MessageClientIDSetter does: it adds the
// milliseconds to the start of the present month, or the last if that is in the future.
func TestUniqKeyTime(t *testing.T) {
	cases := map[string]struct {
		created string
		want    time.Time
	}{
		"created lately":        {now.Add(-time.Minute).Format(time.RFC3339Nano), now.Add(-time.Minute)},
		"created last month":    {now.Add(-20 * 24 * time.Hour).Format(time.RFC3339Nano), now.Add(-20 * 24 * time.Hour)},
		"created long ago":      {now.Add(-28 * 24 * time.Hour).Format(time.RFC3339Nano), now},
		"created in the future": {now.Add(time.Hour).Format(time.RFC3339Nano), now},
		"not a time":            {"yesterday", now},
		"no time":               {"", now},
	}
	for name, c := range cases {
		m := &outbox.Message{Properties: []outbox.Property{{Name: "outbox_uid", Value: "s.t:1"}, {Name: "created_at", Value: c.created}}}
		var millis uint32
		if _, err := fmt.Sscanf(string(appendUniqKey(nil, m, now))[20:28], "%X", &millis); err != nil {
			t.Fatal(err)
		}
		local := now.Local()
		month := time.Date(local.Year(), local.Month(), 1, 0, 0, 0, 0, time.Local)
		got := month.Add(time.Duration(millis) * time.Millisecond)
		if got.After(now) {
			got = month.AddDate(0, -1, 0).Add(time.Duration(millis) * time.Millisecond)
		}
		if !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestUniqKeyWithoutUID(t *testing.T) {
	m := &outbox.Message{}
	if a, b := string(appendUniqKey(nil, m, now)), string(appendUniqKey(nil, m, now)); a == b {
		t.Errorf("two messages have the key %s", a)
	}
}

// FuzzEncode: what Check lets pass comes out of a batch as it went in.
func FuzzEncode(f *testing.F) {
	f.Add("topic", "tag", "key", "name", "value", []byte("body"))
	f.Add("t", "", "", "", "", []byte{0, 1, 2})
	f.Fuzz(func(t *testing.T, topic, tag, key, name, value string, body []byte) {
		if strings.ContainsAny(tag+key+name+value, "\x01\x02") || ourNames[name] || name == "" {
			return // the router refuses these
		}
		m := &outbox.Message{Topic: topic, Tag: tag, Key: key, Body: body, Properties: []outbox.Property{{Name: name, Value: value}}}
		if (&Sink{config: Config{MessageBytesMax: 1 << 20}}).Check(m) != nil {
			return
		}
		b, err := encodeBatch(nil, []*outbox.Message{m, m}, 4<<20, now)
		if err != nil {
			t.Fatal(err)
		}
		got := decodeBatch(t, b)
		if len(got) != 2 || got[1].body != string(body) || got[1].properties["TAGS"] != tag || got[1].properties["__SHARDINGKEY"] != key || got[1].properties[name] != value {
			t.Fatalf("%+v became %q", m, got)
		}
		if len(b) > 2*(messageOverheadBytes+len(body)+propertiesBytes(m)) {
			t.Fatalf("%d bytes, foreseen %d", len(b), propertiesBytes(m))
		}
	})
}

var ourNames = map[string]bool{"KEYS": true, "TAGS": true, "SHARDING_KEY": true, "__SHARDINGKEY": true, "UNIQ_KEY": true}

// BenchmarkEncode compares our encoder with the library's way, building of its
// messages included: 256 messages of 500 bytes with 13 properties on the wire.
func BenchmarkEncode(b *testing.B) {
	msgs := numbered("t", 0, 0, 256)
	perMessage := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(msgs)), "ns/msg")
	}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			var err error
			if buf, err = encodeBatch(buf, msgs, 4<<20, time.Now()); err != nil {
				b.Fatal(err)
			}
		}
		perMessage(b)
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			theirs := make([]*primitive.Message, len(msgs))
			for i, m := range msgs {
				p := make(map[string]string, 5+len(m.Properties))
				p["KEYS"], p["TAGS"], p["SHARDING_KEY"], p["__SHARDINGKEY"] = strings.Join(m.Keys, " "), m.Tag, m.Key, m.Key
				p["UNIQ_KEY"] = primitive.CreateUniqID()
				for _, x := range m.Properties {
					p[x.Name] = x.Value
				}
				theirs[i] = primitive.NewMessage(m.Topic, m.Body)
				theirs[i].WithProperties(p)
			}
			if len(producer.MarshalMessageBatch(theirs...)) == 0 {
				b.Fatal("nothing encoded")
			}
		}
		perMessage(b)
	})
}
