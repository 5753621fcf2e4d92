package codec

import (
	"cmp"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Pool is the pool in its JSON form.
func Pool(p queue.Pool) wire.Pool {
	out := wire.Pool{
		Pool: p.Name, Routes: p.Routes, Policy: policy(p.Policy, shaper.SettingsOfPools(), p.Sources),
		Hold: "flow", MaxHoldMS: cmp.Or(p.Policy.MaxHold, shaper.DefaultMaxHold).Milliseconds(),
		Reason: p.Reason, Revision: p.Revision,
		Depth: p.Depth, Bytes: p.Bytes, Running: p.Running, Departed: p.Departed, Costs: p.Costs, LimitedBy: p.LimitedBy,
		EffectiveRate: p.EffectiveRate,
		HeldUntil:     heldUntil(p.HeldUntil), HeldBy: p.HeldBy.By, HeldStatus: p.HeldBy.Status,
		WaitingFlows: p.Waiting, Weights: p.Weights, Reserves: p.Reserves, Owed: p.Owed,
	}
	if p.Policy.HoldPool {
		out.Hold = "pool"
	}
	out.Oversubscribed = p.Reserves > p.Policy.CostRate().PerSecond()
	if !p.API.Empty() {
		out.Overrides = (*wire.RouteOverrides)(&p.API)
	}
	return out
}

// PoolFlows are flows of a pool in their JSON form.
func PoolFlows(flows []queue.PoolFlow) wire.PoolFlows {
	out := wire.PoolFlows{Items: make([]wire.PoolFlow, len(flows))}
	for i, f := range flows {
		out.Items[i] = wire.PoolFlow{
			Tenant: f.Tenant, Route: f.Route, Depth: f.Depth, Running: f.Running, Departed: f.Departed, Costs: f.Costs,
			Weight: max(f.Weight, 1), Class: f.Class, Reserve: Reserve(f.Reserve), Part: f.Part,
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
			Before: e.Before, After: e.After, Count: e.Count,
		}
		if f := e.Filter; f != nil {
			out.Items[i].Filter = &wire.Filter{
				All: len(f.IDs) == 0 && f.State == "", IDs: f.IDs, State: string(f.State), Route: f.Route, Error: f.Error,
				CreatedBefore: UTC(f.CreatedBefore),
			}
		}
	}
	return out
}
