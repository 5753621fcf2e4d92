package arrivals

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Count is how many arrivals there were in a span of time.
type Count struct{ Admitted, Refused int64 }

// Counts counts the tenant's arrivals, of all routes, in so many spans of the same width, the first of which begins at from.
func (l *Log) Counts(name string, from time.Time, width time.Duration, spans int) []Count {
	begin := shaper.InstantOf(from)
	counts := make([]Count, spans)
	for _, runs := range l.runs(name, begin) {
		for _, r := range runs {
			r.share(counts, begin, shaper.Instant(width.Microseconds()))
		}
	}
	return counts
}

// share counts the arrivals of a run where they lie, evenly between its ends: each goes to one span, and those outside to none.
func (r run) share(counts []Count, begin, width shaper.Instant) {
	length := int64(r.span) + 1
	first := max(0, int64((r.at-begin)/width))
	counted := int64(r.n) * max(0, int64(begin-r.at)) / length // before the first span
	refusedOf := func(n int64) int64 { return n * int64(r.no) / int64(r.n) }
	for k := first; k < int64(len(counts)) && counted < int64(r.n); k++ {
		end := min(length, int64(begin-r.at)+(k+1)*int64(width))
		upTo := (int64(r.n)*max(0, end) + length - 1) / length
		if end <= 0 {
			upTo = 0
		}
		refused := refusedOf(upTo) - refusedOf(counted)
		counts[k].Refused += refused
		counts[k].Admitted += upTo - counted - refused
		counted = upTo
	}
}
