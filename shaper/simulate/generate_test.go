package simulate

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

func TestGenerator(t *testing.T) {
	none := shaper.Rate{}
	for _, c := range []struct {
		g    Generator
		mean float64
	}{
		{Generator{Steady, rate("7/3s"), none, 3 * time.Minute, 1}, 420},
		{Generator{Poisson, rate("50/s"), none, 5 * time.Minute, 1}, 15_000},
		{Generator{DailyWave, rate("10/m"), rate("30/m"), 48 * time.Hour, 1}, 57_600},
		// The rush is 190/s · 60 s · ∫ 2^(−12 x) dx over four fifths.
		{Generator{FlashSale, rate("10/s"), rate("200/s"), time.Minute, 1},
			600 + 190*60*(1-math.Exp2(-12*0.8))/(12*math.Ln2)},
	} {
		t.Run(string(c.g.Shape), func(t *testing.T) {
			trace, err := c.g.Trace()
			if err != nil {
				t.Fatal(err)
			}
			if err := trace.validate(); err != nil {
				t.Fatal(err)
			}
			if off := math.Abs(float64(len(trace)) - c.mean); off > 4*math.Sqrt(c.mean) {
				t.Errorf("%d arrivals, %v on average", len(trace), c.mean)
			}
			if first, last := trace[0].At, trace[len(trace)-1].At; first < begin || last >= begin.Add(c.g.For) {
				t.Errorf("from %v to %v", first.Time(), last.Time())
			}
			again, err := c.g.Trace()
			if err != nil || !slices.Equal(trace, again) {
				t.Errorf("the same seed made another trace: %v", err)
			}
			c.g.Seed++
			if other, _ := c.g.Trace(); c.g.Shape != Steady && slices.Equal(trace, other) {
				t.Error("another seed made the same trace")
			}
		})
	}
}

// TestSteadyTraceNeverWaits: a steady trace never waits at its own rate.
func TestSteadyTraceNeverWaits(t *testing.T) {
	for _, text := range []string{"7/3s", "999/s", "5/24h"} {
		trace, err := Generator{Shape: Steady, Rate: rate(text), For: 1000 * rate(text).Interval()}.Trace()
		if err != nil {
			t.Fatal(err)
		}
		r, err := Shaper(trace, shaper.Policy{Rate: rate(text), Burst: 1, Capacity: 1}, Workers{})
		if err != nil {
			t.Fatal(err)
		}
		if report := r.Report(); report.Refused != 0 || report.WaitMax != 0 || report.Admitted < 999 {
			t.Errorf("%s: %+v", text, report)
		}
	}
}

// TestTheWaveComesAtNoon and the sale a fifth of the way in.
func TestWherePeaksAre(t *testing.T) {
	wave := Generator{Shape: DailyWave, Rate: rate("10/m"), Peak: rate("30/m"), For: 24 * time.Hour}
	sale := Generator{Shape: FlashSale, Rate: rate("10/s"), Peak: rate("200/s"), For: time.Minute}
	for _, c := range []struct {
		g        Generator
		at, want float64
	}{
		{wave, 0, 10.0 / 60}, {wave, 43_200, 30.0 / 60}, {wave, 86_400, 10.0 / 60}, {sale, 11.9, 10},
		{sale, 12, 200}, {sale, 17, 105},
	} {
		if got := c.g.intensity(c.at); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s at %v s: %v/s, want %v", c.g.Shape, c.at, got, c.want)
		}
	}
}

func TestGeneratorNamesWhatIsWrong(t *testing.T) {
	none := shaper.Rate{}
	for _, c := range []struct {
		name  string
		g     Generator
		field string
	}{
		{"shape", Generator{"storm", rate("1/s"), none, time.Minute, 1}, "shape"},
		{"rate", Generator{Poisson, none, none, time.Minute, 1}, "rate"},
		{"a peak without one", Generator{FlashSale, rate("1/s"), none, time.Minute, 1}, "peak"},
		{"a peak below the rate", Generator{FlashSale, rate("10/s"), rate("9/s"), time.Minute, 1}, "peak"},
		{"a peak that is none", Generator{Steady, rate("10/s"), rate("20/s"), time.Minute, 1}, "peak"},
		{"no time", Generator{Poisson, rate("10/s"), none, 0, 1}, "for"},
		{"too many", Generator{Poisson, rate("1000000/s"), none, time.Hour, 1}, "for"},
	} {
		_, err := c.g.Trace()
		var ps shaper.Problems
		if !errors.As(err, &ps) || len(ps) != 1 || ps[0].Field != c.field {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
