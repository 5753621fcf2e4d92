package top

import (
	"time"
)

const (
	trackStep   = 700 * time.Millisecond // least time between two points: figures come once a second, not always on the dot
	trackLength = 600                    // points that are kept
	trackGap    = time.Minute            // what was longer out of sight begins anew
)

// totals are figures that grow, of a tenant or of all.
type totals struct{ admitted, rejected, departed int64 }

// point is what happened in about a second.
type point struct {
	arrived, departed, refused float64 // a second
	depth                      int64   // at its end
}

// track turns totals into rates and remembers them, a point for each second.
type track struct {
	base   totals // of the last point
	at     time.Time
	points []point // the newest last
}

// see takes in the totals of an instant of the server.
func (k *track) see(at time.Time, now totals, depth int64) {
	passed := at.Sub(k.at)
	switch {
	case k.at.IsZero(), passed < 0, passed > trackGap, // the first ones, or of another time
		now.admitted < k.base.admitted, now.rejected < k.base.rejected: // the server has begun anew
		*k = track{base: now, at: at}
		return
	case passed < trackStep:
		return
	}
	// Departures may have fallen a little: those that were given back unused are taken off again.
	rate := func(now, before int64) float64 { return float64(max(0, now-before)) / passed.Seconds() }
	p := point{departed: rate(now.departed, k.base.departed), refused: rate(now.rejected, k.base.rejected), depth: depth}
	p.arrived = rate(now.admitted, k.base.admitted) + p.refused
	for range max(1, int(passed.Round(time.Second)/time.Second)) { // a column of a chart is a second, whatever came how often
		k.points = append(k.points, p)
	}
	k.points = k.points[max(0, len(k.points)-trackLength):]
	k.base, k.at = now, at
}

// now is the latest point; known is false before there are two looks.
func (k *track) now() (p point, known bool) {
	if k == nil || len(k.points) == 0 {
		return point{}, false
	}
	return k.points[len(k.points)-1], true
}

// last is one figure of the last n points, as many as there are.
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
func departedOf(p point) float64 { return p.departed }
func refusedOf(p point) float64  { return p.refused }
func depthOf(p point) float64    { return float64(p.depth) }
