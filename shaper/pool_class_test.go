package shaper_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// waiter is a flow of a class, with the instant of its next possible stamp.
type waiter struct {
	due  shaper.Instant
	cost []int64 // of its jobs
}

// TestClassIsOneFlow: a class that waits all the time and a flow beside it get the same for their
// weights, up to one job each, over every interval: however many flows the class has, whatever
// their jobs cost, and although each of them may be new.
func TestClassIsOneFlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cost := rapid.Int64Range(1, 50)
		class := shaper.Candidate{Name: "class", Weight: rapid.Int64Range(1, shaper.MaxWeight).Draw(t, "weight of the class")}
		flow := shaper.Candidate{Name: "flow", Weight: rapid.Int64Range(1, shaper.MaxWeight).Draw(t, "weight of the flow")}
		var line []waiter
		p := newPool("97/s")
		var low, high, walk float64
		for range 400 {
			slot := p.Stamp(0, max(poolStart, p.Earliest()))
			for range rapid.IntRange(0, 3).Draw(t, "new flows") {
				line = append(line, waiter{slot, rapid.SliceOfN(cost, 1, 3).Draw(t, "costs")})
			}
			if len(line) == 0 {
				line = append(line, waiter{slot, []int64{cost.Draw(t, "cost")}})
			}
			if i, reserved := p.Pick([]shaper.Candidate{class, flow}, slot); i == 0 {
				w := line[0]
				p, class.Tag = p.Serve(class, reserved, slot, w.cost[0])
				walk += float64(w.cost[0]) / float64(class.Weight)
				if line, w.cost = line[1:], w.cost[1:]; len(w.cost) > 0 {
					w.due = slot + 1
					line = append(line, w)
				}
			} else {
				c := cost.Draw(t, "cost of the flow")
				p, flow.Tag = p.Serve(flow, reserved, slot, c)
				walk -= float64(c) / float64(flow.Weight)
			}
			low, high = min(low, walk), max(high, walk)
		}
		if bound := 50/float64(class.Weight) + 50/float64(flow.Weight) + 0.002; high-low > bound {
			t.Fatalf("they differ by %v, want at most %v", high-low, bound)
		}
	})
}

// TestClassBesideACustomer: of 200 a second, 80 flows of a class and a customer of the same weight
// get half each, over every backlog. Each job of the class may be that of a new flow.
func TestClassBesideACustomer(t *testing.T) {
	for _, renewed := range []bool{false, true} {
		class, customer := shaper.Candidate{Name: "class", Weight: 1}, shaper.Candidate{Name: "customer", Weight: 1}
		line, names := []string{}, 0
		enter := func() { names++; line = append(line, fmt.Sprint("guest", names)) }
		for range 80 {
			enter()
		}
		p, got := newPool("200/s"), map[string]int{}
		for range 1000 {
			slot := p.Stamp(0, max(poolStart, p.Earliest()))
			i, _ := p.Pick([]shaper.Candidate{class, customer}, slot)
			if i == 1 {
				p, customer.Tag = p.Serve(customer, false, slot, 1)
				got["customer"]++
			} else {
				p, class.Tag = p.Serve(class, false, slot, 1)
				got[line[0]]++
				if renewed {
					enter()
				} else {
					line = append(line, line[0])
				}
				line = line[1:]
			}
			if all := sum(got); max(all-2*got["customer"], 2*got["customer"]-all) > 2 {
				t.Fatalf("the customer has %d of %d", got["customer"], all)
			}
		}
		delete(got, "customer")
		if counts := slices.Sorted(maps.Values(got)); counts[len(counts)-1]-counts[0] > 1 {
			t.Errorf("the flows of the class got %v", counts)
		}
	}
}

func sum(of map[string]int) (n int) {
	for _, k := range of {
		n += k
	}
	return n
}

// A class that was away starts at the virtual time, and its earlier departures still count where
// they are ahead of it: a class of one new flow after another earns nothing.
func TestClassThatWasAway(t *testing.T) {
	p := newPool("200/s")
	p.Virtual = 5000
	class := shaper.Candidate{Weight: 2}
	if class.Tag = p.Enter(class.Tag, poolStart); class.Start != 5000 {
		t.Errorf("it starts at %d, want 5,000", class.Start)
	}
	p, class.Tag = p.Serve(class, false, poolStart, 3)
	if class.Tag = p.Enter(class.Tag, poolStart+1); class.Start != 6500 {
		t.Errorf("it starts at %d, want 6,500: its last flow took 3 units", class.Start)
	}
}

// TestBeforeInAClass: a flow of a class gets its part of what the class gets; for others, the class
// counts once.
func TestBeforeInAClass(t *testing.T) {
	s := shaper.Shared{
		Flow:   shaper.Flow{Bucket: shaper.NewBucket([]shaper.Pace{pace("200/s", 1)}), Queued: 1000, Cost: 1000},
		Policy: shaper.Policy{Rate: rate("200/s"), Burst: 1}, Weight: 1, Weights: 2,
	}
	f := shaper.Flow{Queued: 6, Cost: 6}
	if got := s.Before(f, 3); got != 6 {
		t.Errorf("before the 4th job of the customer leaves cost %d, want 6", got)
	}
	s.Members = 80
	if got := s.Before(f, 3); got != 559 {
		t.Errorf("before the 4th job of a guest leaves cost %d, want 559", got)
	}
}

// TestClassesOfTiers: the weight of a tier is that of the tenants which claim it and have no
// settings of their own. Reserves are each tenant's, so a class has none.
func TestClassesOfTiers(t *testing.T) {
	b := shaper.Baseline{Defaults: shaper.DefaultPolicy(), Tiers: map[string]shaper.Overrides{"free": {}, "gold": {}},
		PoolWeights: map[string]int64{"free": 3}}
	b.Defaults.Reserve = rate("1/s")
	own := shaper.Overrides{Capacity: new(int64(5))}
	for _, tt := range []struct {
		says shaper.Statements
		want int64
	}{
		{shaper.Statements{Claimed: "free"}, 3}, {shaper.Statements{Claimed: "gold"}, 0}, {shaper.Statements{}, 0},
		{shaper.Statements{Claimed: "free", API: own}, 0}, {shaper.Statements{Claimed: "free", File: own}, 0},
	} {
		for _, route := range []string{"", "echo"} {
			p, _ := b.Resolve(tt.says, route)
			if p.ClassWeight != tt.want || (p.Reserve == shaper.Rate{}) != (tt.want > 0) {
				t.Errorf("%+v: weight of the class %d, reserve %v; want %d", tt.says, p.ClassWeight, p.Reserve, tt.want)
			}
		}
	}
}
