package limiter_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/limitertest"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// start is the instant at which every story begins: the start of a window of every period used.
var start = shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))

const (
	us  = time.Microsecond
	ms  = time.Millisecond
	sec = time.Second
)

// rate is the rate that the text means.
func rate(text string) shaper.Rate {
	r, err := shaper.ParseRate(text)
	if err != nil {
		panic(err)
	}
	return r
}

// step is one request of a story, with its decision.
type step struct {
	at        time.Duration // since the start of the story
	cost      int64
	allowed   bool
	remaining int64
	retry     time.Duration
	reset     time.Duration
}

func TestStories(t *testing.T) {
	const yes, no = true, false
	fixed := limiter.Policy{Algorithm: limiter.FixedWindow, Rate: rate("10/s")}
	log := limiter.Policy{Algorithm: limiter.SlidingLog, Rate: rate("3/s")}
	blocking := limiter.Policy{Algorithm: limiter.SlidingLog, Rate: rate("3/s"), Block: 5 * sec}
	counter := limiter.Policy{Algorithm: limiter.SlidingCounter, Rate: rate("10/s")}
	tokens := limiter.Policy{Algorithm: limiter.TokenBucket, Rate: rate("10/s"), Burst: 3}
	thirds := limiter.Policy{Algorithm: limiter.TokenBucket, Rate: rate("7/3s"), Burst: 1}
	for _, story := range []struct {
		name   string
		policy limiter.Policy
		steps  []step
	}{
		{"fixed window: the boundary burst", fixed, []step{
			{999 * ms, 10, yes, 0, 0, ms}, {999999 * us, 1, no, 0, us, us}, {sec, 10, yes, 0, 0, sec},
			{sec, 1, no, 0, sec, sec},
		}},
		{"fixed window: what was refused is not counted", fixed, []step{
			{0, 6, yes, 4, 0, sec}, {100 * ms, 5, no, 4, 900 * ms, 900 * ms}, {100 * ms, 4, yes, 0, 0, 900 * ms},
		}},
		{"fixed window: windows without requests", fixed, []step{
			{0, 10, yes, 0, 0, sec}, {3600*sec + 1*us, 0, yes, 10, 0, 0}, {3600*sec + 1*us, 1, yes, 9, 0, sec - us},
		}},
		{"fixed window: more than the limit never passes", fixed,
			[]step{{0, 11, no, 10, 0, 0}, {0, math.MaxInt64, no, 10, 0, 0}}},
		{"fixed window: the clock goes back over a boundary", fixed, []step{
			{sec, 10, yes, 0, 0, sec}, {999 * ms, 1, no, 0, sec, sec}, {-3600 * sec, 1, no, 0, sec, sec},
			{1500 * ms, 1, no, 0, 500 * ms, 500 * ms},
		}},

		{"sliding log: exact at the boundary", log, []step{
			{900 * ms, 2, yes, 1, 0, sec}, {950 * ms, 1, yes, 0, 0, sec}, {sec, 1, no, 0, 900 * ms, 950 * ms},
			{1900*ms - us, 1, no, 0, us, 50*ms + us}, {1900 * ms, 1, yes, 1, 0, sec},
			{1900 * ms, 2, no, 1, 50 * ms, sec}, {1950 * ms, 2, yes, 0, 0, sec},
		}},
		{"sliding log: trying in vain locks nobody out", log, []step{
			{0, 3, yes, 0, 0, sec}, {500 * ms, 1, no, 0, 500 * ms, 500 * ms}, {999 * ms, 1, no, 0, ms, ms},
			{sec, 3, yes, 0, 0, sec},
		}},
		{"sliding log: the clock goes back", log, []step{
			{0, 1, yes, 2, 0, sec}, {500 * ms, 1, yes, 1, 0, sec}, {100 * ms, 1, yes, 0, 0, sec},
			{1499 * ms, 2, no, 1, ms, ms}, {1500 * ms, 3, yes, 0, 0, sec},
		}},
		{"sliding log: a refusal moves the clock, too", log, []step{
			{0, 3, yes, 0, 0, sec}, {900 * ms, 1, no, 0, 100 * ms, 100 * ms}, {100 * ms, 1, no, 0, 100 * ms, 100 * ms},
		}},
		{"sliding log: more than the limit never passes", log, []step{{0, 4, no, 3, 0, 0}, {0, 3, yes, 0, 0, sec}}},
		{"sliding log: a block after an overflow, which trying does not prolong", blocking, []step{
			{0, 2, yes, 1, 0, sec}, {100 * ms, 2, no, 0, 5 * sec, 5 * sec},
			{200 * ms, 1, no, 0, 4900 * ms, 4900 * ms}, {2 * sec, 0, no, 0, 3100 * ms, 3100 * ms},
			{5100*ms - us, 1, no, 0, us, us}, {5100 * ms, 3, yes, 0, 0, sec},
		}},
		{"sliding log: a block shorter than what fills the log", limiter.Policy{
			Algorithm: limiter.SlidingLog, Rate: rate("3/m"), Block: sec,
		}, []step{
			{0, 3, yes, 0, 0, 60 * sec}, {10 * sec, 1, no, 0, 50 * sec, 50 * sec},
			{12 * sec, 0, yes, 0, 0, 48 * sec}, {12 * sec, 1, no, 0, 48 * sec, 48 * sec},
		}},
		{"sliding log: what can never pass blocks nobody", blocking,
			[]step{{0, 4, no, 3, 0, 0}, {0, 1, yes, 2, 0, sec}}},

		{"sliding counter: the window before counts for the part still covered", counter, []step{
			{0, 10, yes, 0, 0, 2 * sec}, {sec, 1, no, 0, 100 * ms, sec},
			{1100*ms - us, 1, no, 0, us, 900*ms + us}, {1100 * ms, 1, yes, 0, 0, 1900 * ms},
			{1500 * ms, 5, no, 4, 100 * ms, 1500 * ms}, {1500 * ms, 4, yes, 0, 0, 1500 * ms},
			{1999 * ms, 5, no, 4, ms, 1001 * ms},
			{2 * sec, 6, no, 5, 200 * ms, sec}, {2200 * ms, 6, yes, 0, 0, 1800 * ms},
		}},
		{"sliding counter: a refusal that only the window after the next can lift", counter, []step{
			{0, 3, yes, 7, 0, 2 * sec}, {500 * ms, 10, no, 7, 1500 * ms, 1500 * ms},
			{500 * ms, 8, no, 7, 833_334 * us, 1500 * ms},
			{1333_333 * us, 8, no, 7, us, 666_667 * us}, {1333_334 * us, 8, yes, 0, 0, 1666_666 * us},
		}},
		{"sliding counter: the guess allows what an exact one would not", counter, []step{
			{999 * ms, 10, yes, 0, 0, 1001 * ms}, {1900 * ms, 9, yes, 0, 0, 1100 * ms},
			{1900 * ms, 1, no, 0, 100 * ms, 1100 * ms},
		}},
		{"sliding counter: two windows later nothing is left", counter, []step{
			{0, 10, yes, 0, 0, 2 * sec}, {2 * sec, 10, yes, 0, 0, 2 * sec},
		}},
		{"sliding counter: the clock goes back", counter, []step{
			{sec, 10, yes, 0, 0, 2 * sec}, {0, 1, no, 0, 1100 * ms, 2 * sec}, {-sec, 1, no, 0, 1100 * ms, 2 * sec},
		}},
		{"sliding counter: more than the limit never passes", counter, []step{{0, 11, no, 10, 0, 0}}},

		{"token bucket: the burst at once, then the rate", tokens, []step{
			{0, 3, yes, 0, 0, 300 * ms}, {0, 1, no, 0, 100 * ms, 300 * ms},
			{99999 * us, 1, no, 0, us, 200*ms + us}, {100 * ms, 1, yes, 0, 0, 300 * ms},
			{350 * ms, 2, yes, 0, 0, 250 * ms}, {350 * ms, 3, no, 0, 250 * ms, 250 * ms},
		}},
		{"token bucket: idle gives no more than the burst", tokens, []step{
			{0, 3, yes, 0, 0, 300 * ms}, {3600 * sec, 4, no, 3, 0, 0}, {3600 * sec, 3, yes, 0, 0, 300 * ms},
		}},
		{"token bucket: refusals lose no fraction", thirds, []step{
			{0, 1, yes, 0, 0, 428_572 * us}, {100_001 * us, 1, no, 0, 328_571 * us, 328_571 * us},
			{200_003 * us, 1, no, 0, 228_569 * us, 228_569 * us},
			{428_571 * us, 1, no, 0, us, us}, {428_572 * us, 1, yes, 0, 0, 428_572 * us},
		}},
		{"token bucket: the clock goes back", tokens, []step{
			{sec, 3, yes, 0, 0, 300 * ms}, {0, 1, no, 0, 100 * ms, 300 * ms},
			{1100 * ms, 1, yes, 0, 0, 300 * ms},
		}},
		{"token bucket: without a burst the limit is the bucket", limiter.Policy{
			Algorithm: limiter.TokenBucket, Rate: rate("10/s"),
		}, []step{
			{0, 10, yes, 0, 0, sec}, {0, 11, no, 0, 0, sec},
		}},
	} {
		policies := []limiter.Policy{story.policy}
		if story.policy.Algorithm == limiter.TokenBucket {
			other := story.policy
			other.Algorithm = limiter.LeakyMeter
			policies = append(policies, other)
		}
		for _, p := range policies {
			t.Run(story.name+" as "+string(p.Algorithm), func(t *testing.T) {
				if err := p.Validate(); err != nil {
					t.Fatal(err)
				}
				var s limiter.State
				for i, step := range story.steps {
					want := limiter.Decision{
						Allowed: step.allowed, Limit: p.Limit(), Remaining: step.remaining,
						RetryAfter: step.retry, Reset: step.reset,
					}
					before := limiter.State{Seen: s.Seen, Start: s.Start, Count: s.Count,
						Previous: s.Previous, TAT: s.TAT, Rem: s.Rem,
						Until: s.Until, Log: append([]limiter.Entry(nil), s.Log...)}
					next, got := limiter.Decide(s, p, start.Add(step.at), step.cost)
					if diff := cmp.Diff(want, got); diff != "" {
						t.Fatalf("step %d at %v (-want +got):\n%s", i, step.at, diff)
					}
					if diff := cmp.Diff(before, s); diff != "" {
						t.Fatalf("step %d changed the state it was given:\n%s", i, diff)
					}
					s = next
				}
			})
		}
	}
}

