package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// life is what the table called SENT when a leadership began.
type life map[string]bool

// newLife is taken while no relay runs.
func (s *stage) newLife() life {
	s.tb.Helper()
	l := life{}
	for _, id := range s.ids("status = 'SENT'") {
		l[id] = true
	}
	return l
}

// lifeOf counts from 0: outbox_seq begins with the epoch, which each leadership
// counts up.
func lifeOf(m testservers.Message) int {
	var epoch int
	if _, err := fmt.Sscanf(m.Properties["outbox_seq"], "%08x-", &epoch); err != nil {
		panic(fmt.Sprintf("outbox_seq %q holds no epoch: %v", m.Properties["outbox_seq"], err))
	}
	return epoch - 1
}

// explainCopies fails for each message that no crash explains: of a row that was
// SENT before the life that sent it began, or a second one of the same life. What it lets pass was sent, but not yet SENT, when the process was killed.
func (s *stage) explainCopies(messages []testservers.Message, lives []life) {
	s.tb.Helper()
	type inLife struct {
		id   string
		life int
	}
	sends := map[inLife]int{}
	wrong := 0
	for _, m := range messages {
		id, n := m.Properties["outbox_id"], lifeOf(m)
		sends[inLife{id, n}]++
		again := lives[n][id]
		if !again && sends[inLife{id, n}] == 1 {
			continue
		}
		if wrong++; wrong <= 5 {
			s.tb.Errorf("row %s: message in life %d (SENT before it: %v, messages in it: %d)", id, n, again, sends[inLife{id, n}])
		}
	}
	if wrong > 5 {
		s.tb.Errorf("%d copies have no explanation in all", wrong)
	}
}

func TestKillingTheRelayUnderLoadLosesNothingAndRepeatsOnlyWhatWasInFlight(t *testing.T) {
	const kills, inflightMax = 10, 500
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	// The sweep takes part, so that what both paths do is under the knife.
	f := s.run("INFLIGHT_MAX=500", "OUTBOX_GRACE=1s", "OUTBOX_POLL_INTERVAL=500ms")
	lives := []life{{}}
	l := s.startLoad(500, 100)
	for range kills {
		l.awaitCommitted(20 + rand.Int64N(300))
		f.kill()
		lives = append(lives, s.newLife())
		f.restart()
	}
	l.awaitCommitted(50)
	l.stop()
	messages, copies := s.audit()
	s.explainCopies(messages, lives)
	if copies > kills*inflightMax {
		t.Errorf("%d copies after %d kills with at most %d events in flight", copies, kills, inflightMax)
	}
	f.stopCleanly()
}

// Without a ledger only the saved position says what was sent, so a kill repeats
// what came after it, in full, and nothing from before.
func TestKillingARelayWithoutLedgerRepeatsOnlyWhatCameAfterTheSavedPosition(t *testing.T) {
	const kills, perSecond = 3, 300
	s := newStage(t, testservers.SharedMariaDB(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	f := s.run("LEDGER=none", "CHECKPOINT_STORE=file:"+filepath.Join(t.TempDir(), "checkpoint"), "CHECKPOINT_INTERVAL=500ms")
	l := s.startLoad(perSecond, 100)
	for range kills {
		l.awaitCommitted(300)
		f.kill()
		f.restart()
	}
	l.awaitCommitted(50)
	l.stop()
	rows := s.ids("TRUE")
	s.await("every row is published", func() bool {
		return len(countSends(s.broker.ReadAll(t, s.topic))) >= len(rows)
	})
	f.stopCleanly()
	messages := s.broker.ReadAll(t, s.topic)
	checkOrder(t, messages, payloadNumber)
	copies := len(messages) - len(rows)
	t.Logf("%d rows, %d messages, %d of them copies", len(rows), len(messages), copies)
	// Half a second between two saves, and as much again for a loaded machine.
	if copies > kills*perSecond {
		t.Errorf("%d copies after %d kills at %d rows a second", copies, kills, perSecond)
	}
	if n := s.queryInt("SELECT COUNT(*) FROM outbox WHERE status <> 'PENDING' OR attempts <> 0 OR sent_at IS NOT NULL"); n != 0 {
		t.Errorf("%d rows were written to", n)
	}
}

func TestSIGTERMUnderLoadDrainsInTimeAndRepeatsNothing(t *testing.T) {
	const stops = 3
	const drain = 10 * time.Second
	s := newStage(t, testservers.SharedMariaDB(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	f := s.run("DRAIN_TIMEOUT=" + drain.String())
	l := s.startLoad(500, 100)
	for range stops {
		l.awaitCommitted(300)
		code, took := f.stop()
		if code != 0 || took > drain {
			t.Errorf("SIGTERM ended rowferry with exit code %d after %v, want 0 within %v", code, took, drain)
		}
		f.restart()
	}
	l.awaitCommitted(100)
	l.stop()
	messages, copies := s.audit()
	if copies != 0 {
		s.expectNoCopies(messages)
	}
	f.stopCleanly()
}

// The second process must not publish while the first one does, and must not be
// kept waiting by a lock that nobody holds any more.
func TestTheSecondRelayOfANameTakesOverFromAKilledLeader(t *testing.T) {
	s := newStage(t, testservers.SharedMySQLNoGTID(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	leader := s.run()
	follower := s.start()
	follower.awaitLog("another relay")
	l := s.startLoad(300, 100)
	l.awaitCommitted(300)
	if follower.log.contains(`"message":"relaying"`) {
		t.Error("two processes of one name relay at the same time")
	}
	leader.kill()
	lives := []life{{}, s.newLife()}
	killed := time.Now()
	follower.awaitLog(`"message":"relaying"`)
	t.Logf("the follower leads %v after the kill", time.Since(killed).Round(time.Millisecond))
	l.awaitCommitted(100)
	l.stop()
	messages, _ := s.audit()
	s.explainCopies(messages, lives)
	follower.stopCleanly()
}
