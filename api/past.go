package api

import (
	"time"

	"github.com/7509e464/sluice/api/wire"
)

const (
	historyEvent = "history"
	binWidth     = 500 * time.Millisecond // of the arrivals of a tenant
	binsTold     = 120                    // a minute
)

// Remember has the figures of all tenants together read every ten seconds while nobody follows them, until End, so that who opens the
// dashboard in a hurry sees the minutes before. It is called at most once.
func (s *Server) Remember() { s.live.Remember() }

// historyOut is what is known of the time before a stream begins; of a tenant only if one is named.
func (s *Server) historyOut(tenant string, now time.Time) wire.FigureHistory {
	out := wire.FigureHistory{Overviews: []wire.PastOverview{}}
	for _, m := range s.live.Past() {
		o := wire.PastOverview{At: m.At.UTC(), Depth: m.Depth, Running: m.Running, Admitted: m.Admitted, Rejected: m.Rejected, Departed: m.Departed, PingMS: fineMS(m.Ping)}
		if m.Lateness > 0 {
			o.Lateness = new(fineMS(m.Lateness))
		}
		out.Overviews = append(out.Overviews, o)
	}
	if tenant == "" {
		return out
	}
	last := now.Truncate(binWidth).Add(binWidth) // the end of the bin that is not over yet
	from := last.Add(-binsTold * binWidth)
	a := &wire.PastArrivals{From: from.UTC(), WidthMS: binWidth.Milliseconds()}
	for _, c := range s.arrivals.Counts(tenant, from, binWidth, binsTold) {
		a.Admitted = append(a.Admitted, c.Admitted)
		a.Refused = append(a.Refused, c.Refused)
	}
	out.Arrivals = a
	return out
}
