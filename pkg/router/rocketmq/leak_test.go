package rocketmq

import (
	"net"
	"strconv"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// An outage of weeks replaces the producer of a broker thousands of times. What is left
// of each is one connection to the name server, which the library closes after 90 s.
func TestReplacedProducersLeaveNoConnectionToTheBroker(t *testing.T) {
	const times = 20
	mq := testservers.SharedRocketMQ(t) // no other test has connections to it now: those beside this one wait
	topic := mq.Topic(t, 2)
	s := newSink(t, mq.NameServer())
	send := func(first int) {
		t.Helper()
		if err := s.Send(t.Context(), topic, 0, numbered(topic, 0, first, 1)); err != nil {
			t.Fatal(err)
		}
	}
	send(0)
	masters, err := s.directory.masters(t.Context())
	if err != nil || len(masters) != 1 {
		t.Fatalf("brokers %v, %v", masters, err)
	}
	for name, addr := range masters {
		b, err := s.broker(name)
		if err != nil {
			t.Fatal(err)
		}
		before, atNames := connectionsTo(t, addr), connectionsTo(t, mq.NameServer())
		old := b.client
		for i := range times {
			b.rebuild()
			send(i + 1)
		}
		if b.client == old {
			t.Fatal("the producer was not replaced")
		}
		if now := connectionsTo(t, addr); now > before {
			t.Errorf("%d connections to the broker, %d after its producer was replaced %d times", before, now, times)
		}
		if n := connectionsTo(t, mq.NameServer()); n > atNames+times {
			t.Errorf("%d connections to the name server, %d after %d more producers", atNames, n, times)
		}
	}
	if stored := mq.ReadAll(t, topic); len(stored) != times+1 {
		t.Errorf("%d messages are stored, want %d", len(stored), times+1)
	}
}

func connectionsTo(t *testing.T, addr string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	connections, _ := testservers.Connections(t)
	return connections[port]
}
