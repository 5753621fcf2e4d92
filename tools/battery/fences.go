package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// grace is what a worker gives its running deliveries at the stop.
const grace = 20 * time.Second

// fences are the checks of workers that stop in the midst of their work and live on, or end in
// order.
func fences() []check {
	return []check{
		{
			id: "R7", what: "SIGSTOP a worker for two leases, SIGCONT",
			target: "stale settles refused, all of them; every job ends once" + poolTarget,
			quick:  scale{jobs: 60, kills: 1},
			full:   scale{jobs: 200, kills: 4, limit: 2 * time.Minute},
			run:    stale,
		},
		{
			id: "D1", what: "SIGTERM under load, of an api, of a busy worker, of one whose upstream hangs",
			target: "exit 0 in ≤ grace + 1 s, nothing delivered twice",
			quick:  scale{jobs: 2000, tenants: 20, window: 4 * time.Second},
			full:   scale{jobs: 10_000, tenants: 20, window: 15 * time.Second, limit: 2 * time.Minute},
			run:    terminated,
		},
	}
}

// stale lets one worker's deliveries be answered with a refusal for good while it is stopped, and
// another's with success: a stale settle that had an effect would make its job dead.
func stale(ctx context.Context, w *world, f *findings) error {
	s := settings{defaults: tenant{rate: "200/s"}, pool: "200/s"}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	var refusals, others float64
	flying := 0
	var changed []string
	var from instant
	for round := range w.scale.kills + 1 {
		// Also with the worker that was stopped: a shard must not change its owner on the way.
		if err := w.shared(ctx); err != nil {
			return err
		}
		l := load{name: fmt.Sprintf("flow%d", round), jobs: w.scale.jobs}
		tenants := []string{l.name}
		l.tenants = one(l.name)
		if round == w.scale.kills { // the last round is of the pool
			tenants, l.route = poolTenants, poolRoute
			l.tenants = func(i int) string { return poolTenants[i%len(poolTenants)] }
		}
		hold := make(chan struct{})
		w.sink.set(func(_ delivery, nth int) answer {
			if nth == 1 {
				return answer{status: http.StatusBadRequest, until: hold}
			}
			return answer{status: http.StatusOK}
		})
		if err := w.submit(ctx, l); err != nil {
			return err
		}
		victim, held, err := w.holder(ctx, w.scale.jobs, tenants...)
		if err != nil {
			return err
		}
		if len(held) < w.scale.jobs { // those with the other worker would rightly end with the refusal
			return fmt.Errorf("%s holds %d jobs of %d", victim.name, len(held), w.scale.jobs)
		}
		before, err := w.metrics(ctx, victim)
		if err != nil {
			return err
		}
		victim.stop()
		close(hold)
		from = w.ledger.now()
		w.say("%s is stopped with %d deliveries", victim.name, len(held))
		if err := pause(ctx, 2*w.settings.lease); err != nil {
			return err
		}
		if err := w.drain(ctx); err != nil {
			return err
		}
		then, err := w.flow(ctx, tenants...)
		if err != nil {
			return err
		}
		victim.cont()
		flying += len(held)
		var staled, other float64
		waited, cancel := context.WithTimeout(ctx, 10*time.Second)
		// The metrics show it.
		_ = until(waited, "the settles are refused", 20*time.Millisecond, func() (bool, error) {
			m, err := w.metrics(waited, victim)
			staled, other = settlesSince(before, m)
			return staled+other >= float64(len(held)), err
		})
		cancel()
		refusals += staled
		others += other
		now, err := w.flow(ctx, tenants...)
		if err != nil {
			return err
		}
		for id, was := range then {
			is := now[id]
			if is.State != was.State || !is.Finished.Equal(was.Finished) || is.Attempts != was.Attempts {
				changed = append(changed, fmt.Sprintf("job %s was %s at %v and is %s at %v", id, was.State,
					was.Finished, is.State, is.Finished))
			}
		}
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	f.info("in flight at the stop", float64(flying), "")
	f.atLeast("stale settles refused", refusals, float64(flying), "")
	f.atMost("settles of the stopped worker that counted", others, 0, "")
	f.none("jobs changed after their end", changed)
	e.pool(w, f, from) // which another worker took over
	return nil
}

// settlesSince counts the settles between two readings of a worker's metrics: those refused as
// stale, and all others.
func settlesSince(before, after map[string]float64) (stale, other float64) {
	for name, n := range after {
		switch {
		case name == `sluice_deliveries_total{outcome="stale"}`:
			stale = n - before[name]
		case strings.HasPrefix(name, "sluice_deliveries_total{"):
			other += n - before[name]
		}
	}
	return stale, other
}

// flow reads the jobs of some tenants that were acknowledged, by id.
func (w *world) flow(ctx context.Context, tenants ...string) (map[string]wire.Job, error) {
	owners := map[string]string{}
	requests, _ := w.ledger.entries()
	for _, r := range requests {
		if slices.Contains(tenants, r.Tenant) && r.Job != "" {
			owners[r.Job] = r.Tenant
		}
	}
	jobs, err := w.read(ctx, owners)
	byID := map[string]wire.Job{}
	for _, j := range jobs {
		byID[j.ID] = j
	}
	return byID, err
}

// terminated ends an api and a worker under load, then the other worker while a delivery hangs.
func terminated(ctx context.Context, w *world, f *findings) error {
	s := settings{
		defaults: tenant{rate: "100/s"},
		lease:    5 * time.Second,
		routes: map[string]string{"hang": "timeout: 60s, retry: { max_attempts: 5, min_backoff: 100ms, " +
			"max_backoff: 200ms }"},
	}
	if err := w.open(ctx, s, "worker", "worker", "api"); err != nil {
		return err
	}
	if err := w.shared(ctx); err != nil {
		return err
	}
	busy := slowly(10*time.Millisecond, 600*time.Millisecond)
	w.sink.set(func(d delivery, nth int) answer {
		if d.Route == "hang" && nth == 1 {
			return answer{} // never: it is cut off at the end of the grace, and that attempt has failed
		}
		return busy(d, nth)
	})
	wait := w.background(ctx, load{
		name: "d1", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
		insist: true,
	})
	if err := w.submit(ctx, load{name: "hang", jobs: 3, tenants: one("hang"), route: "hang"}); err != nil {
		return err
	}
	if err := until(ctx, "a delivery hangs", 10*time.Millisecond, func() (bool, error) {
		return w.sink.insideNow("hang") == 3, nil
	}); err != nil {
		return err
	}
	var hung, free *sluice
	for _, d := range w.ledger.delivered(0) {
		for _, p := range w.living("worker") {
			if d.Route == "hang" && p.name == d.Process {
				hung = p
			}
		}
	}
	for _, p := range w.living("worker") {
		if p != hung {
			free = p
		}
	}
	var took []time.Duration
	terminate := func(p *sluice) error {
		w.say("SIGTERM to %s", p.name)
		start := time.Now()
		p.signal(syscall.SIGTERM)
		limited, cancel := context.WithTimeout(ctx, grace+10*time.Second)
		defer cancel()
		code, err := p.wait(limited)
		took = append(took, time.Since(start))
		if err != nil {
			p.signal(syscall.SIGQUIT) // what its goroutines are at goes into its log, for -keep
			<-p.exited
		}
		if err == nil && code != 0 {
			f.because("%s exited with %d: %s", p.name, code, p.tail())
		}
		f.atMost("exit code of "+p.name, float64(code), 0, "")
		return err
	}
	// In turns under the load: the worker with free hands and its successor, the api and its
	// successor, then the one whose delivery hangs.
	for _, step := range []struct {
		p    *sluice
		role string
	}{{free, "worker"}, {w.living("api")[0], "api"}, {hung, "worker"}} {
		if err := pause(ctx, w.scale.window/5); err != nil {
			return err
		}
		if step.p == hung {
			if err := wait(); err != nil {
				return err
			}
		}
		if err := terminate(step.p); err != nil {
			return err
		}
		if _, err := w.start(ctx, step.role); err != nil {
			return err
		}
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.twice(f)
	for i, name := range []string{"busy worker", "api", "hung worker"} {
		f.atMost("exit of the "+name, took[i].Seconds(), (grace + time.Second).Seconds(), "s")
		f.timed()
	}
	return nil
}
