package e2e

import (
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// expectUntouched fails if an outage has cost any row an attempt.
func (s *stage) expectUntouched() {
	s.tb.Helper()
	if n := s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'FAILED' OR attempts <> 0"); n != 0 {
		s.tb.Errorf("the outage has cost %d rows an attempt", n)
	}
}

func TestABrokerOutageUnderLoadCostsNothingAndMemoryStaysBounded(t *testing.T) {
	const outage = 20 * time.Second
	const rssMaxMiB = 150
	const drain = 15 * time.Second // the default of DRAIN_TIMEOUT
	broker := testservers.RocketMQ(t)
	s := newStage(t, testservers.SharedMySQL(t), broker, layoutPragmatic)
	f := s.startBinary(binary(t, plainBinary), "OUTBOX_GRACE=1s", "OUTBOX_POLL_INTERVAL=2s")
	f.awaitLog(`"message":"relaying"`)
	l := s.startLoad(400, 8000) // fills the budget of 64 MiB within the outage
	l.awaitCommitted(200)

	end := time.After(outage)
	broker.StopBroker(t)
	<-end
	highest := f.peakMiB()
	if status, body := f.get("/livez"); status != 200 {
		t.Errorf("during the outage /livez answers %d: %s", status, body)
	}
	// SIGTERM must not wait for a broker that is away.
	if code, took := f.stop(); code != 0 || took > drain {
		t.Errorf("during the outage SIGTERM ended rowferry with exit code %d after %v, want 0 within %v", code, took, drain)
	}
	f.restart()
	broker.StartBroker(t)
	l.awaitCommitted(200)
	l.stop()
	_, copies := s.audit()
	if copies > 400 { // a second's worth: the batches whose answer the broker took with it
		t.Errorf("%d copies", copies)
	}
	highest = max(highest, f.peakMiB())
	t.Logf("at most %.0f MiB resident", highest)
	if highest > rssMaxMiB {
		t.Errorf("resident memory rose to %.0f MiB, want at most %d", highest, rssMaxMiB)
	}
	s.expectUntouched()
	f.stopCleanly()
}

func TestARelayStartedWithoutNameServerSaysSoAndGoesOnByItself(t *testing.T) {
	t.Parallel()
	broker := testservers.RocketMQ(t)
	s := newStage(t, testservers.SharedMySQL(t), broker, layoutPragmatic)
	broker.StopNameServer(t)
	f := s.run()
	s.insertMany(s.db, 20, 3, 0)
	f.awaitLog("nameserver_unreachable", broker.NameServer())
	s.expectUntouched()
	broker.StartNameServer(t)
	s.audit()
	s.expectUntouched()
	f.stopCleanly()
}

func TestRestartsOfMySQLUnderLoadAreSurvived(t *testing.T) {
	server := testservers.MySQL(t)
	s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
	f := s.run("OUTBOX_GRACE=1s", "OUTBOX_POLL_INTERVAL=2s")
	l := s.startLoad(300, 100)
	l.awaitCommitted(200)
	for _, end := range []func(testing.TB){server.Stop, server.Kill} {
		end(t)
		server.Start(t)
		l.awaitCommitted(300)
	}
	l.stop()
	if !f.alive() {
		t.Fatalf("rowferry has ended with %v", f.err)
	}
	// Between the broker's answer and the mark there is always a batch or two; the
	// marks of those are repeated until the server is back, however long that takes, so
	// copies come only from marks that the crash took with it, and those are committed
	// durably.
	messages, _ := s.audit()
	s.expectNoCopies(messages)
	s.expectUntouched()
	f.stopCleanly()
}
