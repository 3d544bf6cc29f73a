// Package consumer reads a RocketMQ topic from its beginning, one goroutine a
// queue, so that it sees the messages of a queue in their order.
//
// It promises that a message is handed over within milliseconds of being stored
// (the broker answers a waiting pull as soon as something arrives), that the
// messages of one queue are handed over one after another, and that none is left
// out: an offset moves only after the handler has returned. It commits no offset
// to the broker: whoever starts again reads from the beginning.
//
// It polls by itself because the push consumer of the Go client can crash at
// shutdown.
package consumer

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	rocketmq "github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
	"golang.org/x/sync/errgroup"
)

const (
	topicPollInterval = 100 * time.Millisecond
	retryDelay        = 200 * time.Millisecond
	pullBatch         = 32
)

// Message is what a handler gets.
type Message struct {
	UID  string // property outbox_uid
	Body []byte
	At   time.Time // when it arrived here
}

// Silence drops the log of the RocketMQ client. The client keeps its logger in a
// global, so this must be called before the first consumer is opened.
func Silence() { rlog.SetLogger(silent{}) }

type silent struct{}

func (silent) Debug(string, map[string]any)   {}
func (silent) Info(string, map[string]any)    {}
func (silent) Warning(string, map[string]any) {}
func (silent) Error(string, map[string]any)   {}
func (silent) Fatal(string, map[string]any)   {}
func (silent) Level(string)                   {}
func (silent) OutputPath(string) error        { return nil }

// puller is the part of the client that is used.
type puller interface {
	PullFrom(ctx context.Context, queue *primitive.MessageQueue, offset int64, numbers int) (*primitive.PullResult, error)
	Shutdown() error
}

// Consumer is attached to every queue of one topic.
type Consumer struct {
	client puller
	queues []*primitive.MessageQueue
}

// Open waits until the topic exists, which may be until its first message is
// published, and attaches to it. nameServers is a comma list of HOST:PORT.
func Open(ctx context.Context, nameServers, topic string) (*Consumer, error) {
	resolver, err := resolve(ctx, nameServers)
	if err != nil {
		return nil, err
	}
	queues, err := awaitTopic(ctx, resolver, topic)
	if err != nil {
		return nil, err
	}
	// A client of its own, or it would share connections with any other consumer
	// of the process.
	name := fmt.Sprintf("rowferry-demo-%d-%d", os.Getpid(), time.Now().UnixNano())
	client, err := rocketmq.NewPullConsumer(rocketmq.WithNsResolver(resolver),
		rocketmq.WithGroupName(name), rocketmq.WithInstance(name))
	if err != nil {
		return nil, fmt.Errorf("creating a consumer: %w", err)
	}
	// Assigned nothing, the client pulls nothing behind our back; the topic still
	// has to be named before Start.
	if err := client.Assign(topic, nil); err != nil {
		return nil, fmt.Errorf("naming topic %s to the consumer: %w", topic, err)
	}
	if err := client.Start(); err != nil {
		return nil, fmt.Errorf("starting a consumer of topic %s: %w", topic, err)
	}
	return &Consumer{client: client, queues: queues}, nil
}

// resolve looks host names up, because the client takes addresses only.
func resolve(ctx context.Context, nameServers string) (primitive.NsResolver, error) {
	var addresses []string
	for server := range strings.SplitSeq(nameServers, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(server))
		if err != nil {
			return nil, fmt.Errorf("name server %q is not of the form HOST:PORT: %w", server, err)
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil, fmt.Errorf("looking up the name server %s: %w", host, err)
		}
		addresses = append(addresses, net.JoinHostPort(ips[0], port))
	}
	return primitive.NewPassthroughResolver(addresses), nil
}

// awaitTopic asks the name servers for the topic's queues until there are some.
func awaitTopic(ctx context.Context, resolver primitive.NsResolver, topic string) ([]*primitive.MessageQueue, error) {
	a, err := admin.NewAdmin(admin.WithResolver(resolver))
	if err != nil {
		return nil, fmt.Errorf("creating an admin client: %w", err)
	}
	for {
		queues, err := a.FetchPublishMessageQueues(ctx, topic)
		if err == nil && len(queues) > 0 {
			if err := a.Close(); err != nil {
				return nil, fmt.Errorf("closing the admin client: %w", err)
			}
			return queues, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for topic %s: %w (last answer: %v)", topic, context.Cause(ctx), err)
		case <-time.After(topicPollInterval):
		}
	}
}

// Queues returns how many queues the topic has.
func (c *Consumer) Queues() int { return len(c.queues) }

// Run hands every message to handle, from several goroutines but for each queue
// in order, until ctx is done. It does not wait for pulls under way: the client
// cannot cancel them, and they end by themselves within 20 s without a message
// being handed over. A broker that is away is waited for.
func (c *Consumer) Run(ctx context.Context, handle func(Message)) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, queue := range c.queues {
		group.Go(func() error { return c.follow(ctx, queue, handle) })
	}
	err := group.Wait()
	if closeErr := c.client.Shutdown(); closeErr != nil && err == nil {
		err = fmt.Errorf("closing the consumer: %w", closeErr)
	}
	return err
}

func (c *Consumer) follow(ctx context.Context, queue *primitive.MessageQueue, handle func(Message)) error {
	offset := int64(0)
	for ctx.Err() == nil {
		result, err := c.pull(ctx, queue, offset)
		at := time.Now()
		if err != nil {
			wait(ctx, retryDelay)
			continue
		}
		if result.Status == primitive.PullBrokerTimeout {
			continue
		}
		for _, m := range result.GetMessageExts() {
			if ctx.Err() != nil {
				return nil
			}
			handle(Message{UID: m.GetProperty("outbox_uid"), Body: m.Body, At: at})
		}
		offset = result.NextBeginOffset
	}
	return nil
}

type pulled struct {
	result *primitive.PullResult
	err    error
}

// pull returns early when ctx is done; the client's own call goes on until the
// broker answers.
func (c *Consumer) pull(ctx context.Context, queue *primitive.MessageQueue, offset int64) (*primitive.PullResult, error) {
	answer := make(chan pulled, 1)
	go func() {
		result, err := c.client.PullFrom(context.WithoutCancel(ctx), queue, offset, pullBatch)
		answer <- pulled{result, err}
	}()
	select {
	case p := <-answer:
		return p.result, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
