package api

import (
	"time"

	"github.com/7509e464/sluice/api/internal/arrivals"
	"github.com/7509e464/sluice/api/internal/live"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/shaper"
)

const (
	historyEvent       = "history"
	tenantHistoryEvent = "tenant_history"
	fineSpan           = 500 * time.Millisecond
	arrivalsKept       = time.Minute
)

// Remember keeps the figures of the last minutes while nobody follows them, until End, so that a
// dashboard opened late begins with them. It is called at most once.
func (s *Server) Remember() { s.live.Remember() }

// historyOut is what is known of all tenants together until o, which is the first overview of a
// stream.
func (s *Server) historyOut(o *live.Overview) wire.FigureHistory {
	out := wire.FigureHistory{Overviews: []wire.PastOverview{}}
	var looks []look
	for _, m := range s.live.Past(o) {
		p := wire.PastOverview{
			At: m.At.UTC(), Gap: m.Gap, Depth: m.Depth, Running: m.Running, Admitted: m.Admitted, Rejected: m.Rejected,
			Departed: m.Departed, PingMS: fineMS(m.Ping),
		}
		if m.Lateness > 0 {
			p.Lateness = new(fineMS(m.Lateness))
		}
		out.Overviews = append(out.Overviews, p)
		looks = append(looks, look{m.At, m.Gap, m.Admitted, m.Rejected})
	}
	out.Arrivals = s.spans(o.At, looks, s.arrivals.CountsOfAll)
	return out
}

// tenantHistoryOut is what is known of a tenant until d, which is the first detail of a stream.
func (s *Server) tenantHistoryOut(d *live.Detail) wire.TenantHistory {
	out := wire.TenantHistory{Tenant: d.Tenant.Name}
	var looks []look
	for _, l := range s.live.PastOf(d) {
		out.Looks = append(out.Looks, wire.PastTenant{
			At: l.At.UTC(), Gap: l.Gap, Depth: l.Depth, Running: l.Running, Capacity: l.Capacity,
			OldestWaitMS: l.OldestWait.Milliseconds(), Rate: l.Rate, Strictest: l.Strictest, EffectiveRate: l.Effective,
			Admitted: l.Admitted, Rejected: l.Rejected, Departed: l.Departed,
		})
		looks = append(looks, look{l.At, l.Gap, l.Admitted, l.Rejected})
	}
	out.Arrivals = s.spans(d.At, looks, func(edges []shaper.Instant) []arrivals.Count {
		return s.arrivals.Counts(d.Tenant.Name, edges)
	})
	return out
}

// look is what had come in all by an instant, according to the store.
type look struct {
	at                time.Time
	gap               bool // nothing is known of the time since the look before
	admitted, refused int64
}

// spans is how many jobs came in the last minute, in spans that do not overlap, the earliest first.
// The store counts what came to all processes, but only from one look to the next. This process
// knows when its own jobs came. So the time between two looks is divided finely where the jobs of
// this process are all there were, and is one span where they are not.
func (s *Server) spans(now time.Time, looks []look, count func(edges []shaper.Instant) []arrivals.Count) []wire.PastArrivals {
	out, cut := []wire.PastArrivals{}, now.Add(-arrivalsKept)
	if begun := s.arrivals.Since(now); len(looks) > 0 && begun.After(cut) && begun.Before(looks[0].at) {
		looks = append([]look{{at: begun}}, looks...) // perhaps nothing had come before this process
		looks[1].gap = true
	}
	for len(looks) > 1 && !looks[1].at.After(cut) {
		looks = looks[1:]
	}
	if len(looks) < 2 {
		return out
	}
	edge := func(at time.Time) shaper.Instant { return shaper.InstantOf(at) + 1 } // what came at the instant was seen
	edges := []shaper.Instant{edge(looks[0].at)}
	ends := []int{0} // of each look, in edges
	for i, l := range looks[1:] {
		from := looks[i].at
		if from.Before(cut) { // what came before is counted and not told
			from = cut
			edges = append(edges, edge(cut))
		}
		n := max(1, l.at.Sub(from).Round(fineSpan)/fineSpan)
		for k := range n {
			edges = append(edges, edge(from.Add(l.at.Sub(from)*(k+1)/n)))
		}
		ends = append(ends, len(edges)-1)
	}
	counts := count(edges)
	span := func(from, until shaper.Instant, c arrivals.Count) {
		if from == until { // two looks at once
			return
		}
		out = append(out, wire.PastArrivals{From: (from - 1).Time(), Until: (until - 1).Time(), Admitted: c.Admitted, Refused: c.Refused})
	}
	for i, l := range looks[1:] {
		came := arrivals.Count{Admitted: l.admitted - looks[i].admitted, Refused: l.refused - looks[i].refused}
		var here arrivals.Count
		for _, c := range counts[ends[i]:ends[i+1]] {
			here.Admitted += c.Admitted
			here.Refused += c.Refused
		}
		switch {
		case near(here.Admitted, came.Admitted) && near(here.Refused, came.Refused):
			for k := ends[i]; k < ends[i+1]; k++ {
				if edges[k] >= edge(cut) {
					span(edges[k], edges[k+1], counts[k])
				}
			}
		case !l.gap && came.Admitted >= 0 && came.Refused >= 0: // else the store has begun to count anew
			span(edges[ends[i]], edges[ends[i+1]], came)
		}
	}
	return out
}

// near reports whether two counts differ by no more than what comes between two readings of one
// instant.
func near(a, b int64) bool { return max(a, b)-min(a, b) <= 2+max(a, b)/50 }
