package figures

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// overviewRoutes are the routes in an overview, which is sent four times a second.
const overviewRoutes = 50

// EncodeOverview converts an overview to its JSON form, with the first overviewRoutes routes in the
// order of UnhealthyFirst.
func EncodeOverview(o Overview) wire.Overview {
	out := wire.Overview{
		At: o.At.UTC(), Tenants: o.Listed, Depth: o.Depth, Bytes: o.Bytes, Running: o.Running,
		Admitted: o.Admitted, Rejected: o.Rejected, Departed: o.Departed,
		Workers: o.Workers.Live, Dead: o.Dead, Routes: codec.Firsts(codec.Routes(o.Workers.Routes), overviewRoutes, codec.UnhealthyFirst),
		Store: wire.StoreState{
			OK: o.Err == nil, Engine: string(o.Store.Engine), PingMS: fineMS(o.Store.Ping),
			UsedMemory: o.Store.UsedMemory, MaxMemory: o.Store.MaxMemory,
			Version: o.Store.Version, Differing: o.Store.Differing, Abandoned: o.Store.Abandoned,
		},
	}
	if o.Workers.Lateness.Sum() > 0 {
		out.Lateness = new(fineMS(o.Workers.Lateness.Quantile(0.99)))
	}
	if o.Err != nil {
		out.Store.Error = storeError(o.Err)
	}
	if !o.Read.IsZero() {
		out.FiguresAt = new(o.Read.UTC())
	}
	return out
}

// storeError is the reason why the store is not ok, without details that only the log may have.
func storeError(err error) string {
	text := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded) || strings.Contains(text, "timeout"):
		return "no answer in time"
	case strings.Contains(text, "OOM "):
		return "out of memory"
	case strings.Contains(text, "LOADING "):
		return "loading its data"
	case strings.Contains(text, "BUSY "):
		return "busy with a script"
	case strings.Contains(text, "NOAUTH") || strings.Contains(text, "WRONGPASS") ||
		strings.Contains(text, "NOPERM") || strings.Contains(text, "unauthenticated"):
		return "refuses the credentials"
	case strings.Contains(text, "CLUSTERDOWN") || strings.Contains(text, "MASTERDOWN"):
		return "part of the cluster is down"
	case errors.Is(err, queue.ErrState):
		return "cannot serve now"
	}
	return "cannot be reached"
}

// EncodeTenant converts the figures of one tenant, with percentiles of its waits, to their JSON
// form.
func EncodeTenant(d *Detail) wire.TenantNow {
	quantile := func(q float64) int64 {
		if len(d.Waits) == 0 {
			return 0
		}
		at := max(0, int(math.Ceil(q*float64(len(d.Waits))))-1)
		return d.Waits[at].Milliseconds()
	}
	return wire.TenantNow{
		At: d.At.UTC(), Tenant: codec.Tenant(d.Tenant), WaitP50MS: quantile(0.5), WaitP95MS: quantile(0.95),
		WaitP99MS: quantile(0.99),
	}
}

// fineMS is a time in milliseconds with three digits after the point: these are often below one.
func fineMS(d time.Duration) float64 { return math.Round(float64(d.Microseconds())) / 1000 }

// EncodeArrivals converts arrivals to one event of the stream; lost counts the earlier ones that
// the client missed.
func EncodeArrivals(came []Arrival, lost int64) wire.Arrivals {
	out := wire.Arrivals{Items: make([]wire.Arrival, len(came)), Lost: lost}
	for i, a := range came {
		out.Items[i] = wire.Arrival{At: a.At.Time(), Cost: a.Cost, Route: a.Route, Outcome: "refused"}
		if a.Admitted {
			out.Items[i].Outcome = "admitted"
		}
	}
	return out
}

// EncodePools are the pools of a scan in their JSON form.
func EncodePools(c *Scan) wire.PoolLines {
	out := wire.PoolLines{At: c.At.UTC(), Items: make([]wire.Pool, len(c.Pools))}
	for i, p := range c.Pools {
		out.Items[i] = codec.Pool(p)
	}
	return out
}

// EncodePool converts the figures of one pool to their JSON form.
func EncodePool(d *PoolDetail) wire.PoolNow {
	return wire.PoolNow{At: d.At.UTC(), Pool: codec.Pool(d.Pool)}
}

// EncodePoolHistory returns the history of a pool, which ends with d, the first detail of a stream.
func EncodePoolHistory(d *PoolDetail, hub *Hub) wire.PoolHistory {
	out := wire.PoolHistory{Pool: d.Pool.Name, Samples: []wire.PastPool{}}
	for _, l := range hub.PastOfPool(d) {
		out.Samples = append(out.Samples, wire.PastPool{
			At: l.At.UTC(), Gap: l.Gap, Depth: l.Depth, Running: l.Running, Capacity: l.Capacity,
			Strictest: l.Strictest, EffectiveRate: l.Effective, Departed: l.Departed, Costs: l.Costs,
		})
	}
	return out
}

// shownFlows are the flows of a pool in one event.
const shownFlows = 100

// EncodePoolShares returns the flows of a pool in a scan. The order depends on settings alone, so
// that rows stay where they are.
func EncodePoolShares(c *Scan, pool string) wire.PoolShares {
	flows := c.Flows[pool]
	out := wire.PoolShares{At: c.At.UTC(), Pool: pool, Matching: len(flows), Items: []wire.PoolShare{}}
	flows = codec.Firsts(flows, shownFlows, func(a, b PoolFlow) int {
		return cmp.Compare(max(b.Part, b.Got), max(a.Part, a.Got))
	})
	slices.SortFunc(flows, func(a, b PoolFlow) int {
		return cmp.Or(
			cmp.Compare(b.Weight, a.Weight), cmp.Compare(reserved(b), reserved(a)),
			cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Route, b.Route),
		)
	})
	for _, f := range flows {
		share := wire.PoolShare{
			Tenant: f.Tenant, Route: f.Route, Depth: f.Depth, Running: f.Running, Departed: f.Departed, Costs: f.Costs,
			Weight: f.Weight, Class: f.Class, Reserve: codec.Reserve(f.Reserve), LimitedBy: f.LimitedBy, Part: f.Part,
		}
		if f.Known {
			share.Departures, share.Got = new(f.Departures), new(f.Got)
		}
		out.Items = append(out.Items, share)
	}
	return out
}

// reserved orders flows by their reserves.
func reserved(f PoolFlow) int64 { return shaper.ReserveMicro(f.Reserve) }
