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

	"github.com/rowferry/rowferry/internal/testservers"
)

// market is a stage on which each event type has a topic of its own, some of them on
// another broker than the others.
type market struct {
	*stage
	f       *ferry
	brokers map[string]*testservers.Broker // by event type; nil: the topic does not exist
	types   []string
	stop    func() // ends the writing
}

// newMarket starts a relay that parks early, and an application that writes rows of
// every type all the time. The budget is small: the rows of one type fill it at once.
func newMarket(t *testing.T, broker *testservers.Broker, brokers map[string]*testservers.Broker) *market {
	t.Helper()
	m := &market{stage: newStage(t, testservers.SharedMySQL(t), broker, layoutPragmatic), brokers: brokers}
	for kind, b := range brokers {
		m.types = append(m.types, kind)
		if b != nil {
			b.CreateTopic(t, m.topicOf(kind), 4)
		}
	}
	slices.Sort(m.types)
	// Nothing here is older than the default of OUTBOX_GRACE when it is swept.
	m.f = m.run("ROUTE_TOPIC="+m.topic+"-{event_type}", "LANE_PARK_AFTER=2s", "INFLIGHT_MAX=200", "SEND_TIMEOUT=1s")
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { m.write(ctx) })
	m.stop = sync.OnceFunc(func() { cancel(); writing.Wait() })
	t.Cleanup(m.stop)
	return m
}

func (m *market) topicOf(kind string) string { return m.topic + "-" + kind }

// write commits transactions with a row of each type, numbered in the payload.
func (m *market) write(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := m.transaction(n); err != nil {
			m.tb.Errorf("writing rows: %v", err)
			return
		}
	}
}

func (m *market) transaction(n int) error {
	tx, err := m.db.BeginTx(context.Background(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	for _, kind := range m.types {
		_, err := insertInto(context.Background(), tx, fmt.Sprintf("%s-%d", kind, n%5), kind, fmt.Sprintf(`{"n": %d}`, n))
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}

// marketStatus is what the tests look for in the status.
type marketStatus struct {
	Parked []struct {
		Lane, Reason string
		Since        time.Time
	} `json:"parked"`
	Checkpoint struct {
		Position string `json:"position"`
	} `json:"checkpoint"`
}

func (m *market) status() marketStatus {
	m.tb.Helper()
	var st marketStatus
	if code, body := m.f.get("/api/v1/status"); code != 200 || json.Unmarshal([]byte(body), &st) != nil {
		m.tb.Fatalf("status: %d %s", code, body)
	}
	return st
}

// highest is the newest row that is committed now.
func (m *market) highest() int { return m.queryInt("SELECT COALESCE(MAX(id), 0) FROM outbox") }

// expectOthersFlow waits until rows of the other types that are committed from now on
// are SENT, several times the budget, and the position moves on with them.
func (m *market) expectOthersFlow(broken ...string) {
	m.tb.Helper()
	others := fmt.Sprintf("event_type NOT IN ('%s')", strings.Join(broken, "','"))
	before, position := m.highest(), m.status().Checkpoint.Position
	m.await("more rows are committed", func() bool { return m.highest() > before+600 })
	upTo := m.highest()
	m.awaitNone(fmt.Sprintf("status <> 'SENT' AND id <= %d AND %s", upTo, others))
	m.await("the position moves on", func() bool { return m.status().Checkpoint.Position != position })
	if n := m.queryInt(fmt.Sprintf("SELECT COUNT(*) FROM outbox WHERE NOT (%s) AND status <> 'PENDING' AND id > %d", others, before)); n > 0 {
		m.tb.Errorf("%d rows of %v are not PENDING", n, broken)
	}
}

// expectParked checks how parked lanes show: each for one of these reasons, which may
// change while it is parked.
func (m *market) expectParked(reasons ...string) {
	m.tb.Helper()
	m.f.awaitLog(`"message":"parked: `)
	for _, p := range m.status().Parked {
		if !slices.Contains(reasons, p.Reason) || p.Since.IsZero() || !strings.HasPrefix(p.Lane, m.topic) {
			m.tb.Errorf("the status says %+v, wanted one of the reasons %v", p, reasons)
		}
	}
	if code, body := m.f.get("/readyz"); code != 200 || !strings.Contains(body, `"degraded"`) || !strings.Contains(body, " is parked: ") {
		m.tb.Errorf("readiness is %d %s", code, body)
	}
	m.await("the metrics agree with the status", func() bool {
		n := len(m.status().Parked)
		code, body := m.f.get("/metrics")
		return n > 0 && code == 200 && strings.Contains(body, fmt.Sprintf("rowferry_parked_lanes %d\n", n)) &&
			strings.Contains(body, `rowferry_events_deferred_total{reason="parked"`)
	})
}

// finish ends the writing and compares all topics with the table.
func (m *market) finish(copiesMax int) {
	m.tb.Helper()
	m.await("nothing is parked", func() bool { return len(m.status().Parked) == 0 })
	m.f.awaitLog(`"message":"open again`)
	from := m.highest()
	m.await("rows are committed after the reopening", func() bool { return m.highest() > from+100 })
	m.stop()
	m.awaitSent()
	for _, kind := range m.types {
		messages := m.brokers[kind].ReadAll(m.tb, m.topicOf(kind))
		ids := m.ids("event_type = '" + kind + "'")
		sends := countSends(messages)
		for _, id := range ids {
			if sends[id] == 0 {
				m.tb.Errorf("row %s of type %s was never published", id, kind)
			}
		}
		if copies := len(messages) - len(ids); copies > copiesMax {
			m.tb.Errorf("%d copies of type %s", copies, kind)
		}
		checkOrder(m.tb, messages, payloadNumber)
	}
	m.expectUntouched()
	m.f.stopCleanly()
}

func TestAMissingTopicIsParkedAndTheOthersFlow(t *testing.T) {
	broker := testservers.SharedRocketMQ(t)
	m := newMarket(t, broker, map[string]*testservers.Broker{"a": broker, "b": broker, "c": broker, "missing": nil})
	m.expectParked("topic_missing")
	m.expectOthersFlow("missing")
	if r := m.command([]string{"sweep"}, "HTTP_ADDR="+m.f.addr); r.code != 0 { // its fence does not wait for the topic
		t.Errorf("sweep: %d %s", r.code, r.stderr)
	}
	if n := m.f.log.count(`"message":"parked: `); n != 1 {
		t.Errorf("%d lines say that something is parked, want one", n)
	}
	m.brokers["missing"] = broker
	broker.CreateTopic(t, m.topicOf("missing"), 4)
	m.finish(0)
}

func TestABrokerThatIsAwayIsParkedAndTheOtherFlows(t *testing.T) {
	broker := testservers.SharedRocketMQ(t)
	other := broker.Beside(t)
	m := newMarket(t, broker, map[string]*testservers.Broker{"a": broker, "b": broker, "x": other, "y": other})
	m.await("both brokers take rows", func() bool {
		return m.queryInt("SELECT COUNT(DISTINCT event_type) FROM outbox WHERE status = 'SENT'") == 4
	})
	other.KillBroker(t)
	m.f.awaitLog(`"message":"parked: `)
	m.expectOthersFlow("x", "y")
	m.expectParked("send_timeout", "connection_lost", "broker_unreachable")
	other.StartBroker(t)
	m.finish(100) // what was under way when the broker was killed
}
