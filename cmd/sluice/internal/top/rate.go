package top

import (
	"fmt"
	"math"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

// faster returns the next higher rate, about a quarter more, in round figures. At the maximum it
// returns r.
func faster(r shaper.Rate) shaper.Rate {
	next := r
	if half := r.Period / 2; r.Limit == 1 && r.Period%(2*time.Millisecond) == 0 && half >= time.Second {
		next.Period = half // 1/2s, 1/s, 2/s
	} else {
		next.Limit = max(r.Limit+1, twoDigits(float64(r.Limit)*1.25))
	}
	return legal(next, r)
}

// slower returns the next lower rate, about a fifth less. Below a limit of 1 the period grows.
func slower(r shaper.Rate) shaper.Rate {
	next := r
	if r.Limit == 1 {
		next.Period *= 2
	} else {
		next.Limit = max(1, min(r.Limit-1, twoDigits(float64(r.Limit)/1.25)))
	}
	return legal(next, r)
}

// legal returns the rate if it is valid, otherwise the other one.
func legal(r, other shaper.Rate) shaper.Rate {
	if r.Validate() != nil {
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
func drainText(jobs int64, r shaper.Rate) string {
	if jobs == 0 {
		return "no jobs wait"
	}
	return fmt.Sprintf("the waiting jobs (%s) leave in %s", cli.Count(jobs), cli.SpanText(float64(jobs)/r.PerSecond()))
}
