package scripts

import (
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// TagLength is the number of characters of a request's tag. The scripts keep the last tags of
// allowed requests, to recognize one that is sent again.
const TagLength = 8

// LimitCall is one request of a limiter's key.
type LimitCall struct {
	At     At
	State  string // key
	Log    string // key, of limiter.SlidingLog
	Blocks string // key: blocked ones of the rule, of limiter.SlidingLog with a block

	Tag    string // TagLength characters without a space, unique to the request; empty: it is never sent again
	Policy limiter.Policy
	Cost   int64  // below 0 counts as 0
	Name   string // of the limiter's key, as it is listed when it is blocked
}

// limits are the scripts by limiter.
var limits = map[limiter.Algorithm]*Script{
	limiter.FixedWindow: Commands.FixedWindow, limiter.SlidingLog: Commands.SlidingLog,
	limiter.SlidingCounter: Commands.SlidingCounter,
	limiter.TokenBucket:    Commands.TokenBucket, limiter.LeakyMeter: Commands.LeakyMeter,
}

// Call is the call in the form that is sent. The policy must be legal.
func (c LimitCall) Call() Call {
	// A greater cost is refused for good, too. The number stays one that Lua counts exactly.
	cost := min(max(c.Cost, 0), c.Policy.Limit()+1)
	keys := []string{c.State}
	args := []any{string(c.At), c.Tag, cost, c.Policy.Rate.Limit, c.Policy.Rate.Period.Microseconds()}
	switch c.Policy.Algorithm {
	case limiter.SlidingLog:
		keys, args = append(keys, c.Log), append(args, c.Policy.Block.Microseconds(), c.Name)
		if c.Policy.Block > 0 { // while the slot moves, a cluster refuses a call with a missing key
			keys = append(keys, c.Blocks)
		}
	case limiter.TokenBucket, limiter.LeakyMeter:
		args = append(args, c.Policy.Limit())
	}
	return limits[c.Policy.Algorithm].call(keys, args)
}

// Decode reads the answer: the decision and the instant of it.
func (c LimitCall) Decode(values []any) (limiter.Decision, shaper.Instant, error) {
	r := reader{values: values}
	now := shaper.Instant(r.int())
	d := limiter.Decision{
		Allowed: r.int() == 1, Limit: c.Policy.Limit(), Remaining: r.int(), RetryAfter: micros(r.int()),
		Reset: micros(r.int()),
	}
	return d, now, r.err
}
