package simulate

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

func TestCappedStories(t *testing.T) {
	ten := shaper.Policy{Rate: rate("10/s"), Burst: 1, Capacity: 10, Concurrency: 2}
	for _, story := range []struct {
		name    string
		policy  func(*shaper.Policy)
		service time.Duration
		trace   Trace
		gone    []time.Duration // -1 for a refusal
		freed   []time.Duration // nil: as gone
	}{
		{"without a service time the cap means nothing", func(*shaper.Policy) {}, 0, at(0, 0, 0),
			[]time.Duration{0, 100 * ms, 200 * ms}, []time.Duration{0, 90 * ms, 190 * ms}},
		{"two at a time, faster than the rate", func(*shaper.Policy) {}, 150 * ms, at(0, 0, 0, 0),
			[]time.Duration{0, 100 * ms, 200 * ms, 300 * ms},
			[]time.Duration{0, 90 * ms, 190 * ms, 290 * ms}},
		{"two at a time, slower than the rate: by twos, as far apart as the rate wants",
			func(*shaper.Policy) {}, sec, at(0, 0, 0, 0, 0), []time.Duration{
				0, 100 * ms, 1000 * ms, 1100 * ms, 2000 * ms,
			}, []time.Duration{0, 90 * ms, 1000 * ms, 1100 * ms, 2000 * ms}},
		{"a place that is late by less than the slack keeps the grid", func(p *shaper.Policy) {
			p.Concurrency = 1
		}, 104 * ms, at(0, 0, 0, 0), []time.Duration{
			0, 104 * ms, 208 * ms, 312 * ms,
		}, nil},
		{"who comes while all are busy waits for the first that ends", func(p *shaper.Policy) {
			p.Concurrency = 1
		}, sec, at(0, 500*ms, 2500*ms), []time.Duration{
			0, sec, 2500 * ms,
		}, nil},
		{"a full queue refuses while all are busy", func(p *shaper.Policy) {
			p.Concurrency, p.Capacity = 1, 1
		}, sec, at(0, 100*ms, 200*ms, sec), []time.Duration{
			0, sec, -1, 2 * sec,
		}, nil},
		{"with a longest wait who does not get a place expires", func(p *shaper.Policy) {
			p.Concurrency, p.MaxWait = 1, 1500*ms
		}, sec, at(0, 0, 0, 0), []time.Duration{
			0, sec, 1500 * ms, 1500 * ms,
		}, nil},
	} {
		t.Run(story.name, func(t *testing.T) {
			p := ten
			story.policy(&p)
			r, err := Shaper(story.trace, p, Workers{Horizon: Horizon, Service: story.service})
			if err != nil {
				t.Fatal(err)
			}
			var gone, freed []time.Duration
			for i, fate := range r.Fates {
				if fate == Refused {
					gone, freed = append(gone, -1), append(freed, -1)
					continue
				}
				gone, freed = append(gone, r.Gone[i].Sub(start)), append(freed, r.Freed[i].Sub(start))
			}
			if diff := cmp.Diff(story.gone, gone); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if story.freed == nil {
				story.freed = story.gone
			}
			if diff := cmp.Diff(story.freed, freed); diff != "" {
				t.Errorf("places (-want +got):\n%s", diff)
			}
		})
	}
}

// A pace as slow as one interval a year charges a hundred of them at most, in either run.
func TestChargeOfAnExpensiveJob(t *testing.T) {
	slow := shaper.Policy{Rate: rate("1/366d"), Burst: 1, Capacity: 10}
	for _, concurrency := range []int64{0, 1} {
		slow.Concurrency = concurrency
		r, err := Shaper(Trace{{Cost: 101}, {Cost: 1}}, slow, Workers{Service: us})
		if err != nil {
			t.Fatal(err)
		}
		if want := shaper.Instant(0).Add(100 * 366 * 24 * time.Hour); r.Gone[1] != want {
			t.Errorf("concurrency %d: the second leaves at %d, want %d", concurrency, r.Gone[1], want)
		}
	}
}

// TestForeseeCappedAgreesWithFlow: foreseeCapped gives the run that a flow makes event by event. A
// cap that is never reached changes nothing, and workers never hold more jobs than the cap.
func TestForeseeCappedAgreesWithFlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := flowPolicies().Draw(t, "policy")
		p.MaxWait = 0
		p.Concurrency = rapid.Int64Range(1, 6).Draw(t, "concurrency")
		interval := time.Duration(max(1, p.Rate.Period.Microseconds()/p.Rate.Limit)) * us
		w := Workers{Service: rapid.SampledFrom([]time.Duration{
			us, interval / 2, interval, 2 * interval, 7 * interval, ms, sec,
		}).Draw(t, "service") + us}
		trace := traces(p.Rate).Draw(t, "trace")
		got, err := Shaper(trace, p, w)
		if err != nil {
			if errors.As(err, new(shaper.Problems)) {
				t.Skip(err) // it would outlast the calendar
			}
			t.Fatal(err)
		}
		want := newRun(NameShaper, trace, p.Rate)
		want.live(p, w.Service)
		if diff := cmp.Diff(want.Fates, got.Fates); diff != "" {
			t.Fatalf("%+v (-lived +foreseen):\n%s", p, diff)
		}
		if diff := cmp.Diff(want.Gone, got.Gone); diff != "" {
			t.Fatalf("%+v (-lived +foreseen):\n%s", p, diff)
		}
		w.Horizon = horizons().Draw(t, "horizon")
		ahead, err := Shaper(trace, p, w)
		if err != nil {
			t.Fatal(err)
		}
		var with []int // those that left, in order
		for i, fate := range ahead.Fates {
			if fate != Departed {
				continue
			}
			if ahead.Freed[i] < trace[i].At || ahead.Freed[i] > ahead.Gone[i] {
				t.Fatalf("arrival %d at %d had a worker at %d and left at %d", i, trace[i].At, ahead.Freed[i],
					ahead.Gone[i])
			}
			if k := len(with) - int(p.Concurrency); k >= 0 && ahead.Freed[i] < ahead.Gone[with[k]].Add(w.Service) {
				t.Fatalf("arrival %d had a worker at %d, when %d had theirs", i, ahead.Freed[i], p.Concurrency)
			}
			with = append(with, i)
		}
		p.Concurrency = int64(len(trace))
		capped, err := Shaper(trace, p, w)
		if err != nil {
			t.Skip(err)
		}
		p.Concurrency = 0
		free, err := Shaper(trace, p, w)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]any{free.Fates, free.Gone, free.Freed},
			[]any{capped.Fates, capped.Gone, capped.Freed}); diff != "" {
			t.Fatalf("%+v (-without a cap +with one that is not reached):\n%s", p, diff)
		}
	})
}

func TestWorkersThatCannotBe(t *testing.T) {
	p := shaper.Policy{Rate: rate("10/s"), Burst: 1, Capacity: 1000, Concurrency: 1}
	for _, w := range []Workers{
		{Horizon: -1}, {Horizon: 2 * sec}, {Service: -1}, {Service: shaper.MaxPeriod + 1},
		{Service: shaper.MaxPeriod},
	} {
		if _, err := Shaper(at(repeat(1000, 0)...), p, w); !errors.As(err, new(shaper.Problems)) {
			t.Errorf("%+v: %v", w, err)
		}
	}
}
