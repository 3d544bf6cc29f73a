package e2e

import (
	"fmt"
	"maps"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// The tail alone, with few lanes and many, few keys and many: what consumers get is the
// same history. It is relayed while it is written, and then twice more from the binlog,
// as fast as it goes.
func TestTheTailKeepsTheOrderOfEachKeyWithAnyNumberOfLanes(t *testing.T) {
	t.Parallel()
	for _, size := range []struct{ keys, rows int }{{1, 5000}, {100, 5000}, {100_000, 10_000}} {
		t.Run(fmt.Sprintf("%d keys", size.keys), func(t *testing.T) {
			s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
			begin := s.queryText("SELECT @@GLOBAL.gtid_executed")
			w := &historians{s: s, keys: size.keys, rows: size.rows, atMax: size.rows / 100}
			f := s.run("MODE=tail")
			want := w.write()
			live := s.expectRelayed(f, want)
			for _, queues := range []int{1, 64} {
				s.exec("UPDATE outbox SET status = 'PENDING', sent_at = NULL")
				s.topic = s.broker.Topic(t, queues)
				f := s.run("MODE=tail", fmt.Sprintf("NAME=%s-%d", s.schema, queues), "START_AT="+begin)
				if again := s.expectRelayed(f, want); !maps.Equal(again, live) {
					t.Errorf("with %d queues another history than with 8", queues)
				}
			}
			if len(want) > size.keys || want.rows() != size.rows {
				t.Errorf("%d rows of %d keys were written", want.rows(), len(want))
			}
		})
	}
}

// expectRelayed waits until all is SENT, expects a history without copies, which it
// returns, and ends the relay.
func (s *stage) expectRelayed(f *ferry, want history) history {
	s.tb.Helper()
	s.awaitSent()
	f.stopCleanly()
	if f.log.contains("sweep") {
		s.tb.Error("with MODE=tail something was swept")
	}
	got := s.expectHistory(want)
	if got.copies != 0 {
		s.tb.Errorf("%d copies", got.copies)
	}
	return got.history
}
