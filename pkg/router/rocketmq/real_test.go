package rocketmq

import (
	"context"
	"fmt"
	"maps"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/router/sinktest"
)

func createTopics(c *Config) { c.CreateTopics = true }

// got turns a stored message into what the conformance tests compare, and
// checks what the sink itself adds.
func got(t *testing.T, m testservers.Message) sinktest.Got {
	t.Helper()
	properties := maps.Clone(m.Properties)
	key := properties["SHARDING_KEY"]
	if properties["__SHARDINGKEY"] != key || key == "" {
		t.Errorf("sharding keys %q and %q", key, properties["__SHARDINGKEY"])
	}
	if len(properties["UNIQ_KEY"]) != uniqKeyBytes {
		t.Errorf("UNIQ_KEY %q", properties["UNIQ_KEY"])
	}
	for _, name := range []string{"KEYS", "TAGS", "SHARDING_KEY", "__SHARDINGKEY", "UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "__CRC32#"} {
		delete(properties, name)
	}
	return sinktest.Got{Lane: m.Queue, Body: m.Body, Tag: m.Tag, Key: key, Keys: strings.Split(m.Keys, " "), Properties: properties}
}

func TestSink(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	sinktest.Run(t,
		func(t *testing.T) sinktest.Sink { return newSink(t, mq.NameServer(), createTopics) },
		func(t *testing.T, topic string) []sinktest.Got {
			var all []sinktest.Got
			for _, m := range mq.ReadAll(t, topic) {
				all = append(all, got(t, m))
			}
			return all
		})
}

func TestHostNamesAreLookedUp(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	_, port, err := net.SplitHostPort(mq.NameServer())
	if err != nil {
		t.Fatal(err)
	}
	topic := mq.Topic(t, 2)
	// The first name server does not answer: port 1 is closed.
	s := newSink(t, "localhost:"+port, func(c *Config) { c.NameServers = []string{"127.0.0.1:1", c.NameServers[0]} })
	if n, err := s.Lanes(t.Context(), topic); n != 2 || err != nil {
		t.Fatalf("%d lanes, %v", n, err)
	}
	if err := s.Send(t.Context(), topic, 1, numbered(topic, 1, 0, 3)); err != nil {
		t.Error(err)
	}
	mq.Await(t, topic, 3, 10*time.Second)
}

func TestMissingTopic(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	s := newSink(t, mq.NameServer())
	_, err := s.Lanes(t.Context(), "no-such-topic")
	wantError(t, err, outbox.Configuration, "topic_missing", "no-such-topic", "mqadmin updateTopic", "ROWFERRY_ROCKETMQ_CREATE_TOPICS")
	err = s.Send(t.Context(), "no-such-topic", 0, numbered("no-such-topic", 0, 0, 1))
	wantError(t, err, outbox.Configuration, "topic_missing", "no-such-topic")

	topic := mq.Topic(t, 3) // and once it is there, the next attempt finds it
	if n, err := s.Lanes(t.Context(), topic); n != 3 || err != nil {
		t.Errorf("%d lanes, %v", n, err)
	}
	_, err = s.Lanes(t.Context(), "a.b")
	wantError(t, err, outbox.Refused, "topic_illegal", "a.b")
}

func TestTopicsAreCreatedWithTheirQueues(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := "created-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	s := newSink(t, mq.NameServer(), createTopics, func(c *Config) { c.TopicQueues = 5 })
	if n, err := s.Lanes(t.Context(), topic); n != 5 || err != nil {
		t.Errorf("%d lanes, %v", n, err)
	}
	if queues, err := s.LiveQueues(t.Context(), topic); len(queues) != 5 || err != nil {
		t.Errorf("queues %q, %v", queues, err)
	}
}

