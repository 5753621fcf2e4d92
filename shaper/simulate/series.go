package simulate

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Series is a run in equal steps of time, from the first arrival to the end of the last job. All
// lists have one value a step.
type Series struct {
	Begin   shaper.Instant
	Step    time.Duration
	Arrived []int64 // arrivals
	Passed  []int64 // departures
	Refused []int64
	Depth   []int64 // the greatest
}

// Series divides the run into at most the given number of steps. Each is 1, 2 or 5 times a power of
// ten microseconds long. With a round rate that is a whole number of intervals, so even departures
// look even. Give the end of the longest run to get equal steps for several runs of one trace.
func (r *Run) Series(steps int, end shaper.Instant) Series {
	begin := r.Trace[0].At
	end = max(end, r.End())
	step := roundStep((end-begin)/shaper.Instant(steps) + 1)
	n := int((end-begin)/step) + 1
	s := Series{Begin: begin, Step: time.Duration(step) * time.Microsecond}
	s.Arrived, s.Passed, s.Refused, s.Depth = make([]int64, n), make([]int64, n), make([]int64, n),
		make([]int64, n)
	var depth int64
	at := 0 // the step up to which the depth is known
	reach := func(i shaper.Instant) int {
		k := int((i - begin) / step)
		for ; at < k; at++ {
			s.Depth[at+1] = depth
		}
		return k
	}
	head := 0
	leave := func(end int, now shaper.Instant) {
		for ; head < end; head++ {
			if !r.Fates[head].Admitted() {
				continue
			}
			if r.Freed[head] > now {
				return
			}
			reach(r.Freed[head])
			if r.queued() {
				depth--
			}
		}
	}
	bunch := 0
	for i, a := range r.Trace {
		if a.At != r.Trace[bunch].At {
			bunch = i
		}
		leave(bunch, a.At)
		k := reach(a.At)
		s.Arrived[k]++
		if !r.Fates[i].Admitted() {
			s.Refused[k]++
			continue
		}
		if r.Fates[i] == Departed {
			s.Passed[(r.Gone[i]-begin)/step]++
		}
		if r.queued() {
			depth++
			s.Depth[k] = max(s.Depth[k], depth)
		}
	}
	leave(len(r.Trace), end)
	return s
}

// longestStep is the longest round step that a time.Duration holds: 158 years.
const longestStep = shaper.Instant(5e15)

// roundStep is the smallest of 1, 2, 5, 10, 20, … that is not below the step, up to the longest.
func roundStep(least shaper.Instant) shaper.Instant {
	least = min(least, longestStep)
	for unit := shaper.Instant(1); ; unit *= 10 {
		for _, step := range []shaper.Instant{unit, 2 * unit, 5 * unit} {
			if step >= least {
				return step
			}
		}
	}
}

// End returns the instant of the last arrival or departure.
func (r *Run) End() shaper.Instant {
	end := r.Trace[len(r.Trace)-1].At
	for i := len(r.Gone) - 1; i >= 0; i-- {
		if f := r.Fates[i]; f == Departed || f == Expired {
			return max(end, r.Gone[i])
		}
	}
	return end
}
