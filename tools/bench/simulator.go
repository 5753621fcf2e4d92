package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// simulatorFigures are about the simulator, which needs neither Redis nor a process.
func simulatorFigures() []figure {
	return []figure{{
		id: "SIM",
		what: "arrivals a second that the simulator replays through the shaper on one core, the slower of " +
			"two kinds of trace",
		unit:   "arrivals/s",
		target: 5_000_000, measure: measureSimulator,
	}}
}

// simulatorArrivals is how many each trace has, about.
const simulatorArrivals = 4_000_000

// simulatorTrace is one kind of trace with the policy that it goes through.
type simulatorTrace struct {
	name   string
	trace  simulate.Trace
	policy shaper.Policy
}

// measureSimulator replays a queue that never empties, where everything waits, and one that is too
// small, where much is refused.
func measureSimulator(ctx context.Context, b *bench) ([]float64, error) {
	second := func(limit int64) shaper.Rate { return shaper.Rate{Limit: limit, Period: time.Second} }
	traces := []simulatorTrace{
		{name: "all wait", policy: shaper.Policy{Rate: second(2990), Burst: 1, Capacity: 1_000_000}},
		{name: "many are refused", policy: shaper.Policy{Rate: second(1999), Burst: 3, Capacity: 500}},
	}
	for i := range traces {
		var err error
		if traces[i].trace, err = (simulate.Generator{
			Shape: simulate.Poisson, Rate: second(3000), For: simulatorArrivals / 3000 * time.Second,
			Seed: uint64(i + 1),
		}).Trace(); err != nil {
			return nil, err
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that no other core collects the garbage
	var samples []float64
	lines := []string{fmt.Sprintf("%-18s %12s %12s %12s %14s", "SIM", "arrivals", "admitted", "refused",
		"arrivals/s")}
	for n := range b.runs + 1 {
		slowest := 0.0
		for _, t := range traces {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			runtime.GC()
			start := time.Now()
			r, err := simulate.Shaper(t.trace, t.policy, simulate.Workers{Horizon: simulate.Horizon})
			if err != nil {
				return nil, err
			}
			speed := float64(len(t.trace)) / time.Since(start).Seconds()
			if slowest == 0 || speed < slowest {
				slowest = speed
			}
			if n == b.runs {
				report := r.Report()
				lines = append(lines, fmt.Sprintf("%-18s %12d %12d %12d %14.0f", t.name, report.Arrived,
					report.Admitted, report.Refused, speed))
			}
		}
		b.progress("SIM run %d: %.1f million a second", n, slowest/1e6)
		if n > 0 { // the first run warms up
			samples = append(samples, slowest)
		}
	}
	b.detail("SIM", lines, nil)
	return samples, nil
}
