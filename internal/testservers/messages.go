package testservers

import (
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Message is a message as the broker stores it.
type Message struct {
	Topic      string
	Queue      int
	Offset     int64 // in the queue
	Body       []byte
	Tag, Keys  string
	Properties map[string]string
	BornAt     time.Time // when the producer sent it
	StoredAt   time.Time // when the broker stored it
}

// ReadAll returns everything that the topic holds now, queue by queue and in the order of
// each queue. A message whose sending was acknowledged is among them.
func (b *Broker) ReadAll(tb testing.TB, topic string) []Message {
	tb.Helper()
	messages, err := b.readAll(topic)
	if err != nil {
		tb.Fatalf("reading topic %s: %v", topic, err)
	}
	return messages
}

// Await waits until the topic holds at least want messages and returns all of them. When
// the time is up before that, it fails the test with what was there.
func (b *Broker) Await(tb testing.TB, topic string, want int, timeout time.Duration) []Message {
	tb.Helper()
	err := poll(timeout, func() error {
		n, err := b.count(topic)
		if err == nil && n < want {
			err = fmt.Errorf("it holds %d messages", n)
		}
		return err
	})
	if err != nil {
		tb.Fatalf("topic %s does not hold %d messages after %v: %v%s", topic, want, timeout, err, b.describe(topic))
	}
	return b.ReadAll(tb, topic)
}

// describe lists a topic's messages for a failure report.
func (b *Broker) describe(topic string) string {
	messages, err := b.readAll(topic)
	if err != nil {
		return ""
	}
	var s strings.Builder
	for i, m := range messages {
		if i == 50 {
			fmt.Fprintf(&s, "\n  ... and %d more", len(messages)-i)
			break
		}
		fmt.Fprintf(&s, "\n  queue %d offset %d tag %q keys %q body %.100q", m.Queue, m.Offset, m.Tag, m.Keys, m.Body)
	}
	return s.String()
}

// queueRange is one queue of a topic and the offsets it holds, from first to before end.
type queueRange struct {
	addr       string
	queue      int
	first, end int64
}

func (b *Broker) readAll(topic string) ([]Message, error) {
	for _, addr := range b.brokers {
		if err := awaitDispatch(addr); err != nil {
			return nil, err
		}
	}
	ranges, err := b.ranges(topic)
	if err != nil {
		return nil, err
	}
	var all []Message
	for _, r := range ranges {
		messages, err := r.read(topic)
		if err != nil {
			return nil, err
		}
		all = append(all, messages...)
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Queue < all[j].Queue })
	return all, nil
}

func (b *Broker) count(topic string) (int, error) {
	ranges, err := b.ranges(topic)
	n := 0
	for _, r := range ranges {
		n += int(r.end - r.first)
	}
	return n, err
}

// ranges asks the brokers themselves, so that it works while the name server is down.
func (b *Broker) ranges(topic string) ([]queueRange, error) {
	var all []queueRange
	for _, addr := range b.brokers {
		ranges, err := brokerRanges(addr, topic)
		if err != nil {
			return nil, err
		}
		all = append(all, ranges...)
	}
	return all, nil
}

func brokerRanges(addr, topic string) ([]queueRange, error) {
	r, err := dialRemote(addr)
	if err != nil {
		return nil, err
	}
	defer r.close()
	_, body, err := r.call(codeTopicConfig, map[string]string{"topic": topic}, nil)
	if err != nil {
		return nil, err
	}
	var config struct {
		ReadQueueNums int `json:"readQueueNums"`
	}
	if err := json.Unmarshal(body, &config); err != nil {
		return nil, fmt.Errorf("reading the configuration of topic %s: %w", topic, err)
	}
	ranges := make([]queueRange, config.ReadQueueNums)
	for queue := range ranges {
		q := queueRange{addr: addr, queue: queue}
		if q.first, err = r.offset(codeMinOffset, topic, queue); err != nil {
			return nil, err
		}
		if q.end, err = r.offset(codeMaxOffset, topic, queue); err != nil {
			return nil, err
		}
		ranges[queue] = q
	}
	return ranges, nil
}

