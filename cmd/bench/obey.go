package main

import (
	"math"
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

// window is how long to look at departures: at some hundred of them, or for two seconds.
func (p paces) window() time.Duration {
	return min(max(400*p.interval(), 500*time.Millisecond), 2*time.Second)
}

// tau is τ*, the smallest tolerance beyond their bursts under which the departures conform to all rates:
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

// after are the departures from the instant on.
func after(departures []time.Duration, at time.Duration) []time.Duration {
	for i, d := range departures {
		if d >= at {
			return departures[i:]
		}
	}
	return nil
}

// flowing is the first departure after zero from which on the next ones come at the interval: as many as steady, or as there are.
func flowing(departures []time.Duration, interval time.Duration, steady int) (at time.Duration, ok bool) {
	left := after(departures, 0)
	for i := range left {
		n := min(steady, len(left)-1-i)
		if n < 2 {
			return 0, false
		}
		// A delay on the way of the first one would make the others seem fast, and one of the last slow.
		if left[i+n]-left[i] <= time.Duration(n)*interval*21/20+10*time.Millisecond {
			return left[i], true
		}
	}
	return 0, false
}

// tooEarly counts the departures after zero that come earlier than the interval after the one before, and tells when the last of them was. What
// little the way there may have taken off an interval is forgiven.
func tooEarly(departures []time.Duration, interval, forgiven time.Duration) (n int, last time.Duration) {
	for i := 1; i < len(departures); i++ {
		if departures[i] > 0 && departures[i]-departures[i-1] < interval-forgiven {
			n, last = n+1, departures[i]
		}
	}
	return n, last
}

// look works out what the departures say of the change: their arrivals and stamps since its answer, and when it was sent.
func (r *retuned) look(c retune, arrivals, stamps []time.Duration, sent time.Duration) {
	old, now := c.before.interval(), c.after.interval()
	changed := sent
	switch {
	case now > old: // slower
		// What was leased before leaves as it was stamped, by the old rate; from then on the new one holds.
		changed = leasedAhead
		var at time.Duration
		r.Early, at = tooEarly(arrivals, now, min(now/4, 10*time.Millisecond))
		r.Obeyed, r.obeyed = millis(at), true
		granted := stamps[:len(stamps)-len(after(stamps, changed))]
		r.Stamps = micros(max(c.before.tau(granted), c.after.tau(after(stamps, changed))))
	default:
		var at time.Duration
		at, r.obeyed = flowing(arrivals, now, 20)
		r.Obeyed = millis(at)
		if !r.obeyed {
			r.Obeyed = bursts
		}
		r.Early, _ = tooEarly(after(stamps, sent), now-roundingOf, 0)
		r.Stamps = micros(c.after.tau(after(stamps, changed)))
	}
	r.Arrivals = millis(c.after.tau(after(arrivals, max(changed, 0))))
	r.Count = len(after(stamps, changed))
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
