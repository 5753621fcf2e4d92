package simulate

import (
	"math"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Report is a run in a few figures.
type Report struct {
	Name     string
	Arrived  int64
	Admitted int64
	Refused  int64 // including those that could not have left in time
	Delayed  int64 // admitted, but not departed at once
	Expired  int64 // admitted, but never departed
	Departed int64 // the rest of the admitted ones still waits

	// Quantiles of the time from arrival to departure.
	WaitP50, WaitP95, WaitP99, WaitMax time.Duration

	PeakDepth     int64         // the greatest depth after an admission; 0 for a limiter
	FullestWindow int64         // the greatest cost that left within any Window
	Window        time.Duration // the period of the rate
	Ends          time.Duration // from the first arrival to the last departure
}

// Report returns the figures of the run.
func (r *Run) Report() Report {
	out, waits := r.sum(make([]int64, 0, len(r.Trace)))
	out.WaitP50, out.WaitP95, out.WaitP99, out.WaitMax = quantiles(waits)
	return out
}

// Together returns the figures of runs of separate flows: counts are sums, waits those of all jobs,
// and maxima those of one flow. The flows share no window.
func Together(runs ...*Run) Report {
	var all Report
	var waits []int64
	for _, r := range runs {
		var one Report
		one, waits = r.sum(waits)
		all.Name = one.Name
		all.Arrived, all.Admitted, all.Refused = all.Arrived+one.Arrived, all.Admitted+one.Admitted,
			all.Refused+one.Refused
		all.Delayed, all.Expired, all.Departed = all.Delayed+one.Delayed, all.Expired+one.Expired,
			all.Departed+one.Departed
		all.PeakDepth, all.Ends = max(all.PeakDepth, one.PeakDepth), max(all.Ends, one.Ends)
	}
	all.WaitP50, all.WaitP95, all.WaitP99, all.WaitMax = quantiles(waits)
	return all
}

// sum returns the report without waits, and appends the waits, in µs.
func (r *Run) sum(waits []int64) (Report, []int64) {
	out := Report{Name: r.Name, Arrived: int64(len(r.Trace)), Window: r.Rate.Period}
	var inWindow int64
	oldest := 0 // the first departure still in the window
	window := shaper.Instant(r.Rate.Period.Microseconds())
	for i, a := range r.Trace {
		fate := r.Fates[i]
		if !fate.Admitted() {
			out.Refused++
			continue
		}
		out.Admitted++
		gone := r.Gone[i]
		switch fate {
		case Departed:
			out.Departed++
			waits = append(waits, int64(gone-a.At))
			if gone > a.At {
				out.Delayed++
			}
			for ; oldest < i && (r.Fates[oldest] != Departed || r.Gone[oldest] <= gone-window); oldest++ {
				if r.Fates[oldest] == Departed {
					inWindow -= r.Trace[oldest].Cost
				}
			}
			inWindow += a.Cost
			out.FullestWindow = max(out.FullestWindow, inWindow)
			out.Ends = gone.Sub(r.Trace[0].At)
		case Expired:
			out.Expired++
			out.Delayed++
		default:
			out.Delayed++
		}
	}
	if r.queued() {
		out.PeakDepth = r.peak()
	}
	return out, waits
}

// queued reports whether the run has a queue: limiters have none.
func (r *Run) queued() bool { return r.Name == NameShaper }

// quantiles returns the median, the 95th and 99th percentile and the maximum of the waits, in µs;
// zero without waits. It reorders them.
func quantiles(waits []int64) (p50, p95, p99, most time.Duration) {
	from := 0
	at := func(part float64) time.Duration {
		if len(waits) == 0 {
			return 0
		}
		i := max(int(math.Ceil(part*float64(len(waits))))-1, 0)
		choose(waits[from:], i-from)
		from = i
		return time.Duration(waits[i]) * time.Microsecond
	}
	return at(0.50), at(0.95), at(0.99), at(1)
}

// choose partitions the values around the one with rank n, which it puts at index n. It is Hoare's
// selection, linear on average: sorting millions of waits would take longer than the replay.
func choose(v []int64, n int) {
	for len(v) > 1 {
		pivot := median(v[0], v[len(v)/2], v[len(v)-1])
		i, j := 0, len(v)-1
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for v[j] > pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case n <= j:
			v = v[:j+1]
		case n >= i:
			v, n = v[i:], n-i
		default:
			return
		}
	}
}

func median(a, b, c int64) int64 { return max(min(a, b), min(max(a, b), c)) }