func (r remote) offset(code int, topic string, queue int) (int64, error) {
	fields, _, err := r.call(code, map[string]string{"topic": topic, "queueId": strconv.Itoa(queue)}, nil)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(fields["offset"], 10, 64)
}

// read pulls the messages of a range.
func (q queueRange) read(topic string) ([]Message, error) {
	if q.first >= q.end {
		return nil, nil
	}
	r, err := dialRemote(q.addr)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var all []Message
	for next := q.first; next < q.end; {
		fields, body, err := r.call(codePull, q.pullFields(topic, next), nil)
		if isCode(err, responsePullRetry) || isCode(err, responsePullNotFound) || isCode(err, responsePullOffsetOff) {
			err = nil // nothing to read up to the next offset, as for withdrawn transactions
		}
		if err != nil {
			return nil, err
		}
		all = append(all, decodeMessages(body, q.end)...)
		after, err := strconv.ParseInt(fields["nextBeginOffset"], 10, 64)
		if err != nil || after <= next {
			return nil, fmt.Errorf("queue %d of topic %s: no way on from offset %d (%v)", q.queue, topic, next, fields)
		}
		next = after
	}
	return all, nil
}

// pullFields ask for messages at once: no waiting at the tail, no commit, and the
// subscription in the request itself, so that the broker need not know the reader.
func (q queueRange) pullFields(topic string, offset int64) map[string]string {
	const subscriptionInRequest = 4
	return map[string]string{
		"consumerGroup": "testservers-reader", "topic": topic,
		"queueId": strconv.Itoa(q.queue), "queueOffset": strconv.FormatInt(offset, 10),
		"maxMsgNums": "32", "sysFlag": strconv.Itoa(subscriptionInRequest),
		"commitOffset": "0", "suspendTimeoutMillis": "0",
		"subscription": "*", "subVersion": "0", "expressionType": "TAG",
	}
}

func decodeMessages(body []byte, end int64) []Message {
	var all []Message
	for _, m := range primitive.DecodeMessage(body) {
		if m.QueueOffset >= end {
			break // stored after the range was taken
		}
		all = append(all, Message{
			Topic: m.Topic, Queue: m.Queue.QueueId, Offset: m.QueueOffset, Body: m.Body,
			Tag: m.GetTags(), Keys: m.GetKeys(), Properties: m.GetProperties(),
			BornAt: time.UnixMilli(m.BornTimestamp), StoredAt: time.UnixMilli(m.StoreTimestamp),
		})
	}
	return all
}

// awaitDispatch waits until all that the broker has acknowledged by now can be read: it
// enters messages into their queues shortly after it has acknowledged them.
func awaitDispatch(addr string) error {
	stored, _, err := dispatchState(addr)
	if err != nil {
		return err
	}
	return poll(10*time.Second, func() error {
		now, behind, err := dispatchState(addr)
		if err == nil && now-behind < stored {
			err = fmt.Errorf("the broker's queues are %d bytes behind its log", behind)
		}
		return err
	})
}

func dispatchState(addr string) (stored, behind int64, err error) {
	body, err := callOnce(addr, codeRuntimeInfo, nil, nil)
	if err != nil {
		return 0, 0, err
	}
	var info struct {
		Table map[string]string `json:"table"`
	}
	if err = json.Unmarshal(body, &info); err != nil {
		return 0, 0, fmt.Errorf("reading the broker's state: %w", err)
	}
	if stored, err = strconv.ParseInt(info.Table["commitLogMaxOffset"], 10, 64); err != nil {
		return 0, 0, fmt.Errorf("reading the broker's state: %w", err)
	}
	behind, err = strconv.ParseInt(info.Table["dispatchBehindBytes"], 10, 64)
	return stored, behind, err
}
