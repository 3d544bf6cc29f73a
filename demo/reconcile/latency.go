package reconcile

import (
	"fmt"
	"slices"
	"time"
)

// Latencies are percentiles by nearest rank.
type Latencies struct {
	Count         int
	P50, P99, Max time.Duration
}

// Measure returns the latencies of the arrivals from the moment that since gives
// for each; an arrival for which it knows none is left out. The goroutine that
// committed may be told of its commit after the consumer got the event: such a
// latency counts as zero.
func Measure(arrivals []Arrival, since func(Arrival) (time.Time, bool)) Latencies {
	samples := make([]time.Duration, 0, len(arrivals))
	for _, a := range arrivals {
		if start, known := since(a); known {
			samples = append(samples, max(0, a.At.Sub(start)))
		}
	}
	if len(samples) == 0 {
		return Latencies{}
	}
	slices.Sort(samples)
	return Latencies{
		Count: len(samples),
		P50:   rank(samples, 50),
		P99:   rank(samples, 99),
		Max:   samples[len(samples)-1],
	}
}

// rank returns the smallest sample that at least percent of all do not exceed.
func rank(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)*percent+99)/100-1]
}

// String implements fmt.Stringer.
func (l Latencies) String() string {
	if l.Count == 0 {
		return "no event measured"
	}
	return fmt.Sprintf("p50 %s, p99 %s, max %s", Short(l.P50), Short(l.P99), Short(l.Max))
}

// Short renders a duration in milliseconds, as short as it is still useful.
func Short(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}
