package figures

import (
	"slices"
	"sort"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

const (
	finest = shaper.Instant(1000) // the least width, in µs
	// steppedBack is the step back of the store's clock that makes earlier arrivals meaningless.
	steppedBack = time.Minute
)

// run is arrivals that came close together.
type run struct {
	at   shaper.Instant // of the first
	span uint32         // µs from the first to the last
	n    uint32
	cost uint32 // of all together
	no   uint32 // of n that were refused
}

// history is the arrivals of a flow. Its runs are in order and do not overlap.
type history struct {
	route string
	width shaper.Instant // a run is shorter than that
	runs  []run
}

// last is the instant of the last arrival.
func (h *history) last() shaper.Instant {
	if len(h.runs) == 0 {
		return 0
	}
	r := h.runs[len(h.runs)-1]
	return r.at + shaper.Instant(r.span)
}

// add counts an arrival; refused is 1 if it was refused, else 0. It reports false if it needs a new
// run and the history is full. Answers of the store may come in another order than its decisions:
// an arrival that is slightly late counts in the last run.
func (h *history) add(at shaper.Instant, cost int64, refused uint32) bool {
	if k := len(h.runs) - 1; k >= 0 {
		r := &h.runs[k]
		after := at - r.at
		if after < max(h.width, shaper.Instant(r.span)+1) {
			if after < -shaper.Instant(steppedBack.Microseconds()) {
				h.runs, h.width = h.runs[:0], finest
				h.begin(at, cost, refused)
				return true
			}
			if after > shaper.Instant(r.span) {
				r.span = uint32(after)
			}
			r.n++
			r.cost += uint32(cost)
			r.no += refused
			return true
		}
	}
	if len(h.runs) == cap(h.runs) {
		return false
	}
	h.begin(at, cost, refused)
	return true
}

// begin begins a run. The history must not be full.
func (h *history) begin(at shaper.Instant, cost int64, refused uint32) {
	h.runs = append(h.runs, run{at: at, n: 1, cost: uint32(cost), no: refused})
}

// since returns the runs that end at the instant or later.
func (h *history) since(from shaper.Instant) []run {
	return h.runs[sort.Search(len(h.runs), func(i int) bool {
		return h.runs[i].at+shaper.Instant(h.runs[i].span) >= from
	}):]
}

// drop removes the runs before the instant.
func (h *history) drop(before shaper.Instant) {
	h.runs = h.runs[:copy(h.runs, h.since(before))]
}

// resize gives the history the capacity of runs runs, at least the present number.
func (h *history) resize(runs int) {
	h.runs = append(make([]run, 0, runs), h.runs...)
}

// coarsen doubles the width until at most that many runs are left, at least 1.
func (h *history) coarsen(most int) {
	for len(h.runs) > max(1, most) {
		h.width *= 2
		kept := h.runs[:1]
		for _, r := range h.runs[1:] {
			into := &kept[len(kept)-1]
			if end := r.at + shaper.Instant(r.span) - into.at; end < h.width {
				into.span = uint32(end)
				into.n += r.n
				into.cost += r.cost
				into.no += r.no
				continue
			}
			kept = append(kept, r)
		}
		h.runs = kept
	}
}

// traceOf returns the arrivals of the runs that begin at the instant or later. It spreads the
// arrivals of a run evenly between its ends, and its cost evenly over them.
func traceOf(runs []run, from shaper.Instant) simulate.Trace {
	runs = runs[sort.Search(len(runs), func(i int) bool { return runs[i].at >= from }):]
	n := 0
	for _, r := range runs {
		n += int(r.n)
	}
	t := slices.Grow(simulate.Trace(nil), n)
	for _, r := range runs {
		each, more := r.cost/r.n, r.cost%r.n
		for i := range r.n {
			a := simulate.Arrival{At: r.at, Cost: int64(each)}
			if i < more {
				a.Cost++
			}
			if r.n > 1 {
				a.At += shaper.Instant(uint64(r.span) * uint64(i) / uint64(r.n-1))
			}
			t = append(t, a)
		}
	}
	return t
}
