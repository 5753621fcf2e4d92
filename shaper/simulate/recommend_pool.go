package simulate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// PoolGoals are the bounds that each flow of a pool should keep.
type PoolGoals struct {
	WaitP99    time.Duration // the longest wait of 99 % of its admitted jobs
	MaxRefused float64       // share of its arrivals that may be refused, 0 to 1
}

// Share is what a flow of a pool needs and gets.
type Share struct {
	// Needs is the smallest rate at which the flow reaches the goal alone. Possible is false if the
	// rate of the pool and its own do not allow it; then Needs is its mean rate.
	Needs    shaper.Rate
	Possible bool
	Weight   int64
	Reserve  shaper.Rate // zero for none
	Capacity int64
	Bounded  bool    // the capacity is less than the depth would be, so that no job waits longer than the goal
	Refused  float64 // share of the arrivals
	WaitP99  time.Duration
	WaitMax  time.Duration
	Reached  bool // both goals
}

// RecommendPool finds weights, reserves and capacities of flows that share a pool, whose policy has
// the limit of the upstream:
//
//  1. Each flow needs the smallest rate at which it reaches the goal alone.
//  2. Weights are in proportion to the needs.
//  3. If a flow misses the goal with these weights, flows get their needs as reserves: the smallest
//     first, as far as the rate of the pool goes.
//  4. The capacity is the greatest depth of the flow. A flow that still misses the goal gets the
//     capacity that it can empty within the goal, at its part while all wait: its jobs wait no
//     longer, but some are refused.
//
// Weights, reserves and capacities of the members do not count; their other settings do. The error
// is of type shaper.Problems or wraps ErrTrace.
func RecommendPool(members []Member, p shaper.Policy, g PoolGoals) ([]Share, error) {
	if err := (Goals{WaitP99: g.WaitP99, MaxRefused: g.MaxRefused, Burst: 1}).Validate(); err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p.Capacity, p.Concurrency = shaper.MaxCapacity, 0
	members, shares := slices.Clone(members), make([]Share, len(members))
	for i := range members {
		if err := shares[i].need(members[i], p, g); err != nil {
			return nil, fmt.Errorf("%s: %w", members[i].Name, err)
		}
	}
	weigh(shares)
	if all, err := try(members, shares, p, g); err != nil || all {
		return shares, err
	}
	reserve(shares, p)
	if all, err := try(members, shares, p, g); err != nil || all {
		return shares, err
	}
	bound(members, shares, p, g)
	_, err := try(members, shares, p, g)
	return shares, err
}

// weigh gives weights in proportion to the needs, the greatest 100 or less.
func weigh(shares []Share) {
	most, common := 0.0, int64(0)
	for _, s := range shares {
		most = max(most, s.Needs.PerSecond())
	}
	for i := range shares {
		shares[i].Weight = max(1, int64(math.Round(100*shares[i].Needs.PerSecond()/most)))
		a, b := shares[i].Weight, common
		for b > 0 {
			a, b = b, a%b
		}
		common = a
	}
	for i := range shares {
		shares[i].Weight /= common
	}
}

// need finds the rate that a member needs alone.
func (s *Share) need(m Member, p shaper.Policy, g PoolGoals) error {
	most := p.CostRate()
	if own := m.Policy.CostRate(); own.PerSecond() < most.PerSecond() {
		most = own
	}
	r, err := Recommend(m.Trace, Goals{
		WaitP99: g.WaitP99, MaxRefused: g.MaxRefused, Upstream: most, Burst: 1,
	}, nil)
	if err != nil {
		return err
	}
	if s.Needs, s.Possible = r.Rate, r.Reached; !s.Possible {
		sum, _ := m.Trace.cost()
		mean := float64(sum) / max(1, m.Trace.Span().Seconds())
		s.Needs = shaper.Rate{Limit: max(1, int64(math.Ceil(min(mean, most.PerSecond())))), Period: time.Second}
	}
	return nil
}

// reserve gives members their needs as reserves, the smallest first, as far as the rate goes.
func reserve(shares []Share, p shaper.Policy) {
	order := make([]int, len(shares))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(shares[a].Needs.PerSecond(), shares[b].Needs.PerSecond())
	})
	left := p.CostRate().PerSecond() * (1 + 1e-9)
	for _, i := range order {
		if r := shares[i].Needs; shares[i].Possible && r.PerSecond() <= left {
			left, shares[i].Reserve = left-r.PerSecond(), r
		}
	}
}

// bound limits the capacity of members that miss the goal to what they can empty within it.
func bound(members []Member, shares []Share, p shaper.Policy, g PoolGoals) {
	rate, reserves, weights := p.CostRate().PerSecond(), 0.0, int64(0)
	for _, s := range shares {
		weights += s.Weight
		if s.Reserve != (shaper.Rate{}) {
			reserves += s.Reserve.PerSecond()
		}
	}
	for i := range shares {
		s := &shares[i]
		if s.Bounded = !s.Reached; s.Reached {
			continue
		}
		own := 0.0
		if s.Reserve != (shaper.Rate{}) {
			own = s.Reserve.PerSecond()
		}
		got := min(members[i].Policy.CostRate().PerSecond(),
			rate*shaper.Part(s.Weight, weights, own, reserves, rate))
		sum, _ := members[i].Trace.cost()
		mean := float64(sum) / float64(len(members[i].Trace))
		s.Capacity = max(1, min(s.Capacity, int64(got*g.WaitP99.Seconds()/mean)))
	}
}

// try simulates the shares and fills in what comes of them. It reports whether all reach the goals.
func try(members []Member, shares []Share, p shaper.Policy, g PoolGoals) (bool, error) {
	trial := slices.Clone(members)
	for i := range shares {
		s, q := &shares[i], &trial[i].Policy
		if !s.Bounded {
			s.Capacity = shaper.MaxCapacity
		}
		q.Weight, q.Reserve, q.Capacity, q.CapacityBytes, q.Concurrency = s.Weight, s.Reserve, s.Capacity, 0, 0
	}
	r, err := Pool(trial, p, 0)
	if err != nil {
		return false, err
	}
	all := true
	for i := range shares {
		s, got := &shares[i], r.Runs[i].Report()
		if !s.Bounded {
			s.Capacity = max(1, got.PeakDepth)
		}
		s.Refused = float64(got.Arrived-got.Departed) / float64(got.Arrived)
		s.WaitP99, s.WaitMax = got.WaitP99, got.WaitMax
		s.Reached = s.WaitP99 <= g.WaitP99 && s.Refused <= g.MaxRefused
		all = all && s.Reached
	}
	return all, nil
}
