package figures

import (
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// sharedOver is the time over which the parts of a pool's flows are measured. Where scans are
// rarer, it is the time since the scan before.
const sharedOver = 10 * time.Second

// PoolDetail is the figures of one pool.
type PoolDetail struct {
	At   time.Time // when they were read
	Pool queue.Pool
}

// PoolFlow is a flow of a pool that waits or has left lately. Part is the mean over the time of
// measurement, with 0 while the flow did not wait.
type PoolFlow struct {
	queue.PoolFlow
	Known      bool    // there were two scans, so that Departures and Got are measured
	Departures float64 // a second
	Got        float64 // part of the pool's strictest rate by cost that their costs are
}

// flowKey names a flow of a pool.
type flowKey struct{ pool, tenant, route string }

// flowSeen is a flow in one scan.
type flowSeen struct {
	at              time.Time
	departed, costs int64
	part            float64
}

// shares keeps the flows of pools in the last scans, unless there are more than maxSamples.
type shares struct {
	mu    sync.Mutex
	scans []sharesAt // the earliest first
}

type sharesAt struct {
	at    time.Time
	flows map[flowKey]flowSeen
}

// add adds a scan and sets its Flows.
func (s *shares) add(c *Scan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.scans) > 1 && c.At.Sub(s.scans[0].at) > sharedOver {
		s.scans = s.scans[1:]
	}
	pools := poolSums(c)
	now := sharesAt{c.At, map[flowKey]flowSeen{}}
	c.Flows = map[string][]PoolFlow{}
	for i := range c.Briefs {
		for _, f := range c.Briefs[i].Pooled {
			sum, known := pools[f.Pool]
			if !known {
				continue
			}
			key := flowKey{f.Pool, f.Tenant, f.Route}
			seen := flowSeen{c.read[i], f.Departed, f.Costs, sum.part(f)}
			now.flows[key] = seen
			if flow, lately := s.measure(f, key, seen); lately {
				flow.Got /= sum.rate
				c.Flows[f.Pool] = append(c.Flows[f.Pool], flow)
			}
		}
	}
	s.scans = append(s.scans, now)
	if len(now.flows) > maxSamples { // too many to remember
		s.scans = nil
	}
}

// measure compares a flow with the scans before. Got is the costs a second. lately is false if it
// neither waits nor has left since then.
func (s *shares) measure(f queue.PoolFlow, key flowKey, now flowSeen) (flow PoolFlow, lately bool) {
	flow = PoolFlow{PoolFlow: f}
	flow.Part = now.part
	lately = f.Depth > 0 || f.Running > 0
	if len(s.scans) == 0 {
		return flow, lately
	}
	base := s.scans[0].flows[key]
	if base.at.IsZero() { // it is new
		base.at = s.scans[0].at
	}
	for _, scan := range s.scans {
		flow.Part += scan.flows[key].part
	}
	flow.Part /= float64(len(s.scans) + 1)
	// Fewer if jobs were given back unused, or cost less than expected.
	left, costs := max(0, now.departed-base.departed), max(0, now.costs-base.costs)
	if passed := now.at.Sub(base.at).Seconds(); passed > 0 {
		flow.Known, flow.Departures, flow.Got = true, float64(left)/passed, float64(costs)/passed
	}
	return flow, lately || left > 0
}

// poolSum is the rate of a pool, and what its flows that wait in a scan have together.
type poolSum struct {
	weights        int64
	classes        map[string]int64 // flows of each class; its weight is in weights once
	reserves, rate float64          // costs a second
}

// poolSums adds up the flows of a scan by pool.
func poolSums(c *Scan) map[string]*poolSum {
	pools := map[string]*poolSum{}
	for _, p := range c.Pools {
		pools[p.Name] = &poolSum{rate: p.Policy.CostRate().PerSecond(), classes: map[string]int64{}}
	}
	for i := range c.Briefs {
		for _, f := range c.Briefs[i].Pooled {
			if sum := pools[f.Pool]; sum != nil && f.Waits {
				if sum.classes[f.Class] == 0 || f.Class == "" {
					sum.weights += f.Weight
				}
				sum.classes[f.Class]++
				sum.reserves += perSecondOf(f.Reserve)
			}
		}
	}
	return pools
}

// part is the part of the rate that a flow is entitled to while the same flows wait, 0 if it does
// not wait.
func (s *poolSum) part(f queue.PoolFlow) float64 {
	if !f.Waits {
		return 0
	}
	part := shaper.Part(f.Weight, s.weights, perSecondOf(f.Reserve), s.reserves, s.rate)
	if f.Class != "" {
		part /= float64(max(1, s.classes[f.Class]))
	}
	return part
}

// perSecondOf is a reserve a second, 0 for none.
func perSecondOf(r shaper.Rate) float64 { return float64(shaper.ReserveMicro(r)) / 1e6 }

// poolsOf is a scan of pools in the place of tenants.
func poolsOf(c *Scan) *Scan {
	if c == nil {
		return nil
	}
	pools := &Scan{At: c.At}
	for i := range c.Pools {
		pools.Briefs, pools.read = append(pools.Briefs, poolBrief(&c.Pools[i])), append(pools.read, c.At)
	}
	return pools
}

func poolBrief(p *queue.Pool) queue.Brief {
	return queue.Brief{
		Costs: p.Costs, Name: p.Name, Rate: p.Policy.Rate, Rates: p.Policy.Rates, Capacity: p.Policy.Capacity,
		Figures: queue.Figures{
			Depth: p.Depth, Running: p.Running, Departed: p.Departed, EffectiveRate: p.EffectiveRate,
		},
	}
}

// PastOfPool returns the samples of a pool in the last five minutes, the earliest first, and that
// of now at the end.
func (h *Hub) PastOfPool(now *PoolDetail) []Sample {
	b := poolBrief(&now.Pool)
	return h.pools.of(b.Name, sampleAt(now.At, &b))
}

// keep stores the result of a scan for the histories, and completes it.
func (h *Hub) keep(c *Scan, err error) {
	if err == nil {
		h.shares.add(c)
	}
	h.tenants.note(c, err)
	h.pools.note(poolsOf(c), err)
}
