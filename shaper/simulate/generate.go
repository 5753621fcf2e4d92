package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Shape is the pattern of arrivals in a generated trace.
type Shape string

// The shapes of generated traces.
const (
	Steady  Shape = "steady"  // evenly spaced at the rate
	Poisson Shape = "poisson" // independent of each other, at the rate on average
	// FlashSale is Poisson. The peak begins after a fifth of the time, and halves with each further
	// twelfth.
	FlashSale Shape = "flash-sale"
	DailyWave Shape = "daily-wave" // Poisson; from the rate at midnight to the peak at noon and back
)

// Shapes returns all shapes.
func Shapes() []Shape { return []Shape{Steady, Poisson, FlashSale, DailyWave} }

// peaked reports whether the shape has a peak.
func (s Shape) peaked() bool { return s == FlashSale || s == DailyWave }

// Generator makes traces. The same generator makes the same trace.
type Generator struct {
	Shape Shape
	Rate  shaper.Rate   // of arrivals, outside the peak
	Peak  shaper.Rate   // of arrivals at the peak, not below Rate; of FlashSale and DailyWave alone
	For   time.Duration // length of the trace
	Seed  uint64        // of the random numbers
}

// begin is the first instant of generated traces, a midnight.
var begin = shaper.InstantOf(time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC))

// Validate returns every setting that is out of bounds. The result is of type shaper.Problems.
func (g Generator) Validate() error {
	var ps shaper.Problems
	add := func(field, value, rule string) {
		ps = append(ps, shaper.Problem{Field: field, Value: value, Rule: rule})
	}
	known := false
	names := make([]string, 0, len(Shapes()))
	for _, s := range Shapes() {
		known = known || s == g.Shape
		names = append(names, string(s))
	}
	if !known {
		add("shape", fmt.Sprintf("%q", string(g.Shape)), "must be one of "+strings.Join(names, ", "))
	}
	rate := g.Rate.Validate()
	if rate != nil {
		add("rate", fmt.Sprintf("%d per %v", g.Rate.Limit, g.Rate.Period), rate.Error())
	}
	most := g.Rate
	if g.Shape.peaked() {
		most = g.Peak
		switch err := g.Peak.Validate(); {
		case err != nil:
			add("peak", fmt.Sprintf("%d per %v", g.Peak.Limit, g.Peak.Period), err.Error())
		case g.Peak.PerSecond() < g.Rate.PerSecond():
			add("peak", g.Peak.String(), "must not be below the rate")
		}
	} else if g.Peak != (shaper.Rate{}) {
		add("peak", g.Peak.String(), "must not be given: only flash-sale and daily-wave have a peak")
	}
	switch {
	case g.For < time.Millisecond || g.For > shaper.MaxPeriod:
		add("for", g.For.String(), "must be from 1ms to 366d")
	case len(ps) == 0 && most.PerSecond()*g.For.Seconds() > MaxArrivals:
		add("for", g.For.String(), fmt.Sprintf("at up to %v that may be more than %d arrivals", most, MaxArrivals))
	}
	return ps.Err()
}

// Trace makes the trace, which may be empty if it is short. The error is of type
// shaper.Problems.
func (g Generator) Trace() (Trace, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	if g.Shape == Steady {
		return g.steady(), nil
	}
	// Thinning (Lewis and Shedler, 1979): arrivals at the greatest intensity, each kept with the
	// probability intensity / greatest intensity.
	most := g.Rate.PerSecond()
	if g.Shape.peaked() {
		most = g.Peak.PerSecond()
	}
	random := rand.New(rand.NewPCG(g.Seed, 0x51_0c_e5))
	length := g.For.Seconds()
	t := make(Trace, 0, int(g.mean()*1.1)+16)
	for at := random.ExpFloat64() / most; at < length; at += random.ExpFloat64() / most {
		if len(t) == MaxArrivals {
			break
		}
		if g.Shape == Poisson || random.Float64()*most < g.intensity(at) {
			t = append(t, Arrival{At: begin + shaper.Instant(at*1e6), Cost: 1})
		}
	}
	return t, nil
}

func (g Generator) steady() Trace {
	period, limit := g.Rate.Period.Microseconds(), g.Rate.Limit
	t := make(Trace, 0, int(g.Rate.PerSecond()*g.For.Seconds())+1)
	var at, rem int64
	for at < g.For.Microseconds() {
		t = append(t, Arrival{At: begin + shaper.Instant(at), Cost: 1})
		at, rem = at+period/limit, rem+period%limit
		if rem >= limit {
			at, rem = at+1, rem-limit
		}
	}
	return t
}

// The parts of the whole time at which a flash sale opens, and in which its rush halves.
const (
	opening = 1.0 / 5
	halving = 1.0 / 12
)

// intensity is the rate of arrivals a second, at seconds after the beginning.
func (g Generator) intensity(at float64) float64 {
	low, high := g.Rate.PerSecond(), g.Peak.PerSecond()
	switch g.Shape {
	case FlashSale:
		since := at/g.For.Seconds() - opening
		if since < 0 {
			return low
		}
		return low + float64((high-low)*math.Exp2(-since/halving))
	case DailyWave:
		return low + float64((high-low)*(1-math.Cos(2*math.Pi*at/86400))/2)
	default:
		return low
	}
}

// mean estimates the number of arrivals.
func (g Generator) mean() float64 {
	const steps = 1000
	var sum float64
	for i := range steps {
		sum += g.intensity(g.For.Seconds() * (float64(i) + 0.5) / steps)
	}
	return sum / steps * g.For.Seconds()
}