// policies draws legal policies of one limiter.
func policies(a limiter.Algorithm) *rapid.Generator[limiter.Policy] {
	return rapid.Custom(func(t *rapid.T) limiter.Policy {
		text := rapid.SampledFrom([]string{
			"1/ms", "3/s", "7/3s", "10/s", "50/s", "999/7s", "5/m", "5/24h", "13/m", "1/366d", "1000/s",
		}).Draw(t, "rate")
		p := limiter.Policy{Algorithm: a, Rate: rate(text)}
		switch a {
		case limiter.TokenBucket, limiter.LeakyMeter:
			p.Burst = rapid.SampledFrom([]int64{0, 1, 2, 5, 40}).Draw(t, "burst")
		case limiter.SlidingLog:
			p.Block = time.Duration(rapid.SampledFrom([]int64{0, 0, 0, 1, 700, 100_000}).Draw(t, "block")) * ms
		}
		return p
	})
}

// gap draws the time to the next request: mostly a few intervals, at times none, some periods, or
// backwards.
func gap(p limiter.Policy) *rapid.Generator[time.Duration] {
	micros := func(n int64) time.Duration { return time.Duration(n) * us }
	interval := max(1, p.Rate.Period.Microseconds()/p.Rate.Limit)
	return rapid.OneOf(
		rapid.Just(time.Duration(0)),
		rapid.Map(rapid.Int64Range(0, 3*interval), micros),
		rapid.Map(rapid.Int64Range(0, 3*p.Rate.Period.Microseconds()), micros),
		rapid.Map(rapid.Int64Range(-2*p.Rate.Period.Microseconds(), 0), micros),
	)
}

