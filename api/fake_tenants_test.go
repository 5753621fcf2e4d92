package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func (f *fakeQueue) Tenant(_ context.Context, name string) (queue.Tenant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return queue.Tenant{}, f.failure
	}
	return f.describe(name), nil
}

func (f *fakeQueue) describe(name string) queue.Tenant {
	t := f.tenant(name)
	return f.with(t, t.overrides, name)
}

// with returns the tenant with the overrides.
func (f *fakeQueue) with(t *fakeTenant, o shaper.Overrides, name string) queue.Tenant {
	settings := shaper.Statements{API: o}
	figures := func(p shaper.Policy) queue.Figures {
		if p.Paused {
			return queue.Figures{LimitedBy: "paused"}
		}
		return queue.Figures{LimitedBy: "idle", EffectiveRate: p.Rate.PerSecond()}
	}
	_, known := f.held[name]
	known = known || t.revision > 0
	for _, j := range f.jobs {
		known = known || j.Tenant == name
	}
	out := queue.Tenant{
		Name: name, Known: known, Reason: t.reason, Revision: t.revision, API: o,
		Routes: map[string]queue.Flow{},
	}
	out.Policy, out.Sources = f.Baseline.Resolve(settings, "")
	out.Tier, out.Sources["tier"] = settings.Tier()
	out.Figures = figures(out.Policy)
	out.Depth, out.Admitted, out.Rejected = t.flow.Depth, t.admitted, t.rejected
	for _, j := range f.jobs {
		if j.Tenant == name && j.State == shaper.Dead {
			out.Dead++
		}
	}
	if held, is := f.held[name]; is {
		out.HeldUntil, out.HeldBy, out.Dead, out.DeadTotal = held.HeldUntil, held.HeldBy, held.Dead, held.DeadTotal
	}
	routes := f.Baseline.Mentioned(settings)
	for _, j := range f.jobs {
		if j.Tenant == name {
			routes = append(routes, j.Route)
		}
	}
	for _, route := range routes {
		var flow queue.Flow
		flow.Policy, flow.Sources = f.Baseline.Resolve(settings, route)
		flow.Figures = figures(flow.Policy)
		out.Routes[route] = flow
	}
	return out
}

func (f *fakeQueue) Tune(_ context.Context, name string, c queue.Change) (queue.Tenant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return queue.Tenant{}, f.failure
	}
	t := f.tenant(name)
	o, err := t.change(c,
		func(o shaper.Overrides) error { return f.Baseline.Validate(shaper.Statements{API: o}) })
	switch {
	case err != nil:
		return queue.Tenant{}, err
	case c.DryRun:
		return f.with(t, o, name), nil
	case c.EndHolds:
		delete(f.held, name)
		return f.describe(name), nil
	}
	t.flow.Bucket, _ = t.flow.Retune(t.policy().Paces(), shaper.InstantOf(time.Now()))
	return f.describe(name), nil
}

// change makes the change of a tenant or a pool, and returns the overrides that result.
func (t *fakeTenant) change(c queue.Change, validate func(shaper.Overrides) error) (o shaper.Overrides,
	err error) {
	if c.IfRevision != nil && *c.IfRevision != t.revision {
		return o, queue.ErrRevision
	}
	if o, err = c.Edit(t.overrides); err != nil {
		return o, err
	}
	if c.Resume { // the fake has no file that pauses
		o = shaper.Baseline{}.Resumed(shaper.Statements{API: o})
	}
	if err := validate(o); err != nil || c.DryRun {
		return o, err
	}
	t.revision++
	entry := queue.HistoryEntry{At: time.Now(), Revision: t.revision, Actor: c.Actor, Reason: c.Reason,
		Before: t.overrides, After: o}
	if c.EndHolds {
		entry.Action = queue.ActionUnhold
		if c.EndCharge {
			entry.Action = queue.ActionUnholdCharge
		}
	} else {
		t.overrides, t.reason, t.actor = o, c.Reason, c.Actor
	}
	t.history = append([]queue.HistoryEntry{entry}, t.history...)
	return o, nil
}

func (f *fakeQueue) History(_ context.Context, name string) ([]queue.HistoryEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tenant(name).history), f.failure
}

// Tenants returns the last name of a page as its cursor.
func (f *fakeQueue) Tenants(_ context.Context, cursor string, limit int) ([]string, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return nil, "", f.failure
	}
	if strings.ContainsRune(cursor, 0) {
		return nil, "", queue.ErrCursor
	}
	var names []string
	for name := range f.tenants {
		if name > cursor {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) <= limit {
		return names, "", nil
	}
	return names[:limit], names[limit-1], nil
}

// Scan returns the last name of a part as its cursor.
func (f *fakeQueue) Scan(ctx context.Context, cursor string, most int) ([]queue.Brief, string, error) {
	names, next, err := f.Tenants(ctx, cursor, most)
	if err != nil {
		return nil, "", err
	}
	var part []queue.Brief
	for _, name := range names {
		t, err := f.Tenant(ctx, name)
		if err != nil {
			return nil, "", err
		}
		brief := queue.Brief{
			Name: name, Tier: t.Tier, Rate: t.Policy.Rate, Rates: t.Policy.Rates, Capacity: t.Policy.Capacity,
			Paused: t.Policy.Paused, Figures: t.Figures,
		}
		for _, flow := range f.Flows {
			if flow.Pool = f.Baseline.PoolOf(flow.Route); flow.Tenant == name && flow.Pool != "" {
				brief.Pooled = append(brief.Pooled, flow)
			}
		}
		part = append(part, brief)
	}
	return part, next, nil
}
