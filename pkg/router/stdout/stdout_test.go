package stdout_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/router/sinktest"
	"github.com/rowferry/rowferry/pkg/router/stdout"
)

// buffer is a writer whose content may be read while others write.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) lines(t *testing.T) []stdout.Line {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	return parse(t, b.b.String())
}

func parse(t *testing.T, s string) []stdout.Line {
	t.Helper()
	var lines []stdout.Line
	for _, text := range strings.Split(strings.TrimSuffix(s, "\n"), "\n") {
		var l stdout.Line
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v in %.200q", err, text)
		}
		lines = append(lines, l)
	}
	return lines
}

func body(l stdout.Line) []byte {
	if l.Payload != nil {
		return []byte(*l.Payload)
	}
	return l.PayloadBase64
}

func TestSink(t *testing.T) {
	var out buffer
	sinktest.Run(t,
		func(*testing.T) sinktest.Sink { return stdout.New(&out, 4<<20) },
		func(t *testing.T, topic string) []sinktest.Got {
			var got []sinktest.Got
			for _, l := range out.lines(t) {
				if l.Topic == topic {
					got = append(got, sinktest.Got{Body: body(l), Tag: l.Tag, Key: l.Key, Properties: l.Properties})
				}
			}
			return got
		})
}

func message(body string) *outbox.Message {
	return &outbox.Message{Topic: "order", Tag: "created", Key: "o-7", Keys: []string{"42"}, Body: []byte(body), Properties: []outbox.Property{
		{Name: "outbox_uid", Value: "shop.outbox:42"}, {Name: "outbox_id", Value: "42"}, {Name: "outbox_table", Value: "shop.outbox"},
		{Name: "aggregate_id", Value: "o-7"}, {Name: "aggregate_type", Value: "order"}, {Name: "event_type", Value: "created"}}}
}

// TestLineFormat pins the documented line.
func TestLineFormat(t *testing.T) {
	properties := `"properties":{"aggregate_id":"o-7","aggregate_type":"order","event_type":"created","outbox_id":"42","outbox_table":"shop.outbox","outbox_uid":"shop.outbox:42"}`
	head := `{"table":"shop.outbox","id":"42","aggregate_type":"order","aggregate_id":"o-7","event_type":"created","topic":"order","tag":"created","key":"o-7",` + properties
	at := time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.UTC)
	withPosition := stdout.NewLine(message("<x>"))
	withPosition.Position, withPosition.CommittedAt = "binlog.000003:4", &at
	cases := map[string]struct {
		line stdout.Line
		want string
	}{
		"text":          {stdout.NewLine(message("<a>\"é🚀\"")), head + `,"payload":"<a>\"é🚀\""}`},
		"not UTF-8":     {stdout.NewLine(message("\xff\x00")), head + `,"payload_base64":"/wA="}`},
		"with position": {withPosition, head + `,"payload":"<x>","position":"binlog.000003:4","committed_at":"2026-03-01T12:00:00.5Z"}`},
	}
	for name, c := range cases {
		var b bytes.Buffer
		if err := c.line.Append(&b); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); got != c.want+"\n" {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
}

// failing writes the first n bytes of the next call, then fails; later calls succeed.
type failing struct {
	bytes.Buffer
	n   int
	err error
}

func (f *failing) Write(p []byte) (int, error) {
	err := f.err
	if err == nil {
		return f.Buffer.Write(p)
	}
	f.err = nil
	n, _ := f.Buffer.Write(p[:f.n]) // a bytes.Buffer never fails
	return n, err
}

// TestTornLine: a write that breaks off is an error, and the batch comes again
// on a line of its own.
func TestTornLine(t *testing.T) {
	for name, n := range map[string]int{"within a line": 10, "before the first byte": 0} {
		f := &failing{n: n, err: syscall.ENOSPC}
		s := stdout.New(f, 0)
		batch := []*outbox.Message{message("one"), message("two")}
		err := s.Send(t.Context(), "order", 0, batch)
		if outbox.ClassOf(err) != outbox.Transient || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s: %v", name, err)
		}
		if err := s.Send(t.Context(), "order", 0, batch); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		torn, rest := f.String()[:n], f.String()[n:]
		if n > 0 && rest[0] != '\n' {
			t.Errorf("%s: %q is glued to %.20q", name, torn, rest)
		}
		if lines := parse(t, rest); len(lines) != 2 || *lines[1].Payload != "two" {
			t.Errorf("%s: the batch came again as %v", name, lines)
		}
	}
}

type short struct{}

func (short) Write(p []byte) (int, error) { return len(p) - 1, nil }

func TestShortWriteIsAnError(t *testing.T) {
	if err := stdout.New(short{}, 0).Send(t.Context(), "order", 0, []*outbox.Message{message("x")}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v", err)
	}
}

// TestReaderGone uses a real pipe: on any descriptor but 1 and 2 the runtime
// turns the signal into EPIPE.
func TestReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	err = stdout.New(w, 0).Send(t.Context(), "order", 0, []*outbox.Message{message("x")})
	if outbox.ClassOf(err) != outbox.Configuration || outbox.ReasonOf(err) != "output_closed" {
		t.Errorf("got %v, want output_closed", err)
	}
}
