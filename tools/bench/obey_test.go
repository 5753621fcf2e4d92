package main

import (
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// at are instants in milliseconds.
func at(ms ...float64) []time.Duration {
	out := make([]time.Duration, len(ms))
	for i, m := range ms {
		out[i] = time.Duration(m * float64(time.Millisecond))
	}
	return out
}

// grid is n instants, an interval apart.
func grid(from, interval float64, n int) []time.Duration {
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = time.Duration((from + float64(i)*interval) * float64(time.Millisecond))
	}
	return out
}

// left are departures that reach the sink at once.
func left(stamps []time.Duration) []departure {
	out := make([]departure, len(stamps))
	for i, s := range stamps {
		out[i] = departure{s, s}
	}
	return out
}

func TestTauOfPaces(t *testing.T) {
	burst := paces{{Rate: parse("100/s"), Burst: 3}}
	for _, c := range []struct {
		name       string
		paces      paces
		departures []time.Duration
		want       time.Duration
	}{
		{"nothing", plain("100/s"), nil, 0},
		{"the grid", plain("100/s"), grid(0, 10, 50), 0},
		{"a grid of thirds", plain("3/s"), []time.Duration{0, 333_333_334, 666_666_668, 1_000_000_002}, 0},
		{"one early by 3", plain("100/s"), at(0, 10, 17, 30), 3 * time.Millisecond},
		{"two at once", plain("100/s"), at(0, 10, 10), 10 * time.Millisecond},
		{"a burst that is allowed", burst, at(0, 0, 0, 10, 20), 0},
		{"a burst of one more", burst, at(0, 0, 0, 0), 10 * time.Millisecond},
		{"the stricter of two", paces{{Rate: parse("100/s"), Burst: 1}, {Rate: parse("1/s"), Burst: 2}},
			at(0, 10, 20), 980 * time.Millisecond},
		{"before and after zero", plain("100/s"), at(-10, -5, 5), 5 * time.Millisecond},
	} {
		if got := c.paces.tau(c.departures); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestFlowing(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name       string
		departures []time.Duration
		want       time.Duration
		ok         bool
	}{
		{"nothing", nil, 0, false},
		{"only before", at(-20, -10), 0, false},
		{"at once", append(at(-100), grid(1, 10, 30)...), ms, true},
		{"after one of the old rate", append(at(-100, 50), grid(150, 10, 30)...), 150 * ms, true},
		{"never", grid(0, 100, 30), 0, false},
		{"too few to tell", at(0, 10), 0, false},
		{"few, but flowing", at(0, 10, 20), 0, true},
	} {
		if got, ok := flowing(left(c.departures), 10*ms); got != c.want || ok != c.ok {
			t.Errorf("%s: %v %v, want %v %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestDue(t *testing.T) {
	for _, c := range []struct {
		departures []time.Duration
		want       time.Duration
	}{
		{nil, 0}, {at(5), 0}, {at(-30, 5), 70 * time.Millisecond}, {at(-300, 5), 0},
	} {
		if got := due(left(c.departures), 100*time.Millisecond); got != c.want {
			t.Errorf("%v: %v, want %v", c.departures, got, c.want)
		}
	}
}

func TestTooEarly(t *testing.T) {
	for _, c := range []struct {
		departures []time.Duration
		n          int
		last       time.Duration
	}{
		{nil, 0, 0},
		{at(-10, -5), 0, 0},                             // before the change
		{at(-10, 5, 12, 62, 112), 2, at(12)[0]},         // leased before, then obeyed
		{at(-10, 40, 90), 0, 0},                         // at once
		{at(-10, 40, 90, 100), 1, at(100)[0]},           // a late one counts as well
		{append(at(-10, 40), grid(90, 50, 9)...), 0, 0}, // the new spacing
	} {
		if n, last := tooEarly(left(c.departures), 50*time.Millisecond); n != c.n || last != c.last {
			t.Errorf("%v: %d until %v, want %d until %v", c.departures, n, last, c.n, c.last)
		}
	}
}

// TestMeasureRetune: the figures of changes that were obeyed, came late, or burst.
func TestMeasureRetune(t *testing.T) {
	faster := retune{name: "up", before: plain("10/s"), after: plain("100/s")}
	slower := retune{name: "down", before: plain("100/s"), after: plain("10/s")}
	sent := -2 * time.Millisecond
	join := func(parts ...[]time.Duration) (all []time.Duration) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for _, c := range []struct {
		name   string
		change retune
		stamps []time.Duration
		obeyed float64
		early  int
		passes bool
	}{
		{"faster at once", faster, join(at(-150, -50), grid(1, 10, 40)), 1, 0, true},
		{"faster, too late", faster, join(at(-150, -50, 50, 150), grid(250, 10, 40)), 250, 0, false},
		{"faster, never", faster, grid(-150, 100, 10), bursts, 0, false},
		{"faster with a burst", faster, join(at(-150, -50), at(1, 1, 1), grid(11, 10, 40)), 1, 2, false},
		{"slower at once", slower, join(grid(-100, 10, 10), grid(90, 100, 20)), 0, 0, true},
		{"slower after what was leased", slower, join(grid(-100, 10, 12), grid(110, 100, 20)), 10, 1, true},
		{"slower, too late", slower, join(grid(-100, 10, 22), grid(210, 100, 20)), 110, 11, false},
	} {
		var got retuned
		got.measure(c.change, left(c.stamps), sent)
		got.judge()
		if got.Obeyed != c.obeyed || got.Early != c.early || (got.Problem == "") != c.passes {
			t.Errorf("%s: %+v, want obeyed %v, early %d, passes %v", c.name, got, c.obeyed, c.early, c.passes)
		}
	}
}

func TestRetuneNames(t *testing.T) {
	all := retunes()
	if len(all) < 10 {
		t.Errorf("%d changes", len(all))
	}
	for _, r := range all {
		for _, p := range append(r.before, r.after...) {
			policy := shaper.DefaultPolicy()
			policy.Rate, policy.Burst = p.Rate, p.Burst
			if err := policy.Validate(); err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		}
		if w := r.after.window(); w < 500*time.Millisecond || w > 2*time.Second {
			t.Errorf("%s: window %v", r.name, w)
		}
	}
}

// The worst sample counts where a figure says so, whichever way its target is.
func TestJudgeByTheWorst(t *testing.T) {
	for _, c := range []struct {
		f    figure
		want result
	}{
		{figure{target: 3, atMost: true}, result{Value: 2, Min: 1, Max: 9, Target: 3, Pass: true}},
		{figure{target: 3, atMost: true, worst: true}, result{Value: 9, Min: 1, Max: 9, Target: 3}},
		{figure{target: 1, worst: true}, result{Value: 1, Min: 1, Max: 9, Target: 1, Pass: true}},
	} {
		if got := c.f.judge([]float64{9, 1, 2}); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}
