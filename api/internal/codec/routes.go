package codec

import (
	"cmp"
	"slices"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/reports"
)

// Routes converts the load of routes, by name, to lines in no order.
func Routes(routes map[string]reports.RouteLoad) []wire.RouteLine {
	out := make([]wire.RouteLine, 0, len(routes))
	for name, l := range routes {
		line := wire.RouteLine{
			Route: name, Breaker: l.Breaker.String(), InFlight: l.InFlight, Ended: l.Ended,
			Failed: l.Failed, TokenProblem: l.Token, Streams: l.Streams,
		}
		if l.Streams > 0 && l.Oldest > 0 {
			line.StreamsSince = new(time.Unix(l.Oldest, 0).UTC())
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

// UnhealthyFirst compares routes for a sort: first those that lack a token or have an open circuit
// breaker, then those with the most failures.
func UnhealthyFirst(a, b wire.RouteLine) int {
	states := []string{"open", "half-open", "closed"}
	state := func(r wire.RouteLine) int {
		if r.TokenProblem != "" {
			return 0
		}
		return slices.Index(states, r.Breaker)
	}
	return cmp.Or(
		cmp.Compare(state(a), state(b)),
		cmp.Compare(b.Failed, a.Failed),
		cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(a.Route, b.Route),
	)
}

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
