package lua_test

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"github.com/7509e464/sluice/shaper"
)

// departure is a delivery that left a flow, as its worker learnt of it.
type departure struct {
	flow string
	stamping
	stamp shaper.Instant
	cost  int64
}

// conformity judges the departures of each flow by the textbook GCRA in exact arithmetic (invariant
// 2), while its policy stays the same. It shares no code with the bucket. The tolerance is the
// rounding of stamps to whole microseconds. Corrected flows are only held to their paces by jobs:
// the others depend on what their jobs turned out to cost; see shaper.TestUseMeetsTheLimit.
func conformity(departures []departure, corrected map[string]bool) error {
	groups := map[string][]departure{}
	for _, d := range departures {
		key := fmt.Sprintf("%s segment %d %v", d.flow, d.segment, d.paces)
		groups[key] = append(groups[key], d)
	}
	for key, list := range groups {
		slices.SortFunc(list, func(a, b departure) int {
			return cmp.Or(cmp.Compare(a.stamp, b.stamp), a.order-b.order)
		})
		for _, p := range list[0].paces {
			if corrected[list[0].flow] && !p.ByJobs {
				continue
			}
			if early := earliness(p, list); early.Cmp(big.NewRat(1, 1)) > 0 {
				return fmt.Errorf("%s: a stamp is %s µs before what %v burst %d allows: %s", key,
					early.FloatString(3), p.Rate, p.Burst, stampsOf(list))
			}
		}
	}
	return nil
}

// stampsOf writes departures as order:stamp×cost.
func stampsOf(list []departure) (text string) {
	for _, d := range list {
		text += fmt.Sprintf(" %d:%d×%d", d.order, d.stamp, d.cost)
	}
	return text
}

// earliness is how many µs too early the worst stamp is.
func earliness(p shaper.Pace, list []departure) *big.Rat {
	limit := big.NewInt(p.Rate.Limit)
	interval := new(big.Rat).SetFrac(big.NewInt(p.Rate.Period.Microseconds()), limit)
	credit := new(big.Rat).Mul(interval, new(big.Rat).SetInt64(p.Burst-1))
	tat, worst := new(big.Rat), new(big.Rat)
	for _, d := range list {
		at := new(big.Rat).SetInt64(int64(d.stamp))
		if at.Cmp(tat) > 0 {
			tat.Set(at)
		}
		early := new(big.Rat).Sub(tat, at)
		if early.Sub(early, credit).Cmp(worst) > 0 {
			worst = early
		}
		tat.Add(tat, charge(p, d.cost))
	}
	return worst
}

// charge is what a job is charged for, in µs: its cost times T, as far as that is bounded; see
// shaper.TestChargeIsBounded.
func charge(p shaper.Pace, cost int64) *big.Rat {
	c := shaper.NewBucket([]shaper.Pace{p}).Depart(1, cost).Cells[0]
	return new(big.Rat).Add(new(big.Rat).SetInt64(int64(c.TAT-1)), big.NewRat(c.Rem, p.Rate.Limit))
}

func TestConformityFindsAnEarlyStamp(t *testing.T) {
	paces := []shaper.Pace{{Rate: shaper.Rate{Limit: 10, Period: 1e9}, Burst: 2}}
	at := func(stamps ...shaper.Instant) (list []departure) {
		for _, s := range stamps {
			list = append(list, departure{"acme/echo", stamping{1, len(list), paces}, 1e15 + s, 1})
		}
		return list
	}
	if err := conformity(at(0, 0, 100_000, 200_000), nil); err != nil {
		t.Errorf("a burst of 2 and then the grid: %v", err)
	}
	if conformity(at(0, 0, 99_000), nil) == nil {
		t.Error("a stamp 1 ms too early passes")
	}
}
