package towire

import (
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
)

// Pool is the pool in its JSON form.
func Pool(p queue.Pool) wire.Pool {
	settings := policy(p.Policy, p.Sources)
	out := wire.Pool{
		Pool: p.Name, Routes: p.Routes, Rate: settings.Rate, Rates: settings.Rates, Burst: settings.Burst,
		Capacity: settings.Capacity, CapacityBytes: settings.CapacityBytes,
		Concurrency: settings.Concurrency, Paused: settings.Paused, Sources: settings.Sources,
		Reason: p.Reason, Revision: p.Revision,
		Depth: p.Depth, Bytes: p.Bytes, Running: p.Running, Departed: p.Departed, LimitedBy: p.LimitedBy,
		EffectiveRate: p.EffectiveRate,
		HeldUntil:     heldUntil(p.HeldUntil), HeldBy: p.HeldBy.By, HeldStatus: p.HeldBy.Status,
		WaitingFlows: p.Waiting, Weights: p.Weights, Reserves: p.Reserves,
	}
	out.Oversubscribed = p.Reserves > p.Policy.CostRate().PerSecond()
	if !p.API.Empty() {
		out.Overrides = new(wire.RouteOverridesOf(p.API))
	}
	return out
}

// PoolFlows are flows of a pool in their JSON form.
func PoolFlows(flows []queue.PoolFlow) wire.PoolFlows {
	out := wire.PoolFlows{Items: make([]wire.PoolFlow, len(flows))}
	for i, f := range flows {
		out.Items[i] = wire.PoolFlow{
			Tenant: f.Tenant, Route: f.Route, Depth: f.Depth, Running: f.Running, Departed: f.Departed,
			Weight: max(f.Weight, 1), Reserve: reserve(f.Reserve), Part: f.Part,
		}
	}
	return out
}

// Changes are the entries of a history in their JSON form.
func Changes(entries []queue.HistoryEntry) wire.History {
	out := wire.History{Items: make([]wire.HistoryEntry, len(entries))}
	for i, e := range entries {
		out.Items[i] = wire.HistoryEntry{
			At: UTC(e.At), Revision: e.Revision, Actor: e.Actor, Action: e.Action, Reason: e.Reason,
			Before: wire.OverridesOf(e.Before), After: wire.OverridesOf(e.After),
		}
	}
	return out
}