// TestDecisionFieldsAreExact: remaining, retry-after and reset are exact, and a refusal changes
// nothing.
func TestDecisionFieldsAreExact(t *testing.T) {
	for _, a := range limiter.Algorithms() {
		t.Run(string(a), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := policies(a).Draw(t, "policy")
				var s limiter.State
				now := start
				for range rapid.IntRange(1, 30).Draw(t, "requests") {
					now = max(start, now.Add(gap(p).Draw(t, "gap")))
					cost := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(0, p.Limit()+2)).Draw(t, "cost")
					next, d := limiter.Decide(s, p, now, cost)
					seen := next.Seen
					if d.Limit != p.Limit() || d.Remaining < 0 || d.Remaining > d.Limit || d.RetryAfter < 0 ||
						d.Reset < 0 || (d.Allowed && d.RetryAfter != 0) {
						t.Fatalf("%+v", d)
					}
					allowed := func(s limiter.State, at shaper.Instant, cost int64) bool {
						_, d := limiter.Decide(s, p, at, cost)
						return d.Allowed
					}
					blocked := next.Until > seen
					if !blocked && (d.Remaining > 0 && !allowed(next, seen, d.Remaining) || allowed(next,
						seen, d.Remaining+1)) {
						t.Fatalf("after %d of %+v: remaining %d is not the most that fits", cost, p, d.Remaining)
					}
					if !d.Allowed {
						if !blocked && (s.Count != next.Count || s.Previous != next.Previous) &&
							next.Count+next.Previous > s.Count+s.Previous {
							t.Fatalf("a refusal was counted: %+v became %+v", s, next)
						}
						if (cost > p.Limit()) != (d.RetryAfter == 0) {
							t.Fatalf("cost %d of %d: retry after %v", cost, p.Limit(), d.RetryAfter)
						}
						if d.RetryAfter > 0 &&
							(!allowed(next, seen.Add(d.RetryAfter), cost) || p.Block == 0 && allowed(next,
								seen.Add(d.RetryAfter-us), cost)) {
							t.Fatalf("cost %d of %+v: %v is not the first instant at which it fits", cost, p, d.RetryAfter)
						}
					}
					idle, _ := limiter.Decide(limiter.State{}, p, seen.Add(d.Reset), 1)
					again, after := limiter.Decide(next, p, seen.Add(d.Reset), 1)
					again.Previous, idle.Previous = 0, 0
					if diff := cmp.Diff(idle, again); diff != "" || !after.Allowed {
						t.Fatalf("after the reset of %v it is not as if never used (-never +used):\n%s", d.Reset, diff)
					}
					if d.Reset > 0 {
						if _, early := limiter.Decide(next, p, seen.Add(d.Reset-us), 0); early.Reset != us {
							t.Fatalf("1 µs before the reset of %v: %+v", d.Reset, early)
						}
					}
					s = next
				}
			})
		})
	}
}

