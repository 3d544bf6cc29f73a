package router

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// ErrDropped is returned for an event that a rule of ROUTE_RULES drops. It is
// no failure: the row counts as done.
var ErrDropped = errors.New("dropped by a rule")

// The limits that do not depend on the configuration.
const (
	// MessageBytesMaxDefault is the limit of a RocketMQ broker as it is shipped.
	MessageBytesMaxDefault = 4 << 20
	// PropertiesBytesMax bounds what a message carries beside its body. RocketMQ
	// stores up to 32,767 bytes; the other half is left to what the sink, the
	// broker and consumers that forward the message add.
	PropertiesBytesMax = 16 << 10
	// TopicBytesMax is the longest topic that RocketMQ accepts.
	TopicBytesMax = 127
)

// topicFallback is the topic where neither a column nor the event names one.
const topicFallback = "outbox"

// Config is what the operator decides about routing. The zero value is the
// documented default of every setting.
type Config struct {
	// Topic is a template over {table} {schema} {aggregate_type} {event_type}
	// {header:NAME}. Empty: the value of the topic column, else the aggregate
	// type, else "outbox".
	Topic string
	// Tag is a template over the same names. Empty: the event type. The value of
	// a tag column wins over both where the event has one.
	Tag string
	// Key is the template of the ordering key, over the same names, {aggregate_id}
	// and {id}. Empty: the aggregate id. Where it gives nothing, the event's id.
	Key string
	// Rules is a list PATTERN=TOPIC[:TAG],... on the event type; the first match
	// wins over everything else, PATTERN=- drops the event.
	Rules string
	// UIDPrefix is put before every outbox_uid, to tell shards apart.
	UIDPrefix string
	// MessageBytesMax refuses larger messages (body, properties, keys and tag).
	// 0: MessageBytesMaxDefault.
	MessageBytesMax int64
}

// Router routes events. Use New.
type Router struct {
	topic, tag, key *template // nil: the default
	rules           []rule
	uidPrefix       string
	bytesMax        int64
}

