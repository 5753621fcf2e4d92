package simulate

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// verify replays the trace with the point's policy and holds the goals against the report.
func verify(
	t interface{ Fatalf(string, ...any) }, trace Trace, p Point, burst int64,
) (refused float64, wait time.Duration) {
	r, err := Shaper(trace, shaper.Policy{Rate: p.Rate, Burst: burst, Capacity: p.Capacity}, Workers{})
	if err != nil {
		t.Fatalf("%+v: %v", p, err)
	}
	report := r.Report()
	refused = float64(report.Refused) / float64(report.Arrived)
	if refused != p.Refused || report.WaitP99 != p.WaitP99 || report.WaitMax != p.WaitMax {
		t.Fatalf("%+v, but a replay gives %+v", p, report)
	}
	return refused, report.WaitP99
}

// TestRecommendationIsTheSmallest: it reaches the goals; one place less refuses too many; a rate of
// one less misses a goal.
func TestRecommendationIsTheSmallest(t *testing.T) {
	sale, err := Generator{
		Shape: FlashSale, Rate: rate("10/s"), Peak: rate("200/s"), For: time.Minute, Seed: 1,
	}.Trace()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		trace Trace
		goals Goals
	}{
		{"a flash sale", sale, Goals{MaxRefused: 0.001, WaitP99: 10 * sec, Burst: 1}},
		{"nothing refused", sale, Goals{WaitP99: 10 * sec, Burst: 1}},
		{"most refused", sale, Goals{MaxRefused: 0.8, WaitP99: 100 * ms, Burst: 5}},
		{"slow, so per minute", at(0, 20*sec, 40*sec, 41*sec, 42*sec, 100*sec), Goals{WaitP99: 10 * sec, Burst: 1}},
		{"slower, so per day", at(0, 20*time.Hour, 21*time.Hour, 100*time.Hour),
			Goals{WaitP99: 2 * time.Hour, Burst: 1}},
		{"within the upstream's", sale, Goals{
			MaxRefused: 0.001, WaitP99: 10 * sec, Upstream: rate("100/s"), Burst: 1,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Recommend(c.trace, c.goals, nil)
			if err != nil {
				t.Fatal(err)
			}
			refused, wait := verify(t, c.trace, got.Point, c.goals.Burst)
			if !got.Reached || refused > c.goals.MaxRefused || wait > c.goals.WaitP99 {
				t.Fatalf("%+v misses %+v", got.Point, c.goals)
			}
			policy := shaper.Policy{Rate: got.Rate, Burst: c.goals.Burst, Capacity: got.Capacity - 1}
			r, err := Shaper(c.trace, policy, Workers{})
			if err != nil {
				t.Fatal(err)
			}
			report := r.Report()
			if float64(report.Refused)/float64(report.Arrived) <= c.goals.MaxRefused && got.Capacity > 1 {
				t.Errorf("%d places would do, too: %+v", got.Capacity-1, report)
			}
			slower := got.Rate
			if slower.Limit--; slower.Limit >= 1 {
				if p := newTuner(c.trace, c.goals, nil).try(slower); p.Reached {
					t.Errorf("%v would do, too: %+v", slower, p)
				}
			}
			if got.Rate.Limit < 10 && got.Rate.Period < 24*time.Hour {
				t.Errorf("%v is coarse", got.Rate)
			}
			found := false
			for i, p := range got.Curve {
				verify(t, c.trace, p, c.goals.Burst)
				found = found || p == got.Point
				if i > 0 && p.Rate.PerSecond() <= got.Curve[i-1].Rate.PerSecond() {
					t.Errorf("the curve is out of order: %+v", got.Curve)
				}
			}
			if !found {
				t.Errorf("the curve has no %v: %+v", got.Rate, got.Curve)
			}
		})
	}
}

func TestRecommendForAnUpstream(t *testing.T) {
	trace := at(repeat(100, 0)...)
	got, err := Recommend(trace, Goals{Upstream: rate("10/s"), Burst: 1}, nil)
	if err != nil || !got.Reached || got.Rate != rate("10/s") || got.Capacity != 100 {
		t.Errorf("%+v, %v", got.Point, err)
	}
	got, err = Recommend(trace, Goals{Upstream: rate("10/s"), WaitP99: sec, Burst: 1}, nil)
	if err != nil || got.Reached || got.Rate != rate("10/s") {
		t.Errorf("%+v, %v", got.Point, err)
	}
	for _, p := range got.Curve {
		if p.Rate.PerSecond() > 10 {
			t.Errorf("the curve goes beyond the upstream's rate: %+v", p)
		}
	}
}

// TestRecommendAnything: for any trace and goals what is said to be reached is.
func TestRecommendAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		trace := traces(rate("10/s")).Draw(t, "trace")
		goals := Goals{
			MaxRefused: rapid.SampledFrom([]float64{0, 0.01, 0.3}).Draw(t, "refused"),
			WaitP99:    time.Duration(rapid.SampledFrom([]int64{1, 100, 5000, 3600_000}).Draw(t, "wait")) * ms,
			Burst:      rapid.Int64Range(1, 3).Draw(t, "burst"),
		}
		tried := 0
		got, err := Recommend(trace, goals, func(n int) { tried = n })
		if err != nil {
			t.Fatalf("%v", err)
		}
		refused, wait := verify(t, trace, got.Point, goals.Burst)
		if reached := refused <= goals.MaxRefused && wait <= goals.WaitP99; reached != got.Reached || tried == 0 {
			t.Fatalf("%+v for %+v: refused %v, wait %v", got.Point, goals, refused, wait)
		}
	})
}

func TestGoalsNameWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		field string
		goals Goals
	}{
		{"max_refused", Goals{MaxRefused: 1, WaitP99: sec, Burst: 1}},
		{"max_refused", Goals{MaxRefused: math.NaN(), WaitP99: sec, Burst: 1}},
		{"wait_p99", Goals{Burst: 1}},
		{"wait_p99", Goals{WaitP99: -1, Burst: 1}},
		{"upstream", Goals{Upstream: shaper.Rate{Limit: 1}, Burst: 1}},
		{"burst", Goals{WaitP99: sec}},
	} {
		_, err := Recommend(at(0), c.goals, nil)
		var ps shaper.Problems
		if !errors.As(err, &ps) || len(ps) != 1 || ps[0].Field != c.field {
			t.Errorf("%+v: %v", c.goals, err)
		}
	}
	if _, err := Recommend(nil, Goals{WaitP99: sec, Burst: 1}, nil); !errors.Is(err, ErrTrace) {
		t.Errorf("%v", err)
	}
}
