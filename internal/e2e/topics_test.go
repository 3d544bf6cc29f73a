package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/leader"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/relay"
)

// topicsDocument and refreezeDocument are what the commands print as JSON.
type topicsDocument struct{ Topics []topicDocument }

type topicDocument struct {
	Topic, State, Error       string
	Version                   int
	Queues, Added, Gone, Away []string

	ReadOnly []string `json:"read_only"`
}

type refreezeDocument struct {
	Topic            string
	Applied, Changes bool
	Version          int
	Before, After    []string
	Added, Gone      []string
	MovedShare       float64 `json:"moved_share"`
	Moves            []struct {
		From, To string
		Share    float64
	}
	Keys []struct{ Key, From, To string }
}

// newTopicStage has a topic of this many queues.
func newTopicStage(t *testing.T, broker *testservers.Broker, layout string, queues int) *stage {
	t.Helper()
	s := newStage(t, testservers.SharedMySQL(t), broker, layout)
	s.broker.CreateTopic(t, s.topic, queues)
	return s
}

// listed returns what `topics list` says of the topic of the stage.
func (s *stage) listed(overrides ...string) (state string, version, queues int) {
	s.tb.Helper()
	t := s.topicIn(s.okWith(overrides, "topics", "list", "--json"))
	return t.State, t.Version, len(t.Queues)
}

// topicIn picks the topic of the stage from what a relay or a command says.
func (s *stage) topicIn(text string) (t topicDocument) {
	s.tb.Helper()
	all := decode[topicsDocument](s.tb, text).Topics
	if i := slices.IndexFunc(all, func(t topicDocument) bool { return t.Topic == s.topic }); i >= 0 {
		t = all[i]
	}
	return t
}

// topicBy asks a running relay.
func (s *stage) topicBy(f *ferry) topicDocument {
	s.tb.Helper()
	code, body := f.get("/api/v1/topics")
	if code != 200 {
		return topicDocument{}
	}
	return s.topicIn(body)
}

func (s *stage) expectListed(state string, version, queues int, overrides ...string) {
	s.tb.Helper()
	if gotState, gotVersion, gotQueues := s.listed(overrides...); gotState != state || gotVersion != version || gotQueues != queues {
		s.tb.Errorf("the topic is listed as %q, version %d, %d queues; want %q, %d, %d", gotState, gotVersion, gotQueues, state, version, queues)
	}
}

// expectRefused runs a command that must fail and say why.
func (s *stage) expectRefused(code int, overrides, args []string, parts ...string) {
	s.tb.Helper()
	r := s.command(args, overrides...)
	if r.code != code {
		s.tb.Errorf("rowferry %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), r.code, code, r.stdout, r.stderr)
	}
	expectParts(s.tb, strings.Join(args, " "), r.stderr, parts...)
}

// traffic writes rows, one a transaction, over a few keys until it is ended.
type traffic struct {
	end func() (rows int)
}

const trafficKeys = 40

func (s *stage) traffic(insert func(key string, n int) error) *traffic {
	s.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	rows := 0
	writing.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; rows++ {
			if err := insert(fmt.Sprintf("key-%d", rows%trafficKeys), rows); err != nil {
				s.tb.Errorf("writing rows: %v", err)
				return
			}
			<-tick.C
		}
	})
	end := sync.OnceValue(func() int { cancel(); writing.Wait(); return rows })
	s.tb.Cleanup(func() { end() })
	return &traffic{end}
}

func (s *stage) insertNumbered(key string, n int) error {
	_, err := insertInto(context.Background(), s.db, key, "Created", fmt.Sprintf(`{"n": %d}`, n))
	return err
}

// awaitMore waits until the broker has so many more messages of the topic.
func (s *stage) awaitMore(n int) {
	s.tb.Helper()
	s.messages(len(s.broker.ReadAll(s.tb, s.topic)) + n)
}

