package limiter

import "github.com/7509e464/sluice/shaper"

// bucket is the generic cell rate algorithm. The content of the bucket is the water of LeakyMeter
// or the spent tokens of TokenBucket: TAT − now, in units of 1/limit µs. A request's cost is
// cost × period of them. No sum exceeds the full bucket, which is below 2⁵³.
func bucket(s *State, p Policy, now shaper.Instant, cost int64) Decision {
	period, limit, size := p.period(), p.Rate.Limit, p.Limit()*p.period()
	if now > s.TAT {
		s.TAT, s.Rem = now, 0
	}
	content := int64(s.TAT-now)*limit + s.Rem
	free := (size - content) / period
	d := Decision{Allowed: cost <= free}
	if d.Allowed {
		content += cost * period
		s.TAT, s.Rem = now+shaper.Instant(content/limit), content%limit
		free -= cost
	} else if cost <= p.Limit() {
		d.RetryAfter = micros(cost*period-(size-content), limit)
	}
	d.Remaining = free
	d.Reset = micros(content, limit)
	return d
}
