package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// orderReport says what a topic holds of a history.
type orderReport struct {
	history  history // what was delivered
	copies   int     // deliveries of what was delivered before
	behind   int     // of those, such as come behind a successor of their key
	accepted int     // of the copies, such as outbox_seq does not give away
}

// checkHistory holds the messages of a topic, queue by queue and in the order of each,
// against a history: every committed row is there, nothing else is, the rows of a key
// are in one queue, and their first deliveries are in the order of the commits and of
// outbox_seq. It returns what is wrong, in words.
func checkHistory(messages []testservers.Message, want history) (orderReport, []string) {
	c := historyChecker{report: orderReport{history: history{}}, keys: map[string]*keyState{}, want: want}
	for _, m := range messages {
		c.take(m)
	}
	for key, n := range want {
		if got := c.report.history[key]; got < n {
			c.complain("key %s: %d of %d rows were delivered", key, got, n)
		}
	}
	return c.report, c.wrong
}

type historyChecker struct {
	report orderReport
	keys   map[string]*keyState
	want   history
	wrong  []string
}

// keyState is what was read of one key so far.
type keyState struct {
	queue int
	uids  []string // of the rows delivered
	seq   string   // the highest outbox_seq
}

func (c *historyChecker) complain(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func (c *historyChecker) take(m testservers.Message) {
	key, uid, seq := m.Properties["aggregate_id"], m.Properties["outbox_uid"], m.Properties["outbox_seq"]
	k := c.keys[key]
	if k == nil {
		k = &keyState{queue: m.Queue}
		c.keys[key] = k
	}
	where := fmt.Sprintf("key %s, queue %d, offset %d", key, m.Queue, m.Offset)
	if m.Queue != k.queue {
		c.complain("%s: the key is in queue %d, too", where, k.queue)
	}
	n := slices.Index(k.uids, uid)
	if n < 0 {
		n = len(k.uids)
		c.first(k, key, uid, seq, where)
	} else {
		c.copy(k, n, seq)
	}
	if string(m.Body) != historyPayload(n, false) {
		c.complain("%s: %.60s where row %d of the key should be", where, m.Body, n)
	}
	k.seq = max(k.seq, seq)
}

// first takes the first delivery of a row.
func (c *historyChecker) first(k *keyState, key, uid, seq, where string) {
	if len(k.uids) >= c.want[key] {
		c.complain("%s: %s is delivered, but not in the history", where, uid)
	}
	if seq <= k.seq {
		c.complain("%s: outbox_seq %s comes behind %s", where, seq, k.seq)
	}
	k.uids = append(k.uids, uid)
	c.report.history[key]++
}

// copy takes a further delivery of row n of a key.
func (c *historyChecker) copy(k *keyState, n int, seq string) {
	c.report.copies++
	if n < len(k.uids)-1 {
		c.report.behind++
	}
	if seq > k.seq {
		c.report.accepted++
	}
}

// expectHistory checks the topic of a stage against a history.
func (s *stage) expectHistory(want history) orderReport {
	s.tb.Helper()
	report, wrong := checkHistory(s.broker.ReadAll(s.tb, s.topic), want)
	for i, text := range wrong {
		if i == 10 {
			s.tb.Errorf("... and %d more", len(wrong)-i)
			break
		}
		s.tb.Error(text)
	}
	s.tb.Logf("%d rows of %d keys; %d copies, %d of them behind a successor, %d not given away by outbox_seq",
		want.rows(), len(want), report.copies, report.behind, report.accepted)
	return report
}

// What the checker is for, it must find.
func TestTheOrderCheckerFindsWhatIsWrong(t *testing.T) {
	delivery := func(queue int, key string, n, seq int) testservers.Message {
		return testservers.Message{Queue: queue, Body: []byte(historyPayload(n, false)), Properties: map[string]string{
			"aggregate_id": key, "outbox_uid": fmt.Sprintf("shop.outbox:%s-%d", key, n), "outbox_seq": fmt.Sprintf("00000001-%012x", seq)}}
	}
	want := history{"a": 3, "b": 1}
	right := func() []testservers.Message {
		return []testservers.Message{delivery(0, "a", 0, 1), delivery(0, "a", 1, 2), delivery(0, "a", 2, 4), delivery(1, "b", 0, 3)}
	}
	for _, c := range []struct {
		name   string
		change func(m []testservers.Message) []testservers.Message
		finds  string // empty: nothing is wrong
		report orderReport
	}{
		{"nothing", func(m []testservers.Message) []testservers.Message { return m }, "", orderReport{}},
		{"a copy at once", func(m []testservers.Message) []testservers.Message { return slices.Insert(m, 1, m[0]) }, "", orderReport{copies: 1}},
		{"a straggler", func(m []testservers.Message) []testservers.Message { return slices.Insert(m, 3, m[0]) }, "", orderReport{copies: 1, behind: 1}},
		{"a copy of another life", func(m []testservers.Message) []testservers.Message {
			return slices.Insert(m, 3, delivery(0, "a", 0, 9))
		}, "", orderReport{copies: 1, behind: 1, accepted: 1}},
		{"lost", func(m []testservers.Message) []testservers.Message { return slices.Delete(m, 2, 3) }, "2 of 3 rows", orderReport{}},
		{"lost in the middle", func(m []testservers.Message) []testservers.Message { return slices.Delete(m, 1, 2) }, "where row 1 of the key should be", orderReport{}},
		{"all of a key lost", func(m []testservers.Message) []testservers.Message { return m[:3] }, "key b: 0 of 1 rows", orderReport{}},
		{"exchanged", func(m []testservers.Message) []testservers.Message { m[0], m[1] = m[1], m[0]; return m }, "should be", orderReport{}},
		{"two queues", func(m []testservers.Message) []testservers.Message { m[2].Queue = 1; return m }, "is in queue 0, too", orderReport{}},
		{"not committed", func(m []testservers.Message) []testservers.Message { return append(m, delivery(0, "c", 0, 5)) }, "not in the history", orderReport{}},
		{"too many", func(m []testservers.Message) []testservers.Message {
			return slices.Insert(m, 3, delivery(0, "a", 3, 5))
		}, "not in the history", orderReport{}},
		{"rolled back", func(m []testservers.Message) []testservers.Message {
			m[2].Body = []byte(historyPayload(2, true))
			return m
		}, `"gone"`, orderReport{}},
		{"numbers that shrink", func(m []testservers.Message) []testservers.Message {
			m[2].Properties["outbox_seq"] = "00000001-000000000001"
			return m
		}, "comes behind", orderReport{}},
	} {
		report, wrong := checkHistory(c.change(right()), want)
		if text := strings.Join(wrong, "; "); (c.finds == "") != (text == "") || !strings.Contains(text, c.finds) {
			t.Errorf("%s: the checker finds %q, want %q", c.name, text, c.finds)
		}
		report.history = nil
		if c.finds == "" && (report.copies != c.report.copies || report.behind != c.report.behind || report.accepted != c.report.accepted) {
			t.Errorf("%s: reported %+v, want %+v", c.name, report, c.report)
		}
	}
}