func TestQueueListIsFrozen(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 4)
	store := &memoryTopics{}
	frozen := func(c *Config) { c.Topics = store }
	if n, err := newSink(t, mq.NameServer(), frozen).Lanes(t.Context(), topic); n != 4 || err != nil {
		t.Fatalf("%d lanes, %v", n, err)
	}
	mq.CreateTopic(t, topic, 8) // a live route would now move half of the keys
	s := newSink(t, mq.NameServer(), frozen)
	if n, err := s.Lanes(t.Context(), topic); n != 4 || err != nil {
		t.Fatalf("after the topic grew: %d lanes, %v", n, err)
	}
	mq.CreateTopic(t, topic, 3)
	_, err := newSink(t, mq.NameServer(), frozen).Lanes(t.Context(), topic)
	wantError(t, err, outbox.Configuration, "queue_vanished", topic, "queue 3", "rowferry topics refreeze "+topic)
	// The sink that resolved it before learns it from the broker, for that lane only.
	wantError(t, s.Send(t.Context(), topic, 3, numbered(topic, 3, 0, 2)), outbox.Configuration, "queue_vanished", "rowferry topics refreeze "+topic)
	if err := s.Send(t.Context(), topic, 2, numbered(topic, 2, 0, 2)); err != nil {
		t.Errorf("a lane whose queue is there: %v", err)
	}
	drift, err := s.Compare(t.Context(), topic, s.InUse(topic))
	if err != nil || len(drift.Live) != 3 || len(drift.Gone) != 1 || !strings.HasSuffix(drift.Gone[0], ":3") || len(drift.Added)+len(drift.Away)+len(drift.ReadOnly) > 0 {
		t.Fatalf("%+v, %v", drift, err)
	}
	if changed, err := s.Refreeze(t.Context(), topic, 1, drift.Live); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if n, err := s.Lanes(t.Context(), topic); n != 3 || err != nil {
		t.Errorf("after refreezing: %d lanes, %v", n, err)
	}
}

// A list that grows is used to its end, by the producers that knew the topic before.
func TestRefrozenQueuesAreSentTo(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 4)
	s := newSink(t, mq.NameServer(), func(c *Config) { c.Topics = &memoryTopics{} })
	if err := s.Send(t.Context(), topic, 3, numbered(topic, 3, 0, 2)); err != nil {
		t.Fatal(err)
	}
	mq.CreateTopic(t, topic, 8)
	drift, err := s.Compare(t.Context(), topic, s.InUse(topic))
	if err != nil || len(drift.Added) != 4 || len(drift.Live) != 8 {
		t.Fatalf("%+v, %v", drift, err)
	}
	if changed, err := s.Refreeze(t.Context(), topic, 1, drift.Live); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if err := s.Send(t.Context(), topic, 7, numbered(topic, 7, 0, 2)); err != nil {
		t.Fatal(err)
	}
	if all := mq.ReadAll(t, topic); len(all) != 4 || all[3].Queue != 7 {
		t.Errorf("stored %+v", all)
	}
}

func TestFirstFrozenListWins(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 4)
	live, err := newSink(t, mq.NameServer()).LiveQueues(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	store := &memoryTopics{}
	store.saving = func(topic string) { store.put(topic, live[:2]) } // another process was faster
	s := newSink(t, mq.NameServer(), func(c *Config) { c.Topics = store })
	if n, err := s.Lanes(t.Context(), topic); n != 2 || err != nil {
		t.Errorf("%d lanes, %v", n, err)
	}
	store.err = context.DeadlineExceeded
	_, err = newSink(t, mq.NameServer(), func(c *Config) { c.Topics = store }).Lanes(t.Context(), topic)
	wantError(t, err, outbox.Transient, "topic_store", topic)
}

// setPermission changes what may be done with a topic: 4 is reading only.
func setPermission(t *testing.T, s *Sink, topic, perm string) {
	t.Helper()
	masters, err := s.directory.masters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range masters {
		answer, err := s.directory.call(t.Context(), addr, reqCreateTopic, map[string]string{"topic": topic, "defaultTopic": "TBW102",
			"readQueueNums": "2", "writeQueueNums": "2", "perm": perm, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})
		if err != nil || answer.Code != codeSuccess {
			t.Fatalf("%v, %v", answer, err)
		}
	}
}

func TestReadOnlyTopic(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 2)
	s := newSink(t, mq.NameServer())
	setPermission(t, s, topic, "4")
	_, err := s.Lanes(t.Context(), topic)
	wantError(t, err, outbox.Configuration, "topic_read_only", topic, "updateTopicPerm")
	setPermission(t, s, topic, "6")
	if n, err := s.Lanes(t.Context(), topic); n != 2 || err != nil {
		t.Errorf("%d lanes, %v", n, err)
	}
}

