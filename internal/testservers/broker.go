package testservers

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Broker is a running RocketMQ: a name server and one broker.
type Broker struct {
	nameServer string
	brokers    []string // addresses; more than one only for servers that are not ours

	dir      string // "" for servers that are not ours
	nsServer NameServer
	mqServer BrokerServer
	mu       sync.Mutex
	ns, mq   *Process
}

// RocketMQ starts a name server and a broker for this test. Conf holds further lines
// "key=value" for broker.conf; topics are not created by sending unless it says so.
func RocketMQ(tb testing.TB, conf ...string) *Broker {
	tb.Helper()
	b, err := startRocketMQ(conf)
	if b != nil {
		tb.Cleanup(b.discard)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Beside starts another broker, of its own name, on the name server of b. What it is
// told to do concerns the new one alone: its topics are on no other.
func (b *Broker) Beside(tb testing.TB, conf ...string) *Broker {
	tb.Helper()
	dir, err := newDir("rocketmq")
	if err != nil {
		tb.Fatal(err)
	}
	mq := BrokerServer{
		Dir: filepath.Join(dir, "broker"), Port: FreePort(BrokerPortSpan), NameServer: b.nameServer,
		Conf: append([]string{"brokerName=" + filepath.Base(dir)}, conf...),
	}
	other := &Broker{nameServer: b.nameServer, brokers: []string{mq.Addr()}, dir: dir, mqServer: mq}
	tb.Cleanup(other.discard)
	if other.mq, err = mq.Launch(Launcher{}); err == nil {
		err = mq.Await(other.mq)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return other
}

// startRocketMQ returns a Broker with an error too, for what it started to be discarded.
func startRocketMQ(conf []string) (*Broker, error) {
	dir, err := newDir("rocketmq")
	if err != nil {
		return nil, err
	}
	ns := NameServer{Dir: filepath.Join(dir, "namesrv"), Port: FreePort(0)}
	mq := BrokerServer{
		Dir: filepath.Join(dir, "broker"), Port: FreePort(BrokerPortSpan),
		NameServer: ns.Addr(), Conf: conf,
	}
	b := &Broker{nameServer: ns.Addr(), brokers: []string{mq.Addr()}, dir: dir, nsServer: ns, mqServer: mq}
	// Both at once: the broker reports to the name server at the end of its longer start.
	if b.ns, err = ns.Launch(Launcher{}); err != nil {
		return b, err
	}
	if b.mq, err = mq.Launch(Launcher{}); err != nil {
		return b, err
	}
	if err = ns.Await(b.ns); err != nil {
		return b, err
	}
	return b, mq.Await(b.mq)
}

// discard ends both servers the fast way and removes their data.
func (b *Broker) discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range []*Process{b.mq, b.ns} {
		if p != nil {
			_ = p.Kill() // fails only if it has ended already
		}
	}
	os.RemoveAll(b.dir)
}

// NameServer is the name server's ip:port.
func (b *Broker) NameServer() string { return b.nameServer }

// Topic creates a topic for this test alone.
func (b *Broker) Topic(tb testing.TB, queues int) string {
	tb.Helper()
	name := uniqueName(tb, "-", 100)
	b.CreateTopic(tb, name, queues)
	return name
}

// CreateTopic creates a topic, or changes its number of queues, and returns when clients
// can find it.
func (b *Broker) CreateTopic(tb testing.TB, topic string, queues int) {
	tb.Helper()
	if err := b.createTopic(topic, queues); err != nil {
		tb.Fatalf("creating topic %s: %v", topic, err)
	}
}

func (b *Broker) createTopic(topic string, queues int) error {
	for _, addr := range b.brokers {
		if err := createTopicOn(addr, topic, queues); err != nil {
			return err
		}
	}
	return poll(10*time.Second, func() error { return b.checkRoute(topic, queues) })
}

// checkRoute tells whether the name server knows the topic as it should be.
func (b *Broker) checkRoute(topic string, queues int) error {
	r, err := lookUpRoute(b.nameServer, topic)
	if err != nil {
		return err
	}
	if len(r.QueueDatas) != len(b.brokers) {
		return fmt.Errorf("on %d brokers, not %d", len(r.QueueDatas), len(b.brokers))
	}
	for _, q := range r.QueueDatas {
		if q.WriteQueueNums != queues {
			return fmt.Errorf("%d queues, not %d", q.WriteQueueNums, queues)
		}
	}
	return nil
}

// poll calls check until it returns nil, and returns its last error when time is up.
func poll(timeout time.Duration, check func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pollInterval)
	}
}

