package fallback

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

var orders = outbox.Table{Schema: "shop", Name: "outbox"}

// scene plays every part that a pass speaks to, and writes down what is said.
type scene struct {
	said     []string
	rows     []string                 // candidates, oldest first
	tailDown bool                     // what Fence answers
	onFence  func()                   // while the tail is waited for
	status   map[string]outbox.Status // of rows that are no longer PENDING
	inflight map[string]bool
	sent     []string
	claims   bool
	tally    func(ids []string) outbox.Tally // answer of Submit; nil: all sent
}

func (s *scene) say(format string, args ...any) {
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

func (s *scene) Pages(_ outbox.Table, _ time.Duration, limit int) func(context.Context) ([]string, error) {
	rest := s.rows
	return func(context.Context) ([]string, error) {
		page := rest[:min(limit, len(rest))]
		rest = rest[len(page):]
		s.say("page of %d", len(page))
		return page, nil
	}
}

func (s *scene) Claim(_ context.Context, _ outbox.Table, ids []string, _ string) ([]string, bool, error) {
	return ids, s.claims, nil
}

func (s *scene) Load(_ context.Context, table outbox.Table, ids []string) ([]*outbox.Event, map[string]outbox.Status, error) {
	s.say("load %s", strings.Join(ids, " "))
	var events []*outbox.Event
	status := map[string]outbox.Status{}
	for _, id := range ids {
		events = append(events, &outbox.Event{Table: table, ID: id})
		if status[id] = outbox.Pending; s.status[id] != outbox.Other {
			status[id] = s.status[id]
		}
	}
	return events, status, nil
}

func (s *scene) BeginPass() { s.say("begin") }

func (s *scene) Reserve(_ outbox.Table, ids []string) []string {
	free := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return s.inflight[id] })
	s.say("reserve %s", strings.Join(free, " "))
	return free
}

func (s *scene) Unreserve(_ outbox.Table, ids []string) {
	if len(ids) > 0 {
		s.say("unreserve %s", strings.Join(ids, " "))
	}
}

func (s *scene) Submit(_ context.Context, events []*outbox.Event, _ string) (outbox.Tally, error) {
	var ids []string
	for _, ev := range events {
		ids = append(ids, ev.ID)
	}
	s.sent = append(s.sent, ids...)
	if s.tally != nil {
		return s.tally(ids), nil
	}
	return outbox.Tally{Sent: len(ids)}, nil
}

func (s *scene) Fence(context.Context) error {
	s.say("fence")
	if s.onFence != nil {
		s.onFence()
	}
	if s.tailDown {
		return outbox.ErrTailDown
	}
	return nil
}

func (s *scene) Verify() { s.say("verify") }

func (s *scene) sweeper(batch int) *Sweeper {
	return New(Config{
		Rows: s, Engine: s, Tail: s, Tables: []outbox.Table{orders}, TokenPrefix: "me",
		PollInterval: time.Minute, BatchSize: batch, Logger: zerolog.Nop(),
	})
}

func (s *scene) pass(t *testing.T, batch int) outbox.Tally {
	t.Helper()
	tally, err := s.sweeper(batch).Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tally
}

// While the fence was out, the tail sent row 1 and took row 2 into a lane.
func TestSweepTakesNothingTheTailWillSend(t *testing.T) {
	s := &scene{rows: []string{"1", "2", "3"}, status: map[string]outbox.Status{}, inflight: map[string]bool{}}
	s.onFence = func() {
		s.status["1"] = outbox.Sent
		s.inflight["2"] = true
	}
	if tally := s.pass(t, 10); tally.Sent != 1 || !slices.Equal(s.sent, []string{"3"}) {
		t.Errorf("sent %v, %+v", s.sent, tally)
	}
	want := []string{"begin", "page of 3", "fence", "reserve 1 3", "load 1 3", "unreserve 1"}
	if !slices.Equal(s.said, want) {
		t.Errorf("the pass went\n%q, want\n%q", s.said, want)
	}
}

func TestUnfencedPassHasTheTailVerify(t *testing.T) {
	s := &scene{tailDown: true}
	for i := range 2*stretchPages + 1 { // three stretches of pages of one row
		s.rows = append(s.rows, fmt.Sprint(i))
	}
	s.pass(t, 1)
	var order []string
	for _, what := range s.said {
		if what == "fence" || what == "verify" || strings.HasPrefix(what, "reserve") && order[len(order)-1] != "reserve" {
			order = append(order, strings.Fields(what)[0])
		}
	}
	// The tail is asked once, and what it may send again is looked up from before
	// each stretch is taken until after the last of them.
	want := []string{"fence", "verify", "reserve", "verify", "reserve", "verify", "reserve", "verify"}
	if !slices.Equal(order, want) {
		t.Errorf("the pass went\n%q, want\n%q", order, want)
	}
}

func TestPassEndsWhenTheBrokerTakesNothing(t *testing.T) {
	s := &scene{rows: []string{"1", "2", "3", "4"}}
	s.tally = func(ids []string) outbox.Tally { return outbox.Tally{Released: len(ids)} }
	if tally := s.pass(t, 2); tally.Released != 2 || !slices.Equal(s.sent, []string{"1", "2"}) {
		t.Errorf("submitted %v, %+v; a broker that is away is asked once", s.sent, tally)
	}
}

func TestFailedPassesAreSpacedOut(t *testing.T) {
	s := (&scene{}).sweeper(1)
	last := time.Duration(0)
	for failures := 1; failures < 8; failures++ {
		d := s.nextIn(failures)
		if d < min(time.Second<<(failures-1), 32*time.Second) || d > 66*time.Second {
			t.Errorf("after %d failures the pause is %v", failures, d)
		}
		if failures < 6 && d <= last {
			t.Errorf("after %d failures the pause is %v, not longer than the one before, %v", failures, d, last)
		}
		last = d
	}
	if d := s.nextIn(0); d < time.Minute || d > 66*time.Second {
		t.Errorf("without failures the pause is %v, want the interval and at most a tenth more", d)
	}
}