// New compiles the configuration. Its error joins every mistake, each with the
// name of the variable that holds it.
func New(c Config) (*Router, error) {
	r := &Router{uidPrefix: c.UIDPrefix, bytesMax: c.MessageBytesMax}
	if r.bytesMax == 0 {
		r.bytesMax = MessageBytesMaxDefault
	}
	var errs [6]error
	r.topic, errs[0] = compileOptional("ROWFERRY_ROUTE_TOPIC", c.Topic, topicVariables)
	r.tag, errs[1] = compileOptional("ROWFERRY_ROUTE_TAG", c.Tag, topicVariables)
	r.key, errs[2] = compileOptional("ROWFERRY_ROUTE_KEY", c.Key, keyVariables)
	r.rules, errs[3] = parseRules(c.Rules)
	if problem := valueProblem(c.UIDPrefix); problem != "" {
		errs[4] = fmt.Errorf("ROWFERRY_UID_PREFIX: %s", problem)
	}
	if c.MessageBytesMax < 0 {
		errs[5] = fmt.Errorf("ROWFERRY_MESSAGE_BYTES_MAX: %d is not a size", c.MessageBytesMax)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return r, nil
}

// Route builds the message of e. The error is ErrDropped, or an
// [*outbox.SendError] of class Refused whose reason is a short label. The
// message shares the payload with e and nothing else that can change.
//
// An event that still has to be read by key (Unread) must not come here: to
// route it would publish or refuse a row of which nothing is known. Route panics.
func (r *Router) Route(e *outbox.Event) (*outbox.Message, error) {
	if e.Unread != "" {
		panic("router: event " + e.Table.String() + ":" + e.ID + " was not read by key: " + e.Unread)
	}
	if e.HeadersErr != "" {
		return nil, refused("headers_invalid", e.HeadersErr)
	}
	if len(e.Payload) == 0 && e.OversizeBytes == 0 {
		// A broker answers a lone message without a body with a NullPointerException.
		return nil, refused("empty_payload", "RocketMQ does not carry a message without a body")
	}
	m := &outbox.Message{Body: e.Payload}
	if err := r.address(m, e); err != nil {
		return nil, err
	}
	if err := r.describe(m, e); err != nil {
		return nil, err
	}
	return m, r.checkSize(m, e.OversizeBytes)
}

// Key returns the ordering key of e, also where e cannot be routed.
func (r *Router) Key(e *outbox.Event) string {
	key := e.AggregateID
	if r.key != nil {
		key = r.key.expand(e, nil)
	}
	if key == "" {
		key = e.ID
	}
	return key
}

// address sets topic, tag and ordering key.
func (r *Router) address(m *outbox.Message, e *outbox.Event) error {
	match := r.match(e.Type)
	if match != nil && match.drop {
		return ErrDropped
	}
	var err error
	if m.Topic, err = r.topicOf(match, e); err != nil {
		return err
	}
	if m.Tag, err = r.tagOf(match, e); err != nil {
		return err
	}
	m.Key = r.Key(e)
	return checkValue("the ordering key", m.Key)
}

func (r *Router) topicOf(match *rule, e *outbox.Event) (string, error) {
	switch {
	case match != nil:
		return match.topic, nil // checked when it was parsed
	case r.topic != nil:
		t := r.topic.expand(e, topicSafe)
		return t, refuseTopic(t)
	case e.Topic != "":
		return e.Topic, refuseTopic(e.Topic)
	case e.AggregateType != "":
		t := topicSafe(e.AggregateType)
		return t, refuseTopic(t)
	}
	return topicFallback, nil
}

func refuseTopic(t string) error {
	if problem := topicProblem(t); problem != "" {
		return refused("topic_illegal", problem)
	}
	return nil
}

func (r *Router) tagOf(match *rule, e *outbox.Event) (string, error) {
	switch {
	case match != nil && match.tag != "":
		return match.tag, nil // checked when it was parsed
	case e.Tag != "":
		if problem := tagProblem(e.Tag); problem != "" {
			return "", refused("tag_illegal", problem)
		}
		return e.Tag, checkValue("the tag", e.Tag)
	case r.tag != nil:
		t := tagSafe(r.tag.expand(e, nil))
		return t, checkValue("the tag", t)
	}
	t := tagSafe(e.Type)
	return t, checkValue("the tag", t)
}

// describe sets the message keys and the properties, ours before the headers.
func (r *Router) describe(m *outbox.Message, e *outbox.Event) error {
	m.Keys = append(make([]string, 0, 2), keySafe(e.ID))
	if e.AggregateID != "" && e.AggregateID != e.ID {
		m.Keys = append(m.Keys, keySafe(e.AggregateID))
	}
	uid := r.uidPrefix + e.Table.Schema + "." + e.Table.Name + ":" + e.ID
	table := uid[len(r.uidPrefix) : len(uid)-len(e.ID)-1]
	created := ""
	if !e.CreatedAt.IsZero() {
		created = e.CreatedAt.UTC().Format(time.RFC3339Nano)
	}
	ours := [...]outbox.Property{
		{Name: "outbox_uid", Value: uid},
		{Name: "outbox_id", Value: e.ID},
		{Name: "outbox_table", Value: table},
		{Name: "aggregate_id", Value: e.AggregateID},
		{Name: "aggregate_type", Value: e.AggregateType},
		{Name: "event_type", Value: e.Type},
		{Name: "created_at", Value: created},
	}
	m.Properties = make([]outbox.Property, 0, len(ours)+len(e.Headers)+1) // 1: outbox_seq
	for _, p := range ours {
		if p.Value == "" {
			continue // RocketMQ has no empty values
		}
		if err := checkValue(p.Name, p.Value); err != nil {
			return err
		}
		m.Properties = append(m.Properties, p)
	}
	return addHeaders(m, e.Headers)
}

// addHeaders appends the headers of the row under their own names.
func addHeaders(m *outbox.Message, headers []outbox.Header) error {
	for _, h := range headers {
		if h.Value == "" {
			continue // RocketMQ has no empty values
		}
		if err := checkHeader(h); err != nil {
			return err
		}
		for _, p := range m.Properties {
			if p.Name == h.Name {
				return refused("header_clash", fmt.Sprintf("two headers are called %q", h.Name))
			}
		}
		m.Properties = append(m.Properties, outbox.Property{Name: h.Name, Value: h.Value})
	}
	return nil
}

func (r *Router) checkSize(m *outbox.Message, oversizeBytes int64) error {
	if body := max(oversizeBytes, int64(len(m.Body))); body > r.bytesMax {
		return refused("too_large",
			fmt.Sprintf("the payload has %d bytes, ROWFERRY_MESSAGE_BYTES_MAX is %d", body, r.bytesMax))
	}
	size := int64(m.SizeBytes())
	if beside := size - int64(len(m.Body)); beside > PropertiesBytesMax {
		return refused("properties_too_large",
			fmt.Sprintf("keys, tag and properties have %d bytes, the limit is %d", beside, PropertiesBytesMax))
	}
	if size > r.bytesMax {
		return refused("too_large",
			fmt.Sprintf("the message has %d bytes, ROWFERRY_MESSAGE_BYTES_MAX is %d", size, r.bytesMax))
	}
	return nil
}

// refused builds the error of a row that can never go. detail must hold no payload.
func refused(reason, detail string) error {
	return &outbox.SendError{Class: outbox.Refused, Reason: reason, Err: errors.New(strings.ToValidUTF8(detail, "?"))}
}
