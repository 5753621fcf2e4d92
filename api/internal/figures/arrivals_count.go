package figures

import (
	"sort"

	"github.com/7509e464/sluice/shaper"
)

// Count is the number of arrivals in a span of time.
type Count struct{ Admitted, Refused int64 }

// Counts counts the tenant's arrivals, of all routes, between each edge and the next. The edges
// ascend.
func (l *Arrivals) Counts(name string, edges []shaper.Instant) []Count {
	counts := newCounts(edges)
	s := l.stripe(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[name]; t != nil {
		t.count(counts, edges)
	}
	return counts
}

// CountsOfAll counts the arrivals of all tenants between each edge and the next. It blocks the
// recording of one stripe of tenants at a time.
func (l *Arrivals) CountsOfAll(edges []shaper.Instant) []Count {
	counts := newCounts(edges)
	for i := range l.stripes {
		s := &l.stripes[i]
		s.mu.Lock()
		for _, t := range s.tenants {
			t.count(counts, edges)
		}
		s.mu.Unlock()
	}
	return counts
}

func newCounts(edges []shaper.Instant) []Count { return make([]Count, max(0, len(edges)-1)) }

// count counts the arrivals in the tenant's histories between the edges.
func (t *tenant) count(counts []Count, edges []shaper.Instant) {
	if len(counts) == 0 {
		return
	}
	for _, h := range t.flows {
		for _, r := range h.since(edges[0]) {
			r.count(counts, edges)
		}
	}
}

// count counts the arrivals of a run, spread evenly between its ends: each in one span, or in none
// if it is outside of all.
func (r run) count(counts []Count, edges []shaper.Instant) {
	first := max(0, sort.Search(len(edges), func(i int) bool { return edges[i] > r.at })-1)
	before, refusedBefore := r.until(edges[first])
	for k := first; k < len(counts) && before < int64(r.n); k++ {
		upTo, refused := r.until(edges[k+1])
		counts[k].Refused += refused - refusedBefore
		counts[k].Admitted += upTo - before - (refused - refusedBefore)
		before, refusedBefore = upTo, refused
	}
}

// until counts the arrivals of the run before the instant, and those of them that were refused.
func (r run) until(at shaper.Instant) (n, refused int64) {
	length := int64(r.span) + 1
	since := min(max(0, int64(at-r.at)), length)
	n = (int64(r.n)*since + length - 1) / length
	return n, n * int64(r.no) / int64(r.n)
}
