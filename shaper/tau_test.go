package shaper_test

import (
	"math/big"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// start is the instant at which every story begins.
var start = shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))

// horizon is how far ahead of its stamp a job may be leased.
const horizon = 20 * time.Millisecond

// doubles is the bound below which every whole number is exact in an IEEE double, and so in the
// scripts.
const doubles = int64(1) << 53

// meter judges stamps by the textbook GCRA, in exact arithmetic and from nothing but the pace and
// the stamps; it shares no code with the bucket. Its measure is τ*, the smallest tolerance beyond
// the burst under which all stamps conform:
//
//	tat = max(t, tat); τ* = max(τ*, tat − t − (burst − 1)·T); tat += cost·T
//
// All values are in units of 1/limit µs, in which T is the whole number period.
type meter struct {
	limit, period, credit, tat, worst *big.Int
}

func newMeter(p shaper.Pace) *meter {
	period := big.NewInt(p.Rate.Period.Microseconds())
	return &meter{
		limit:  big.NewInt(p.Rate.Limit),
		period: period,
		credit: new(big.Int).Mul(big.NewInt(p.Burst-1), period),
		tat:    new(big.Int),
		worst:  new(big.Int),
	}
}

// see takes the next stamp of the flow.
func (m *meter) see(stamp shaper.Instant, cost int64) {
	t := new(big.Int).Mul(big.NewInt(int64(stamp)), m.limit)
	if t.Cmp(m.tat) > 0 {
		m.tat.Set(t)
	}
	early := new(big.Int).Sub(m.tat, t)
	if early.Sub(early, m.credit).Cmp(m.worst) > 0 {
		m.worst.Set(early)
	}
	m.tat.Add(m.tat, new(big.Int).Mul(big.NewInt(cost), m.period))
}

// tau is τ* in µs.
func (m *meter) tau() *big.Rat { return new(big.Rat).SetFrac(m.worst, m.limit) }

// conforms reports whether τ* ≤ 1 µs, the rounding of stamps to whole microseconds.
func (m *meter) conforms() bool { return m.worst.Cmp(m.limit) <= 0 }

// interval is cost emission intervals in µs, exactly.
func interval(r shaper.Rate, cost int64) *big.Rat {
	n := new(big.Int).Mul(big.NewInt(cost), big.NewInt(r.Period.Microseconds()))
	return new(big.Rat).SetFrac(n, big.NewInt(r.Limit))
}

// tatOf is the TAT of a cell in µs, exactly.
func tatOf(c shaper.Cell) *big.Rat {
	tat := new(big.Rat).SetInt64(int64(c.TAT))
	return tat.Add(tat, big.NewRat(c.Rem, c.Rate.Limit))
}

// within reports whether |a − b| ≤ tolerance, all in µs.
func within(a, b *big.Rat, tolerance int64) bool {
	d := new(big.Rat).Sub(a, b)
	return d.Abs(d).Cmp(new(big.Rat).SetInt64(tolerance)) <= 0
}

// rate is the rate that the text means.
func rate(text string) shaper.Rate {
	r, err := shaper.ParseRate(text)
	if err != nil {
		panic(err)
	}
	return r
}

// pace is the rate that the text means, with a burst.
func pace(text string, burst int64) shaper.Pace { return shaper.Pace{Rate: rate(text), Burst: burst} }

// extremes are legal rates at the edges of what is legal, and some with a T that no microsecond
// divides.
var extremes = []string{
	"1/366d", "100/366d", "31622400000000/366d", "31622399999999/366d", "1/ms", "1000/ms", "999/ms", "7/ms",
	"1000000/s", "999999/s", "1/s", "10/s", "7/3s", "5/24h", "1000/24h", "1/m", "3/m",
	"1000003/31622399999ms", "86399999/d",
}

// rates draws legal rates: everyday ones, the extremes, and any.
func rates() *rapid.Generator[shaper.Rate] {
	anyRate := rapid.Custom(func(t *rapid.T) shaper.Rate {
		ms := rapid.OneOf(
			rapid.SampledFrom([]int64{1, 10, 1000, 3000, 60_000, 86_400_000}),
			rapid.Int64Range(1, 100_000),
			rapid.Int64Range(1, shaper.MaxPeriod.Milliseconds()),
		).Draw(t, "period_ms")
		limit := rapid.OneOf(
			rapid.Int64Range(1, min(100, ms*1000)),
			rapid.Int64Range(1, ms*1000),
		).Draw(t, "limit")
		return shaper.Rate{Limit: limit, Period: time.Duration(ms) * time.Millisecond}
	})
	everyday := []string{"10/s", "200/s", "7/3s", "50/s", "400/s", "20/s", "5/24h", "1/m", "1000/24h", "5000/s"}
	return rapid.OneOf(rapid.Map(rapid.SampledFrom(everyday), rate),
		rapid.Map(rapid.SampledFrom(extremes), rate), anyRate)
}

// maxBurst is the greatest legal burst of a rate: burst × period, and the time of burst + 100
// departures, within 200 years.
func maxBurst(r shaper.Rate) int64 {
	years := int64(200 * 365 * 24 * time.Hour / time.Microsecond)
	period := r.Period.Microseconds()
	departures := new(big.Int).Mul(big.NewInt(years), big.NewInt(r.Limit))
	departures.Quo(departures, big.NewInt(period)).Sub(departures, big.NewInt(100))
	most := big.NewInt(years / period)
	if departures.Cmp(most) < 0 {
		most = departures
	}
	return most.Int64()
}

// mostCharged is the greatest cost that a pace charges in full: what takes 20 years, and with the
// burst 200 years, but at least 100.
func mostCharged(p shaper.Pace) int64 {
	years := func(n int64) *big.Rat { return new(big.Rat).SetInt64(n * (365 * 24 * time.Hour).Microseconds()) }
	span := years(200)
	if span.Sub(span, interval(p.Rate, p.Burst)); span.Cmp(years(20)) > 0 {
		span = years(20)
	}
	span.Quo(span, interval(p.Rate, 1))
	return max(100, new(big.Int).Quo(span.Num(), span.Denom()).Int64())
}

// costs draws costs that the paces charge in full.
func costs(list ...shaper.Pace) *rapid.Generator[int64] {
	most := int64(shaper.MaxCost)
	for _, p := range list {
		most = min(most, max(100, mostCharged(p)-1)) // which is computed in doubles
	}
	return rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 5), rapid.Int64Range(1, 100),
		rapid.Int64Range(1, most), rapid.Just(most))
}

// paces draws a legal pace: mostly pure spacing or a small burst, at times the greatest that is
// legal.
func paces() *rapid.Generator[shaper.Pace] {
	return rapid.Custom(func(t *rapid.T) shaper.Pace {
		r := rates().Draw(t, "rate")
		most := maxBurst(r)
		burst := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 8), rapid.Just(int64(1000)),
			rapid.Just(most)).Draw(t, "burst")
		return shaper.Pace{Rate: r, Burst: min(burst, most)}
	})
}
