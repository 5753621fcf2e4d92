package top

import (
	"time"
)

const (
	trackStep   = 700 * time.Millisecond // minimum time between two points: figures arrive about once a second
	trackLength = 600                    // maximum number of points
	trackGap    = time.Minute            // after a longer gap a track starts again
)

// totals are growing figures, of a tenant, a pool or all. costs are a pool's.
type totals struct{ admitted, rejected, departed, costs int64 }

// point is the activity of about a second.
type point struct {
	arrived, departed, refused, costs float64 // a second
	depth                             int64   // at its end
}

// track converts totals to rates and stores a point for each second.
type track struct {
	base   totals // of the last point
	at     time.Time
	points []point // the newest last
}

// see adds the totals at an instant of the server.
func (k *track) see(at time.Time, now totals, depth int64) {
	passed := at.Sub(k.at)
	switch {
	case k.at.IsZero(), passed < 0, passed > trackGap, // the first totals, or a gap
		now.admitted < k.base.admitted, now.rejected < k.base.rejected: // the totals were reset
		*k = track{base: now, at: at}
		return
	case passed < trackStep:
		return
	}
	// Departures can decrease, because jobs that were given back unused are subtracted, and costs
	// where a job cost less than expected.
	rate := func(now, before int64) float64 { return float64(max(0, now-before)) / passed.Seconds() }
	p := point{departed: rate(now.departed, k.base.departed), refused: rate(now.rejected, k.base.rejected),
		depth: depth, costs: rate(now.costs, k.base.costs)}
	p.arrived = rate(now.admitted, k.base.admitted) + p.refused
	// A column of a chart is a second, even if figures are missing.
	for range max(1, int(passed.Round(time.Second)/time.Second)) {
		k.points = append(k.points, p)
	}
	k.points = k.points[max(0, len(k.points)-trackLength):]
	k.base, k.at = now, at
}

// now returns the latest point. known is false before there are two samples.
func (k *track) now() (p point, known bool) {
	if k == nil || len(k.points) == 0 {
		return point{}, false
	}
	return k.points[len(k.points)-1], true
}

// last returns one figure of at most n last points.
func (k *track) last(n int, figure func(point) float64) []float64 {
	if k == nil {
		return nil
	}
	points := k.points[max(0, len(k.points)-n):]
	values := make([]float64, len(points))
	for i, p := range points {
		values[i] = figure(p)
	}
	return values
}

// The figures of a point.
func arrivedOf(p point) float64  { return p.arrived }
func costsOf(p point) float64    { return p.costs }
func departedOf(p point) float64 { return p.departed }
func refusedOf(p point) float64  { return p.refused }
func depthOf(p point) float64    { return float64(p.depth) }
