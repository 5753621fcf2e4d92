package simulate

import (
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// start is the instant at which every story begins.
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

// at is a trace of arrivals of cost 1 at the given times of the story.
func at(times ...time.Duration) Trace {
	var t Trace
	for _, d := range times {
		t = append(t, Arrival{At: start.Add(d), Cost: 1})
	}
	return t
}

// repeat is n arrivals at one time of the story.
func repeat(n int, d time.Duration) []time.Duration {
	times := make([]time.Duration, n)
	for i := range times {
		times[i] = d
	}
	return times
}

// mostCost is charged in full under the policies of these tests: for 5/24h, nearly seven years.
const mostCost = 10_000

// traces draws short traces around the interval of a rate: bunched, spaced, and with pauses.
func traces(r shaper.Rate) *rapid.Generator[Trace] {
	return rapid.Custom(func(t *rapid.T) Trace {
		interval := max(1, r.Period.Microseconds()/r.Limit)
		gap := rapid.OneOf(
			rapid.Just(int64(0)), rapid.Just(interval), rapid.Int64Range(0, 2*interval),
			rapid.Int64Range(0, interval/4), rapid.Int64Range(0, 20*interval),
		)
		cost := rapid.OneOf(rapid.Just(int64(1)), rapid.Just(int64(1)), rapid.Int64Range(1, 100),
			rapid.Int64Range(1, mostCost))
		if rapid.Bool().Draw(t, "all cost 1") {
			cost = rapid.Just(int64(1))
		}
		now := rapid.SampledFrom([]shaper.Instant{0, 1, start}).Draw(t, "begin")
		var trace Trace
		for range rapid.IntRange(1, 80).Draw(t, "arrivals") {
			trace = append(trace, Arrival{At: now, Cost: cost.Draw(t, "cost")})
			now += shaper.Instant(gap.Draw(t, "gap"))
		}
		return trace
	})
}

// horizons draws how far workers look ahead.
func horizons() *rapid.Generator[time.Duration] {
	return rapid.SampledFrom([]time.Duration{0, ms, Horizon, sec})
}

// flowPolicies draws policies of a flow, at the edges of what is legal, too.
func flowPolicies() *rapid.Generator[shaper.Policy] {
	return rapid.Custom(func(t *rapid.T) shaper.Policy {
		texts := []string{
			"10/s", "7/3s", "999/s", "1000000/s", "5/m", "5/24h", "1/366d", "999999/s", "31622400000000/366d",
			"13/7s", "1/ms",
		}
		draw := func(name string) shaper.Rate { return rate(rapid.SampledFrom(texts).Draw(t, name)) }
		p := shaper.Policy{
			Rate:     draw("rate"),
			Burst:    rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 10)).Draw(t, "burst"),
			Capacity: rapid.OneOf(rapid.Int64Range(0, 10), rapid.Just(int64(1000))).Draw(t, "capacity"),
		}
		for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "further rates") {
			p.Rates = append(p.Rates, shaper.Pace{
				Rate: draw("further rate"), Burst: rapid.Int64Range(1, 20).Draw(t, "its burst"),
			})
		}
		if rapid.Bool().Draw(t, "with max wait") {
			p.MaxWait = time.Duration(rapid.SampledFrom([]int64{1, 100, 2500, 60_000, 86_400_000}).Draw(t,
				"max wait")) * ms
		}
		return p
	})
}
