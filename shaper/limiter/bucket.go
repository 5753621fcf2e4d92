package limiter

import "github.com/7509e464/sluice/shaper"

// tokenBucket counts in parts of a token so small that a period's microseconds make one: a request
// takes cost × period of them, and each microsecond brings back limit. No sum exceeds the full
// bucket, which is below 2⁵³ of them.
func tokenBucket(s *State, p Policy, now shaper.Instant, cost int64) Decision {
	period, limit, full := p.period(), p.Rate.Limit, p.Limit()*p.period()
	if elapsed := int64(now - s.Seen); elapsed > s.Spent/limit {
		s.Spent = 0
	} else {
		s.Spent -= elapsed * limit
	}
	free := (full - s.Spent) / period
	d := Decision{Allowed: cost <= free}
	if d.Allowed {
		s.Spent += cost * period
		free -= cost
	} else if cost <= p.Limit() {
		d.RetryAfter = micros(cost*period-(full-s.Spent), limit)
	}
	d.Remaining = free
	d.Reset = micros(s.Spent, limit)
	return d
}

// leakyMeter is the generic cell rate algorithm. The water in the bucket is TAT − now, in units of
// 1/limit µs, in which a request's cost is cost × period.
func leakyMeter(s *State, p Policy, now shaper.Instant, cost int64) Decision {
	period, limit, size := p.period(), p.Rate.Limit, p.Limit()*p.period()
	if now > s.TAT {
		s.TAT, s.Rem = now, 0
	}
	water := int64(s.TAT-now)*limit + s.Rem
	free := (size - water) / period
	d := Decision{Allowed: cost <= free}
	if d.Allowed {
		water += cost * period
		s.TAT, s.Rem = now+shaper.Instant(water/limit), water%limit
		free -= cost
	} else if cost <= p.Limit() {
		d.RetryAfter = micros(cost*period-(size-water), limit)
	}
	d.Remaining = free
	d.Reset = micros(water, limit)
	return d
}
