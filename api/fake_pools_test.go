package api

import (
	"context"
	"maps"
	"slices"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Pools are those of Baseline.
func (f *fakeQueue) Pools() []string { return slices.Sorted(maps.Keys(f.Baseline.Pools)) }

// Tiers are those of Baseline.
func (f *fakeQueue) Tiers() []string { return slices.Sorted(maps.Keys(f.Baseline.Tiers)) }

func (f *fakeQueue) PoolOf(route string) string { return f.Baseline.PoolOf(route) }

func (f *fakeQueue) Pool(_ context.Context, name string) (queue.Pool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.pool(name)
	if err != nil {
		return queue.Pool{}, err
	}
	return f.describePool(name, p, p.overrides), nil
}

func (f *fakeQueue) AllPools(ctx context.Context) (all []queue.Pool, err error) {
	for _, name := range f.Pools() {
		p, err := f.Pool(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// pool returns what was changed of a declared pool.
func (f *fakeQueue) pool(name string) (*fakeTenant, error) {
	if f.failure != nil {
		return nil, f.failure
	}
	if _, declared := f.Baseline.Pools[name]; !declared {
		return nil, queue.ErrNoPool
	}
	if f.pools[name] == nil {
		f.pools[name] = &fakeTenant{}
	}
	return f.pools[name], nil
}

// describePool returns the pool with the overrides.
func (f *fakeQueue) describePool(name string, p *fakeTenant, api shaper.Overrides) queue.Pool {
	out := f.Shared
	out.Name, out.Routes, out.Reason, out.Revision, out.API = name, f.Baseline.Pools[name].Routes, p.reason,
		p.revision, api
	out.Policy, out.Sources = f.Baseline.ResolvePoolCost(name, api)
	out.Depth, out.EffectiveRate, out.LimitedBy = f.poolDepth(name), out.Policy.Rate.PerSecond(), "idle"
	if out.Policy.Paused {
		out.EffectiveRate, out.LimitedBy = 0, "paused"
	}
	return out
}

// poolDepth counts the jobs that wait in the pool.
func (f *fakeQueue) poolDepth(name string) (depth int64) {
	for _, j := range f.jobs {
		if j.State.Waiting() && slices.Contains(f.Baseline.Pools[name].Routes, j.Route) {
			depth++
		}
	}
	return depth
}

// poolFull is the refusal of jobs that do not fit into the pool of their route.
func (f *fakeQueue) poolFull(route string, size int64, now shaper.Instant) (a shaper.Admission, full bool) {
	name := f.Baseline.PoolOf(route)
	p, err := f.pool(name)
	if name == "" || err != nil {
		return a, false
	}
	policy, _ := f.Baseline.ResolvePool(name, p.overrides)
	depth := f.poolDepth(name)
	return shaper.Admission{
		Outcome: shaper.Full, OfPool: true, Now: now, Depth: depth, Capacity: policy.Capacity,
		Remaining: max(0, policy.Capacity-depth), Rate: policy.DrainRate(),
	}, depth+size > policy.Capacity
}

func (f *fakeQueue) TunePool(_ context.Context, name string, c queue.Change) (queue.Pool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.pool(name)
	if err != nil {
		return queue.Pool{}, err
	}
	o, err := p.change(c, func(o shaper.Overrides) error { return f.Baseline.ValidatePool(name, o) })
	if err != nil {
		return queue.Pool{}, err
	}
	return f.describePool(name, p, o), nil
}

func (f *fakeQueue) PoolHistory(_ context.Context, name string) ([]queue.HistoryEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.pool(name)
	if err != nil {
		return nil, err
	}
	return slices.Clone(p.history), nil
}

// PoolFlows are the first of Flows.
func (f *fakeQueue) PoolFlows(_ context.Context, name string, limit int) ([]queue.PoolFlow, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.pool(name); err != nil {
		return nil, err
	}
	return f.Flows[:min(limit, len(f.Flows))], nil
}
