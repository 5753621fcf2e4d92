package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// spacing holds the figures of departures against their rate. Durations are milliseconds.
type spacing struct {
	Count    int     `json:"departures"`
	GapP1    float64 `json:"gap_p1_ms"`
	GapP50   float64 `json:"gap_p50_ms"`
	GapP99   float64 `json:"gap_p99_ms"`
	Tau999   float64 `json:"tau_p999_ms"`
	TauMax   float64 `json:"tau_max_ms"`
	Rate     float64 `json:"rate_ratio"`      // reached ÷ set
	Fullest  int     `json:"fullest_100ms"`   // departures within 100 ms, at most
	Deviates float64 `json:"gap_deviates_ms"` // of p1 and p99 from T, the greater
}

// space computes them. The instants may be in any order; fewer than two have no figures.
func space(r shaper.Rate, instants []time.Duration) spacing {
	at := slices.Sorted(slices.Values(instants))
	s := spacing{Count: len(at)}
	if len(at) < 2 {
		return s
	}
	gaps := make([]time.Duration, len(at)-1)
	for i := range gaps {
		gaps[i] = at[i+1] - at[i]
	}
	slices.Sort(gaps)
	s.GapP1, s.GapP50, s.GapP99 = precise(quantile(gaps, 0.01)), precise(quantile(gaps, 0.5)),
		precise(quantile(gaps, 0.99))
	interval := float64(r.Period) / float64(r.Limit)
	s.Deviates = max(abs(s.GapP1-interval/1e6), abs(s.GapP99-interval/1e6))
	early := tolerances(r, at)
	slices.Sort(early)
	s.Tau999, s.TauMax = precise(quantile(early, 0.999)), precise(early[len(early)-1])
	if span := at[len(at)-1] - at[0]; span > 0 {
		s.Rate = float64(len(at)-1) * interval / float64(span)
	}
	s.Fullest = fullest(at, 100*time.Millisecond)
	return s
}

// tolerances is, for each departure in order, how much too early it is for a GCRA with the rate's
// T; τ* is the greatest of them:
//
//	tat = max(t, tat); τ = tat − t; tat += T
//
// The arithmetic is exact, in units of 1/limit ns, and rounds up to a nanosecond.
func tolerances(r shaper.Rate, at []time.Duration) []time.Duration {
	early := make([]time.Duration, len(at))
	var tat int64 // counted from the departure before, so that it stays small however long the run
	for i, t := range at {
		if i > 0 {
			tat = max(0, tat-int64(t-at[i-1])*r.Limit)
		}
		early[i] = time.Duration((tat + r.Limit - 1) / r.Limit)
		tat += int64(r.Period)
	}
	return early
}

// fullest is the greatest number of sorted instants within any stretch of the length.
func fullest(at []time.Duration, length time.Duration) (most int) {
	first := 0
	for i := range at {
		for at[i]-at[first] >= length {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// quantile is the value that a share q of the sorted values does not exceed; 0 of no values.
func quantile[T cmp.Ordered](sorted []T, q float64) (value T) {
	if len(sorted) == 0 {
		return value
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// median is the value in the middle; it leaves the order of the values alone.
func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }

// precise is the duration in milliseconds, to a nanosecond.
func precise(d time.Duration) float64 { return float64(d) / 1e6 }

func abs(x float64) float64 { return max(x, -x) }