// expectMoved holds what the topic has against rows 0 to rows-1, of which each key's
// first ones went by the list of `before` queues and the others by that of `after`: what
// is in the old queue of a key was stored before what is in its new one, with smaller
// outbox_seq, and in order. It wants keys to have moved.
func expectMoved(tb testing.TB, messages []testservers.Message, rows, before, after, copiesMax int) {
	tb.Helper()
	seen := map[int]bool{}
	type edge struct {
		number int
		seq    string
		at     time.Time
	}
	last, first := map[string]edge{}, map[string]edge{} // of the old queue, of the new one
	newest := map[string]int{}                          // key and queue -> number
	copies := 0
	for _, m := range messages {
		n, key := payloadNumber(m), m.Properties["aggregate_id"]
		if seen[n] {
			copies++
			continue
		}
		seen[n] = true
		old, next := relay.LaneOf(key, before), relay.LaneOf(key, after)
		here := fmt.Sprint(key, " ", m.Queue)
		if n < newest[here] {
			tb.Errorf("key %s: event %d follows event %d in queue %d", key, n, newest[here], m.Queue)
		}
		newest[here] = n
		e := edge{n, m.Properties["outbox_seq"], m.StoredAt}
		switch {
		case m.Queue != old && m.Queue != next:
			tb.Errorf("key %s: event %d is in queue %d, neither in %d nor in %d", key, n, m.Queue, old, next)
		case old == next:
		case m.Queue == old:
			last[key] = e
		case first[key] == edge{}:
			first[key] = e
		}
	}
	moved := 0
	for key, f := range first {
		l, ok := last[key]
		if !ok {
			continue
		}
		moved++
		if l.number >= f.number || l.seq >= f.seq || l.at.After(f.at) {
			tb.Errorf("key %s: event %d (%s, %v) is the last one in its old queue, %d (%s, %v) the first in its new one",
				key, l.number, l.seq, l.at, f.number, f.seq, f.at)
		}
	}
	if len(seen) != rows || copies > copiesMax || moved < 5 {
		tb.Errorf("%d of %d rows were published, with %d copies; %d keys have moved", len(seen), rows, copies, moved)
	}
}

// A topic grows and its broker is restarted while rows flow: nothing moves. Then the
// list is refrozen: keys move, in order.
func TestAnEnlargedTopicMovesNothingUntilItIsRefrozen(t *testing.T) {
	t.Parallel()
	s := newTopicStage(t, testservers.RocketMQ(t), layoutPragmatic, 4)
	f := s.run("SEND_TIMEOUT=1s")
	with := []string{"HTTP_ADDR=" + f.addr}
	writing := s.traffic(s.insertNumbered)
	s.awaitMore(100)
	s.broker.CreateTopic(t, s.topic, 8)
	s.awaitMore(100)
	s.broker.KillBroker(t)
	f.awaitLog("cannot send; events wait")
	s.broker.StartBroker(t)
	s.awaitMore(200)
	for _, m := range s.broker.ReadAll(t, s.topic) {
		if m.Queue >= 4 {
			t.Fatalf("row %s went to queue %d of 4 frozen ones", m.Properties["outbox_id"], m.Queue)
		}
	}
	s.expectListed("changed", 1, 4, with...)

	s.expectRefused(2, with, []string{"topics", "refreeze", s.topic}, "nothing was changed", "--yes")
	s.expectListed("changed", 1, 4, with...)
	done := decode[refreezeDocument](t, s.okWith(with, "topics", "refreeze", s.topic, "--yes", "--json", "--key", "key-1"))
	if !done.Applied || done.Version != 2 || len(done.After) != 8 || done.MovedShare != 0.5 || len(done.Moves) != 4 ||
		done.Keys[0].To != done.After[relay.LaneOf("key-1", 8)] {
		t.Errorf("refrozen: %+v", done)
	}
	s.awaitMore(200)
	expectParts(t, "refreezing again", s.okWith(with, "topics", "refreeze", s.topic, "--yes"), "nothing to do")
	s.expectListed("same", 2, 8, with...)
	rows := writing.end()
	s.awaitSent()
	expectMoved(t, s.broker.ReadAll(t, s.topic), rows, 4, 8, 200) // copies: what was under way when the broker was killed
	f.stopCleanly()
	s.refreezeWithoutABroker()
}

