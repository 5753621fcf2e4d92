package limiter

import (
	"fmt"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Algorithm is the name of a limiter.
type Algorithm string

// The limiters.
const (
	// FixedWindow counts in windows that follow each other, aligned to the Unix epoch, and starts
	// each at zero.
	//
	// Source: the oldest of all, such as the first pattern of a rate limiter in the manual of the
	// Redis command INCR. Memory: an instant and a count. Stored: Start and Count, until the
	// window's end. Weakness: the boundary burst. A whole limit at the end of one window and
	// another at the start of the next make 2 × limit within an instant; and all keys become free
	// at the same moment.
	FixedWindow Algorithm = "fixed-window"

	// SlidingLog keeps the instant and cost of every request allowed within the last period, and
	// allows what keeps their sum within the limit. With a block period, a key that overflows is
	// refused altogether until that is over; requests during it do not prolong it.
	//
	// Source: the definition of a limit per period, word for word; in Redis commonly a sorted set
	// of instants. Memory: 16 bytes for each request within the period, so up to 16 × limit for a
	// key. What was refused is not in it: a client cannot lock itself out by trying. Stored: Count
	// and Until, and the Log as a list of pairs, trimmed at the front and appended to at the end.
	// Weakness: that memory.
	SlidingLog Algorithm = "sliding-log"

	// SlidingCounter counts as FixedWindow does and adds of the window before the part that the
	// last period still covers, as if its requests had come evenly.
	//
	// Source: J. Desgats, "How we built rate limiting capable of scaling to millions of domains",
	// Cloudflare 2017. Memory: an instant and two counts. Stored: Start, Count and Previous, until
	// the end of the window after. Weakness: the guess. If the requests of the window before came
	// at its end, up to 2 × limit − 1 may pass within one period, though no longer at one instant;
	// if they came at its beginning, requests are refused that an exact limiter would allow.
	SlidingCounter Algorithm = "sliding-counter"

	// TokenBucket holds tokens, at most the burst. The rate adds tokens evenly, and a request takes
	// as many as it costs.
	//
	// Source: the meters of RFC 2697 and RFC 2698. Memory: an instant and a remainder.
	// Stored: TAT and Rem, until TAT. Weakness: after an idle stretch
	// the whole burst passes at once, so that a window may see burst + limit.
	TokenBucket Algorithm = "token-bucket"

	// LeakyMeter is the leaky bucket as a meter: each request pours its cost into a bucket of the
	// size of the burst, which leaks evenly. A request that would overflow it is refused. It
	// decides exactly as TokenBucket does, with water for spent tokens.
	//
	// Source: J. S. Turner, "New directions in communications", IEEE Communications Magazine,
	// October 1986; here as the generic cell rate algorithm of ITU-T I.371, by virtual scheduling:
	// the arithmetic by which the shaper spaces departures. Memory: an instant and a remainder.
	// Stored: TAT and Rem, until TAT. Weakness: that of TokenBucket; with burst 1 it spaces
	// requests, and refuses whatever comes early.
	LeakyMeter Algorithm = "leaky-meter"
)

// Algorithms returns all limiters, in the order of their documentation.
func Algorithms() []Algorithm {
	return []Algorithm{FixedWindow, SlidingLog, SlidingCounter, TokenBucket, LeakyMeter}
}

// Bounds of a Policy.
const (
	MaxLog = 1_000_000 // requests that one key's log may hold: the greatest limit of SlidingLog
	// maxSpan bounds limit × period of SlidingCounter: it multiplies a count by microseconds,
	// twice, and the sum must stay below 2⁵³.
	maxSpan = 100 * 365 * 24 * time.Hour
)

// Policy is a limiter and its settings. The zero value is not legal.
type Policy struct {
	Algorithm Algorithm
	Rate      shaper.Rate // limit per period
	// Burst is the size of the bucket of TokenBucket and LeakyMeter; 0 is the limit of the rate. Of
	// the other algorithms it must be 0.
	Burst int64
	// Block is how long SlidingLog refuses a key after an overflow, in whole milliseconds; 0 is not
	// at all.
	Block time.Duration
}

// bucketed reports whether the limiter has a bucket, whose size is the burst.
func (a Algorithm) bucketed() bool { return a == TokenBucket || a == LeakyMeter }

// Limit returns the greatest cost that a request may have: the limit of the rate, or the size of
// the bucket.
func (p Policy) Limit() int64 {
	if p.Algorithm.bucketed() && p.Burst != 0 {
		return p.Burst
	}
	return p.Rate.Limit
}

// period is the rate's period in microseconds.
func (p Policy) period() int64 { return p.Rate.Period.Microseconds() }

// Validate returns every setting that is out of bounds, not just the first. The result is of type
// shaper.Problems.
func (p Policy) Validate() error {
	var ps shaper.Problems
	add := func(field, value, rule string) {
		ps = append(ps, shaper.Problem{Field: field, Value: value, Rule: rule})
	}
	if _, known := limiters[p.Algorithm]; !known {
		names := make([]string, 0, len(limiters))
		for _, a := range Algorithms() {
			names = append(names, string(a))
		}
		add("algorithm", fmt.Sprintf("%q", string(p.Algorithm)), "must be one of "+strings.Join(names, ", "))
	}
	rate := p.Rate.Validate()
	if rate != nil {
		add("rate", fmt.Sprintf("%d per %v", p.Rate.Limit, p.Rate.Period), rate.Error())
	}
	switch {
	case p.Burst < 0:
		add("burst", fmt.Sprint(p.Burst), "must be a whole number of at least 0")
	case !p.Algorithm.bucketed() && p.Burst != 0:
		add("burst", fmt.Sprint(p.Burst), "must be 0: only token-bucket and leaky-meter have a burst")
	case p.Algorithm.bucketed() && rate == nil:
		// The bounds of the shaper's burst, whose arithmetic this is.
		legal := shaper.Policy{Rate: p.Rate, Burst: p.Limit()}
		if problems, found := legal.Validate().(shaper.Problems); found {
			ps = append(ps, problems...)
		}
	}
	switch {
	case rate != nil:
	case p.Algorithm == SlidingLog && p.Rate.Limit > MaxLog:
		add("rate", p.Rate.String(), fmt.Sprintf("must have a limit of at most %d: sliding-log remembers "+
			"every request", MaxLog))
	case p.Algorithm == SlidingCounter && p.Rate.Limit > int64(maxSpan/p.Rate.Period):
		add("rate", p.Rate.String(), "limit × period must be at most 100 years: sliding-counter multiplies them")
	}
	switch {
	case p.Block < 0 || p.Block > shaper.MaxPeriod:
		add("block", p.Block.String(), "must be from 0 to 366d")
	case p.Block%time.Millisecond != 0:
		add("block", p.Block.String(), "must be in whole milliseconds")
	case p.Block > 0 && p.Algorithm != SlidingLog:
		add("block", p.Block.String(), "must be 0: only sliding-log blocks")
	}
	return ps.Err()
}
