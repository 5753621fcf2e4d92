package shaper_test

import (
	"container/heap"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// settled is a departure whose actual cost becomes known.
type settled struct {
	at               shaper.Instant
	estimate, actual int64
}

type inFlight []settled

func (f inFlight) Len() int           { return len(f) }
func (f inFlight) Less(i, j int) bool { return f[i].at < f[j].at }
func (f inFlight) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *inFlight) Push(x any)        { *f = append(*f, x.(settled)) }
func (f *inFlight) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}

// usage is what a flow with a backlog used of its rate.
type usage struct {
	share  float64       // of the limit over the whole time, by actual costs
	open   float64       // actual − estimate of the jobs in flight at the end, as a part of the limit
	excess float64       // the most that any window of departures used beyond its limit
	errors float64       // the greatest sum of |actual − estimate| of jobs in flight together
	most   float64       // the greatest actual cost
	credit float64       // the greatest credit, in cost
	gap    time.Duration // the least between two stamps
}

// ahead is how long before their stamps jobs are leased.
const ahead = 10 * time.Millisecond

// busy runs a flow with a backlog of jobs of the given estimate for a time. Each takes about
// latency and turns out to cost estimate × factor().
func busy(rate shaper.Rate, estimate int64, latency, lasts time.Duration, random *rand.Rand, factor func() float64) (u usage) {
	b := shaper.NewBucket([]shaper.Pace{{Rate: rate, Burst: 1}}).MarkReady(start)
	perMicro := rate.PerSecond() / 1e6
	var flying inFlight
	var used, errors, lowest float64
	lowest = math.Inf(1)
	u.gap = lasts
	for now, end := start, start.Add(lasts); ; {
		next := max(b.Earliest().Add(-ahead), now)
		if len(flying) > 0 && flying[0].at <= next {
			s := heap.Pop(&flying).(settled)
			now = max(now, s.at)
			errors -= math.Abs(float64(s.actual - s.estimate))
			b = b.Correct(s.estimate, s.actual, now)
			u.credit = max(u.credit, float64(b.Cells[0].Credit)*perMicro)
			continue
		}
		if next > end {
			break
		}
		now = next
		actual := min(int64(math.Round(float64(estimate)*factor())), shaper.MaxCost)
		stamp := b.Stamp(0, now)
		if b.Last > 0 {
			u.gap = min(u.gap, stamp.Sub(b.Last))
		}
		b = b.Depart(stamp, estimate)
		lowest = min(lowest, used-perMicro*float64(stamp-start))
		used += float64(actual)
		errors += math.Abs(float64(actual - estimate))
		u.excess = max(u.excess, used-perMicro*float64(stamp-start)-lowest)
		u.errors, u.most = max(u.errors, errors), max(u.most, float64(actual))
		heap.Push(&flying, settled{stamp.Add(time.Duration(float64(latency) * (0.5 + random.Float64()))), estimate, actual})
	}
	for _, s := range flying {
		u.open += float64(s.actual-s.estimate) / (rate.PerSecond() * lasts.Seconds())
	}
	u.share = used / (rate.PerSecond() * lasts.Seconds())
	return u
}

// TestUseMeetsTheLimit: with 64 jobs in flight whose costs are wrong by a log-normal factor with
// σ = 1, a flow with a backlog uses 0.999 to 1.001 of its limit over an hour. Where the estimates
// are wrong on average, too, that holds but for the jobs in flight at the end. No window exceeds
// the limit by more than the errors of the jobs in flight and the last job.
func TestUseMeetsTheLimit(t *testing.T) {
	for _, tt := range []struct {
		rate     string
		estimate int64
		median   float64 // of actual ÷ estimate
	}{
		{"100/s", 1, 1}, {"100000/s", 1000, 1}, {"100000/s", 1000, math.Exp(-0.5)}, {"100000/s", 1000, 0.2},
		{"100000/s", 1000, 5}, {"15000/s", 1500, math.Exp(-0.5)}, {"900000/m", 1500, 0.1}, {"50000/s", 1000, 1},
	} {
		t.Run(fmt.Sprintf("%s estimate %d median %.2f", tt.rate, tt.estimate, tt.median), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, 2))
			r := rate(tt.rate)
			mean := tt.median * math.Exp(0.5) * float64(tt.estimate) // of the actual costs
			latency := time.Duration(64 * mean / r.PerSecond() * 1e9)
			u := busy(r, tt.estimate, latency, time.Hour, random, func() float64 { return tt.median * math.Exp(random.NormFloat64()) })
			t.Logf("use ÷ limit %.5f; excess %.0f; errors in flight %.0f, greatest job %.0f; credit %.0f; least gap %v",
				u.share, u.excess, u.errors, u.most, u.credit, u.gap)
			known := u.share
			if tt.median < math.Exp(-0.5) || tt.median > 1 {
				known -= u.open
			}
			if known < 0.999 || known > 1.001 {
				t.Errorf("use ÷ limit = %.5f", known)
			}
			if least := time.Duration(float64(tt.estimate) / r.PerSecond() / 16 * 1e9); u.gap < least-2*us {
				t.Errorf("two stamps are %v apart, want %v at least", u.gap, least)
			}
			if u.excess > u.errors+u.most {
				t.Errorf("a window exceeds the limit by %.0f, the errors in flight are %.0f and the last job %.0f", u.excess, u.errors, u.most)
			}
		})
	}
}

