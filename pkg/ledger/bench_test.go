package ledger

import (
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// BenchmarkMark marks 1,000 rows in a transaction, with a position, and a row
// image of MINIMAL.
func BenchmarkMark(b *testing.B) {
	for name, server := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mariadb": testservers.SharedMariaDB} {
		b.Run(name, func(b *testing.B) {
			const rows, atOnce = 10000, 1000
			f := setUp(b, server(b), example(b, "pragmatic_ddd")+positionTable, Options{})
			f.fill(rows)
			outcomes := f.outcomes(outbox.OutcomeSent, numbers(1, rows)...)
			marked := 0
			for b.Loop() {
				from := marked % rows
				if from == 0 && marked > 0 {
					b.StopTimer()
					f.exec("UPDATE outbox SET status = 'PENDING', sent_at = NULL")
					b.StartTimer()
				}
				if _, err := f.Record(b.Context(), outcomes[from:from+atOnce], savePosition); err != nil {
					b.Fatal(err)
				}
				marked += atOnce
			}
			b.ReportMetric(float64(marked)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
