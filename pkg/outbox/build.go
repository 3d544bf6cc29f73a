package outbox

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Values holds one row by role: the text that a SELECT in a utf8mb4 session set
// to the layout's zone would print, the raw bytes for binary columns, nil for
// NULL and for a role that the table lacks.
type Values [NumRoles][]byte

// Event builds the event from a row. Both paths end here, which is what makes
// one event have one form (promise G5); a conversion belongs in here and nowhere
// else. It keeps no reference to v except v[RolePayload].
func (l *Layout) Event(v *Values) *Event {
	e := &Event{
		Table:         l.Table,
		ID:            l.keyText(v[RoleID]),
		AggregateType: string(v[RoleAggregateType]),
		AggregateID:   l.text(RoleAggregateID, v[RoleAggregateID]),
		Type:          string(v[RoleEventType]),
		Topic:         string(v[RoleTopic]),
		Tag:           string(v[RoleTag]),
		Payload:       v[RolePayload],
		CreatedAt:     l.time(v[RoleCreatedAt]),
		Attempts:      parseInt(v[RoleAttempts]),
	}
	var err error
	if e.Headers, err = parseHeaders(v[RoleHeaders]); err != nil {
		e.HeadersErr = err.Error()
	}
	return e
}

// keyText renders the id: binary ids as lower-case hex, anything else as it is.
func (l *Layout) keyText(b []byte) string { return l.text(RoleID, b) }

func (l *Layout) text(r Role, b []byte) string {
	if c, ok := l.Column(r); ok && c.Binary() {
		return hex.EncodeToString(b)
	}
	return string(b)
}

// time reads a DATETIME or TIMESTAMP as MySQL prints it. Zero dates, partial
// dates and NULL have no instant and give the zero time.
func (l *Layout) time(b []byte) time.Time {
	t, err := time.ParseInLocation("2006-01-02 15:04:05.999999", string(b), l.Zone)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// parseHeaders reads a JSON object of scalars, keeping its order.
func parseHeaders(b []byte) ([]Header, error) {
	if b = bytes.TrimSpace(b); len(b) == 0 || bytes.Equal(b, []byte("null")) {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("headers are not a JSON object")
	}
	var hs []Header
	for d.More() {
		h, ok, err := parseHeader(d)
		if err != nil {
			return nil, err
		}
		if ok {
			hs = append(hs, h)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("headers are not a JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("headers hold more than one JSON object")
	}
	return hs, nil
}

// parseHeader reads one entry; ok is false for a null, which is no header.
func parseHeader(d *json.Decoder) (h Header, ok bool, err error) {
	name, err := d.Token()
	if err != nil {
		return h, false, errors.New("headers are not valid JSON")
	}
	h.Name = name.(string) // inside an object the decoder yields strings as names
	value, err := d.Token()
	if err != nil {
		return h, false, errors.New("headers are not valid JSON")
	}
	switch v := value.(type) {
	case nil:
		return h, false, nil
	case string:
		h.Value = v
	case bool, json.Number:
		h.Value = fmt.Sprint(v)
	default:
		return h, false, fmt.Errorf("header %q is not a string, number or boolean", strings.ToValidUTF8(h.Name, "?"))
	}
	return h, true, nil
}
