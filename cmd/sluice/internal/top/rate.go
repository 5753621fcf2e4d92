package top

import (
	"fmt"
	"math"
	"time"

	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
	"github.com/7509e464/sluice/shaper"
)

// faster is the next rate above, about a quarter more, in figures that a person would choose; the
// same at the bound.
func faster(r wire.Rate) wire.Rate {
	next := r
	if half := r.PeriodMS / 2; r.Limit == 1 && r.PeriodMS%2 == 0 && half >= 1000 {
		next.PeriodMS = half // 1/2s, 1/s, 2/s
	} else {
		next.Limit = max(r.Limit+1, twoDigits(float64(r.Limit)*1.25))
	}
	return legal(next, r)
}

// slower is the next rate below, about a fifth less; below 1 the period grows.
func slower(r wire.Rate) wire.Rate {
	next := r
	if r.Limit == 1 {
		next.PeriodMS *= 2
	} else {
		next.Limit = max(1, min(r.Limit-1, twoDigits(float64(r.Limit)/1.25)))
	}
	return legal(next, r)
}

// legal is the rate, or the other one if it may not be.
func legal(r, other wire.Rate) wire.Rate {
	if (shaper.Rate{Limit: r.Limit, Period: time.Duration(r.PeriodMS) * time.Millisecond}).Validate() != nil {
		return other
	}
	return r
}

// twoDigits rounds to two significant digits.
func twoDigits(v float64) int64 {
	unit := math.Pow(10, max(0, math.Floor(math.Log10(v))-1))
	return int64(math.Round(v/unit) * unit)
}

// drainText says how long so many jobs take at the rate.
func drainText(jobs int64, r wire.Rate) string {
	if jobs == 0 {
		return "nothing waits"
	}
	seconds := float64(jobs) * float64(r.PeriodMS) / 1000 / float64(r.Limit)
	return fmt.Sprintf("what waits (%s) leaves in %s", console.Count(jobs), console.SpanText(seconds))
}
