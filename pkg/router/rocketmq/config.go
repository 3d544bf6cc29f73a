package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// Config is what a Sink needs to know.
type Config struct {
	NameServers []string // host:port; names are looked up at every new connection
	Group       string   // producer group
	AccessKey   string   // ACL; both keys or none
	SecretKey   string
	TLS         bool          // encrypts; the broker is not verified. One value for all sinks of a process
	SendTimeout time.Duration // of one request; above the flush timeout of the brokers (5 s). 0: 8 s

	CreateTopics bool // create a missing topic on every master
	TopicQueues  int  // queues per broker of a topic created so. 0: 8

	NonOK           string     // "retry" or "accept" for an answer that says stored, but not yet safely. Empty: retry
	MessageBytesMax int64      // maxMessageSize of the brokers. 0: 4 MiB, as they are shipped
	Topics          TopicStore // nil: frozen lists live as long as the Sink
	Logger          zerolog.Logger
}

// TopicStore keeps the frozen queue list of each topic. Queues are written
// `broker:id` and their order is the order of the lanes.
type TopicStore interface {
	// LoadTopic returns the frozen list, or nil if there is none.
	LoadTopic(ctx context.Context, topic string) ([]string, error)
	// SaveTopic keeps the list, unless one is kept already: the first wins.
	SaveTopic(ctx context.Context, topic string, queues []string) error
	// ReplaceTopic replaces the list of this version. After an error it may be replaced
	// or not.
	ReplaceTopic(ctx context.Context, topic string, version int, queues []string) error
}

const (
	sendTimeoutDefault     = 8 * time.Second
	topicQueuesDefault     = 8
	messageBytesMaxDefault = 4 << 20
	// frameBytesMax is what a broker reads as one frame (16 MiB), less a header.
	// A larger one costs the connection, and with it every lane of the broker.
	frameBytesMax = 16<<20 - 64<<10
)

// setDefaults fills in what is not set and returns every mistake at once.
func (c *Config) setDefaults() error {
	if c.SendTimeout == 0 {
		c.SendTimeout = sendTimeoutDefault
	}
	if c.TopicQueues == 0 {
		c.TopicQueues = topicQueuesDefault
	}
	if c.MessageBytesMax == 0 {
		c.MessageBytesMax = messageBytesMaxDefault
	}
	c.MessageBytesMax = min(c.MessageBytesMax, frameBytesMax)
	if c.NonOK == "" {
		c.NonOK = "retry"
	}
	return errors.Join(c.checkServers(), c.checkGroup(), c.checkRest())
}

func (c *Config) checkServers() error {
	if len(c.NameServers) == 0 {
		return errors.New("ROWFERRY_ROCKETMQ_NAMESRV names no name server")
	}
	var errs []error
	for _, s := range c.NameServers {
		if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" {
			errs = append(errs, fmt.Errorf("ROWFERRY_ROCKETMQ_NAMESRV: %q is not of the form host:port", s))
		}
	}
	return errors.Join(errs...)
}

// checkGroup follows the broker, which refuses other groups with code 1 or 29.
func (c *Config) checkGroup() error {
	if c.Group == "" || len(c.Group) > 120 || strings.ContainsFunc(c.Group, func(r rune) bool { return r > 0x7e || !topicByte(byte(r)) }) {
		return fmt.Errorf("ROWFERRY_ROCKETMQ_GROUP (default: ROWFERRY_NAME): %q must have 1 to 120 characters of a-z A-Z 0-9 _ - %% |", c.Group)
	}
	return nil
}

func (c *Config) checkRest() error {
	var errs []error
	if (c.AccessKey == "") != (c.SecretKey == "") {
		errs = append(errs, errors.New("ROWFERRY_ROCKETMQ_ACCESS_KEY and ROWFERRY_ROCKETMQ_SECRET_KEY must be set together: with one of them requests go out unsigned"))
	}
	if c.NonOK != "retry" && c.NonOK != "accept" {
		errs = append(errs, fmt.Errorf("ROWFERRY_ROCKETMQ_NON_OK: %q is neither retry nor accept", c.NonOK))
	}
	if c.SendTimeout < 0 || c.TopicQueues < 0 || c.MessageBytesMax < 0 {
		errs = append(errs, errors.New("ROWFERRY_SEND_TIMEOUT, ROWFERRY_ROCKETMQ_TOPIC_QUEUES and ROWFERRY_MESSAGE_BYTES_MAX must not be negative"))
	}
	return errors.Join(errs...)
}