// refreezeWithoutABroker takes a topic that is on two brokers, of which one will not
// come back: nothing is frozen without it until somebody says that.
func (s *stage) refreezeWithoutABroker() {
	s.tb.Helper()
	other := s.broker.Beside(s.tb)
	s.topic += "-two"
	s.exec("DELETE FROM outbox")
	f := s.run("SEND_TIMEOUT=1s", "LANE_PARK_AFTER=3s", "ROCKETMQ_CREATE_TOPICS=true", "ROCKETMQ_TOPIC_QUEUES=2")
	with := []string{"HTTP_ADDR=" + f.addr}
	writing := s.traffic(s.insertNumbered)
	s.await("both brokers have messages", func() bool {
		return len(s.topicBy(f).Queues) == 4 && len(s.broker.ReadAll(s.tb, s.topic)) > 50 && len(other.ReadAll(s.tb, s.topic)) > 50
	})
	kept := other.ReadAll(s.tb, s.topic)
	other.KillBroker(s.tb)
	s.await("the broker is missed", func() bool { return s.topicBy(f).State == "away" })
	gone := strings.Join(s.topicBy(f).Away, "")
	s.expectRefused(1, with, []string{"topics", "refreeze", s.topic, "--yes"}, gone+", which has 2 of the 4", "--gone "+gone)
	expectParts(s.tb, "refreeze --gone", s.okWith(with, "topics", "refreeze", s.topic, "--yes", "--gone", gone), "version 2 holds")
	s.awaitMore(100)
	rows := writing.end()
	s.awaitSent()
	here := s.broker.ReadAll(s.tb, s.topic)
	checkOrderOfRest(s.tb, append(kept, here...), here, rows)
	f.stopCleanly()
}

// checkOrderOfRest fails unless all rows are among the messages, but for those that were
// stored by a broker between the last look at it and its end, and each key's messages in
// the queues of the other broker come in order.
func checkOrderOfRest(tb testing.TB, all, here []testservers.Message, rows int) {
	tb.Helper()
	seen, last := map[int]bool{}, map[string]int{}
	for _, m := range all {
		seen[payloadNumber(m)] = true
	}
	for _, m := range here {
		where := fmt.Sprint(m.Properties["aggregate_id"], " in queue ", m.Queue)
		if n := payloadNumber(m); n < last[where] {
			tb.Errorf("key %s: event %d follows event %d", where, n, last[where])
		}
		last[where] = max(last[where], payloadNumber(m))
	}
	if missing := rows - len(seen); missing < 0 || missing > 300 {
		tb.Errorf("%d of %d rows are on the brokers", len(seen), rows)
	}
}

// A topic loses queues while rows flow: those of its keys cannot be sent, and the log
// says what to do. After that all is sent, in order, by the queues that are left; with
// a ledger and without.
func TestVanishedQueuesAreMendedByRefreezing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		layout string
		env    []string
		parked bool
		again  bool // the relay is restarted after the loss: then the topic is not known to it
	}{
		"before lanes park": {layout: layoutPragmatic},
		"parked lanes":      {layout: layoutPragmatic, env: []string{"LANE_PARK_AFTER=1s"}, parked: true},
		"no ledger":         {layout: layoutDebezium},
		"after a restart":   {layout: layoutPragmatic, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTopicStage(t, testservers.SharedRocketMQ(t), c.layout, 8)
			f := s.run(c.env...)
			with := []string{"HTTP_ADDR=" + f.addr}
			insert := s.insertNumbered
			if c.layout == layoutDebezium {
				insert = s.insertNumberedEvent
			}
			writing := s.traffic(insert)
			s.awaitMore(200)
			if c.again {
				f.stopCleanly()
			}
			s.broker.CreateTopic(t, s.topic, 3)
			if c.again {
				f.restart()
			}
			f.awaitLog("queue_vanished", "rowferry topics refreeze "+s.topic)
			if c.parked {
				s.await("the lanes are parked", func() bool {
					_, body := f.get("/api/v1/status")
					return strings.Count(body, `"reason":"queue_vanished"`) == 5
				})
			}
			done := decode[refreezeDocument](t, s.okWith(with, "topics", "refreeze", s.topic, "--yes", "--json"))
			if !done.Applied || len(done.Gone) != 5 || len(done.After) != 3 {
				t.Errorf("refrozen: %+v", done)
			}
			s.await("all lanes are open", func() bool {
				var st marketStatus
				_, body := f.get("/api/v1/status")
				return json.Unmarshal([]byte(body), &st) == nil && len(st.Parked) == 0 && !strings.Contains(body, "queue_vanished")
			})
			s.awaitMore(300)
			rows := writing.end()
			s.broker.CreateTopic(t, s.topic, 8) // to read what the lost queues hold
			messages := s.messages(rows)
			expectMoved(t, messages, rows, 8, 3, 0)
			f.stopCleanly()
		})
	}
}

