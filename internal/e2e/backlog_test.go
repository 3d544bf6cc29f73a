package e2e

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// What waits for the broker waits in queues: it takes no goroutines and no files.
func TestGoroutinesAndFilesOfARelayDoNotGrowWithTheBacklog(t *testing.T) {
	t.Parallel()
	var takes atomic.Bool
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	f := s.run("OUTBOX_POLL_INTERVAL=1h", "INFLIGHT_MAX=30000", s.through(func(int) testservers.Fate {
		return testservers.Fate{Busy: !takes.Load()}
	}))
	rows := 0
	waiting := func(n int) (goroutines, files float64) {
		s.insertMany(s.db, n-rows, 500, rows)
		rows = n
		s.await(fmt.Sprintf("%d rows wait", n), func() bool { return metric(t, f, "rowferry_inflight_events") == float64(n) })
		goroutines, files = metric(t, f, "go_goroutines"), metric(t, f, "process_open_fds")
		for range 20 { // the fewest: a look at the metrics, a heartbeat and a retry take some of their own
			goroutines, files = min(goroutines, metric(t, f, "go_goroutines")), min(files, metric(t, f, "process_open_fds"))
		}
		return goroutines, files
	}
	fewGoroutines, fewFiles := waiting(100)
	goroutines, files := waiting(20_000)
	t.Logf("with 100 rows waiting %v goroutines and %v files, with 20,000 %v and %v", fewGoroutines, fewFiles, goroutines, files)
	if goroutines > fewGoroutines+20 || files > fewFiles+10 {
		t.Error("they grow with the backlog")
	}
	takes.Store(true)
	s.audit()
	s.expectUntouched()
	f.stopCleanly()
}
