package main

import (
	"math"
	"slices"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// paces are the rates that a flow must obey, all of them.
type paces []shaper.Pace

// interval is T of the first rate; that of no rate is endless.
func (p paces) interval() time.Duration {
	if len(p) == 0 {
		return math.MaxInt64
	}
	return time.Duration(float64(p[0].Rate.Period) / float64(p[0].Rate.Limit))
}

// within is how many departures fit into the span.
func (p paces) within(span time.Duration) int { return int(span/p.interval()) + 1 }

// window is the time in which departures are measured: that of some hundred, or two seconds.
func (p paces) window() time.Duration {
	return min(max(400*p.interval(), 500*time.Millisecond), 2*time.Second)
}

// tau is τ*, the smallest tolerance beyond their bursts under which the departures conform to all
// rates:
//
//	tat = max(t, tat); τ* = max(τ*, tat − t − (burst − 1)·T); tat += T
//
// The departures must be in order.
func (p paces) tau(departures []time.Duration) time.Duration {
	worst := 0.0
	for _, pace := range p {
		interval := float64(pace.Rate.Period) / float64(pace.Rate.Limit)
		tat := math.Inf(-1)
		for _, at := range departures {
			t := float64(at)
			tat = max(t, tat)
			worst = max(worst, tat-t-float64(pace.Burst-1)*interval)
			tat += interval
		}
	}
	return time.Duration(math.Ceil(worst - 0.001)) // the sums of a double are off by less
}

// departure is one job that left: its stamp, and when it reached the sink; both since the answer to
// the change.
type departure struct{ stamp, arrived time.Duration }

// after are the instants from the one on.
func after(instants []time.Duration, from time.Duration) []time.Duration {
	for i, at := range instants {
		if at >= from {
			return instants[i:]
		}
	}
	return nil
}

// due is the first instant at which the interval allows a departure after the last one before zero,
// at least zero.
func due(departures []departure, interval time.Duration) time.Duration {
	first := time.Duration(0)
	for _, d := range departures {
		if d.stamp < 0 {
			first = max(0, d.stamp+interval)
		}
	}
	return first
}

// steady is how many departures in a row make a flow.
const steady = 10

// flowing is when the first departure arrived after zero from which on the stamps of the next ones
// follow at the interval: as many as steady, or as there are.
func flowing(departures []departure, interval time.Duration) (at time.Duration, ok bool) {
	for i, d := range departures {
		n := min(steady, len(departures)-1-i)
		if n < 2 {
			return 0, false
		}
		// A worker that polls late may lose a slot.
		if d.arrived >= 0 && departures[i+n].stamp-d.stamp <= time.Duration(n)*interval*21/20+10*time.Millisecond {
			return d.arrived, true
		}
	}
	return 0, false
}

// tooEarly counts the departures that arrived after zero although their stamps are earlier than the
// interval allows, and returns the arrival of the last of them.
func tooEarly(departures []departure, interval time.Duration) (n int, last time.Duration) {
	for i := 1; i < len(departures); i++ {
		if d := departures[i]; d.arrived > 0 && d.stamp-departures[i-1].stamp < interval-roundingOf {
			n, last = n+1, max(last, d.arrived)
		}
	}
	return n, last
}

// measure computes the figures of a change from the departures, in the order of their stamps. The
// change was sent at an instant before zero.
func (r *retuned) measure(c retune, departures []departure, sent time.Duration) {
	old, now := c.before.interval(), c.after.interval()
	stamps, arrivals := make([]time.Duration, len(departures)), make([]time.Duration, len(departures))
	for i, d := range departures {
		stamps[i], arrivals[i] = d.stamp, d.arrived
	}
	slices.Sort(arrivals)
	changed := sent
	var at time.Duration
	r.Early, at = tooEarly(departures, now)
	if now > old { // slower
		// Jobs that were leased before leave by the old rate; then the new one holds.
		changed = leasedAhead
		r.Obeyed, r.obeyed = millis(at), true
		granted := stamps[:len(stamps)-len(after(stamps, changed))]
		r.Stamps = micros(c.before.tau(granted))
	} else {
		at, r.obeyed = flowing(departures, now)
		if r.Obeyed = millis(max(0, at-due(departures, now))); !r.obeyed {
			r.Obeyed = bursts
		}
	}
	r.Stamps = max(r.Stamps, micros(c.after.tau(after(stamps, changed))))
	r.Arrivals = millis(c.after.tau(after(arrivals, max(changed, 0))))
	r.Count = len(after(stamps, changed))
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
