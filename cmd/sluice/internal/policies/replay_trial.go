package policies

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// trial counts the dead jobs that a replay would queue now, with the figures of the tenant as they
// were when it began. It does not know the sizes of payloads: a queue whose bytes are not yet full
// takes any job.
type trial struct {
	remote *client.Client
	tenant wire.Tenant
	pools  map[string]*wire.Pool
}

// count lists the jobs of the filter, the newest first, as a replay does. It ends at the first one
// that would be refused.
func (r *trial) count(ctx context.Context, tenant string, f wire.Filter) (swept wire.Swept, err error) {
	if r.tenant, err = r.remote.Tenant(ctx, tenant); err != nil {
		return swept, err
	}
	if r.tenant.Unknown {
		return swept, fmt.Errorf("tenant %q: no setting names this tenant, and it has sent no jobs recently", tenant)
	}
	r.pools = map[string]*wire.Pool{}
	if swept.CreatedBefore = f.CreatedBefore; swept.CreatedBefore.IsZero() {
		swept.CreatedBefore = time.Now()
	}
	asked := client.List{Tenant: tenant, State: "dead", Route: f.Route, Error: f.Error, CreatedBefore: swept.CreatedBefore}
	for job, err := range jobsOf(ctx, r.remote, asked) {
		refused := ""
		if err == nil {
			refused, err = r.admit(ctx, job.Route, job.Type)
		}
		if err != nil {
			return swept, err
		}
		if refused == "" {
			swept.Count++
			continue
		}
		swept.Stopped, swept.StoppedRoute = refused, job.Route
		if refused != forbidden { // those are passed over
			break
		}
	}
	return swept, nil
}

// jobsOf lists all jobs of a kind, a page at a time.
func jobsOf(ctx context.Context, remote *client.Client, asked client.List) iter.Seq2[wire.Job, error] {
	return func(yield func(wire.Job, error) bool) {
		asked.Limit = wire.MaxPage
		for more := true; more; more = asked.Cursor != "" {
			page, err := cli.Jobs(ctx, remote.Operator(), asked)
			if err != nil {
				yield(wire.Job{}, err)
				return
			}
			for _, job := range page.Items {
				if !yield(job, nil) {
					return
				}
			}
			asked.Cursor = page.NextCursor
		}
	}
}

// forbidden is the refusal of a job that the tenant may not have.
const forbidden = "forbidden"

// admit takes a slot of the route's queue and of its pool, or returns why a job is refused.
func (r *trial) admit(ctx context.Context, route, kind string) (refusal string, err error) {
	flow, known := r.tenant.Routes[route]
	if !known {
		flow.Policy = r.tenant.Policy
	}
	p := flow.InForce()
	if r.tenant.Draining || p.Draining {
		return "draining", nil
	}
	if p.Denied || !p.AllowsType(kind) {
		return forbidden, nil
	}
	refusal = full(p.Capacity, flow.Depth, p.CapacityBytes, flow.Bytes)
	pool, err := r.pool(ctx, flow.Pool)
	if err != nil {
		return "", err
	}
	if pool != nil && refusal == "" {
		of := pool.InForce()
		refusal = full(of.Capacity, pool.Depth, of.CapacityBytes, pool.Bytes)
		if refusal == "" && flow.Depth >= 3*(of.Capacity-pool.Depth) { // its part, as lua/lib/pool_full.lua
			refusal = "queue-full"
		}
		pool.Depth++
	}
	flow.Depth++
	if r.tenant.Routes == nil {
		r.tenant.Routes = map[string]wire.Flow{}
	}
	r.tenant.Routes[route] = flow
	return refusal, nil
}

func full(capacity, depth, capacityBytes, bytes int64) string {
	switch {
	case capacity == 0:
		return "never-fits"
	case depth >= capacity:
		return "queue-full"
	case capacityBytes > 0 && bytes >= capacityBytes:
		return "queue-bytes-full"
	}
	return ""
}

// pool reads a pool once; it returns nil without one.
func (r *trial) pool(ctx context.Context, name string) (*wire.Pool, error) {
	if name == "" || r.pools[name] != nil {
		return r.pools[name], nil
	}
	p, err := r.remote.Pool(ctx, name)
	if err != nil {
		return nil, err
	}
	r.pools[name] = &p
	return &p, nil
}
