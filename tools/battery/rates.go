package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// horizon is how far ahead a job may be leased: the worker's default, which no check changes.
const horizon = 20 * time.Millisecond

func rates() []check {
	return []check{{
		id: "T1", what: "stamps and releases of all checks keep the rate",
		target: "stamps τ* ≤ 1 µs; releases and arrivals have no bound, because they contain the noise of " +
			"this machine",
		quick: scale{jobs: 1500, tenants: 6, window: 5 * time.Second},
		full:  scale{jobs: 6000, tenants: 6, window: 20 * time.Second},
		run:   rate,
	}}
}

// rateBook gathers how well every flow of every check kept its rate.
type rateBook struct {
	mu       sync.Mutex
	stamped  map[string]time.Duration // τ* by check and flow
	worst    string                   // the flow with the greatest τ* of stamps
	count    int                      // stamps
	arrived  time.Duration            // the greatest τ* of arrivals at the sink
	releases map[string][2]float64    // by check and process: releases, and those later than the horizon
}

func newRateBook() *rateBook {
	return &rateBook{stamped: map[string]time.Duration{}, releases: map[string][2]float64{}}
}

// stamps notes the last stamp of each job, by flow and by pool. Where a job left more than once its
// earlier stamps are not known, and τ* of the rest is no greater than that of all.
func (b *rateBook) stamps(w *world, jobs []wire.Job) {
	flows := map[[2]string][]instant{}
	for _, j := range jobs {
		if !j.Started.IsZero() {
			flow := [2]string{j.Tenant, j.Route}
			flows[flow] = append(flows[flow], w.ledger.instantOf(j.Started))
		}
	}
	for flow, at := range flows {
		b.note(w.id+" "+flow[0]+"/"+flow[1], w.settings.rate(flow[0]), at)
	}
	if w.settings.pool != "" {
		b.note(w.id+" pool "+poolName, w.settings.poolRate(), w.poolStamps(jobs))
	}
}

func (b *rateBook) note(flow string, r shaper.Rate, at []instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stamped[flow] = tau(r, at)
	b.count += len(at)
	if b.worst == "" || b.stamped[flow] > b.stamped[b.worst] {
		b.worst = flow
	}
}

// arrivals notes when deliveries reached the sink, retries included: with the noise of the network
// and of this machine.
func (b *rateBook) arrivals(w *world, deliveries []delivery) {
	worst := arrivals(w, deliveries)
	b.mu.Lock()
	b.arrived = max(b.arrived, worst)
	b.mu.Unlock()
}

// arrivals is the greatest τ* of the flows' arrivals.
func arrivals(w *world, deliveries []delivery) (worst time.Duration) {
	flows := map[[2]string][]instant{}
	for _, d := range deliveries {
		flow := [2]string{d.Tenant, d.Route}
		flows[flow] = append(flows[flow], d.At)
	}
	for flow, at := range flows {
		worst = max(worst, tau(w.settings.rate(flow[0]), at))
	}
	return worst
}

// lateness records what a worker reports of its releases; the last report of a process counts.
func (w *world) lateness(ctx context.Context, s *sluice) {
	m, err := w.metrics(ctx, s)
	if err != nil {
		return // it has ended: its last report counts
	}
	all := m["sluice_departure_lateness_seconds_count"]
	onTime, ok := m[fmt.Sprintf(`sluice_departure_lateness_seconds_bucket{le="%g"}`, horizon.Seconds())]
	if !ok {
		return
	}
	w.rates.mu.Lock()
	w.rates.releases[w.id+" "+s.name] = [2]float64{all, all - onTime}
	w.rates.mu.Unlock()
}

// rate loads a few flows of several rates over two workers, kills one worker, and checks all flows
// of the book.
func rate(ctx context.Context, w *world, f *findings) error {
	s := settings{tenants: map[string]tenant{
		"t0": {rate: "200/s"}, "t1": {rate: "7/300ms"}, "t2": {rate: "50/s"}, "t3": {rate: "999/10s"},
		"t4": {rate: "1/20ms"}, "t5": {rate: "90/s"},
	}}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	wait := w.background(ctx, load{
		name: "t", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("t", w.scale.tenants),
		insist: true,
	})
	if err := pause(ctx, w.scale.window/2); err != nil {
		return err
	}
	w.lateness(ctx, w.living("worker")[0])
	w.living("worker")[0].kill()
	if err := wait(); err != nil {
		return err
	}
	if _, err := w.settle(ctx, f); err != nil {
		return err
	}
	w.rates.check(f)
	return nil
}

func (b *rateBook) check(f *findings) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f.info("flows", float64(len(b.stamped)), "")
	f.info("stamps", float64(b.count), "")
	f.atMost("stamps τ*", us(b.stamped[b.worst]), 1, "µs")
	if b.stamped[b.worst] > time.Microsecond {
		f.because("the worst flow is %s", b.worst)
	}
	var all, late float64
	for _, r := range b.releases {
		all += r[0]
		late += r[1]
	}
	f.atLeast("releases", all, 1, "")
	f.info("later than the horizon", late, "")
	f.info("arrivals τ* with the noise of the way", ms(b.arrived), "ms")
}