// TestExactEstimatesChangeNothing: a correction to the cost that was charged is none, and one of a
// pace by jobs neither.
func TestExactEstimatesChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paces().Draw(t, "pace")
		cost, actual := rapid.Int64Range(1, shaper.MaxCost).Draw(t, "cost"), rapid.Int64Range(0, shaper.MaxCost).Draw(t, "actual")
		b := shaper.NewBucket([]shaper.Pace{p}).Depart(start, cost)
		if diff := cmp.Diff(b, b.Correct(cost, cost, start)); diff != "" {
			t.Fatalf("corrected to the cost charged (-before +after):\n%s", diff)
		}
		p.ByJobs = true
		b = shaper.NewBucket([]shaper.Pace{p}).Depart(start, cost)
		if got := tatOf(b.Cells[0]); got.Cmp(tatOf(shaper.NewBucket([]shaper.Pace{p}).Depart(start, 1).Cells[0])) != 0 {
			t.Fatalf("a pace by jobs charges %s for cost %d", got, cost)
		}
		if diff := cmp.Diff(b, b.Correct(cost, actual, start)); diff != "" {
			t.Fatalf("a pace by jobs was corrected (-before +after):\n%s", diff)
		}
	})
}

// TestCorrectIsExact: in any order, corrections move the TAT less its credit by exactly the
// difference of the costs, never before the last stamp or now, until the credit is four charges.
// Stamps never go back, and a charge moves the TAT by half of itself at least.
func TestCorrectIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := shaper.Pace{Rate: rate(rapid.SampledFrom([]string{"10/s", "7/3s", "999/m", "3/7ms", "1000/s"}).Draw(t, "rate")), Burst: rapid.SampledFrom([]int64{1, 1, 5}).Draw(t, "burst")}
		b, now := shaper.NewBucket([]shaper.Pace{p}), start
		var open []int64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 400_000).Draw(t, "passes")) * time.Microsecond)
			if len(open) == 0 || rapid.Bool().Draw(t, "departs") {
				cost := rapid.Int64Range(1, 20).Draw(t, "cost")
				stamp := b.Stamp(0, max(now, b.Earliest()))
				if stamp < b.Last {
					t.Fatalf("stamp %d after %d", stamp, b.Last)
				}
				before := b.Cells[0]
				if idle := int64(stamp - before.TAT); idle > 0 {
					before.TAT, before.Rem, before.Credit = stamp, 0, max(0, before.Credit-idle)
				}
				b = b.Depart(stamp, cost)
				moved := new(big.Rat).Sub(tatOf(b.Cells[0]), tatOf(before))
				if half := new(big.Rat).Quo(interval(p.Rate, cost), big.NewRat(2, 1)); moved.Add(moved, big.NewRat(1, 1)).Cmp(half) < 0 {
					t.Fatalf("a cost of %d moved the TAT by %s µs only", cost, moved.FloatString(1))
				}
				if got, want := lessCredit(b.Refund(stamp, cost).Cells[0]), lessCredit(before); got.Cmp(want) != 0 {
					t.Fatalf("after a refund the TAT less credit is %s, want %s", got, want)
				}
				open = append(open, cost)
				continue
			}
			charged, actual := open[0], rapid.Int64Range(0, 60).Draw(t, "actual")
			open = open[1:]
			before := b.Cells[0]
			want := new(big.Rat).Add(lessCredit(before), signedInterval(p.Rate, actual-charged))
			b = b.Correct(charged, actual, now)
			all := new(big.Rat).Mul(interval(p.Rate, charged), big.NewRat(4, 1))
			full := new(big.Rat).SetInt64(b.Cells[0].Credit+1).Cmp(all) > 0
			if got := lessCredit(b.Cells[0]); got.Cmp(want) < 0 || got.Cmp(want) > 0 && !full {
				t.Fatalf("TAT less credit is %s, want %s", got, want)
			}
			switch after := b.Cells[0]; {
			case after.Credit < 0:
				t.Fatalf("credit %d", after.Credit)
			case actual > charged && after.TAT < before.TAT, actual < charged && after.TAT > before.TAT:
				t.Fatalf("a cost of %d instead of %d moved the TAT from %d to %d", actual, charged, before.TAT, after.TAT)
			case after.TAT < min(before.TAT, max(b.Last, now)):
				t.Fatalf("the TAT %d is before the last stamp %d and now %d", after.TAT, b.Last, now)
			}
		}
	})
}

