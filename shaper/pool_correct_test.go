package shaper_test

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// used is a flow that waits all the time, and what its departures actually cost.
type used struct {
	shaper.Candidate
	estimate   int64
	actual     func() int64
	sum        int64 // of the actual costs
	error      int64 // by how much its jobs in flight exceed their estimates
	mostError  int64
	mostActual int64
}

// useUp lets n jobs leave a pool. Each settles with its actual cost after as many more departures
// as its latency says. It calls each after a departure, and returns the pool.
func useUp(p shaper.Pool, flows []*used, n int, latency func() int, each func(of int, actual int64)) shaper.Pool {
	type flight struct{ flow, at, actual int }
	var flights []flight
	for i := range n {
		still := flights[:0]
		for _, l := range flights {
			if l.at > i {
				still = append(still, l)
				continue
			}
			f, actual := flows[l.flow], int64(l.actual)
			p.Bucket = p.Correct(f.estimate, actual, p.Last)
			f.Tag = p.CorrectTag(f.Candidate, f.estimate, actual, false, p.Last)
			f.error -= actual - f.estimate
		}
		flights = still
		slot := p.Stamp(0, max(poolStart, p.Earliest()))
		candidates := make([]shaper.Candidate, len(flows))
		var head *used
		for k, f := range flows {
			candidates[k] = f.Candidate
			if f.Reserve != (shaper.Cell{}) && (head == nil || f.Reserve.TAT < head.Reserve.TAT) {
				head = f
			}
		}
		if head != nil {
			p = p.Advance(head.Tag, slot)
		}
		k, reserved := p.Pick(candidates, slot)
		f, actual := flows[k], flows[k].actual()
		p, f.Tag = p.Serve(f.Candidate, reserved, slot, f.estimate)
		f.sum += actual
		f.error += actual - f.estimate
		f.mostError, f.mostActual = max(f.mostError, f.error, -f.error), max(f.mostActual, actual)
		flights = append(flights, flight{k, i + 1 + latency(), int(actual)})
		if each != nil {
			each(k, actual)
		}
	}
	return p
}

// TestPoolSharesActualCosts: what flows used for their weights differs by at most one job each, and
// twice the errors of their jobs in flight, over every interval.
func TestPoolSharesActualCosts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flows := make([]*used, rapid.IntRange(2, 6).Draw(t, "flows"))
		for i := range flows {
			estimate := rapid.Int64Range(1, 50).Draw(t, "estimate")
			costs := rapid.SliceOfN(rapid.Int64Range(0, rapid.SampledFrom([]int64{2, 100, 1000}).Draw(t, "most")), 7, 7).Draw(t, "costs")
			n := 0
			flows[i] = &used{estimate: estimate, actual: func() int64 { n++; return costs[n%len(costs)] }}
			flows[i].Name, flows[i].Weight = fmt.Sprint("f", i), rapid.Int64Range(1, shaper.MaxWeight).Draw(t, "weight")
			flows[i].Start = 1 << 40
		}
		p := newPool("97/s")
		p.Virtual = 1 << 40
		a, b := flows[0], flows[1]
		var low, high, walk float64
		latencies, l := rapid.SliceOfN(rapid.IntRange(0, 40), 11, 11).Draw(t, "latencies"), 0
		useUp(p, flows, 400, func() int { l++; return latencies[l%11] }, func(of int, actual int64) {
			switch of {
			case 0:
				walk += float64(actual) / float64(a.Weight)
			case 1:
				walk -= float64(actual) / float64(b.Weight)
			}
			low, high = min(low, walk), max(high, walk)
		})
		bound := 1e-6
		for _, f := range []*used{a, b} {
			bound += float64(f.mostActual+2*f.mostError) / float64(f.Weight)
		}
		if high-low > bound {
			t.Fatalf("they differ by %v, want at most %v", high-low, bound)
		}
	})
}

// TestPoolReserveByActualCosts: a reserve, too, is what a flow uses, although its estimates are too
// low or too high, and its jobs settle late.
func TestPoolReserveByActualCosts(t *testing.T) {
	for _, actual := range []int64{2, 10, 20, 60} {
		for _, latency := range []int{0, 5, 50} {
			a := &used{estimate: 10, actual: func() int64 { return actual }}
			b := &used{estimate: 10, actual: func() int64 { return 10 }}
			a.Name, b.Name, a.Weight, b.Weight = "a", "b", 1, 3
			p := newPool("1000/s")
			a.Tag = p.Obey(a.Tag, 1, rate("50/s"), poolStart)
			a.Tag = p.Enter(a.Tag, poolStart)
			p = useUp(p, []*used{a, b}, 20_000, func() int { return latency }, nil)
			seconds := p.Last.Sub(poolStart).Seconds()
			for _, f := range []*used{a, b} {
				want := map[string]float64{"a": 287.5, "b": 712.5}[f.Name]
				if got := float64(f.sum) / seconds; math.Abs(got/want-1) > 0.03 {
					t.Errorf("actual cost %d, latency %d: %s used %.1f a second, want %.1f", actual, latency, f.Name, got, want)
				}
			}
		}
	}
}
