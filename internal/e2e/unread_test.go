package e2e

import (
	"fmt"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// What the binlog does not hold whole is read by key, in stream order; what it does not
// hold at all is left PENDING, counted and swept. Both cost neither the position nor the
// other rows.
func TestRowsThatTheBinlogDoesNotHold(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		for _, mode := range []string{"auto", "tail"} {
			t.Run(mode, func(t *testing.T) {
				s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
				f := s.run("MODE="+mode, "OUTBOX_GRACE=1s", "OUTBOX_POLL_INTERVAL=1h")
				s.exec("CREATE TABLE audit (id BIGINT)")
				insert := "INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES "
				for i := range 3 {
					s.session("SET SESSION binlog_row_image = MINIMAL", insert+fmt.Sprintf(`(%d, 'lean', 'Created', '{"n": %d}')`, 100+i, i))
					s.session("SET SESSION binlog_format = STATEMENT", insert+fmt.Sprintf(`(%d, 'statement', 'Created', '{"n": %d}')`, 200+i, i))
				}
				s.session("SET SESSION binlog_format = STATEMENT", "UPDATE outbox SET event_type = 'Changed' WHERE id = 0", "INSERT INTO audit SELECT id FROM outbox")
				s.exec(insert + `(300, 'whole', 'Created', '{"n": 0}')`)
				swept := map[string]int{"auto": 3, "tail": 0}[mode]
				want := append(s.ids("id < 200"), "300")
				if swept > 0 {
					want = s.ids("TRUE")
				}
				s.await("everything is sent that can be", func() bool { return s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'SENT'") == len(want) })
				for name, n := range map[string]float64{
					`rowferry_events_read_by_key_total reason="image"`:  3,
					`rowferry_events_deferred_total reason="statement"`: 3,
					`rowferry_events_published_total path="sweep"`:      float64(swept),
					`rowferry_events_published_total path="binlog"`:     4,
					`rowferry_binlog_gap rowferry_binlog_gap`:           0,
				} {
					var metricName, label string
					fmt.Sscan(name, &metricName, &label) //nolint:errcheck // a key of this table
					if got := metric(t, f, metricName, label); got != n {
						t.Errorf("%s is %v, want %v", name, got, n)
					}
				}
				for _, line := range []string{`"reason":"image"`, `"reason":"statement"`} {
					if n := f.log.count(line); n != 1 {
						t.Errorf("%d log lines with %s, want one", n, line)
					}
				}
				f.stopCleanly()
				s.expectExactly(want)
			})
		}
	})
}