func (s *stage) insertNumberedEvent(key string, n int) error {
	_, err := s.db.ExecContext(context.Background(), "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (UUID(), 'order', ?, 'Created', ?)",
		key, fmt.Sprintf(`{"n": %d}`, n))
	return err
}

// Without a running relay the commands work on the store, or on the file beside the
// checkpoint.
func TestTopicsCommandsWithoutARelay(t *testing.T) {
	t.Parallel()
	broker := testservers.SharedRocketMQ(t)
	for name, checkpoint := range map[string]string{"mysql": "", "file": "file:" + t.TempDir() + "/checkpoint"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTopicStage(t, broker, layoutPragmatic, 4)
			with := []string{"CHECKPOINT_STORE=" + checkpoint, "OUTBOX_GRACE=0s", "HTTP_ADDR=127.0.0.1:1"}
			expectParts(t, "topics list before", s.okWith(with, "topics", "list"), "no queue list is frozen yet")
			s.expectRefused(1, with, []string{"topics", "refreeze", s.topic}, "no queue list of topic", s.topic, "no list is frozen yet")
			s.insert("a")
			s.okWith(with, "sweep")
			s.expectListed("same", 1, 4, with...)
			expectParts(t, "nothing to do", s.okWith(with, "topics", "refreeze", s.topic), "the brokers have the same")

			s.broker.CreateTopic(t, s.topic, 8)
			expectParts(t, "topics list", s.okWith(with, "topics", "list"), s.topic, ":0-3", "4 added (", ":4-7)")
			r := s.command([]string{"topics", "refreeze", s.topic, "--key", "a"}, with...)
			expectParts(t, "refreeze", r.stdout, "50.0% of all keys would change", ":0 -> ", "12.50%", `key "a"`)
			if r.code != 2 || !strings.Contains(r.stderr, "add --yes") {
				t.Errorf("without --yes: exit code %d, %s", r.code, r.stderr)
			}
			would := s.command([]string{"topics", "refreeze", s.topic, "--json"}, with...)
			if d := decode[refreezeDocument](t, would.stdout); d.Applied || !d.Changes || d.Version != 1 || would.code != 2 {
				t.Errorf("%d, %+v", would.code, d)
			}
			s.expectListed("changed", 1, 4, with...)
			s.expectRefused(1, with, []string{"topics", "refreeze", s.topic, "--yes", "--gone", "nobody"}, "broker nobody is not away")
			expectParts(t, "refreeze --yes", s.okWith(with, "topics", "refreeze", s.topic, "--yes"), "50.0% of all keys have changed", "version 2 holds")
			s.expectListed("same", 2, 8, with...)

			key := keyOfQueue(t, 7, 8)
			s.insert(key)
			s.okWith(with, "sweep")
			last := s.messages(2)[1]
			if last.Queue != 7 || last.Properties["aggregate_id"] != key {
				t.Errorf("key %s went to queue %d", key, last.Queue)
			}

			s.broker.CreateTopic(t, s.topic, 2)
			s.expectListed("changed", 2, 8, with...)
			expectParts(t, "refreeze", s.okWith(with, "topics", "refreeze", s.topic, "--yes"), "6 gone (", "version 3 holds")
		})
	}
}

func keyOfQueue(tb testing.TB, queue, of int) string {
	tb.Helper()
	for i := range 1000 {
		if key := fmt.Sprint("key-", i); relay.LaneOf(key, of) == queue {
			return key
		}
	}
	tb.Fatal("no key belongs to that queue")
	return ""
}

