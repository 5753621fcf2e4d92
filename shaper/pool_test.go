package shaper_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// share is a flow of a simulated pool.
type share struct {
	shaper.Candidate
	own     shaper.Bucket
	reserve shaper.Rate
	cost    int64
	waits   bool // has jobs all the time
	in      bool // is a candidate
}

// served is one departure from a simulated pool.
type served struct {
	at       shaper.Instant
	flow     int
	cost     int64
	reserved bool
}

// run lets n jobs leave a pool. Each flow that waits always has another job.
func run(p shaper.Pool, flows []*share, from shaper.Instant, n int, each func(i int)) (out []served) {
	for i := range n {
		if each != nil {
			each(i)
		}
		slot := p.Stamp(0, max(from, p.Earliest()))
		for {
			eligible := shaper.Instant(math.MaxInt64)
			for _, f := range flows {
				if f.waits {
					eligible = min(eligible, f.own.Earliest())
				}
			}
			if eligible == math.MaxInt64 {
				return out
			}
			slot = max(slot, eligible)
			break
		}
		var candidates []shaper.Candidate
		var who []int
		var head *share
		for _, f := range flows {
			if f.in = f.in && f.waits && f.own.Earliest() <= slot; f.in && f.reserve != (shaper.Rate{}) {
				if head == nil || f.Reserve.TAT < head.Reserve.TAT || f.Reserve.TAT == head.Reserve.TAT && f.Name < head.Name {
					head = f
				}
			}
		}
		if head != nil {
			p = p.Advance(head.Tag, slot)
		}
		for k, f := range flows {
			if !f.waits || f.own.Earliest() > slot {
				continue
			}
			if !f.in {
				f.Tag, f.in = p.Enter(p.Obey(f.Tag, f.Weight, f.reserve, slot), slot), true
			}
			candidates, who = append(candidates, f.Candidate), append(who, k)
		}
		pick, reserved := p.Pick(candidates, slot)
		f := flows[who[pick]]
		p, f.Tag = p.Serve(f.Candidate, reserved, slot, f.cost)
		f.own = f.own.Depart(slot, f.cost)
		out = append(out, served{slot, who[pick], f.cost, reserved})
		from = slot
	}
	return out
}

func newShare(name string, weight, cost int64, own, reserve string) *share {
	f := &share{Candidate: shaper.Candidate{Name: name, Weight: weight}, own: shaper.NewBucket([]shaper.Pace{pace(own, 1)}), cost: cost, waits: true}
	if reserve != "" {
		f.reserve = rate(reserve)
	}
	return f
}

func newPool(rate string) shaper.Pool {
	return shaper.Pool{Bucket: shaper.NewBucket([]shaper.Pace{pace(rate, 1)})}
}

const poolStart = shaper.Instant(1_700_000_000_000_000)

// counts of departures by flow.
func counts(all []served, flows int) []int {
	n := make([]int, flows)
	for _, s := range all {
		n[s.flow]++
	}
	return n
}

// TestPoolSharesByWeight: four flows share 100/s: weights 4, 2, 1 with a rate of 5/s, and 1 with a
// reserve of 20/s. What reserve and rate leave is shared by weight.
func TestPoolSharesByWeight(t *testing.T) {
	flows := []*share{
		newShare("a", 4, 1, "1000/s", ""), newShare("b", 2, 1, "1000/s", ""), newShare("c", 1, 1, "5/s", ""), newShare("d", 1, 1, "1000/s", "20/s"),
	}
	got := counts(run(newPool("100/s"), flows, poolStart, 10_000, nil), 4)
	for i, want := range []float64{75 * 4 / 7., 75 * 2 / 7., 5, 20 + 75/7.} {
		if math.Abs(float64(got[i])-want*100) > want+20 {
			t.Errorf("flow %d got %d of 10,000 jobs, want %.0f; all: %v", i, got[i], want*100, got)
		}
	}
}

