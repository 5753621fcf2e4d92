package main

import (
	"slices"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// tau is τ*, one number for "every window": the smallest tolerance under which a GCRA with the
// rate's T finds all instants conforming.
//
//	tat = max(t, tat); τ* = max(τ*, tat − t); tat += T
//
// Instants are nanoseconds in any order and from any origin. The arithmetic is exact, in units of
// 1/limit ns; burst and cost are 1. Leaving instants out never makes τ* larger, so the last stamp
// of each job is enough to find a rate that was broken, never to find one that was not.
func tau(rate shaper.Rate, instants []instant) time.Duration {
	if len(instants) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(instants))
	period := int64(rate.Period)
	var tat, worst int64 // tat counts from the last instant, so that it stays small however long the run
	last := sorted[0]
	for _, at := range sorted {
		tat -= int64(at-last) * rate.Limit
		last = at
		tat = max(tat, 0)
		worst = max(worst, tat)
		tat += period
	}
	return time.Duration((worst + rate.Limit - 1) / rate.Limit)
}

// interval is T, rounded down to a nanosecond.
func interval(rate shaper.Rate) time.Duration { return rate.Period / time.Duration(rate.Limit) }

// quantile is the value that a share q of the values does not exceed; 0 of no values. It sorts
// them.
func quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}