func TestTopicsCommandsThatCannotBe(t *testing.T) {
	t.Parallel()
	s := newTopicStage(t, testservers.SharedRocketMQ(t), layoutPragmatic, 4)
	alone := []string{"HTTP_ADDR=127.0.0.1:1"}
	f := s.run()
	with := []string{"HTTP_ADDR=" + f.addr}
	s.insert("a")
	s.awaitSent()
	s.broker.CreateTopic(t, s.topic, 8)
	for _, c := range []struct {
		code int
		with []string
		args string
		say  string
	}{
		{2, with, "refreeze", "accepts 1 arg"},
		{2, with, "list all", "unknown command"},
		{2, with, "refreeze " + s.topic + " --force", "unknown flag"},
		{2, append(alone, "SINK=stdout"), "list", "no queues to freeze"},
		{1, append(alone, "CHECKPOINT_STORE=memory"), "list", "keeps queue lists in the running relay only"},
		{1, with, "refreeze nobody-knows --yes", "there are lists of " + s.topic},
		{1, alone, "refreeze " + s.topic + " --yes", "is running"},
		{1, append(with, "HTTP_TOKEN=wrong"), "refreeze " + s.topic + " --yes", "the token is wrong"},
		{1, append(alone, "ROCKETMQ_NAMESRV=127.0.0.1:1"), "refreeze " + s.topic, "nameserver_unreachable"},
	} {
		s.expectRefused(c.code, c.with, strings.Fields("topics "+c.args), c.say)
	}
	s.expectListed("changed", 1, 4, with...)
	s.expectListed("unknown", 1, 4, append(alone, "ROCKETMQ_NAMESRV=127.0.0.1:1")...)

	// Lists of topics that are not there any more, or whose broker is not.
	queue := s.queryText("SELECT JSON_UNQUOTE(JSON_EXTRACT(queues, '$[0]')) FROM rowferry_topic")
	s.exec("INSERT INTO rowferry_topic (name, topic, queues) VALUES (?, 'gone-topic', ?), (?, 'away-topic', ?)",
		s.schema, fmt.Sprintf("[%q]", queue), s.schema, `["nowhere:0"]`)
	expectParts(t, "topics list", s.okWith(with, "topics", "list"), "there is no such topic", "brokers that are not there: nowhere")
	s.expectRefused(1, with, []string{"topics", "refreeze", "away-topic"}, "broker nowhere, which has 1 of the 1", "--gone nowhere")
	s.expectRefused(1, with, []string{"topics", "refreeze", "gone-topic"}, "topic_missing")
	f.stopCleanly()
}

// What one relay has refrozen holds for the other when that leads again.
func TestRefrozenListHoldsForWhoeverLeads(t *testing.T) {
	t.Parallel()
	s := newTopicStage(t, testservers.SharedRocketMQ(t), layoutPragmatic, 4)
	first := s.run()
	s.insert("a")
	s.awaitSent()
	second := s.start()
	second.awaitLog("another relay leads")
	s.broker.CreateTopic(t, s.topic, 8)
	s.expectRefused(1, []string{"HTTP_ADDR=" + second.addr}, []string{"topics", "refreeze", s.topic, "--yes"}, "another relay of this name leads")
	s.exec("KILL " + s.queryText("SELECT IS_USED_LOCK(?)", leader.Name(s.schema, s.schema)))
	second.awaitLog(`"message":"relaying"`)
	first.awaitLog("no longer leading")
	s.okWith([]string{"HTTP_ADDR=" + second.addr}, "topics", "refreeze", s.topic, "--yes")
	second.stopCleanly()
	s.await("the first one leads again", func() bool { return first.log.count(`"message":"relaying"`) == 2 })
	key := keyOfQueue(t, 6, 8)
	s.insert(key)
	s.awaitSent()
	messages := s.messages(2)
	if m := messages[len(messages)-1]; m.Queue != 6 {
		t.Errorf("key %s is in queue %d, want 6 by the list that holds now", m.Properties["aggregate_id"], m.Queue)
	}
	first.stopCleanly()
}
