package figures

import (
	"context"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// predictedMost bounds the arrivals that a prediction replays: half a second of work, some tens of
// megabytes.
const predictedMost = 1_000_000

// policies is what a prediction reads of the queue.
type policies interface {
	Tenant(ctx context.Context, name string) (queue.Tenant, error)
	List(ctx context.Context, l queue.List) (queue.Page, error)
	PoolOf(route string) string
	Pool(ctx context.Context, name string) (queue.Pool, error)
	PoolFlows(ctx context.Context, name string, limit int) ([]queue.PoolFlow, error)
}

// Predictor simulates the arrivals of a log.
type Predictor struct {
	Queue    policies
	Arrivals *Arrivals
	Horizon  time.Duration // how far ahead of their stamps workers lease jobs
}

// Tenant simulates the arrivals of a tenant with its settings now, and with those that it would
// have then.
func (s Predictor) Tenant(ctx context.Context, now, then queue.Tenant) (out wire.Prediction, err error) {
	name := now.Name
	until := time.Now()
	traces, first := s.Arrivals.Traces(name, shaper.InstantOf(until), predictedMost)
	out = wire.Prediction{From: s.Arrivals.Since(until).UTC(), Until: until.UTC()}
	if first != 0 {
		out.From = first.Time()
	}
	for _, t := range traces {
		out.Arrivals += int64(len(t))
	}
	pools, err := s.competition(ctx, name, traces)
	if err != nil {
		return out, err
	}
	service := map[string]time.Duration{}
	for route := range traces {
		pool := pools[s.Queue.PoolOf(route)].policy.Concurrency
		if PolicyOn(now, route).Concurrency == 0 && PolicyOn(then, route).Concurrency == 0 && pool == 0 {
			continue
		}
		if service[route], err = s.serviceTime(ctx, name, route); err != nil {
			return out, err
		}
		out.ServiceTimeMS = max(out.ServiceTimeMS, problem.Millis(service[route]))
	}
	if out.Now, err = s.outlook(ctx, now, traces, service, pools); err != nil {
		return out, err
	}
	if out.Then, err = s.outlook(ctx, then, traces, service, pools); err != nil {
		return out, err
	}
	return out, nil
}

// PolicyOn is the policy of the tenant's flow with the route.
func PolicyOn(t queue.Tenant, route string) shaper.Policy {
	if f, has := t.Routes[route]; has {
		return f.Policy
	}
	return t.Policy
}

// serviceSample is the number of ended jobs from which the service time of a flow is computed.
const serviceSample = 100

// serviceTime is the mean duration of the last successful deliveries of a flow; 0 if there are
// none.
func (s Predictor) serviceTime(ctx context.Context, tenant, route string) (time.Duration, error) {
	page, err := s.Queue.List(ctx, queue.List{
		Tenant: tenant, State: queue.ListSucceeded, Route: route, Limit: serviceSample,
	})
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	n := 0
	for _, j := range page.Jobs {
		if j.State == shaper.Succeeded && !j.Started.IsZero() {
			sum += max(0, j.Finished.Sub(j.Started))
			n++
		}
	}
	if n == 0 {
		return 0, nil
	}
	return sum / time.Duration(n), nil
}

// outlook replays the traces, by route, through the flows of the tenant, with these service times.
// Flows of a pool compete with those that wait there now.
func (s Predictor) outlook(
	ctx context.Context, t queue.Tenant, traces map[string]simulate.Trace, service map[string]time.Duration,
	pools map[string]competition,
) (wire.Outlook, error) {
	var runs []*simulate.Run
	pooled := map[string][]simulate.Member{}
	for route, trace := range traces {
		if err := ctx.Err(); err != nil {
			return wire.Outlook{}, err
		}
		if pool := s.Queue.PoolOf(route); pool != "" {
			pooled[pool] = append(pooled[pool], simulate.Member{Name: route, Policy: PolicyOn(t, route), Trace: trace})
			continue
		}
		r, err := simulate.Shaper(trace, PolicyOn(t, route), simulate.Workers{
			Horizon: s.Horizon, Service: service[route],
		})
		if err != nil {
			return wire.Outlook{}, err
		}
		runs = append(runs, r)
	}
	for pool, members := range pooled {
		longest := time.Duration(0)
		for _, m := range members {
			longest = max(longest, service[m.Name])
		}
		r, err := simulate.Pool(append(members, pools[pool].rivals...), pools[pool].policy, longest)
		if err != nil {
			return wire.Outlook{}, err
		}
		runs = append(runs, r.Runs[:len(members)]...)
	}
	return outlookOf(simulate.Together(runs...)), nil
}

func outlookOf(r simulate.Report) wire.Outlook {
	out := wire.Outlook{Admitted: r.Admitted, Refused: r.Refused, DepthMax: r.PeakDepth}
	if r.Departed > 0 {
		ms := func(d time.Duration) *int64 { return new(d.Round(time.Millisecond).Milliseconds()) }
		out.WaitP50, out.WaitP95, out.WaitP99, out.WaitMax = ms(r.WaitP50), ms(r.WaitP95), ms(r.WaitP99),
			ms(r.WaitMax)
	}
	return out
}