// TestLimitAboveTheBrokers: when MESSAGE_BYTES_MAX is set above what the broker
// takes, its refusal must be understood, in company and alone.
func TestLimitAboveTheBrokers(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 1)
	s := newSink(t, mq.NameServer(), func(c *Config) { c.MessageBytesMax = 8 << 20 })
	msgs := numbered(topic, 0, 0, 2)
	msgs[0].Body = make([]byte, 4<<20)
	wantError(t, s.Send(t.Context(), topic, 0, msgs), outbox.Unknown, "too_large")
	wantError(t, s.Send(t.Context(), topic, 0, msgs[:1]), outbox.Refused, "too_large", "maxMessageSize")
	if err := s.Send(t.Context(), topic, 0, msgs[1:]); err != nil {
		t.Errorf("its neighbour: %v", err)
	}
	if stored := mq.ReadAll(t, topic); len(stored) != 1 {
		t.Errorf("%d messages are stored", len(stored))
	}
}

func TestLargestMessage(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 1)
	s := newSink(t, mq.NameServer())
	m := numbered(topic, 0, 0, 1)[0]
	m.Body = make([]byte, 4<<20-messageOverheadBytes-propertiesBytes(m)-seqBytesMax)
	if err := s.Check(m); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(t.Context(), topic, 0, []*outbox.Message{m}); err != nil {
		t.Fatal(err)
	}
	m.Body = append(m.Body, 0)
	wantError(t, s.Check(m), outbox.Refused, "too_large")
}