// TestPoolReservesDegrade: reserves above the rate degrade in proportion, and nothing is owed when
// the pool becomes fast enough.
func TestPoolReservesDegrade(t *testing.T) {
	flows := []*share{newShare("a", 1, 1, "1000/s", "60/s"), newShare("b", 1, 1, "1000/s", "20/s"), newShare("c", 1000, 1, "1000/s", "")}
	p := newPool("40/s")
	got := counts(run(p, flows, poolStart, 4000, nil), 3)
	if math.Abs(float64(got[0])-3000) > 5 || math.Abs(float64(got[1])-1000) > 5 {
		t.Errorf("60/s and 20/s of 40/s got %v of 4,000, want 3,000, 1,000 and none", got)
	}
}

// TestPoolIdlenessEarnsNoCredit: a flow that comes back gets its share, not what it missed.
func TestPoolIdlenessEarnsNoCredit(t *testing.T) {
	flows := []*share{newShare("a", 1, 1, "1000/s", ""), newShare("b", 1, 1, "1000/s", "")}
	flows[1].waits = false
	got := run(newPool("100/s"), flows, poolStart, 2000, func(i int) {
		if i == 1000 {
			flows[1].waits = true
		}
	})
	if n := counts(got[1000:], 2); n[0] < 499 || n[1] > 501 {
		t.Errorf("after it came back, a flow of equal weight got %v", n)
	}
}

// TestPoolFairness: while two flows are both candidates all the time, their services by weight
// differ by at most one job each, over every interval (Goyal et al., theorem 1).
func TestPoolFairness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "flows")
		flows := make([]*share, n)
		for i := range flows {
			reserve := rapid.SampledFrom([]string{"", "", "1/s", "5/s"}).Draw(t, "reserve")
			own := rapid.SampledFrom([]string{"100000/s", "100000/s", "10/s", "3/s"}).Draw(t, "own")
			if own == "3/s" {
				reserve = ""
			}
			flows[i] = newShare(fmt.Sprint("f", i), rapid.Int64Range(1, shaper.MaxWeight).Draw(t, "weight"), rapid.Int64Range(1, 50).Draw(t, "cost"), own, reserve)
		}
		toggles := rapid.SliceOfN(rapid.IntRange(0, 3*n), 400, 400).Draw(t, "toggles")
		always := make([]bool, n) // a candidate all the time
		for i, f := range flows {
			always[i] = f.own.Cells[0].Rate == rate("100000/s")
		}
		all := run(newPool("97/s"), flows, poolStart, 400, func(i int) {
			if k := toggles[i]; k < n && !always[k] {
				flows[k].waits = !flows[k].waits
			}
		})
		for i := range flows {
			for j := range i {
				if always[i] && always[j] {
					fair(t, all, flows, i, j)
				}
			}
		}
	})
}

// fair checks the bound over all intervals: the difference of services is a walk whose range is
// bounded.
func fair(t *rapid.T, all []served, flows []*share, i, j int) {
	var low, high, walk float64
	for _, s := range all {
		switch {
		case s.reserved:
		case s.flow == i:
			walk += float64(s.cost) / float64(flows[i].Weight)
		case s.flow == j:
			walk -= float64(s.cost) / float64(flows[j].Weight)
		}
		low, high = min(low, walk), max(high, walk)
	}
	bound := float64(flows[i].cost)/float64(flows[i].Weight) + float64(flows[j].cost)/float64(flows[j].Weight) + 0.002
	if high-low > bound {
		t.Fatalf("%s and %s differ by %v, want at most %v", flows[i].Name, flows[j].Name, high-low, bound)
	}
}

