package figures

import (
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// EncodeHistory returns the history of all tenants together, which ends with o, the first overview
// of a stream.
func EncodeHistory(o *Overview, hub *Hub, log *Arrivals) wire.FigureHistory {
	out := wire.FigureHistory{Overviews: []wire.PastOverview{}}
	var samples []sample
	for _, m := range hub.Past(o) {
		p := wire.PastOverview{
			At: m.At.UTC(), Gap: m.Gap, Depth: m.Depth, Running: m.Running, Admitted: m.Admitted, Rejected: m.Rejected,
			Departed: m.Departed, PingMS: fineMS(m.Ping),
		}
		if m.Lateness > 0 {
			p.Lateness = new(fineMS(m.Lateness))
		}
		out.Overviews = append(out.Overviews, p)
		samples = append(samples, sample{m.At, m.Gap, m.Admitted, m.Rejected})
	}
	out.Arrivals = arrivalSpans(log.Since(o.At), o.At, samples, log.CountsOfAll)
	return out
}

// EncodeTenantHistory returns the history of a tenant, which ends with d, the first detail of a
// stream.
func EncodeTenantHistory(d *Detail, hub *Hub, log *Arrivals) wire.TenantHistory {
	out := wire.TenantHistory{Tenant: d.Tenant.Name}
	var samples []sample
	for _, l := range hub.PastOf(d) {
		out.Samples = append(out.Samples, wire.PastTenant{
			At: l.At.UTC(), Gap: l.Gap, Depth: l.Depth, Running: l.Running, Capacity: l.Capacity,
			OldestWaitMS: l.OldestWait.Milliseconds(), Rate: l.Rate, Strictest: l.Strictest,
			EffectiveRate: l.Effective,
			Admitted:      l.Admitted, Rejected: l.Rejected, Departed: l.Departed,
		})
		samples = append(samples, sample{l.At, l.Gap, l.Admitted, l.Rejected})
	}
	out.Arrivals = arrivalSpans(log.Since(d.At), d.At, samples, func(edges []shaper.Instant) []Count {
		return log.Counts(d.Tenant.Name, edges)
	})
	return out
}

const (
	fineSpan = 500 * time.Millisecond
	spansAge = time.Minute
)

// sample is the number of arrivals until an instant, counted by the store.
type sample struct {
	at                time.Time
	gap               bool // the time since the previous sample is not covered
	admitted, refused int64
}

// arrivalSpans returns how many jobs arrived in the last minute, in spans that do not overlap, the
// earliest first. The store counts the arrivals at all processes, but only from sample to sample.
// count returns the arrivals at this process, which began at begun, between any instants. Where
// both agree, this process saw all arrivals, and the time between two samples is divided finely.
// Otherwise it is one span.
func arrivalSpans(
	begun, now time.Time, samples []sample, count func(edges []shaper.Instant) []Count,
) []wire.PastArrivals {
	out, cut := []wire.PastArrivals{}, now.Add(-spansAge)
	if len(samples) > 0 && begun.After(cut) && begun.Before(samples[0].at) {
		samples = append([]sample{{at: begun}}, samples...) // nothing may have arrived before this process
		samples[1].gap = true
	}
	for len(samples) > 1 && !samples[1].at.After(cut) {
		samples = samples[1:]
	}
	if len(samples) < 2 {
		return out
	}
	// Arrivals at the instant are included.
	edge := func(at time.Time) shaper.Instant { return shaper.InstantOf(at) + 1 }
	edges := []shaper.Instant{edge(samples[0].at)}
	ends := []int{0} // index in edges of each sample
	for i, l := range samples[1:] {
		from := samples[i].at
		if from.Before(cut) { // counts earlier arrivals without returning them
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
	span := func(from, until shaper.Instant, c Count) {
		if from == until { // two samples at one instant
			return
		}
		out = append(out, wire.PastArrivals{
			From: (from - 1).Time(), Until: (until - 1).Time(), Admitted: c.Admitted, Refused: c.Refused,
		})
	}
	for i, l := range samples[1:] {
		came := Count{Admitted: l.admitted - samples[i].admitted, Refused: l.refused - samples[i].refused}
		var here Count
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
		case !l.gap && came.Admitted >= 0 && came.Refused >= 0: // otherwise the store's counters were reset
			span(edges[ends[i]], edges[ends[i+1]], came)
		}
	}
	return out
}

// near reports whether two counts are equal but for arrivals between the reads of both.
func near(a, b int64) bool { return max(a, b)-min(a, b) <= 2+max(a, b)/50 }
