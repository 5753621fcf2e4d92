package top

import (
	"fmt"
	"math"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
	"github.com/7509e464/sluice/shaper"
)

// faster returns the next higher rate, about a quarter more, in round figures. At the maximum it
// returns r.
func faster(r wire.Rate) wire.Rate {
	next := r
	if half := r.PeriodMS / 2; r.Limit == 1 && r.PeriodMS%2 == 0 && half >= 1000 {
		next.PeriodMS = half // 1/2s, 1/s, 2/s
	} else {
		next.Limit = max(r.Limit+1, twoDigits(float64(r.Limit)*1.25))
	}
	return legal(next, r)
}

// slower returns the next lower rate, about a fifth less. Below a limit of 1 the period grows.
func slower(r wire.Rate) wire.Rate {
	next := r
	if r.Limit == 1 {
		next.PeriodMS *= 2
	} else {
		next.Limit = max(1, min(r.Limit-1, twoDigits(float64(r.Limit)/1.25)))
	}
	return legal(next, r)
}

// legal returns the rate if it is valid, otherwise the other one.
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

// drainText returns how long the waiting jobs take to leave at the rate.
func drainText(jobs int64, r wire.Rate) string {
	if jobs == 0 {
		return "no jobs wait"
	}
	seconds := float64(jobs) * float64(r.PeriodMS) / 1000 / float64(r.Limit)
	return fmt.Sprintf("the waiting jobs (%s) leave in %s", console.Count(jobs), console.SpanText(seconds))
}
