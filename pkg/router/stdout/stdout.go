// Package stdout is the sink that prints each message as one line of JSON
// instead of sending it, for a look at what would be published and for pipes.
//
// It promises that a batch counts as sent only when every byte of it was
// written, and that a write which broke off in the middle of a line does not
// spoil the next one. A batch that failed is printed again as a whole.
//
// When the reader of a pipe on the real stdout goes away, the Go runtime ends
// the process with SIGPIPE; nothing of the batch was acknowledged then.
package stdout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Line is one message as it is printed. Position and CommittedAt are not known
// to a sink; `rowferry tail` fills them in.
type Line struct {
	Table         string            `json:"table"`
	ID            string            `json:"id"`
	AggregateType string            `json:"aggregate_type"`
	AggregateID   string            `json:"aggregate_id"`
	EventType     string            `json:"event_type"`
	Topic         string            `json:"topic"`
	Tag           string            `json:"tag"`
	Key           string            `json:"key"`
	Properties    map[string]string `json:"properties"`
	Payload       *string           `json:"payload,omitempty"`        // the body, where it is UTF-8
	PayloadBase64 []byte            `json:"payload_base64,omitempty"` // the body, where it is not
	Position      string            `json:"position,omitempty"`
	CommittedAt   *time.Time        `json:"committed_at,omitempty"` // RFC 3339
}

// NewLine returns the line of a message. It shares m's body.
func NewLine(m *outbox.Message) Line {
	l := Line{Topic: m.Topic, Tag: m.Tag, Key: m.Key, Properties: make(map[string]string, len(m.Properties))}
	for _, p := range m.Properties {
		l.Properties[p.Name] = p.Value
	}
	l.Table, l.ID = l.Properties["outbox_table"], l.Properties["outbox_id"]
	l.AggregateType, l.AggregateID = l.Properties["aggregate_type"], l.Properties["aggregate_id"]
	l.EventType = l.Properties["event_type"]
	if utf8.Valid(m.Body) {
		body := string(m.Body)
		l.Payload = &body
	} else {
		l.PayloadBase64 = m.Body
	}
	return l
}

// Append appends the line and a line feed to b.
func (l *Line) Append(b *bytes.Buffer) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	return e.Encode(l)
}

// Sink prints to a writer. Its methods may be called by any number of goroutines.
type Sink struct {
	bytesMax int64

	mu     sync.Mutex
	w      io.Writer
	torn   bool // the last write ended within a line
	closed bool
}

// New returns a sink that prints to w and refuses messages above bytesMax
// bytes (0: no limit). It does not close w.
func New(w io.Writer, bytesMax int64) *Sink { return &Sink{w: w, bytesMax: bytesMax} }

// Lanes returns 1: there is one output, and its lines have one order.
func (s *Sink) Lanes(context.Context, string) (int, error) { return 1, nil }

// Check refuses what is above the limit, as a broker would.
func (s *Sink) Check(m *outbox.Message) error {
	size := int64(m.SizeBytes())
	if s.bytesMax > 0 && size > s.bytesMax {
		return &outbox.SendError{Class: outbox.Refused, Reason: "too_large",
			Err: fmt.Errorf("the message has %d bytes, the limit is %d", size, s.bytesMax)}
	}
	return nil
}

// Send prints msgs. The error is Configuration when the reader is gone or there
// is no such place to write to, else Transient.
func (s *Sink) Send(ctx context.Context, _ string, _ int, msgs []*outbox.Message) error {
	if err := ctx.Err(); err != nil {
		return &outbox.SendError{Class: outbox.Transient, Reason: "cancelled", Err: err}
	}
	var b bytes.Buffer
	for _, m := range msgs {
		if err := s.Check(m); err != nil {
			return err
		}
		l := NewLine(m)
		if err := l.Append(&b); err != nil {
			return &outbox.SendError{Class: outbox.Unknown, Reason: "not_printable", Err: err}
		}
	}
	return s.write(b.Bytes())
}

func (s *Sink) write(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &outbox.SendError{Class: outbox.Transient, Reason: "sink_closed"}
	}
	if s.torn {
		b = append([]byte{'\n'}, b...)
	}
	n, err := s.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if n > 0 {
		s.torn = b[min(n, len(b))-1] != '\n'
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe), errors.Is(err, syscall.EBADF):
		return &outbox.SendError{Class: outbox.Configuration, Reason: "output_closed", Err: err, Hint: "nobody reads the output any more"}
	}
	return &outbox.SendError{Class: outbox.Transient, Reason: "write_failed", Err: err}
}

// Ping reports that the output is always there.
func (s *Sink) Ping(context.Context) error { return nil }

// Close makes later sends fail. Lines are written as they come, so there is
// nothing to flush.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
