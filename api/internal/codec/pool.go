package codec

import (
	"cmp"
	"slices"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Pool is the pool in its JSON form.
func Pool(p queue.Pool) wire.Pool {
	out := wire.Pool{
		Pool: p.Name, Routes: p.Routes, Policy: policy(p.Policy, shaper.SettingsOfPools(), p.Sources),
		Hold: "flow", MaxHoldMS: cmp.Or(p.Policy.MaxHold, shaper.DefaultMaxHold).Milliseconds(),
		Reason: p.Reason, Revision: p.Revision,
		Depth: p.Depth, Bytes: p.Bytes, Running: p.Running, Departed: p.Departed, LimitedBy: p.LimitedBy,
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
			Tenant: f.Tenant, Route: f.Route, Depth: f.Depth, Running: f.Running, Departed: f.Departed,
			Weight: max(f.Weight, 1), Class: f.Class, Reserve: reserve(f.Reserve), Part: f.Part,
		}
	}
	return out
}

// PoolLines are the pools of a scan in their JSON form.
func PoolLines(c *figures.Scan) wire.PoolLines {
	out := wire.PoolLines{At: c.At.UTC(), Items: make([]wire.Pool, len(c.Pools))}
	for i, p := range c.Pools {
		out.Items[i] = Pool(p)
	}
	return out
}

// PoolNow converts the figures of one pool to their JSON form.
func PoolNow(d *figures.PoolDetail) wire.PoolNow {
	return wire.PoolNow{At: d.At.UTC(), Pool: Pool(d.Pool)}
}

// PoolHistory returns the history of a pool, which ends with d, the first detail of a stream.
func PoolHistory(d *figures.PoolDetail, hub *figures.Hub) wire.PoolHistory {
	out := wire.PoolHistory{Pool: d.Pool.Name, Samples: []wire.PastPool{}}
	for _, l := range hub.PastOfPool(d) {
		out.Samples = append(out.Samples, wire.PastPool{
			At: l.At.UTC(), Gap: l.Gap, Depth: l.Depth, Running: l.Running, Capacity: l.Capacity,
			Strictest: l.Strictest, EffectiveRate: l.Effective, Departed: l.Departed,
		})
	}
	return out
}

// shownFlows are the flows of a pool in one event.
const shownFlows = 100

// PoolShares returns the flows of a pool in a scan. The order depends on settings alone, so that
// rows stay where they are.
func PoolShares(c *figures.Scan, pool string) wire.PoolShares {
	flows := c.Flows[pool]
	out := wire.PoolShares{At: c.At.UTC(), Pool: pool, Matching: len(flows), Items: []wire.PoolShare{}}
	flows = Firsts(flows, shownFlows, func(a, b figures.PoolFlow) int {
		return cmp.Compare(max(b.Part, b.Got), max(a.Part, a.Got))
	})
	slices.SortFunc(flows, func(a, b figures.PoolFlow) int {
		return cmp.Or(
			cmp.Compare(b.Weight, a.Weight), cmp.Compare(reserved(b), reserved(a)),
			cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Route, b.Route),
		)
	})
	for _, f := range flows {
		share := wire.PoolShare{
			Tenant: f.Tenant, Route: f.Route, Depth: f.Depth, Running: f.Running, Departed: f.Departed,
			Weight: f.Weight, Class: f.Class, Reserve: reserve(f.Reserve), LimitedBy: f.LimitedBy, Part: f.Part,
		}
		if f.Known {
			share.Departures, share.Got = new(f.Departures), new(f.Got)
		}
		out.Items = append(out.Items, share)
	}
	return out
}

// reserved orders flows by their reserves.
func reserved(f figures.PoolFlow) int64 { return shaper.ReserveMicro(f.Reserve) }

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