// TestPoolReserve: a flow that is a candidate all the time is at most one job, and the slot of
// another, behind its reserve.
func TestPoolReserve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "flows")
		flows := make([]*share, n)
		for i := range flows {
			reserve := rapid.SampledFrom([]string{"", "1/s", "3/s", "15/s"}).Draw(t, "reserve")
			flows[i] = newShare(fmt.Sprint("f", i), rapid.Int64Range(1, 1000).Draw(t, "weight"), 1, "100000/s", reserve)
		}
		all := run(newPool("100/s"), flows, poolStart, 1000, nil)
		for i, f := range flows {
			if f.reserve == (shaper.Rate{}) {
				continue
			}
			got := 0
			for _, s := range all {
				if s.flow == i {
					got++
				}
				due := f.reserve.PerSecond() * s.at.Sub(all[0].at).Seconds()
				if float64(got) < due-1-float64(n)/100*f.reserve.PerSecond()-0.001 {
					t.Fatalf("%s has %d after %v, reserved are %v", f.Name, got, s.at.Sub(all[0].at), due)
				}
			}
		}
	})
}

// TestPoolStampsConform: the stamps of the pool and those of each flow conform to their paces.
func TestPoolStampsConform(t *testing.T) {
	flows := []*share{newShare("a", 3, 1, "40/s", ""), newShare("b", 1, 2, "100/s", "10/s"), newShare("c", 9, 1, "7/s", "")}
	all := run(newPool("97/s"), flows, poolStart, 5000, nil)
	conform := func(name string, r string, of []served) {
		tau, tat, period := time.Duration(0), all[0].at, rate(r)
		for _, s := range of {
			tat = max(tat, s.at)
			tau = max(tau, tat.Sub(s.at))
			tat = tat.Add(time.Duration(s.cost) * period.Interval())
		}
		if tau > time.Microsecond {
			t.Errorf("%s: τ* %v", name, tau)
		}
	}
	conform("the pool", "97/s", all)
	for i, r := range []string{"40/s", "100/s", "7/s"} {
		conform(flows[i].Name, r, slices.DeleteFunc(slices.Clone(all), func(s served) bool { return s.flow != i }))
	}
}

func TestPart(t *testing.T) {
	for _, tt := range []struct {
		weight, weights         int64
		reserve, reserves, rate float64
		want                    float64
	}{
		{1, 1, 0, 0, 100, 1},
		{4, 7, 0, 20, 100, 0.8 * 4 / 7},
		{1, 7, 20, 20, 100, 0.2 + 0.8/7},
		{1, 2, 60, 80, 40, 0.75},
		{1, 2, 0, 80, 40, 0},
	} {
		if got := shaper.Part(tt.weight, tt.weights, tt.reserve, tt.reserves, tt.rate); cmp.Compare(math.Abs(got-tt.want), 1e-12) > 0 {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
}

// A pace by jobs allows as much cost as its jobs have on average.
func TestBeforeWithARateByJobs(t *testing.T) {
	jobs := pace("2/s", 1)
	jobs.ByJobs = true
	s := shaper.Shared{
		Flow:   shaper.Flow{Bucket: shaper.NewBucket([]shaper.Pace{pace("1000/s", 1), jobs}), Queued: 10, Cost: 1000},
		Policy: shaper.Policy{Rate: rate("1000/s"), Burst: 1, Rates: []shaper.Pace{jobs}},
		Weight: 1, Weights: 2, Reserve: rate("100/s"), ReservesMicro: shaper.ReserveMicro(rate("100/s")),
	}
	f := shaper.Flow{Queued: 5, Cost: 500}
	// Of 200 costs a second the flow gets its reserve and half of the rest: 0.75 of them.
	if got := s.Before(f, 300); got != 416 {
		t.Errorf("before cost 300 of the flow leaves cost %d, want 416", got)
	}
}

func TestCostRate(t *testing.T) {
	jobs := pace("8/s", 1)
	jobs.ByJobs = true
	p := shaper.Policy{Rate: rate("10/s"), Rates: []shaper.Pace{jobs, pace("9/s", 1)}}
	if got := p.CostRate(); got != rate("9/s") {
		t.Error(got)
	}
}