func TestNameServerAway(t *testing.T) {
	t.Parallel()
	mq := testservers.RocketMQ(t)
	topic, other := mq.Topic(t, 2), mq.Topic(t, 2)
	s := newSink(t, mq.NameServer())
	if _, err := s.Lanes(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	mq.StopNameServer(t)
	wantError(t, s.Ping(t.Context()), outbox.Transient, "nameserver_unreachable", mq.NameServer())
	_, err := s.Lanes(t.Context(), other)
	wantError(t, err, outbox.Transient, "nameserver_unreachable", mq.NameServer())
	if err := s.Send(t.Context(), topic, 0, numbered(topic, 0, 0, 2)); err != nil {
		t.Errorf("a topic that is known needs no name server: %v", err)
	}
	mq.StartNameServer(t)
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Send(t.Context(), other, 1, numbered(other, 1, 0, 2)); err != nil {
		t.Error(err)
	}
}

// keepSending sends numbered batches to each lane until stop is set, each batch
// again until it goes through, as the engine does. It returns the number of
// messages acknowledged in each lane and the reasons of all failures.
func keepSending(ctx context.Context, s *Sink, topic string, lanes int, stop *atomic.Bool, acked *atomic.Int64) (counts []int, reasons map[string]int, err error) {
	counts, reasons = make([]int, lanes), map[string]int{}
	var mu sync.Mutex
	var g errgroup.Group
	for lane := range lanes {
		g.Go(func() error {
			for !stop.Load() {
				batch := numbered(topic, lane, counts[lane], 20)
				err := s.Send(ctx, topic, lane, batch)
				if err == nil {
					counts[lane] += len(batch)
					acked.Add(int64(len(batch)))
					continue
				}
				mu.Lock()
				reasons[outbox.ReasonOf(err)]++
				mu.Unlock()
				if outbox.ClassOf(err) != outbox.Transient {
					return err
				}
				select {
				case <-time.After(50 * time.Millisecond): // the engine's back-off
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}
	return counts, reasons, g.Wait()
}

// awaitMore waits until n more messages are acknowledged.
func awaitMore(t *testing.T, acked *atomic.Int64, n int64) {
	t.Helper()
	want := acked.Load() + n
	for deadline := time.Now().Add(60 * time.Second); acked.Load() < want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d messages acknowledged, waited for %d", acked.Load(), want)
		}
	}
}

// TestBrokerGoesAndComesBack kills the broker, then freezes it, while all lanes
// send. Whatever was acknowledged must be there, in order; a copy may follow
// its original.
func TestBrokerGoesAndComesBack(t *testing.T) {
	t.Parallel()
	const lanes = 4
	mq := testservers.RocketMQ(t)
	topic, other := mq.Topic(t, lanes), mq.Topic(t, 1)
	s := newSink(t, mq.NameServer(), func(c *Config) { c.SendTimeout = 2 * time.Second })
	if _, err := s.Lanes(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var acked atomic.Int64
	var counts []int
	var reasons map[string]int
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if counts, reasons, err = keepSending(t.Context(), s, topic, lanes, &stop, &acked); err != nil {
			t.Errorf("an error that is not transient: %v", err)
		}
	})
	awaitMore(t, &acked, 500)
	mq.KillBroker(t)
	mq.StartBroker(t)
	awaitMore(t, &acked, 500)
	mq.FreezeBroker(t)
	err := s.Send(t.Context(), other, 0, numbered(other, 0, 0, 1)) // a lane must have one request only
	wantError(t, err, outbox.Transient, "send_timeout", "may have stored")
	mq.ThawBroker(t)
	awaitMore(t, &acked, 500)
	stop.Store(true)
	wg.Wait()
	t.Logf("acknowledged %v, failures %v", counts, reasons)
	if reasons["broker_unreachable"] == 0 || reasons["send_timeout"] == 0 {
		t.Errorf("the outages were not noticed: %v", reasons)
	}
	checkComplete(t, mq.ReadAll(t, topic), counts)
}

// checkComplete checks first occurrences: each lane's numbers from 0 to its
// count at least, in order.
func checkComplete(t *testing.T, stored []testservers.Message, counts []int) {
	t.Helper()
	next := make([]int, len(counts))
	copies := 0
	for _, m := range stored {
		n, err := strconv.Atoi(strings.TrimPrefix(m.Properties["outbox_id"], fmt.Sprintf("%d-", m.Queue)))
		switch {
		case err != nil:
			t.Fatalf("queue %d holds %q", m.Queue, m.Properties["outbox_id"])
		case n > next[m.Queue]:
			t.Fatalf("queue %d: %d is missing before %d", m.Queue, next[m.Queue], n)
		case n < next[m.Queue]:
			copies++
		default:
			next[m.Queue]++
		}
	}
	for lane, n := range next {
		if n < counts[lane] {
			t.Errorf("queue %d holds %d messages, %d were acknowledged", lane, n, counts[lane])
		}
	}
	t.Logf("%d messages stored, %d of them copies", len(stored), copies)
}

// TestNotStoredSafely: a master that must have a replica and has none stores each
// batch and says, after 3 s, that it is not safe.
func TestNotStoredSafely(t *testing.T) {
	t.Parallel()
	mq := testservers.RocketMQ(t, "brokerRole=SYNC_MASTER", "inSyncReplicas=2")
	topic := mq.Topic(t, 1)
	retry := newSink(t, mq.NameServer())
	wantError(t, retry.Send(t.Context(), topic, 0, numbered(topic, 0, 0, 2)), outbox.Transient, "not_stored_safely", "replica", "ROWFERRY_ROCKETMQ_NON_OK")
	accept := newSink(t, mq.NameServer(), func(c *Config) { c.NonOK = "accept" })
	if err := accept.Send(t.Context(), topic, 0, numbered(topic, 0, 2, 2)); err != nil {
		t.Error(err)
	}
	if stored := mq.ReadAll(t, topic); len(stored) != 4 {
		t.Errorf("%d messages are stored, want 4", len(stored))
	}
}

func TestUniqKeySurvivesRetries(t *testing.T) {
	mq := testservers.SharedRocketMQ(t)
	topic := mq.Topic(t, 1)
	msgs := numbered(topic, 0, 0, 3)
	for _, m := range msgs {
		m.Properties[6].Value = time.Now().Add(-time.Minute).UTC().Format(time.RFC3339Nano)
	}
	for range 2 { // by two processes, as it were
		if err := newSink(t, mq.NameServer()).Send(t.Context(), topic, 0, msgs); err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	for _, m := range mq.Await(t, topic, 6, 10*time.Second) {
		keys = append(keys, m.Properties["UNIQ_KEY"])
	}
	if len(keys) != 6 || !reflect.DeepEqual(keys[:3], keys[3:]) || keys[0] == keys[1] {
		t.Errorf("got %q", keys)
	}
}
