package limiter

import "github.com/7509e464/sluice/shaper"

// slidingLog counts what was allowed at t as long as now < t + period.
func slidingLog(s *State, p Policy, now shaper.Instant, cost int64) Decision {
	period := shaper.Instant(p.period())
	old := 0
	for old < len(s.Log) && s.Log[old].At+period <= now {
		s.Count -= s.Log[old].Cost
		old++
	}
	if s.Log = s.Log[old:]; len(s.Log) == 0 {
		s.Log = nil // else the memory of the busiest hour stays
	}
	if s.Until <= now {
		s.Until = 0
	}
	fits := cost <= p.Rate.Limit-s.Count
	d := Decision{Allowed: fits && s.Until == 0}
	switch {
	case d.Allowed && cost > 0:
		s.note(now, cost)
	case !d.Allowed && cost <= p.Rate.Limit:
		if s.Until == 0 && p.Block > 0 {
			s.Until = now.Add(p.Block)
		}
		d.RetryAfter = until(max(s.Until, s.fitsAt(p, now, cost)), now)
	}
	if s.Until == 0 {
		d.Remaining = p.Rate.Limit - s.Count
	}
	last := s.Until
	if n := len(s.Log); n > 0 {
		last = max(last, s.Log[n-1].At+period)
	}
	d.Reset = until(last, now)
	return d
}

// note adds what was allowed to the log.
func (s *State) note(now shaper.Instant, cost int64) {
	s.Count += cost
	if n := len(s.Log); n > 0 && s.Log[n-1].At == now {
		s.Log[n-1].Cost += cost
		return
	}
	s.Log = append(s.Log, Entry{At: now, Cost: cost})
}

// fitsAt is the first instant at which enough of the log is too old for the cost to fit, now if it
// fits already.
func (s *State) fitsAt(p Policy, now shaper.Instant, cost int64) shaper.Instant {
	at, excess := now, s.Count+cost-p.Rate.Limit
	for i := 0; excess > 0; i++ {
		at, excess = s.Log[i].At+shaper.Instant(p.period()), excess-s.Log[i].Cost
	}
	return at
}
