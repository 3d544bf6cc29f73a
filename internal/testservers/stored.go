package testservers

import "fmt"

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

// DropStored has the broker delete the files of messages that are full and older than
// its fileReservedTime, within some ten seconds.
func (s BrokerServer) DropStored() error {
	if _, err := callOnce(s.Addr(), codeDeleteExpired, nil, nil); err != nil {
		return fmt.Errorf("having the broker delete its old files: %w", err)
	}
	return nil
}