// lessCredit is the TAT as if all credit were given back.
func lessCredit(c shaper.Cell) *big.Rat {
	c.TAT -= shaper.Instant(c.Credit)
	return tatOf(c)
}

// signedInterval is the time that n intervals take, n perhaps negative.
func signedInterval(r shaper.Rate, n int64) *big.Rat {
	if n < 0 {
		return new(big.Rat).Neg(interval(r, -n))
	}
	return interval(r, n)
}

// TestIdlenessEarnsNoCredit: time in which a pace held nothing back uses up its credit.
func TestIdlenessEarnsNoCredit(t *testing.T) {
	b := shaper.NewBucket([]shaper.Pace{pace("10/s", 1)})
	for range 3 {
		b = b.Depart(start, 10)
	}
	for range 3 {
		b = b.Correct(10, 0, start.Add(time.Second))
	}
	if c := b.Cells[0]; c.TAT != start.Add(time.Second) || c.Credit != sec.Microseconds() {
		t.Fatalf("three free jobs: TAT %v, credit %v", c.TAT.Sub(start), time.Duration(c.Credit)*us)
	}
	b = b.Depart(start.Add(3*time.Second), 10)
	if c := b.Cells[0]; c.TAT != start.Add(4*time.Second) || c.Credit != 0 {
		t.Errorf("after two idle seconds: TAT %v, credit %v, want 4s and none", c.TAT.Sub(start), time.Duration(c.Credit)*us)
	}
}

// TestCreditIsBounded: however long the estimates are too high, the credit is that of four jobs.
func TestCreditIsBounded(t *testing.T) {
	b := shaper.NewBucket([]shaper.Pace{pace("1000/s", 1)}).MarkReady(start)
	for range 1000 {
		stamp := b.Stamp(0, b.Earliest())
		b = b.Depart(stamp, 2000)
		b = b.Correct(2000, 1, stamp)
		if credit := time.Duration(b.Cells[0].Credit) * us; credit > 8*time.Second {
			t.Fatalf("the credit is %v, want at most that of 8,000 intervals", credit)
		}
	}
}

// TestCorrectionsStayInTheCalendar: a flow whose estimates are far too low a hundred times at once
// still has a TAT that the scripts hold exactly.
func TestCorrectionsStayInTheCalendar(t *testing.T) {
	for _, text := range extremes {
		b := shaper.NewBucket([]shaper.Pace{pace(text, 1)}).Depart(endOfHistory, 1)
		for range 100 {
			b = b.Correct(1, shaper.MaxCost, endOfHistory)
		}
		if c := b.Cells[0]; int64(c.TAT) >= doubles {
			t.Errorf("%s: TAT %d", text, c.TAT)
		}
		for range 100 {
			b = b.Correct(shaper.MaxCost, 0, endOfHistory)
		}
		if c := b.Cells[0]; c.Credit < 0 || c.Credit >= doubles || c.TAT < endOfHistory {
			t.Errorf("%s: TAT %d, credit %d", text, c.TAT, c.Credit)
		}
	}
}
