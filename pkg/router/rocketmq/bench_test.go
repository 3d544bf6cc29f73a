package rocketmq

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"golang.org/x/sync/errgroup"

	"github.com/rowferry/rowferry/internal/testservers"
)

// cpuTime is what this process has used so far, which unlike msg/s hardly
// depends on what else the machine does.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSend sends batches of 256 messages of 500 bytes with 13 properties
// to 8 lanes of a real broker: through the sink, and in a bare loop around the
// library, which is the ceiling on the same machine at the same time. One
// operation is one batch in each lane.
func BenchmarkSend(b *testing.B) {
	const lanes, size = 8, 256
	mq := testservers.SharedRocketMQ(b)
	var busy atomic.Int64
	run := func(b *testing.B, send func(lane int) error) {
		before := cpuTime(b)
		for b.Loop() {
			var g errgroup.Group
			for lane := range lanes {
				g.Go(func() error {
					for {
						err := send(lane)
						if err == nil || !strings.Contains(err.Error(), "broker busy") {
							return err
						}
						busy.Add(1)
						time.Sleep(50 * time.Millisecond) // the engine's back-off
					}
				})
			}
			if err := g.Wait(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N*lanes*size)/b.Elapsed().Seconds(), "msg/s")
		b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N*lanes*size), "cpu-ns/msg")
		b.ReportMetric(float64(busy.Swap(0)), "busy")
	}
	b.Run("sink", func(b *testing.B) {
		topic := mq.Topic(b, lanes)
		s := newSink(b, mq.NameServer())
		msgs := numbered(topic, 0, 0, size)
		run(b, func(lane int) error { return s.Send(context.Background(), topic, lane, msgs) })
	})
	b.Run("library", func(b *testing.B) {
		topic := mq.Topic(b, lanes)
		pin := &pin{}
		p, err := newLibraryProducer(producer.WithNsResolver(resolver{mq.NameServer()}), producer.WithGroupName("bare"), producer.WithQueueSelector(pin),
			producer.WithInstanceName(fmt.Sprintf("bare-%d", instances.Add(1))), producer.WithRetry(0), producer.WithSendMsgTimeout(8*time.Second),
			producer.WithCreateTopicKey(""), producer.WithCompressMsgBodyOverHowmuch(math.MaxInt32))
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Start(); err != nil {
			b.Fatal(err)
		}
		defer p.Shutdown() //nolint:errcheck // always nil
		if err := (&client{libraryProducer: p, pin: pin}).prime(topic); err != nil {
			b.Fatal(err)
		}
		masters, err := (&directory{servers: []string{mq.NameServer()}}).masters(context.Background())
		if err != nil || len(masters) != 1 {
			b.Fatal(masters, err)
		}
		var broker string
		for broker = range masters {
		}
		msgs := numbered(topic, 0, 0, size)
		run(b, func(lane int) error {
			batch := make([]*primitive.Message, size)
			for i, m := range msgs {
				batch[i] = primitive.NewMessage(topic, m.Body)
				batch[i].Queue = &primitive.MessageQueue{Topic: topic, BrokerName: broker, QueueId: lane}
				batch[i].WithKeys(m.Keys)
				batch[i].WithTag(m.Tag)
				for _, x := range m.Properties {
					batch[i].WithProperty(x.Name, x.Value)
				}
			}
			_, err := p.SendSync(context.Background(), batch...)
			return err
		})
	})
}
