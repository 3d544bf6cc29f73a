package rocketmq

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// topic is a topic whose queues are frozen. It is immutable.
type topic struct {
	name   string
	queues []string // the frozen list
	lanes  []primitive.MessageQueue
}

const topicBytesMax = 127

func topicByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c == '_' || c == '-' || c == '%' || c == '|'
}

// systemTopics are refused by brokers, or worse, accepted.
var systemTopics = []string{"TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
	"RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}

// checkTopic refuses what a broker refuses.
func checkTopic(t string) error {
	if t == "" || len(t) > topicBytesMax {
		return refused("topic_illegal", fmt.Errorf("the topic has %d bytes, RocketMQ takes 1 to %d", len(t), topicBytesMax))
	}
	for i := range len(t) {
		if !topicByte(t[i]) {
			return refused("topic_illegal", fmt.Errorf("topic %q holds characters other than a-z A-Z 0-9 _ - %% |", t))
		}
	}
	if slices.Contains(systemTopics, t) || strings.HasPrefix(t, "rmq_sys_") || strings.HasPrefix(t, "%RETRY%") || strings.HasPrefix(t, "%DLQ%") {
		return refused("topic_illegal", fmt.Errorf("topic %s belongs to RocketMQ itself", t))
	}
	return nil
}

// writableQueues lists the queues of a route in the order of the lanes: by
// broker name, then by number. It fails unless every writable broker of the
// route has a master: a list frozen without one would leave it out for good.
func (r *route) writableQueues(topic string) ([]string, error) {
	var queues []string
	for _, q := range r.writable() {
		if r.master(q.Broker) == "" {
			return nil, &outbox.SendError{Class: outbox.Transient, Reason: "broker_unreachable",
				Err:  fmt.Errorf("topic %s: broker %s has no master now", topic, q.Broker),
				Hint: "the queue list of a topic is frozen only while all its brokers are there"}
		}
		queues = append(queues, q.names()...)
	}
	if len(queues) == 0 {
		return nil, readOnly(topic)
	}
	return queues, nil
}

// writable returns the brokers on which the topic may be written, by name.
func (r *route) writable() []routeQueues {
	data := slices.DeleteFunc(slices.Clone(r.Queues), func(q routeQueues) bool { return !q.writable() })
	slices.SortFunc(data, func(a, b routeQueues) int { return cmp.Compare(a.Broker, b.Broker) })
	return data
}

// names are the queues of a broker as they stand in a frozen list.
func (q routeQueues) names() []string {
	names := make([]string, q.Write)
	for i := range names {
		names[i] = q.Broker + ":" + strconv.Itoa(i)
	}
	return names
}

// splitQueue reads a queue of a frozen list.
func splitQueue(q string) (broker string, id int, ok bool) {
	i := strings.LastIndexByte(q, ':')
	id, err := strconv.Atoi(q[i+1:])
	if i <= 0 || err != nil || id < 0 {
		return "", 0, false
	}
	return q[:i], id, true
}

func readOnly(topic string) *outbox.SendError {
	return &outbox.SendError{Class: outbox.Configuration, Reason: "topic_read_only",
		Err:  fmt.Errorf("topic %s has no queue that may be written", topic),
		Hint: "look at the topic's permission (mqadmin updateTopicPerm -p 6) and at brokerPermission"}
}

// newTopic reads a frozen list.
func newTopic(name string, queues []string) (*topic, error) {
	t := &topic{name: name, queues: queues, lanes: make([]primitive.MessageQueue, 0, len(queues))}
	for _, q := range queues {
		broker, id, ok := splitQueue(q)
		if !ok {
			return nil, &outbox.SendError{Class: outbox.Configuration, Reason: "frozen_list_invalid",
				Err:  fmt.Errorf("topic %s: the frozen queue %q is not of the form broker:id", name, q),
				Hint: refreezeHint + " " + name}
		}
		t.lanes = append(t.lanes, primitive.MessageQueue{Topic: name, BrokerName: broker, QueueId: id})
	}
	return t, nil
}

// brokers lists the brokers of the topic, each once.
func (t *topic) brokers() []string {
	var names []string
	for _, q := range t.lanes {
		if !slices.Contains(names, q.BrokerName) {
			names = append(names, q.BrokerName)
		}
	}
	return names
}

// vanished compares frozen queues with the live route. A broker that is not in
// the route and not registered either is away, which moves no key: its lanes
// fail until it is back. masters tells; it is asked only when it matters.
func (t *topic) vanished(ctx context.Context, r *route, masters func(context.Context) (map[string]string, error)) error {
	numbers := map[string]int{}
	for _, q := range r.Queues {
		numbers[q.Broker] = q.Write
	}
	for _, q := range t.lanes {
		n, present := numbers[q.BrokerName]
		if !present {
			registered, err := masters(ctx)
			if err != nil {
				return err
			}
			if registered[q.BrokerName] == "" {
				continue
			}
		}
		if q.QueueId >= n {
			return &outbox.SendError{Class: outbox.Configuration, Reason: "queue_vanished",
				Err:  fmt.Errorf("topic %s: queue %d of broker %s, where keys were sent so far, is gone", t.name, q.QueueId, q.BrokerName),
				Hint: refreezeHint + " " + t.name}
		}
	}
	return nil
}
