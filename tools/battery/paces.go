package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// paces are the checks of flows under their plain rate.
func paces() []check {
	return []check{
		{
			id: "T2", what: "no under-run: a backlog, no kills",
			target: "departures in the window ≥ ⌊window/T⌋ − 1, each flow",
			quick:  scale{window: 15 * time.Second},
			full:   scale{window: 60 * time.Second, limit: 3 * time.Minute},
			run:    underrun,
		},
		{
			id: "T3", what: "half of the deliveries fail",
			target: "attempts, not jobs, obey the rate",
			quick:  scale{window: 6 * time.Second},
			full:   scale{window: 30 * time.Second, limit: 2 * time.Minute},
			run:    failures,
		},
	}
}

// underrun gives flows more than they can send in the window and counts the stamps in it, from the
// first on.
func underrun(ctx context.Context, w *world, f *findings) error {
	s := settings{tenants: map[string]tenant{"a": {rate: "200/s"}, "b": {rate: "50/s"}, "c": {rate: "7/3s"}}}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	flows := []string{"a", "b", "c"}
	var loads []load
	for _, name := range flows {
		loads = append(loads, load{
			name: name, jobs: int(w.scale.window/interval(w.settings.rate(name))) + 10, tenants: one(name),
		})
	}
	if err := w.stock(ctx, flows, loads...); err != nil {
		return err
	}
	w.say("draining for %v", w.scale.window)
	if err := pause(ctx, w.scale.window); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.twice(f)
	for _, name := range flows {
		stamps := w.stampsOf(e.jobs, name)
		n := 0
		for _, at := range stamps {
			if at.since(stamps[0]) <= w.scale.window {
				n++
			}
		}
		r := w.settings.rate(name)
		slots := int64(w.scale.window) * r.Limit / int64(r.Period)
		f.atLeast("departures at "+r.String(), float64(n), float64(slots-1), "")
		f.timed()
	}
	return nil
}

// stampsOf is the stamps of the tenant's jobs in their order.
func (w *world) stampsOf(jobs []wire.Job, tenant string) []instant {
	var stamps []instant
	for _, j := range jobs {
		if j.Tenant == tenant {
			stamps = append(stamps, w.ledger.instantOf(j.Started))
		}
	}
	slices.Sort(stamps)
	return stamps
}

// failures lets half of the deliveries of a backlog fail. A job has only its last stamp, so each
// failed one is asked for it while it waits for its retry; the departures that the tenant counts
// are all attempts.
func failures(ctx context.Context, w *world, f *findings) error {
	const name = "flaky"
	s := settings{
		tenants: map[string]tenant{name: {rate: "100/s"}},
		routes: map[string]string{"default": "timeout: 10s, retry: { max_attempts: 30, min_backoff: 500ms, " +
			"max_backoff: 500ms }"},
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	failed := make(chan delivery, 1000)
	seed := w.rng.Uint64()
	w.sink.set(func(d delivery, nth int) answer {
		// A coin for each attempt of each job, so that it does not hang on the order of arrivals.
		h := fnv.New64a()
		fmt.Fprint(h, seed, d.Body, nth)
		if rand.New(rand.NewPCG(h.Sum64(), 0)).IntN(2) == 0 {
			failed <- d
			return answer{status: http.StatusInternalServerError}
		}
		return answer{status: http.StatusOK}
	})
	stamps := map[instant]bool{}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for d := range failed {
			_ = pause(ctx, (d.At + instant(100*time.Millisecond)).since(w.ledger.now()))
			if j, err := w.job(ctx, name, d.Job); err == nil && j.State == "retrying" {
				stamps[w.ledger.instantOf(j.Started)] = true
			}
		}
	}()
	r := w.settings.rate(name)
	jobs := int(w.scale.window / interval(r) / 2) // two attempts each
	if err := w.submit(ctx, load{name: name, jobs: jobs, tenants: one(name)}); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	close(failed) // drained: there are no more deliveries
	<-asked
	e.succeeded(f)
	e.twice(f)
	for _, at := range w.stampsOf(e.jobs, name) {
		stamps[at] = true
	}
	attempts := len(e.deliveries)
	t, err := w.operate(ctx, w.living("api")[0], http.MethodGet, name, "")
	if err != nil {
		return err
	}
	f.info("attempts", float64(attempts), "")
	f.atLeast("attempts a job", float64(attempts)/float64(jobs), 1.5, "")
	f.atLeast("stamps known", float64(len(stamps)), 0.9*float64(attempts), "")
	f.atMost("stamps τ*", us(tau(r, slices.Collect(maps.Keys(stamps)))), 1, "µs")
	f.atMost("attempts that were no departures", math.Abs(float64(attempts)-float64(t.Departed)), 0, "")
	f.info("arrivals τ* with the noise of the way", ms(arrivals(w, e.deliveries)), "ms")
	return nil
}
