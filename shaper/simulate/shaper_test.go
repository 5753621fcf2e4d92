package simulate

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

func TestShaperStories(t *testing.T) {
	// What became of an arrival: the time at which it left, or one of these.
	const full, late, expired = -1, -2, -3
	ten := shaper.Policy{Rate: rate("10/s"), Burst: 1, Capacity: 3}
	with := func(change func(p *shaper.Policy)) shaper.Policy {
		p := ten
		change(&p)
		return p
	}
	costly := func(costs ...int64) Trace {
		trace := at(repeat(len(costs), 0)...)
		for i, c := range costs {
			trace[i].Cost = c
		}
		return trace
	}
	for _, story := range []struct {
		name   string
		policy shaper.Policy
		trace  Trace
		want   []time.Duration
	}{
		{"at the rate nothing waits, with a single place", with(func(p *shaper.Policy) {
			p.Capacity = 1
		}), at(0, 100*ms, 200*ms, 300*ms), []time.Duration{
			0, 100 * ms, 200 * ms, 300 * ms,
		}},
		// The first leaves at its own instant, before the next arrives.
		{"a bunch is spaced, and refused beyond the places", ten, at(repeat(6, 0)...),
			[]time.Duration{0, 100 * ms, 200 * ms, full, full, full}},
		{"a place is free at the instant of a departure, not before", ten,
			at(0, 0, 0, 0, 100*ms-us, 100*ms, 100*ms), []time.Duration{
				0, 100 * ms, 200 * ms, full, 300 * ms, 400 * ms, full,
			}},
		{"no capacity admits nothing", with(func(p *shaper.Policy) {
			p.Capacity = 0
		}), at(0, sec), []time.Duration{full, full}},
		{"a burst leaves at once", with(func(p *shaper.Policy) {
			p.Burst, p.Capacity = 3, 5
		}), at(repeat(5, 0)...), []time.Duration{0, 0, 0, 100 * ms, 200 * ms}},
		{"T that no microsecond divides keeps its remainder", shaper.Policy{Rate: rate("7/3s"), Burst: 1,
			Capacity: 10}, at(repeat(8, 0)...), []time.Duration{
			0, 428_571 * us, 857_142 * us, 1_285_714 * us, 1_714_285 * us, 2_142_857 * us, 2_571_428 * us, 3 * sec,
		}},
		{"a job of cost 3 takes three intervals after it", with(func(p *shaper.Policy) {
			p.Capacity = 4
		}), costly(3, 1, 2, 1), []time.Duration{0, 300 * ms, 400 * ms, 600 * ms}},
		{"the strictest of several rates wins", with(func(p *shaper.Policy) {
			p.Capacity, p.Rates = 4, []shaper.Pace{{Rate: rate("3/m"), Burst: 2}}
		}), at(repeat(4, 0)...),
			[]time.Duration{0, 100 * ms, 20 * sec, 40 * sec}},
		{"a wait that cannot be kept is refused at once", with(func(p *shaper.Policy) {
			p.MaxWait = 150 * ms
		}), at(repeat(3, 0)...), []time.Duration{0, 100 * ms, late}},
		{"a wait is foreseen with several rates, too",
			shaper.Policy{
				Rate: rate("10/s"), Burst: 1, Capacity: 9, MaxWait: sec,
				Rates: []shaper.Pace{{Rate: rate("10/s"), Burst: 3}, {Rate: rate("2/s"), Burst: 3}},
			},
			at(append(repeat(7, 0), 1200*ms)...), []time.Duration{0, 100 * ms, 200 * ms, 500 * ms, sec, late,
				late, 1500 * ms}},
	} {
		t.Run(story.name, func(t *testing.T) {
			r, err := Shaper(story.trace, story.policy, Workers{})
			if err != nil {
				t.Fatal(err)
			}
			var got []time.Duration
			for i, fate := range r.Fates {
				got = append(got, map[Fate]time.Duration{
					Refused: full, Unreachable: late, Expired: expired, Departed: r.Gone[i].Sub(start),
				}[fate])
			}
			if diff := cmp.Diff(story.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPausedAndDrainingFlows: jobs of a paused flow stay until their max wait is over, or forever;
// a draining flow accepts none.
func TestPausedAndDrainingFlows(t *testing.T) {
	p := shaper.Policy{Rate: rate("10/s"), Burst: 1, Capacity: 2, Paused: true}
	for _, story := range []struct {
		name   string
		change func(*shaper.Policy)
		want   []Fate
		depth  int64
	}{
		{"paused", func(*shaper.Policy) {}, []Fate{Waiting, Waiting, Refused, Refused, Refused}, 2},
		{"paused, with a longest wait", func(p *shaper.Policy) {
			p.MaxWait = sec
		}, []Fate{Expired, Expired, Refused, Expired, Refused}, 2},
		{"paused and without a place", func(p *shaper.Policy) {
			p.Capacity = 0
		}, []Fate{Refused, Refused, Refused, Refused, Refused}, 0},
		{"draining", func(p *shaper.Policy) {
			p.Paused, p.Draining = false, true
		}, []Fate{Refused, Refused, Refused, Refused, Refused}, 0},
	} {
		p := p
		story.change(&p)
		r, err := Shaper(at(0, 500*ms, 900*ms, sec, 1400*ms), p, Workers{Horizon: Horizon})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(story.want, r.Fates); diff != "" {
			t.Errorf("%s (-want +got):\n%s", story.name, diff)
		}
		report := r.Report()
		if report.PeakDepth != story.depth || report.Departed != 0 || report.WaitMax != 0 ||
			report.Admitted+report.Refused != 5 {
			t.Errorf("%s: %+v", story.name, report)
		}
		if end := r.End(); end > start.Add(2*sec) {
			t.Errorf("%s: ends at %v", story.name, end.Sub(start))
		}
		r.Series(100, 0)
	}
}

// TestTogetherSumsUpRuns: Together sums up several flows; of one flow it is its own report.
func TestTogetherSumsUpRuns(t *testing.T) {
	p := shaper.Policy{Rate: rate("10/s"), Burst: 1, Capacity: 3}
	one, err := Shaper(at(repeat(6, 0)...), p, Workers{})
	if err != nil {
		t.Fatal(err)
	}
	p.Capacity = 1
	other, err := Shaper(at(0, 0, 0, 5*sec), p, Workers{})
	if err != nil {
		t.Fatal(err)
	}
	want := Report{
		Name: NameShaper, Arrived: 10, Admitted: 5, Refused: 5, Delayed: 2, Departed: 5, WaitP95: 200 * ms,
		WaitP99: 200 * ms, WaitMax: 200 * ms,
		PeakDepth: 3, Ends: 5 * sec,
	}
	if diff := cmp.Diff(want, Together(one, other)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	alone := one.Report()
	alone.FullestWindow, alone.Window = 0, 0
	if diff := cmp.Diff(alone, Together(one)); diff != "" {
		t.Errorf("alone (-want +got):\n%s", diff)
	}
	if got := Together(); got != (Report{}) {
		t.Errorf("none: %+v", got)
	}
}

// TestWorkersLookAhead: a place is free when a worker looks, half a horizon before the first stamp
// that waits, or at once into an empty queue.
func TestWorkersLookAhead(t *testing.T) {
	for _, story := range []struct {
		name  string
		rate  string
		most  int64 // capacity
		trace Trace
		freed []time.Duration // -1 for a refusal
	}{
		{"into an empty queue", "10/s", 2, at(0, 50*ms, 190*ms, 285*ms),
			[]time.Duration{0, 90 * ms, 190 * ms, 285 * ms}},
		{"a poll leases what is stamped up to a horizon later", "200/s", 7, at(repeat(7, 0)...), []time.Duration{
			// The first five at 0 to 20 ms; the poll after that is for 25 ms.
			0, 0, 0, 0, 0, 15 * ms, 15 * ms,
		}},
		{"one that comes after the poll is left to the next", "200/s", 7,
			at(append(repeat(6, 0), 14*ms, 16*ms, 31*ms)...), []time.Duration{
				0, 0, 0, 0, 0, 15 * ms, 15 * ms, 16 * ms, 31 * ms,
			}},
		{"a full queue takes the next half a horizon early", "10/s", 2, at(0, ms, 2*ms, 89*ms, 90*ms, 91*ms),
			[]time.Duration{0, 90 * ms, 190 * ms, -1, 290 * ms, -1}},
	} {
		t.Run(story.name, func(t *testing.T) {
			r, err := Shaper(story.trace, shaper.Policy{
				Rate: rate(story.rate), Burst: 1, Capacity: story.most,
			}, Workers{Horizon: Horizon})
			if err != nil {
				t.Fatal(err)
			}
			var got []time.Duration
			for i, fate := range r.Fates {
				if got = append(got, r.Freed[i].Sub(start)); fate != Departed {
					got[i] = -1
				}
			}
			if diff := cmp.Diff(story.freed, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestForeseeAgreesWithFlow: foresee gives the run that shaper.Admit and shaper.Bucket make event
// by event.
func TestForeseeAgreesWithFlow(t *testing.T) {
	foreseen := 0
	rapid.Check(t, func(t *rapid.T) {
		p := flowPolicies().Draw(t, "policy")
		trace := traces(p.Rate).Draw(t, "trace")
		got, err := Shaper(trace, p, Workers{})
		if err != nil {
			if errors.As(err, new(shaper.Problems)) {
				t.Skip(err) // it would outlast the calendar
			}
			t.Fatal(err)
		}
		if !foreseeable(trace, p) {
			t.Skip("lived anyway")
		}
		foreseen++
		want := newRun(NameShaper, trace, p.Rate)
		want.live(p, 0)
		if diff := cmp.Diff(want.Fates, got.Fates); diff != "" {
			t.Fatalf("%+v (-lived +foreseen):\n%s", p, diff)
		}
		if diff := cmp.Diff(want.Gone, got.Gone); diff != "" {
			t.Fatalf("%+v (-lived +foreseen):\n%s", p, diff)
		}
	})
	if foreseen == 0 {
		t.Error("nothing was compared")
	}
}

// TestRunsConform: bound, rate, order and max wait hold in every run, however it was made.
func TestRunsConform(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := flowPolicies().Draw(t, "policy")
		trace := traces(p.Rate).Draw(t, "trace")
		horizon := horizons().Draw(t, "horizon")
		r, err := Shaper(trace, p, Workers{Horizon: horizon})
		if err != nil {
			t.Skip(err)
		}
		last, lastFreed := shaper.Instant(0), shaper.Instant(0)
		for i, a := range trace {
			if !r.Fates[i].Admitted() {
				continue
			}
			gone := r.Gone[i]
			if gone < a.At || gone < last || p.MaxWait > 0 && gone.Sub(a.At) > p.MaxWait {
				t.Fatalf("arrival %d at %d, cost %d, left at %d, after %d", i, a.At, a.Cost, gone, last)
			}
			freed := r.Freed[i]
			if freed < a.At || freed < lastFreed || freed > gone || gone.Sub(freed) > horizon {
				t.Fatalf("arrival %d at %d, left at %d, its place was free at %d, after %d", i, a.At, gone,
					freed, lastFreed)
			}
			last, lastFreed = gone, freed
		}
		if peak := r.peak(); peak > p.Capacity {
			t.Fatalf("%d waited in %d places", peak, p.Capacity)
		}
		report := r.Report()
		if report.Admitted+report.Refused != report.Arrived || report.WaitP50 > report.WaitP95 ||
			report.WaitP95 > report.WaitP99 || report.WaitP99 > report.WaitMax {
			t.Fatalf("%+v", report)
		}
	})
}

func TestWhatCannotBeReplayed(t *testing.T) {
	legal := shaper.Policy{Rate: rate("10/s"), Burst: 1, Capacity: 3}
	for _, c := range []struct {
		name     string
		trace    Trace
		policy   shaper.Policy
		problems bool
	}{
		{"no arrivals", nil, legal, false},
		{"out of order", at(sec, 0), legal, false},
		{"before 1970", Trace{{At: -1, Cost: 1}}, legal, false},
		{"a cost of none", Trace{{At: 1}}, legal, false},
		{"a cost above the greatest", Trace{{At: 1, Cost: shaper.MaxCost + 1}}, legal, false},
		{"no rate", at(0), shaper.Policy{Burst: 1}, true},
		{"a queue that outlasts the calendar", at(repeat(1000, 0)...),
			shaper.Policy{Rate: rate("1/366d"), Burst: 1, Capacity: 1000}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Shaper(c.trace, c.policy, Workers{})
			if c.problems != errors.As(err, new(shaper.Problems)) || c.problems == errors.Is(err, ErrTrace) {
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := Limiter(at(sec, 0), limiter.Policy{Algorithm: limiter.SlidingLog,
		Rate: rate("10/s")}); !errors.Is(err, ErrTrace) {
		t.Errorf("%v", err)
	}
	if _, err := Limiter(at(0), limiter.Policy{}); !errors.As(err, new(shaper.Problems)) {
		t.Errorf("%v", err)
	}
}

// TestLimiterRunsDecide: a limiter's run is its decisions, one after the other.
func TestLimiterRunsDecide(t *testing.T) {
	trace := at(append(repeat(15, 950*ms), append(repeat(15, sec), repeat(15, 1500*ms)...)...)...)
	for _, a := range limiter.Algorithms() {
		p := limiter.Policy{Algorithm: a, Rate: rate("10/s")}
		r, err := Limiter(trace, p)
		if err != nil {
			t.Fatal(err)
		}
		var s limiter.State
		for i, arrival := range trace {
			var d limiter.Decision
			if s, d = limiter.Decide(s, p, arrival.At, 1); d.Allowed != (r.Fates[i] == Departed) {
				t.Errorf("%s, arrival %d: %v", a, i, d)
			}
		}
		report := r.Report()
		if report.Name != string(a) || report.WaitMax != 0 || report.PeakDepth != 0 || report.Delayed != 0 {
			t.Errorf("%+v", report)
		}
	}
}

func TestReport(t *testing.T) {
	// 10/s with five places: 0 leaves at once, four wait, the sixth is refused, one comes when all
	// is over.
	r, err := Shaper(at(append(repeat(6, 0), sec)...), shaper.Policy{Rate: rate("10/s"), Burst: 1,
		Capacity: 5}, Workers{})
	if err != nil {
		t.Fatal(err)
	}
	want := Report{
		Name: "shaper", Arrived: 7, Admitted: 6, Refused: 1, Delayed: 4, Departed: 6, WaitP50: 100 * ms,
		WaitP95: 400 * ms, WaitP99: 400 * ms, WaitMax: 400 * ms,
		PeakDepth: 5, FullestWindow: 5, Window: sec, Ends: sec,
	}
	if diff := cmp.Diff(want, r.Report()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestQuantiles holds the selection against sorting.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		waits := rapid.SliceOf(rapid.Int64Range(0, 50)).Draw(t, "waits")
		sorted := slices.Sorted(slices.Values(waits))
		p50, p95, p99, most := quantiles(slices.Clone(waits))
		for _, q := range []struct {
			percent int
			got     time.Duration
		}{{50, p50}, {95, p95}, {99, p99}, {100, most}} {
			want := time.Duration(0)
			if n := len(sorted); n > 0 {
				want = time.Duration(sorted[max((n*q.percent+99)/100-1, 0)]) * us
			}
			if q.got != want {
				t.Fatalf("%d %% of %v: %v, want %v", q.percent, sorted, q.got, want)
			}
		}
	})
}

// TestSeriesAddUp: the steps hold all arrivals, departures and refusals, and the depth that a poll
// at each event finds.
func TestSeriesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := flowPolicies().Draw(t, "policy")
		r, err := Shaper(traces(p.Rate).Draw(t, "trace"), p, Workers{Horizon: horizons().Draw(t, "horizon")})
		if err != nil {
			t.Skip(err)
		}
		s := r.Series(rapid.IntRange(1, 50).Draw(t, "steps"), 0)
		sum := func(values []int64) (n int64) {
			for _, v := range values {
				n += v
			}
			return n
		}
		report := r.Report()
		if sum(s.Arrived) != report.Arrived || sum(s.Refused) != report.Refused ||
			sum(s.Passed) != report.Admitted-report.Expired {
			t.Fatalf("%+v of %+v", s, report)
		}
		if slices.Max(s.Depth) != report.PeakDepth {
			t.Fatalf("depth %v, peak %d", s.Depth, report.PeakDepth)
		}
		for k, got := range s.Depth {
			step := shaper.Instant(s.Step.Microseconds())
			from := s.Begin + shaper.Instant(k)*step // in µs, for two steps may be longer than a time.Duration holds
			if want := r.depthWithin(from, from+step); got != want {
				t.Fatalf("step %d: depth %d, want %d", k, got, want)
			}
		}
	})
}

// depthWithin is the most that waited in a stretch of time, counted anew for each instant at which
// it may grow.
func (r *Run) depthWithin(from, to shaper.Instant) int64 {
	var most int64
	look := func(now shaper.Instant, before int) {
		var depth int64
		for i, a := range r.Trace[:before] {
			// The last to arrive are counted in, though one of them may leave at once.
			if r.Fates[i].Admitted() && a.At <= now && (r.Freed[i] > now || a.At == r.Trace[before-1].At) {
				depth++
			}
		}
		most = max(most, depth)
	}
	for i, a := range r.Trace {
		if a.At >= from && a.At < to && r.Fates[i].Admitted() {
			look(a.At, i+1)
		}
	}
	var depth int64
	for i, a := range r.Trace {
		if r.Fates[i].Admitted() && a.At < from && r.Freed[i] >= from {
			depth++
		}
	}
	return max(most, depth)
}

// BenchmarkShaper replays a flash sale of a million arrivals; an op is one arrival.
func BenchmarkShaper(b *testing.B) {
	trace, err := Generator{
		Shape: FlashSale, Rate: rate("2000/s"), Peak: rate("10000/s"), For: 4 * time.Minute, Seed: 1,
	}.Trace()
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		policy shaper.Policy
	}{
		{"plain", shaper.Policy{Rate: rate("3000/s"), Burst: 1, Capacity: 100_000}},
		{"burst", shaper.Policy{Rate: rate("7000/3s"), Burst: 50, Capacity: 1000}},
		{"two rates", shaper.Policy{
			Rate: rate("3000/s"), Burst: 1, Capacity: 100_000,
			Rates: []shaper.Pace{{Rate: rate("200000/m"), Burst: 1000}},
		}},
		{"max wait", shaper.Policy{Rate: rate("3000/s"), Burst: 1, Capacity: 100_000, MaxWait: 5 * sec}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			done := 0
			for b.Loop() {
				r, err := Shaper(trace, c.policy, Workers{Horizon: Horizon})
				if err != nil {
					b.Fatal(err)
				}
				done += len(r.Trace)
			}
			b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "arrivals/s")
		})
	}
	b.Run("with report", func(b *testing.B) {
		done := 0
		for b.Loop() {
			r, err := Shaper(trace, shaper.Policy{Rate: rate("3000/s"), Burst: 1, Capacity: 100_000}, Workers{})
			if err != nil {
				b.Fatal(err)
			}
			r.Report()
			done += len(r.Trace)
		}
		b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "arrivals/s")
	})
}

func BenchmarkLimiter(b *testing.B) {
	trace, err := Generator{
		Shape: FlashSale, Rate: rate("2000/s"), Peak: rate("10000/s"), For: 4 * time.Minute, Seed: 1,
	}.Trace()
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range limiter.Algorithms() {
		b.Run(string(a), func(b *testing.B) {
			done := 0
			for b.Loop() {
				if _, err := Limiter(trace, limiter.Policy{Algorithm: a, Rate: rate("3000/s")}); err != nil {
					b.Fatal(err)
				}
				done += len(trace)
			}
			b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "arrivals/s")
		})
	}
}
