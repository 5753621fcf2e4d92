package limiter

import "github.com/7509e464/sluice/shaper"

// windowOf is the start of the window that now is in.
func windowOf(now shaper.Instant, period int64) shaper.Instant {
	into := int64(now) % period
	if into < 0 {
		into += period
	}
	return now - shaper.Instant(into)
}

func fixedWindow(s *State, p Policy, now shaper.Instant, cost int64) Decision {
	if start := windowOf(now, p.period()); start != s.Start {
		s.Start, s.Count = start, 0
	}
	end := s.Start + shaper.Instant(p.period())
	d := Decision{Allowed: cost <= p.Rate.Limit-s.Count, RetryAfter: until(end, now)}
	if d.Allowed {
		s.Count += cost
	}
	d.Remaining = p.Rate.Limit - s.Count
	if s.Count > 0 {
		d.Reset = until(end, now)
	}
	return d
}

// slidingCounter takes the last period to hold Previous × (period − into) / period + Count, into
// being the time since the window's start. It compares without dividing, so nothing is rounded.
func slidingCounter(s *State, p Policy, now shaper.Instant, cost int64) Decision {
	period, limit := p.period(), p.Rate.Limit
	switch start := windowOf(now, period); start {
	case s.Start:
	case s.Start + shaper.Instant(period):
		s.Start, s.Previous, s.Count = start, s.Count, 0
	default:
		s.Start, s.Previous, s.Count = start, 0, 0
	}
	covered := s.Previous * (period - int64(now-s.Start))
	free := max(0, floorDiv((limit-s.Count)*period-covered, period))
	d := Decision{Allowed: cost <= free}
	if d.Allowed {
		s.Count += cost
		free -= cost
	} else if cost <= limit {
		d.RetryAfter = until(s.freeAt(p, cost), now)
	}
	d.Remaining = free
	switch {
	case s.Count > 0:
		d.Reset = until(s.Start+shaper.Instant(2*period), now)
	case s.Previous > 0:
		d.Reset = until(s.Start+shaper.Instant(period), now)
	}
	return d
}

// freeAt is the first instant at which a cost within the limit, refused now, fits: in this window
// once enough of the one before has slid out, else in the next, where Count has become what slides
// out.
func (s *State) freeAt(p Policy, cost int64) shaper.Instant {
	period := p.period()
	if spare := p.Rate.Limit - s.Count - cost; spare >= 0 {
		return s.Start + shaper.Instant(period-spare*period/s.Previous)
	}
	return s.Start + shaper.Instant(2*period-(p.Rate.Limit-cost)*period/s.Count)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
