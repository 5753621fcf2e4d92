package limiter

import (
	"slices"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// State is the state of one key; the zero value is an unused key. Each limiter uses the
// fields that name it and leaves the others zero, so a store needs to keep those alone: one hash or
// one packed string a key, and for SlidingLog a list or sorted set besides. Once Reset is over, the
// state may be dropped, so Reset is its time to live. A state means something only with the policy
// it was made under.
type State struct {
	// Seen is the last instant of a request, refused or not. An earlier one counts as this. A store
	// whose clock never goes back need not keep it.
	Seen shaper.Instant

	Start    shaper.Instant // of the window that Count is of: FixedWindow, SlidingCounter
	Count    int64          // cost allowed in it; SlidingLog: the sum of the log
	Previous int64          // SlidingCounter: cost allowed in the window before it

	// TokenBucket and LeakyMeter: the instant at which the bucket will be full of tokens or empty
	// of water, exactly TAT + Rem/Limit µs with 0 ≤ Rem < Limit, as in shaper.Cell.
	TAT shaper.Instant
	Rem int64

	Until shaper.Instant // SlidingLog: the key is blocked before then
	// Log, of SlidingLog, is what was allowed within the last period, the oldest first, one entry
	// for each instant.
	Log []Entry
}

// Entry is what was allowed at an instant.
type Entry struct {
	At   shaper.Instant
	Cost int64
}

// Decision is the answer to one request, with every fact that the client gets.
type Decision struct {
	Allowed   bool
	Limit     int64 // the greatest cost that is ever allowed, e.g. 100
	Remaining int64 // the greatest cost that would be allowed at this instant, after the decision, e.g. 37

	// RetryAfter is the time until the same request would be allowed if no other came, to the
	// microsecond. It is 0 if it is allowed, or never can be because it costs more than Limit.
	RetryAfter time.Duration
	Reset      time.Duration // until the key is as if never used; 0 when it is
}

// Decide decides whether a request of the given cost passes at now. It does not change the given
// state. The policy must be legal; a cost below 0 counts as 0.
func Decide(s State, p Policy, now shaper.Instant, cost int64) (State, Decision) {
	s.Log = slices.Clone(s.Log)
	d := s.Take(p, now, cost)
	return s, d
}

// Take is like Decide, but changes the state in place and copies no log.
func (s *State) Take(p Policy, now shaper.Instant, cost int64) Decision {
	now, cost = max(now, s.Seen), max(cost, 0)
	limit := p.Limit()
	d := limiters[p.Algorithm](s, p, now, cost)
	s.Seen = now
	d.Limit = limit
	if d.Allowed || cost > limit {
		d.RetryAfter = 0
	}
	return d
}

// limiters are the five functions. Each brings the state from its last instant to now, which is not
// before it, and takes the cost if it fits; a cost above the limit never does. Take clears the
// RetryAfter of a cost that never fits.
var limiters = map[Algorithm]func(s *State, p Policy, now shaper.Instant, cost int64) Decision{
	FixedWindow:    fixedWindow,
	SlidingLog:     slidingLog,
	SlidingCounter: slidingCounter,
	TokenBucket:    bucket,
	LeakyMeter:     bucket,
}

// until is the time from now to an instant, 0 if that is past.
func until(at, now shaper.Instant) time.Duration { return max(0, at.Sub(now)) }

// micros is a number of microseconds, a / b rounded up, as a time.
func micros(a, b int64) time.Duration {
	q := a / b
	if a%b > 0 {
		q++
	}
	return time.Duration(q) * time.Microsecond
}
