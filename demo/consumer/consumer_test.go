package consumer

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestMain(m *testing.M) { testservers.Main(m) }

// publish sends messages with the uids first to first+n-1, message i to queue
// i % queues.
func publish(t *testing.T, c *Consumer, first, n int) {
	t.Helper()
	conn, err := dial(t.Context(), c.queues[0].broker)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := first; i < first+n; i++ {
		q := c.queues[i%len(c.queues)]
		send(t, conn, fmt.Append(nil, "body ", i), map[string]string{
			"producerGroup": "test", "topic": q.topic, "queueId": strconv.Itoa(q.id),
			"defaultTopic": "", "defaultTopicQueueNums": "1", "sysFlag": "0", "flag": "0", "reconsumeTimes": "0",
			"bornTimestamp": strconv.FormatInt(time.Now().UnixMilli(), 10),
			"properties":    fmt.Sprintf("outbox_uid\x01%d\x02", i),
		})
	}
}

// send stores one message and waits for the acknowledgement.
func send(t *testing.T, conn connection, body []byte, fields map[string]string) {
	t.Helper()
	const codeSend = 10
	header, err := json.Marshal(command{Code: codeSend, Language: "GO", Version: 500, ExtFields: fields})
	if err != nil {
		t.Fatal(err)
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(header)))
	if _, err := conn.Write(slices.Concat(frame, header, body)); err != nil {
		t.Fatal(err)
	}
	answer, _, err := receive(conn)
	if err != nil || answer.Code != answerOK {
		t.Fatalf("sending: %+v, %v", answer, err)
	}
}

// feed runs a consumer and keeps the numbers of what it hands over.
type feed struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan error
	mu     sync.Mutex
	got    []int
	more   chan struct{} // holds a token when something has come
}

func newFeed(t *testing.T) *feed {
	return &feed{t: t, done: make(chan error, 1), more: make(chan struct{}, 1)}
}

func (f *feed) start(c *Consumer) {
	ctx, cancel := context.WithCancel(f.t.Context())
	f.cancel = cancel
	go func() { f.done <- c.Run(ctx, f.handle) }()
}

func (f *feed) handle(m Message) {
	i, err := strconv.Atoi(m.UID)
	if err != nil || string(m.Body) != fmt.Sprint("body ", i) || m.At.IsZero() {
		f.t.Errorf("message %+v: %v", m, err)
	}
	f.mu.Lock()
	f.got = append(f.got, i)
	f.mu.Unlock()
	select {
	case f.more <- struct{}{}:
	default:
	}
}

func (f *feed) await(n int) {
	f.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		f.mu.Lock()
		got := len(f.got)
		f.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-f.more:
		case <-timeout:
			f.t.Fatalf("%d messages within 30 s, want %d", got, n)
		}
	}
}

// stop ends the consumer, which must not take as long as the broker holds a pull.
func (f *feed) stop() []int {
	f.t.Helper()
	f.cancel()
	select {
	case err := <-f.done:
		if err != nil {
			f.t.Errorf("the consumer ended with %v", err)
		}
	case <-time.After(holdTime / 2):
		f.t.Fatal("the consumer did not end")
	}
	return f.got
}

// What was published before the consumer came and after is handed over once each,
// and in order within each queue.
func TestConsumer(t *testing.T) {
	const queues, before, after = 4, 200, 200
	broker := testservers.SharedRocketMQ(t)
	topic := broker.Topic(t, queues)
	c, err := Open(t.Context(), broker.NameServer(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if c.Queues() != queues {
		t.Fatalf("%d queues, want %d", c.Queues(), queues)
	}
	publish(t, c, 0, before)
	f := newFeed(t)
	f.start(c)
	f.await(before)
	publish(t, c, before, after)
	f.await(before + after)
	assertOnceAndInOrder(t, f.stop(), queues)
}

func assertOnceAndInOrder(t *testing.T, got []int, queues int) {
	t.Helper()
	next := make([]int, queues)
	for _, i := range got {
		queue := i % queues
		if want := next[queue]*queues + queue; i != want {
			t.Fatalf("queue %d: message %d, want %d", queue, i, want)
		}
		next[queue]++
	}
}

// A topic that comes later is waited for, and one that never comes is named when
// the caller gives up.
func TestOpenWaitsForTheTopic(t *testing.T) {
	broker := testservers.SharedRocketMQ(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*topicPollInterval)
	defer cancel()
	_, err := Open(ctx, broker.NameServer(), "never-made")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "never-made") {
		t.Errorf("error %v", err)
	}
}

// proxy stands between a consumer and the broker, so that connections can be cut.
type proxy struct {
	net.Listener
	target string
	mu     sync.Mutex
	conns  []net.Conn
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, target: target}
	var copies sync.WaitGroup
	copies.Go(func() { p.serve(&copies) })
	t.Cleanup(func() {
		l.Close()
		p.cut()
		copies.Wait()
	})
	return p
}

func (p *proxy) serve(copies *sync.WaitGroup) {
	for {
		from, err := p.Accept()
		if err != nil {
			return // closed by the cleanup
		}
		to, err := net.Dial("tcp", p.target)
		if err != nil {
			from.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, from, to)
		p.mu.Unlock()
		for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
			copies.Go(func() {
				io.Copy(pair[0], pair[1]) //nolint:errcheck // ends with an error when cut, which is the point
				pair[0].Close()
			})
		}
	}
}

// cut breaks all connections and returns how many there were.
func (p *proxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns) / 2
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
	return n
}

// Connections that break while pulls are held are replaced: nothing is left out
// and nothing comes twice.
func TestConsumerReconnects(t *testing.T) {
	const queues, n = 2, 20
	broker := testservers.SharedRocketMQ(t)
	direct, err := Open(t.Context(), broker.NameServer(), broker.Topic(t, queues))
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, direct.queues[0].broker)
	proxied := &Consumer{slices.Clone(direct.queues)}
	for i := range proxied.queues {
		proxied.queues[i].broker = p.Addr().String()
	}
	f := newFeed(t)
	f.start(proxied)
	for round := range 3 {
		publish(t, direct, round*n, n)
		f.await((round + 1) * n)
		if got := p.cut(); got != queues {
			t.Errorf("round %d: %d connections cut, want %d", round, got, queues)
		}
	}
	publish(t, direct, 3*n, n)
	f.await(4 * n)
	assertOnceAndInOrder(t, f.stop(), queues)
}

func TestParseServers(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1", "a:1,,b:1"} {
		if _, err := parseServers(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	got, err := parseServers("namesrv:9876, 127.0.0.1:9877")
	if want := []string{"namesrv:9876", "127.0.0.1:9877"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestParseRoute(t *testing.T) {
	got, err := parseRoute("order", []byte(`{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"0":"h:1","1":"h:2"}},{"brokerName":"b","brokerAddrs":{"1":"h:3"}}],
		"queueDatas":[{"brokerName":"a","readQueueNums":2},{"brokerName":"b","readQueueNums":1}]}`))
	want := []queue{{"order", "h:1", 0}, {"order", "h:1", 1}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "[]", `{"queueDatas":[{"readQueueNums":99999999}]}`} {
		if _, err := parseRoute("order", []byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0e\x00\x00\x00\x0a{\"code\":0}"))
	f.Add([]byte("\xff\xff\xff\xff\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x02\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		_, body, err := receive(bytes.NewReader(frame))
		if err == nil && len(body) > len(frame)-8 {
			t.Errorf("%d bytes of body from a frame of %d", len(body), len(frame))
		}
	})
}
