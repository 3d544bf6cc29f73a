package testservers

import (
	"fmt"
	"strconv"
)

const codeDeleteExpired = 329

// Stored returns how many messages of a topic the broker has ever taken: the sum of the
// ends of its queues.
func (s BrokerServer) Stored(topic string) (int64, error) {
	queues, err := brokerRanges(s.Addr(), topic)
	if err != nil {
		return 0, fmt.Errorf("asking for the queues of topic %s: %w", topic, err)
	}
	var n int64
	for _, q := range queues {
		n += q.end
	}
	return n, nil
}

// CreateTopic creates a topic, or changes its number of queues. Name servers learn of it
// from the broker a moment later.
func (s BrokerServer) CreateTopic(topic string, queues int) error {
	if err := createTopicOn(s.Addr(), topic, queues); err != nil {
		return fmt.Errorf("creating topic %s: %w", topic, err)
	}
	return nil
}

func createTopicOn(addr, topic string, queues int) error {
	n := strconv.Itoa(queues)
	_, err := callOnce(addr, codeUpdateTopic, map[string]string{
		"topic": topic, "defaultTopic": "TBW102", "readQueueNums": n, "writeQueueNums": n,
		"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
	}, nil)
	return err
}

// ReadAll returns everything that a topic holds now, as [Broker.ReadAll] does.
func (s BrokerServer) ReadAll(topic string) ([]Message, error) {
	b := Broker{brokers: []string{s.Addr()}}
	messages, err := b.readAll(topic)
	if err != nil {
		return nil, fmt.Errorf("reading topic %s: %w", topic, err)
	}
	return messages, nil
}

// DropStored has the broker delete the files of messages that are full and older than
// its fileReservedTime, within some ten seconds.
func (s BrokerServer) DropStored() error {
	if _, err := callOnce(s.Addr(), codeDeleteExpired, nil, nil); err != nil {
		return fmt.Errorf("having the broker delete its old files: %w", err)
	}
	return nil
}