// StopBroker shuts the broker down cleanly and waits for its end, which takes RocketMQ
// about 12 s of fixed waits; KillBroker takes none.
func (b *Broker) StopBroker(tb testing.TB) {
	tb.Helper()
	b.control(tb, "stopping the broker", &b.mq, (*Process).Stop)
}

// KillBroker ends the broker as a crash would (SIGKILL).
func (b *Broker) KillBroker(tb testing.TB) {
	tb.Helper()
	b.control(tb, "killing the broker", &b.mq, (*Process).Kill)
}

// FreezeBroker halts the broker (SIGSTOP): connections stay open and nothing answers.
func (b *Broker) FreezeBroker(tb testing.TB) {
	tb.Helper()
	b.control(tb, "freezing the broker", &b.mq, (*Process).Freeze)
}

// ThawBroker lets a frozen broker go on.
func (b *Broker) ThawBroker(tb testing.TB) {
	tb.Helper()
	b.control(tb, "thawing the broker", &b.mq, (*Process).Thaw)
}

// StartBroker starts a stopped or killed broker again, on the same port and data, with
// the configuration it had and the given lines. It returns when clients can find it.
func (b *Broker) StartBroker(tb testing.TB, conf ...string) {
	tb.Helper()
	again := b.mqServer
	again.Conf = append(append([]string{}, again.Conf...), conf...)
	b.restart(tb, "starting the broker", &b.mq, again)
}

// StopNameServer shuts the name server down cleanly and waits for its end.
func (b *Broker) StopNameServer(tb testing.TB) {
	tb.Helper()
	b.control(tb, "stopping the name server", &b.ns, (*Process).Stop)
}

// KillNameServer ends the name server as a crash would (SIGKILL).
func (b *Broker) KillNameServer(tb testing.TB) {
	tb.Helper()
	b.control(tb, "killing the name server", &b.ns, (*Process).Kill)
}

// StartNameServer starts a stopped or killed name server again, on the same port. If the
// broker runs, it returns when the name server knows the broker and its topics again.
func (b *Broker) StartNameServer(tb testing.TB) {
	tb.Helper()
	b.restart(tb, "starting the name server", &b.ns, b.nsServer)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.mq.Alive() {
		return
	}
	if err := b.mqServer.Register(); err != nil {
		tb.Fatalf("registering the broker: %v", err)
	}
	if err := b.mqServer.Await(b.mq); err != nil {
		tb.Fatal(err)
	}
}

func (b *Broker) control(tb testing.TB, what string, proc **Process, act func(*Process) error) {
	tb.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if *proc == nil {
		tb.Fatalf("%s: not a server of this test", what)
	}
	if err := act(*proc); err != nil {
		tb.Fatalf("%s: %v", what, err)
	}
}

// Server is any of DBServer, NameServer and BrokerServer.
type Server interface {
	Launch(Launcher) (*Process, error)
	Await(*Process) error
}

func (b *Broker) restart(tb testing.TB, what string, proc **Process, server Server) {
	tb.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if *proc == nil || (*proc).Alive() {
		tb.Fatalf("%s: it has not been stopped", what)
	}
	p, err := server.Launch(Launcher{})
	if err != nil {
		tb.Fatalf("%s: %v", what, err)
	}
	*proc = p
	if err := server.Await(p); err != nil {
		tb.Fatal(err)
	}
}
