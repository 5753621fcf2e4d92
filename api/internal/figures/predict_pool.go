package figures

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// Pool simulates the arrivals of the flows of a pool with its settings now, and with those that it
// would have then.
func (s Predictor) Pool(ctx context.Context, now, then queue.Pool) (out wire.Prediction, err error) {
	until := time.Now()
	out = wire.Prediction{From: s.Arrivals.Since(until).UTC(), Until: until.UTC()}
	members, from := s.membersOf(now, shaper.InstantOf(until))
	if from != 0 {
		out.From = from.Time()
	}
	var all []simulate.Member
	service := time.Duration(0) // of the flow with the most arrivals
	for i, m := range members {
		t, err := s.Queue.Tenant(ctx, m.tenant)
		if err != nil {
			return out, err
		}
		m.Policy = PolicyOn(t, m.route)
		all, out.Arrivals = append(all, m.Member), out.Arrivals+int64(len(m.Trace))
		if i == 0 && max(now.Policy.Concurrency, then.Policy.Concurrency, m.Policy.Concurrency) > 0 {
			if service, err = s.serviceTime(ctx, m.tenant, m.route); err != nil {
				return out, err
			}
			out.ServiceTimeMS = problem.Millis(service)
		}
	}
	for policy, into := range map[*shaper.Policy]*wire.Outlook{&now.Policy: &out.Now, &then.Policy: &out.Then} {
		r, err := simulate.Pool(all, *policy, service)
		if err != nil {
			return out, err
		}
		*into = outlookOf(r.Report())
	}
	return out, nil
}

// recorded is a flow of a pool with its arrivals.
type recorded struct {
	simulate.Member
	tenant, route string
}

// membersOf are the flows of a pool with the most arrivals, those first, and the instant of the
// first arrival if earlier ones were left out.
func (s Predictor) membersOf(p queue.Pool, until shaper.Instant) (members []recorded, from shaper.Instant) {
	left := predictedMost
	for _, tenant := range s.Arrivals.Tenants() {
		if left <= 0 {
			break
		}
		traces, first := s.Arrivals.Traces(tenant, until, left)
		for _, route := range p.Routes {
			if t := traces[route]; len(t) > 0 {
				from, left = max(from, first), left-len(t)
				members = append(members, recorded{simulate.Member{Name: tenant + "/" + route, Trace: t}, tenant, route})
			}
		}
	}
	slices.SortStableFunc(members, func(a, b recorded) int { return len(b.Trace) - len(a.Trace) })
	return members[:min(len(members), rivalsMost)], from
}

// competition is what a flow of a pool meets there: the pool's policy, and the flows of other
// tenants that wait at this moment. A simulation lets them wait all the time.
type competition struct {
	policy shaper.Policy
	rivals []simulate.Member
}

// Bounds of a competition.
const (
	rivalsMost    = 100     // flows that are read of a pool
	rivalJobsMost = 500_000 // departures of all of them while the arrivals come; above it their jobs cost more
)

// competition reads the pools that the routes of the traces are in.
func (s Predictor) competition(
	ctx context.Context, tenant string, traces map[string]simulate.Trace,
) (map[string]competition, error) {
	byPool := map[string][]simulate.Trace{}
	for route, t := range traces {
		if pool := s.Queue.PoolOf(route); pool != "" {
			byPool[pool] = append(byPool[pool], t)
		}
	}
	pools := map[string]competition{}
	for name, traces := range byPool {
		p, err := s.Queue.Pool(ctx, name)
		if err != nil {
			return nil, err
		}
		c := competition{policy: p.Policy}
		if c.rivals, err = s.rivals(ctx, p, tenant, rivalCost(p.Policy, traces)); err != nil {
			return nil, err
		}
		pools[name] = c
	}
	return pools, nil
}

// rivalCost is the cost of a rival's jobs: the mean of the traces, or more to bound the work.
func rivalCost(p shaper.Policy, traces []simulate.Trace) int64 {
	first, last := traces[0][0].At, shaper.Instant(0)
	var jobs, cost int64
	for _, t := range traces {
		first, last = min(first, t[0].At), max(last, t[len(t)-1].At)
		for _, a := range t {
			jobs, cost = jobs+1, cost+a.Cost
		}
	}
	bounded := int64(p.CostRate().PerSecond() * last.Sub(first).Seconds() / rivalJobsMost)
	return max(1, min(shaper.MaxCost, max(cost/jobs, bounded)))
}

// rivals are the flows of other tenants that wait in the pool, each within its own rate.
func (s Predictor) rivals(
	ctx context.Context, p queue.Pool, tenant string, cost int64,
) ([]simulate.Member, error) {
	flows, err := s.Queue.PoolFlows(ctx, p.Name, rivalsMost)
	if err != nil {
		return nil, err
	}
	var rivals []simulate.Member
	weights, classes := p.Weights, map[string]bool{}
	for _, f := range flows {
		if classes[f.Class] {
			continue // all of it is among the rivals
		}
		weights -= max(1, f.Weight)
		if f.Class != "" {
			classes[f.Class] = true
			rivals = append(rivals, simulate.Member{Name: "/" + f.Class, Backlog: cost, Policy: unlimited(f.Weight)})
			continue
		}
		if f.Tenant == tenant {
			continue
		}
		m := simulate.Member{Name: f.Tenant + "/" + f.Route, Backlog: cost, Policy: unlimited(f.Weight)}
		t, err := s.Queue.Tenant(ctx, f.Tenant)
		if err != nil {
			return nil, err
		}
		own := PolicyOn(t, f.Route)
		m.Policy.Rate, m.Policy.Burst, m.Policy.Rates = own.Rate, own.Burst, own.Rates
		m.Policy.Reserve = own.Reserve
		rivals = append(rivals, m)
	}
	// Flows that were not read: their weights without their own rates.
	for i := 0; i < rivalsMost && weights > 0 && int64(len(flows)) < p.Waiting; i++ {
		rivals = append(rivals, simulate.Member{
			Name: fmt.Sprint("/", i), Backlog: cost, Policy: unlimited(weights),
		})
		weights -= shaper.MaxWeight
	}
	return rivals, nil
}

// unlimited is the policy of a flow that only its pool limits.
func unlimited(weight int64) shaper.Policy {
	p := shaper.DefaultPolicy()
	p.Rate, p.Concurrency = shaper.Rate{Limit: shaper.MaxPerSecond, Period: time.Second}, 0
	p.Weight = max(1, min(shaper.MaxWeight, weight))
	return p
}
