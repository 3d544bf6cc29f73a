package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

type pausingDocument struct {
	Paused, Changed, Sending bool
	By                       string
	Events                   *int
}

// awaitWaiting waits until a paused relay has read so many events that it does not send.
func (s *stage) awaitWaiting(events int, with []string) {
	s.tb.Helper()
	s.await(fmt.Sprintf("%d events wait in the relay", events), func() bool {
		st := decode[struct {
			Paused   bool
			Inflight struct{ Events int }
		}](s.tb, s.okWith(with, "status", "--json"))
		return st.Paused && st.Inflight.Events == events
	})
}

func TestPauseHoldsOverAKillAndEndsByItself(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0))}
		f := s.run(append(with, "OUTBOX_GRACE=0s", "OUTBOX_POLL_INTERVAL=1s")...)
		want := []string{s.insert("a")}
		s.awaitSent()

		p := decode[pausingDocument](t, s.okWith(with, "pause", "--json"))
		if !p.Paused || !p.Changed || p.By != "relay" || p.Sending || p.Events == nil || *p.Events != 0 {
			t.Errorf("pause: %+v", p)
		}
		f.awaitLog(`"audit":true`, `"action":"pause"`, `"by":"`)
		want = append(want, s.insert("a"))
		s.awaitWaiting(1, with)
		if code, body := f.get("/readyz"); code != 503 || !strings.Contains(body, "paused") {
			t.Errorf("/readyz during a pause: %d %s", code, body)
		}
		_, metrics := f.get("/metrics")
		expectParts(t, "/metrics", metrics, "rowferry_paused 1")
		if r := s.command([]string{"sweep"}, with...); r.code != 1 || !strings.Contains(r.stderr, "paused") {
			t.Errorf("a sweep during a pause: exit code %d, %s", r.code, r.stderr)
		}

		f.kill()
		if r := s.command([]string{"sweep"}, with...); r.code != 1 || !strings.Contains(r.stderr, "paused") {
			t.Errorf("a sweep during a pause without a relay: exit code %d, %s", r.code, r.stderr)
		}
		f.restart()
		want = append(want, s.insert("a"), s.insert("b"))
		s.awaitWaiting(3, with)
		s.expectExactly(want[:1])
		if n := s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'PENDING' AND attempts = 0"); n != 3 {
			t.Errorf("%d rows are PENDING without attempts, want 3", n)
		}

		// From a place where the relay cannot be asked.
		elsewhere := []string{"HTTP_ADDR=127.0.0.1:1"}
		if p := decode[pausingDocument](t, s.okWith(elsewhere, "resume", "--json")); p.Paused || !p.Changed || p.By != "command" {
			t.Errorf("resume: %+v", p)
		}
		s.awaitSent()
		s.expectExactly(want)
		expectParts(t, "resume again", s.okWith(elsewhere, "resume"), "was so before")
		s.okWith(elsewhere, "pause")
		f.awaitLog(`"message":"paused`)
		s.okWith(with, "resume")
		want = append(want, s.insert("b"))
		s.awaitSent()
		f.stopCleanly()
		s.expectExactly(want)
	})
}

// TestPauseInACheckpointFile has a ledger that marks and one that does not.
func TestPauseInACheckpointFile(t *testing.T) {
	t.Parallel()
	for _, ledger := range []string{"status", "none"} {
		t.Run(ledger, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
			with := []string{
				fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "LEDGER=" + ledger,
				"CHECKPOINT_STORE=file:" + filepath.Join(t.TempDir(), "position"), "CHECKPOINT_INTERVAL=10ms",
			}
			if p := decode[pausingDocument](t, s.okWith(with, "pause", "--json")); !p.Paused || p.By != "command" {
				t.Errorf("pause: %+v", p)
			}
			f := s.run(with...)
			want := []string{s.insert("a"), s.insert("a")}
			s.awaitWaiting(2, with)
			if r := s.command([]string{"resume"}, append(with, "HTTP_ADDR=127.0.0.1:1")...); r.code != 1 || !strings.Contains(r.stderr, "another process") {
				t.Errorf("resume beside a relay that it cannot ask: exit code %d, %s", r.code, r.stderr)
			}
			f.stopCleanly()
			f.restart()
			s.awaitWaiting(2, with)
			s.expectExactly(nil)
			s.okWith(with, "resume")
			s.messages(len(want))
			f.stopCleanly()
			s.expectExactly(want)
		})
	}
}

func TestPauseInMemoryNeedsTheRelay(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "CHECKPOINT_STORE=memory"}
	if r := s.command([]string{"pause"}, with...); r.code != 1 || !strings.Contains(r.stderr, "running relay") {
		t.Errorf("pause without a relay: exit code %d, %s", r.code, r.stderr)
	}
	f := s.run(with...)
	s.okWith(with, "pause")
	id := s.insert("a")
	s.awaitWaiting(1, with)
	s.okWith(with, "resume")
	s.awaitSent()
	s.expectExactly([]string{id})
	f.stopCleanly()
}
