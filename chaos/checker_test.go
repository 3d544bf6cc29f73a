package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// scene is a table of one key whose rows are as they should be, to be changed by a case.
type scene struct {
	rows   []row
	facts  []fact
	stored []testservers.Message
	strict bool
	claims bool
}

var begin = time.UnixMilli(1_700_000_000_000)

func newScene(rows int) *scene {
	s := &scene{claims: true}
	for n := range rows {
		at := begin.Add(time.Duration(n) * time.Second)
		s.facts = append(s.facts, fact{tx: int64(n), at: at})
		s.rows = append(s.rows, row{id: fmt.Sprint(n), key: "k", payload: fmt.Sprintf(`{"n": %d}`, n), n: n, tx: int64(n), state: stateSent, sentAt: at.Add(time.Second)})
		s.stored = append(s.stored, s.message(n))
	}
	return s
}

func (s *scene) message(n int) testservers.Message {
	return testservers.Message{
		Queue: 1, Offset: int64(len(s.stored)), Body: []byte(fmt.Sprintf(`{"n": %d}`, n)), BornAt: s.facts[n].at, StoredAt: s.facts[n].at,
		Properties: map[string]string{"outbox_id": fmt.Sprint(n), "aggregate_id": "k"},
	}
}

// check returns all complaints in one text.
func (s *scene) check() (string, tally) {
	for i := range s.stored {
		s.stored[i].Offset = int64(i)
	}
	var wrong []string
	c := checker{
		table: &table{name: "t", claims: s.claims}, facts: map[string][]fact{"k": s.facts}, rows: s.rows, stored: s.stored,
		strict: s.strict, grace: 2 * time.Second,
		note:  func(string, ...any) {},
		wrong: func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) },
	}
	tally := c.check()
	return strings.Join(wrong, "; "), tally
}

func (s *scene) exchange(i, j int) { s.stored[i], s.stored[j] = s.stored[j], s.stored[i] }

// What the checker is for, it must find; and nothing else.
func TestTheCheckerFindsWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *scene)
		finds  string // empty: nothing is wrong
		copies int
		late   int
		exempt int
	}{
		{name: "nothing", change: func(*scene) {}},
		{name: "lost", change: func(s *scene) { s.stored = s.stored[:3] }, finds: "is SENT, but the broker does not have it"},
		{name: "left behind", change: func(s *scene) { s.rows[3].state = stateOpen }, finds: "neither SENT nor FAILED"},
		{name: "failed without need", change: func(s *scene) { s.rows[3].state, s.rows[3].reason = stateFailed, "x" }, finds: "though it can be sent"},
		{name: "refused", change: func(s *scene) {
			s.facts[3].refused, s.rows[3].state, s.rows[3].reason, s.stored = true, stateFailed, "too large", s.stored[:3]
		}},
		{name: "refused without a reason", change: func(s *scene) {
			s.facts[3].refused, s.rows[3].state, s.stored = true, stateFailed, s.stored[:3]
		}, finds: "without a reason"},
		{name: "refused and SENT", change: func(s *scene) { s.facts[2].refused = true }, finds: "though it cannot be"},
		{name: "a final state left", change: func(s *scene) { s.rows[0].wrong = 1 }, finds: "has left a final state"},
		{name: "rolled back", change: func(s *scene) {
			s.stored[3].Properties["outbox_id"] = "99"
			s.rows[3].state, s.facts[3].refused, s.rows[3].reason = stateFailed, true, "x"
		}, finds: "no such row is committed"},
		{name: "another row's body", change: func(s *scene) { s.stored[3].Body = []byte("{}") }, finds: "no such row is committed"},
		{name: "two queues", change: func(s *scene) { s.stored[2].Queue = 2 }, finds: "the key is in queue"},
		{name: "exchanged", change: func(s *scene) { s.exchange(1, 2) }, finds: "before its predecessor"},
		{name: "exchanged, and swept", change: func(s *scene) { s.exchange(1, 2); s.rows[1].claims = 1 }, exempt: 1},
		{name: "exchanged, swept, and judged all the same", change: func(s *scene) {
			s.exchange(1, 2)
			s.rows[1].claims, s.strict = 1, true
		}, finds: "before its predecessor"},
		{name: "exchanged, old, where nothing is claimed", change: func(s *scene) {
			s.claims = false
			s.exchange(1, 2)
			s.stored[2].StoredAt = s.facts[1].at.Add(time.Minute)
		}, exempt: 1},
		{name: "exchanged, young, where nothing is claimed", change: func(s *scene) {
			s.claims = false
			s.exchange(1, 2)
		}, finds: "before its predecessor"},
		{name: "a copy", change: func(s *scene) { s.stored = append(s.stored, s.message(1)) }, copies: 1},
		{name: "a late copy", change: func(s *scene) {
			m := s.message(1)
			m.BornAt = m.BornAt.Add(time.Hour)
			s.stored = append(s.stored, m)
		}, copies: 1, late: 1},
		{name: "not written by us", change: func(s *scene) { s.rows[3].tx = 77 }, finds: "of transaction 3 was committed"},
		{name: "missing in the table", change: func(s *scene) { s.rows = s.rows[:3] }, finds: "has 3 rows, committed were 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(4)
			c.change(s)
			text, tally := s.check()
			if (c.finds == "") != (text == "") || !strings.Contains(text, c.finds) {
				t.Errorf("found %q, want %q", text, c.finds)
			}
			if c.finds == "" && (tally.copies != c.copies || tally.late != c.late || tally.exempt != c.exempt) {
				t.Errorf("tally %+v, want %d copies, %d late, %d exempt", tally, c.copies, c.late, c.exempt)
			}
		})
	}
}

func TestTheLongestStallsComeFirst(t *testing.T) {
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	got := longestStalls([]time.Time{at(9), at(0), at(1), at(4)}, 2)
	want := []stall{{at(4), 5 * time.Second}, {at(1), 3 * time.Second}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := longestStalls(nil, 2); len(got) != 0 {
		t.Errorf("without a message: %v", got)
	}
}

func TestThePaceReachesWhatIsAllowed(t *testing.T) {
	var p pace
	p.towards(100, begin)
	for _, c := range []struct {
		after time.Duration
		want  int64
	}{{0, 0}, {paceOver / 2, 50}, {paceOver, 100}, {time.Hour, 100}} {
		if got := p.allowed(begin.Add(c.after)); got != c.want {
			t.Errorf("after %v %d are allowed, want %d", c.after, got, c.want)
		}
	}
	p.towards(100, begin)
	p.towards(200, begin.Add(paceOver/2))
	if got := p.allowed(begin.Add(paceOver)); got <= 50 || got >= 200 {
		t.Errorf("%d are allowed half way from 50 to 200", got)
	}
}
