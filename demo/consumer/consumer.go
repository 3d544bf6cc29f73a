// Package consumer reads a RocketMQ topic from its beginning, one connection a
// queue, so that it sees the messages of a queue in their order.
//
// It promises that a message is handed over as soon as the broker has stored it
// (the broker answers a held pull when something arrives), that the messages of
// one queue are handed over one after another, and that none is left out: an
// offset moves only after the handler has returned. It commits no offset to the
// broker: whoever starts again reads from the beginning.
//
// It speaks the few requests it needs itself. The pull consumer of the Go client
// writes a shared field in every pull, which the race detector reports, and cannot
// be interrupted for 20 s; its push consumer can crash at shutdown. A service
// would take its own client of choice: nothing here is special to rowferry but
// the property outbox_uid.
package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"golang.org/x/sync/errgroup"
)

const (
	topicPollInterval = 100 * time.Millisecond
	retryDelay        = 200 * time.Millisecond
	holdTime          = 10 * time.Second // how long the broker holds a pull at the tail
	pullBatch         = 32               // messages; the most that a broker gives by default
	group             = "rowferry-demo"
)

// Message is what a handler gets.
type Message struct {
	UID  string // property outbox_uid
	Body []byte
	At   time.Time // when it arrived here
}

// Consumer knows every queue of one topic.
type Consumer struct{ queues []queue }

type queue struct {
	topic  string
	broker string // address
	id     int
}

// Open waits until the topic exists, which may be until its first message is
// published. nameServers is a comma list of HOST:PORT.
func Open(ctx context.Context, nameServers, topic string) (*Consumer, error) {
	servers, err := parseServers(nameServers)
	if err != nil {
		return nil, err
	}
	for {
		queues, err := lookUp(ctx, servers, topic)
		if len(queues) > 0 {
			return &Consumer{queues}, nil
		}
		if waitErr := wait(ctx, topicPollInterval); waitErr != nil {
			return nil, fmt.Errorf("waiting for topic %s: %w (last answer: %v)", topic, waitErr, err)
		}
	}
}

func parseServers(list string) ([]string, error) {
	var servers []string
	for server := range strings.SplitSeq(list, ",") {
		server = strings.TrimSpace(server)
		if _, _, err := net.SplitHostPort(server); err != nil {
			return nil, fmt.Errorf("name server %q is not of the form HOST:PORT: %w", server, err)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// lookUp asks one name server after the other for the queues of the topic.
func lookUp(ctx context.Context, servers []string, topic string) ([]queue, error) {
	var errs []error
	for _, server := range servers {
		queues, err := route(ctx, server, topic)
		if err == nil {
			return queues, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func route(ctx context.Context, server, topic string) ([]queue, error) {
	conn, err := dial(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, body, err := conn.call(ctx, codeRoute, map[string]string{"topic": topic, "acceptStandardJsonOnly": "true"})
	if err != nil {
		return nil, err
	}
	if answer.Code != answerOK {
		return nil, fmt.Errorf("looking up topic %s: answer %d: %s", topic, answer.Code, answer.Remark)
	}
	return parseRoute(topic, body)
}

// parseRoute reads a name server's answer. Queues without a reachable master are
// left out.
func parseRoute(topic string, body []byte) ([]queue, error) {
	var data struct {
		QueueDatas []struct {
			BrokerName    string
			ReadQueueNums int
		}
		BrokerDatas []struct {
			BrokerName  string
			BrokerAddrs map[string]string
		}
	}
	if err := json.Unmarshal(body, &data); err != nil {
		return nil, fmt.Errorf("reading the route of topic %s: %w", topic, err)
	}
	masters := map[string]string{}
	for _, b := range data.BrokerDatas {
		if address := b.BrokerAddrs["0"]; address != "" {
			masters[b.BrokerName] = address
		}
	}
	var queues []queue
	for _, q := range data.QueueDatas {
		if q.ReadQueueNums < 0 || q.ReadQueueNums > 1<<16 {
			return nil, fmt.Errorf("reading the route of topic %s: %d queues are not possible", topic, q.ReadQueueNums)
		}
		for id := range q.ReadQueueNums {
			if address, up := masters[q.BrokerName]; up {
				queues = append(queues, queue{topic, address, id})
			}
		}
	}
	return queues, nil
}

// Queues returns how many queues the topic has.
func (c *Consumer) Queues() int { return len(c.queues) }

// Run hands every message to handle, from several goroutines but for each queue
// in order, until ctx is done; then all its goroutines and connections are gone.
// A broker that is away is waited for. It returns an error only if a broker says
// something that it cannot understand.
func (c *Consumer) Run(ctx context.Context, handle func(Message)) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, q := range c.queues {
		group.Go(func() error { return q.follow(ctx, handle) })
	}
	return group.Wait()
}

// follow reads the queue until ctx is done, over a new connection whenever one
// breaks.
func (q queue) follow(ctx context.Context, handle func(Message)) error {
	var offset int64
	for ctx.Err() == nil {
		conn, err := dial(ctx, q.broker)
		if err == nil {
			offset, err = q.read(ctx, conn, offset, handle)
			conn.Close()
		}
		if errors.Is(err, errProtocol) {
			return err
		}
		if wait(ctx, retryDelay) != nil {
			return nil
		}
	}
	return nil
}

var errProtocol = errors.New("unexpected answer of the broker")

// read pulls over one connection until it breaks, and returns the offset to go on
// from.
func (q queue) read(ctx context.Context, conn connection, offset int64, handle func(Message)) (int64, error) {
	for {
		answer, body, err := conn.call(ctx, codePull, q.pullFields(offset))
		at := time.Now()
		if err != nil {
			return offset, err
		}
		switch answer.Code {
		case answerOK:
			for _, m := range primitive.DecodeMessage(body) {
				handle(Message{UID: m.GetProperty("outbox_uid"), Body: m.Body, At: at})
			}
		case answerNothingNew, answerRetry, answerOffsetMoved:
		case answerTopicMissing:
			return offset, nil // as during a restart of the broker: asked again after a while
		default:
			return offset, fmt.Errorf("pulling queue %d of %s: answer %d: %s", q.id, q.topic, answer.Code, answer.Remark)
		}
		if offset, err = nextOffset(answer.ExtFields); err != nil {
			return offset, fmt.Errorf("%w: queue %d of %s: %w (%v)", errProtocol, q.id, q.topic, err, slices.Sorted(maps.Keys(answer.ExtFields)))
		}
	}
}

func nextOffset(fields map[string]string) (int64, error) {
	next, err := strconv.ParseInt(fields["nextBeginOffset"], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("no offset to go on from: %w", err)
	}
	return next, nil
}

// pullFields ask the broker to hold the pull while there is nothing, and carry
// the subscription, so that the broker need not know us beforehand.
func (q queue) pullFields(offset int64) map[string]string {
	const hold, subscriptionInRequest = 2, 4
	return map[string]string{
		"consumerGroup":        group,
		"topic":                q.topic,
		"queueId":              strconv.Itoa(q.id),
		"queueOffset":          strconv.FormatInt(offset, 10),
		"maxMsgNums":           strconv.Itoa(pullBatch),
		"sysFlag":              strconv.Itoa(hold | subscriptionInRequest),
		"commitOffset":         "0",
		"suspendTimeoutMillis": strconv.FormatInt(holdTime.Milliseconds(), 10),
		"subscription":         "*",
		"subVersion":           "0",
		"expressionType":       "TAG",
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
