package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// through sends a relay's messages on a way to the broker that goes wrong.
func (s *stage) through(judge func(n int) testservers.Fate) string {
	s.tb.Helper()
	return "ROCKETMQ_NAMESRV=" + s.broker.Disturbed(s.tb, judge)
}

// awaitFailure waits until the log has named a reason why sends fail.
func (f *ferry) awaitFailure(reasons ...string) {
	f.tb.Helper()
	for _, reason := range reasons {
		f.awaitLog(`"message":"cannot send; events wait"`, reason)
	}
}

// A broker that answers "busy" now and then, and answers that are lost: the batches are
// sent again and again, and their copies are next to them.
func TestOrderHoldsThroughBusyAndLostAnswers(t *testing.T) {
	t.Parallel()
	const lost = 6
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	f := s.run("MODE=tail", "SEND_TIMEOUT=1s", "SEND_BATCH_MAX=16", s.through(func(n int) testservers.Fate {
		return testservers.Fate{Busy: n%3 == 1, Lost: n > 20 && n%5 == 0 && n <= 20+5*lost}
	}))
	w := &historians{s: s, keys: 50, rows: 4000, atMax: 40}
	want := w.write()
	s.awaitSent()
	f.awaitFailure("broker_busy", "send_timeout")
	f.stopCleanly()
	report := s.expectHistory(want)
	if report.copies == 0 || report.copies > lost*16 || report.accepted != 0 {
		t.Errorf("%d copies after %d lost answers for batches of at most 16, of which outbox_seq gives away all but %d",
			report.copies, lost, report.accepted)
	}
	s.expectUntouched()
}

// A first attempt that reaches the broker when the rows behind it have long been
// delivered: consumers that drop what is below the highest outbox_seq of its key see
// nothing of it.
func TestAFirstAttemptThatLandsLateIsAStragglerWithItsOldNumber(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	s.topic = s.broker.Topic(t, 2)
	release := make(chan struct{})
	f := s.run("MODE=tail", "SEND_TIMEOUT=1s", "SEND_BATCH_MAX=16", s.through(func(n int) testservers.Fate {
		if n == 3 || n == 4 || n == 10 {
			return testservers.Fate{After: release}
		}
		return testservers.Fate{}
	}))
	w := &historians{s: s, keys: 6, rows: 1000, atMax: 20}
	want := w.write()
	s.awaitSent()
	before := s.expectHistory(want)
	if before.copies != 0 {
		t.Errorf("%d copies before the first attempts have landed", before.copies)
	}
	close(release)
	s.messages(want.rows() + 1)
	after := s.expectHistory(want)
	if after.behind == 0 || after.accepted != 0 {
		t.Errorf("of %d copies %d are behind a successor, and %d are not given away by outbox_seq", after.copies, after.behind, after.accepted)
	}
	f.awaitFailure("send_timeout")
	f.stopCleanly()
}

func TestOrderHoldsOnABrokerThatRefusesDiesAndIsBusy(t *testing.T) {
	t.Parallel()
	broker := testservers.RocketMQ(t, "maxMessageSize=65536")
	t.Run("half of a batch is refused", func(t *testing.T) { orderAroundRefusedRows(t, broker) })
	t.Run("restarted", func(t *testing.T) {
		orderThroughARestart(t, broker, "waitTimeMillsInSendQueue=1", "sendMessageThreadPoolNums=1")
	})
	t.Run("flow control", func(t *testing.T) { orderThroughFlowControl(t, broker) })
}

// The broker's own flow control, as it is in the field: a request that has waited for a
// moment is thrown out of its queue.
func orderThroughFlowControl(t *testing.T, broker *testservers.Broker) {
	s := newStage(t, testservers.SharedMySQL(t), broker, layoutPragmatic)
	s.topic = broker.Topic(t, 64)
	f := s.run("MODE=tail", "SEND_BATCH_MAX=16")
	ctx, cancel := context.WithCancel(t.Context())
	w := &historians{s: s, keys: 1000, atMax: 200}
	wait := w.begin(ctx)
	stop := sync.OnceFunc(func() { cancel(); wait() })
	defer stop()
	f.awaitFailure("broker_busy")
	stop()
	s.awaitSent()
	f.stopCleanly()
	if report := s.expectHistory(w.commits); report.accepted != 0 {
		t.Errorf("%d copies are not given away by outbox_seq", report.accepted)
	}
	s.expectUntouched()
}

// A broker that dies and comes back while rows are committed.
func orderThroughARestart(t *testing.T, broker *testservers.Broker, conf ...string) {
	s := newStage(t, testservers.SharedMariaDB(t), broker, layoutPragmatic)
	f := s.run("MODE=tail", "SEND_TIMEOUT=2s")
	ctx, cancel := context.WithCancel(t.Context())
	w := &historians{s: s, keys: 200, atMax: 10, pause: 20 * time.Millisecond}
	wait := w.begin(ctx)
	stop := sync.OnceFunc(func() { cancel(); wait() })
	defer stop()
	s.await("rows are committed", func() bool { return w.committed.Load() > 500 })
	broker.KillBroker(t)
	f.awaitLog(`"message":"cannot send; events wait"`)
	broker.StartBroker(t, conf...)
	f.awaitLog(`"message":"sending works again"`)
	stop()
	s.awaitSent()
	f.stopCleanly()
	if report := s.expectHistory(w.commits); report.accepted != 0 {
		t.Errorf("%d copies are not given away by outbox_seq", report.accepted)
	}
	s.expectUntouched()
}

// Rows that the broker refuses among others in one batch: it is taken apart in order, and
// only those fail. The broker's limit is below ours, so it is the broker that refuses.
func orderAroundRefusedRows(t *testing.T, broker *testservers.Broker) {
	s := newStage(t, testservers.SharedMySQL(t), broker, layoutPragmatic)
	s.topic = broker.Topic(t, 2)
	s.exec("ALTER TABLE outbox MODIFY payload MEDIUMTEXT NOT NULL")
	f := s.run("MODE=tail", "SEND_BATCH_MAX=64")
	want, poisoned := s.insertPoisoned(300)
	s.awaitNone("status NOT IN ('SENT', 'FAILED')")
	f.stopCleanly()
	if report := s.expectHistory(want); report.copies != 0 {
		t.Errorf("%d copies", report.copies)
	}
	wrong := s.queryInt("SELECT COUNT(*) FROM outbox WHERE (status = 'FAILED') <> (event_type = 'Poison') OR attempts <> 0")
	reasons := s.queryInt("SELECT COUNT(*) FROM rowferry_dead WHERE name = ? AND reason LIKE 'refused: too_large%'", s.schema)
	if wrong != 0 || reasons != poisoned {
		t.Errorf("%d rows have another status, %d of %d refused rows a reason", wrong, reasons, poisoned)
	}
}

// insertPoisoned commits a history in one transaction, between whose rows are such as the
// broker refuses: single ones, and a long row of them.
func (s *stage) insertPoisoned(rows int) (want history, poisoned int) {
	s.tb.Helper()
	want = history{}
	poison := fmt.Sprintf(`{"x": "%s"}`, strings.Repeat("x", 70_000))
	var args []any
	for i := range rows {
		key := fmt.Sprintf("key-%d", i%5)
		if i%7 == 3 || i/20 == 5 {
			args = append(args, key, "Poison", poison)
			poisoned++
		}
		args = append(args, key, "Told", historyPayload(want[key], false))
		want[key]++
	}
	if err := insertHistory(s.tb.Context(), s.db, args); err != nil {
		s.tb.Fatal(err)
	}
	return want, poisoned
}
