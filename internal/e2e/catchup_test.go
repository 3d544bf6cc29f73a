package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// metric returns the value of a metric without labels.
func (f *ferry) metric(name string) float64 {
	f.tb.Helper()
	_, text := f.get("/metrics")
	found := regexp.MustCompile("(?m)^" + name + " (.*)$").FindStringSubmatch(text)
	if found == nil {
		f.tb.Fatalf("no metric %s in %s", name, text)
	}
	v, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		f.tb.Fatal(err)
	}
	return v
}

func (s *stage) waiting() int {
	return s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'PENDING'")
}

// A backlog that waits while an application goes on writing is marked gently, by an account
// with the least rights and over no more connections than usual; then the relay keeps up.
func TestCatchUpIsGentleBesideAnApplication(t *testing.T) {
	for _, name := range []string{"MySQL", "MariaDB"} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, flavours[name](t), testservers.SharedRocketMQ(t), layoutPragmatic)
			own := s.withUser("SELECT, INSERT, UPDATE, DELETE ON "+s.schema+".*", "secret")
			s.grantReplication()
			if name == "MariaDB" {
				s.server.Exec(t, "", "GRANT SLAVE MONITOR ON *.* TO "+s.userName())
			}
			f := s.run(own...)
			s.insertMany(s.db, 1, 50, 0)
			s.awaitSent()
			f.stopCleanly()

			l := s.startLoad(100, 50)
			written := 1
			gentle := func() bool {
				return f.log.contains("catching up at a reduced rate") && f.metric("rowferry_mark_rest_ratio") > 0
			}
			for rows := 5000; ; rows *= 2 { // a fast machine is through with few before it can be seen
				s.insertMany(s.db, rows, 50, written)
				written += rows
				f.restart()
				s.await("it is gentle, or is through", func() bool { return gentle() || f.log.contains("caught up") || s.waiting() < 100 })
				if gentle() {
					break
				}
				f.stopCleanly()
			}
			const storeConns, sourceConns = 8, 4
			if n := s.queryInt("SELECT COUNT(*) FROM information_schema.processlist WHERE user = ?", s.userName()); n > storeConns+sourceConns {
				t.Errorf("%d connections", n)
			}
			f.awaitLog("caught up")
			l.stop()
			s.audit()
			s.await("the metrics show that it rests no more", func() bool { return f.metric("rowferry_mark_rest_ratio") == 0 })
			f.stopCleanly()
		})
	}
}

// Both paths together keep to the limit, and a relay that is told to end does not wait
// for it.
func TestSendRateMax(t *testing.T) {
	const rate, swept, tailed = 100, 150, 150
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	// Before the first position, so for the sweep, which may be later than the tail: they
	// have keys of their own.
	const apart = 1_000_000
	s.insertMany(s.db, swept, apart, apart/2)
	began := time.Now()
	f := s.run(fmt.Sprint("SEND_RATE_MAX=", rate), "OUTBOX_GRACE=1s")
	if got := f.metric("rowferry_send_rate_max"); got != rate {
		t.Errorf("the metrics say %v", got)
	}
	s.insertMany(s.db, tailed, 10, 0)
	s.awaitSent()
	// The last batch goes when those before it are paid for; a batch has at most a tenth
	// of what a second may hold.
	if took, least := time.Since(began), time.Second*(swept+tailed-rate/10)/rate; took < least {
		t.Errorf("%d events at %d/s took %s, want at least %s", swept+tailed, rate, took, least)
	}
	s.insertMany(s.db, 10*rate, 10, tailed)
	s.await("some of them are sent", func() bool { return s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'SENT'") > swept+tailed })
	if code, took := f.stop(); code != 0 || took > 8*time.Second {
		t.Errorf("the drain ended with %d after %s", code, took)
	}
	f = s.run()
	s.audit()
	f.stopCleanly()
}