// TestNoWindowHoldsMore holds every limiter against its bound in every window of one period.
func TestNoWindowHoldsMore(t *testing.T) {
	for _, a := range limiter.Algorithms() {
		t.Run(string(a), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := policies(a).Draw(t, "policy")
				var s limiter.State
				var passed []limiter.Entry
				now, sum := start, int64(0)
				for range rapid.IntRange(1, 60).Draw(t, "requests") {
					now = now.Add(max(0, gap(p).Draw(t, "gap")))
					cost := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, p.Limit())).Draw(t, "cost")
					var d limiter.Decision
					if s, d = limiter.Decide(s, p, now, cost); !d.Allowed {
						continue
					}
					passed, sum = append(passed, limiter.Entry{At: now, Cost: cost}), sum+cost
					for passed[0].At.Add(p.Rate.Period) <= now {
						passed, sum = passed[1:], sum-passed[0].Cost
					}
					if sum > limitertest.Most(p) {
						t.Fatalf("%+v: %d within the period before %v", p, sum, now.Sub(start))
					}
				}
			})
		})
	}
}

// TestTwoViewsOfOneBucket: a token bucket and a leaky meter of the same size decide alike, though
// they keep different things.
func TestTwoViewsOfOneBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(limiter.TokenBucket).Draw(t, "policy")
		q := p
		q.Algorithm = limiter.LeakyMeter
		var tokens, water limiter.State
		now := start
		for range rapid.IntRange(1, 100).Draw(t, "requests") {
			now = now.Add(max(0, gap(p).Draw(t, "gap")))
			cost := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(0, p.Limit()+1)).Draw(t, "cost")
			var a, b limiter.Decision
			tokens, a = limiter.Decide(tokens, p, now, cost)
			water, b = limiter.Decide(water, q, now, cost)
			if a != b {
				t.Fatalf("at %v, cost %d: %+v and %+v", now.Sub(start), cost, a, b)
			}
		}
	})
}

// TestNumbersStayExact: with the greatest policies that are legal, no number leaves what a double
// holds exactly.
func TestNumbersStayExact(t *testing.T) {
	const doubles = 1 << 53
	for _, p := range []limiter.Policy{
		{Algorithm: limiter.FixedWindow, Rate: rate("31622400000000/366d")},
		{Algorithm: limiter.SlidingLog, Rate: rate("1000000/s")},
		{Algorithm: limiter.SlidingCounter, Rate: rate("36500/d")},
		{Algorithm: limiter.SlidingCounter, Rate: rate("1000000/s")},
		{Algorithm: limiter.TokenBucket, Rate: rate("1000000/s"), Burst: 6_000_000_000},
		{Algorithm: limiter.TokenBucket, Rate: rate("73000/d")},
		{Algorithm: limiter.LeakyMeter, Rate: rate("73000/d"), Burst: 72_900},
	} {
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		var s limiter.State
		for _, at := range []time.Duration{
			0, us, p.Rate.Period / 2, p.Rate.Period - us, p.Rate.Period, p.Rate.Period + us,
			2 * p.Rate.Period,
		} {
			var d limiter.Decision
			s, d = limiter.Decide(s, p, start.Add(at), p.Limit())
			for _, n := range []int64{int64(s.Seen), int64(s.Start), s.Count, s.Previous, int64(s.TAT), s.Rem,
				d.Remaining,
				d.RetryAfter.Microseconds(), d.Reset.Microseconds(), s.Previous * p.Rate.Period.Microseconds()} {
				if n < 0 || n >= doubles {
					t.Errorf("%+v at %v: %d of %+v, %+v", p, at, n, s, d)
				}
			}
		}
	}
}
