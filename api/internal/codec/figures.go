package codec

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
)

// overviewRoutes are the routes in an overview, which is sent four times a second.
const overviewRoutes = 50

// Overview converts an overview to its JSON form, with the first overviewRoutes routes in the order
// of ByTrouble.
func Overview(o figures.Overview) wire.Overview {
	out := wire.Overview{
		At: o.At.UTC(), Tenants: o.Listed, Depth: o.Depth, Bytes: o.Bytes, Running: o.Running,
		Admitted: o.Admitted, Rejected: o.Rejected, Departed: o.Departed,
		Workers: o.Workers.Live, Dead: o.Dead, Routes: Firsts(Routes(o.Workers.Routes), overviewRoutes, ByTrouble),
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

// Routes converts the load of routes, by name, to lines in no order.
func Routes(routes map[string]reports.RouteLoad) []wire.RouteLine {
	out := make([]wire.RouteLine, 0, len(routes))
	for name, l := range routes {
		line := wire.RouteLine{
			Route: name, Breaker: l.Breaker.String(), InFlight: l.InFlight, Ended: l.Ended,
			Failed: l.Failed, TokenProblem: l.Token,
		}
		if l.Until > 0 {
			line.TokenEnd = new(time.Unix(l.Until, 0).UTC())
		}
		if f := l.Last; f.Job != "" {
			line.Last = &wire.RouteFailure{
				At: time.UnixMicro(f.At).UTC(), Tenant: f.Tenant, Job: f.Job, Message: f.Message, Detail: f.Detail, Status: f.Status,
			}
		}
		out = append(out, line)
	}
	return out
}

// ByTrouble compares routes for a sort: those with an open circuit breaker first, then those with
// the most failures.
func ByTrouble(a, b wire.RouteLine) int {
	states := []string{"open", "half-open", "closed"}
	return cmp.Or(
		cmp.Compare(slices.Index(states, a.Breaker), slices.Index(states, b.Breaker)),
		cmp.Compare(b.Failed, a.Failed),
		cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(a.Route, b.Route),
	)
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

// TenantNow converts the figures of one tenant, with percentiles of its waits, to their JSON form.
func TenantNow(d *figures.Detail) wire.TenantNow {
	quantile := func(q float64) int64 {
		if len(d.Waits) == 0 {
			return 0
		}
		at := max(0, int(math.Ceil(q*float64(len(d.Waits))))-1)
		return d.Waits[at].Milliseconds()
	}
	return wire.TenantNow{
		At: d.At.UTC(), Tenant: Tenant(d.Tenant), WaitP50MS: quantile(0.5), WaitP95MS: quantile(0.95),
		WaitP99MS: quantile(0.99),
	}
}

// fineMS is a time in milliseconds with three digits after the point: these are often below one.
func fineMS(d time.Duration) float64 { return math.Round(float64(d.Microseconds())) / 1000 }

// Firsts returns the first n items in the order. It sorts at most 2n at a time, because the list
// may have thousands.
func Firsts[T any](list []T, n int, order func(a, b T) int) []T {
	if n <= 0 {
		return nil
	}
	kept := make([]T, 0, min(len(list), 2*n))
	for _, x := range list {
		if kept = append(kept, x); len(kept) == 2*n {
			slices.SortFunc(kept, order)
			kept = kept[:n]
		}
	}
	slices.SortFunc(kept, order)
	return kept[:min(len(kept), n)]
}

// Arrivals converts arrivals to one event of the stream; lost counts the earlier ones that the
// client missed.
func Arrivals(came []figures.Arrival, lost int64) wire.Arrivals {
	out := wire.Arrivals{Items: make([]wire.Arrival, len(came)), Lost: lost}
	for i, a := range came {
		out.Items[i] = wire.Arrival{At: a.At.Time(), Cost: a.Cost, Route: a.Route, Outcome: "refused"}
		if a.Admitted {
			out.Items[i].Outcome = "admitted"
		}
	}
	return out
}
