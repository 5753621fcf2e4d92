package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// crashes are the checks that kill Sluice's own processes.
func crashes() []check {
	return []check{
		{
			id: "R1", what: "repeated kill -9 of workers under load",
			target: "lost 0, unexpected 0, duplicates ≤ in flight at the kills, each of them one of those" + poolTarget,
			quick:  scale{jobs: 6000, tenants: 200, kills: 6, window: 10 * time.Second},
			full:   scale{jobs: 20_000, tenants: 200, kills: 20, window: 45 * time.Second, limit: 3 * time.Minute},
			run:    workersKilled,
		},
		{
			id: "R2", what: "worker kill -9 to redelivery of the k jobs of a flow lost in flight, worst",
			target: "≤ lease + sweep + k·T",
			quick:  scale{jobs: 20, kills: 2},
			full:   scale{jobs: 20, kills: 6, limit: 2 * time.Minute},
			run:    redelivery,
		},
		{
			id: "R4", what: "api kill -9, clients retry with the same key",
			target: "jobs = keys, lost 0",
			quick:  scale{jobs: 2000, tenants: 20, kills: 5, window: 6 * time.Second},
			full:   scale{jobs: 20_000, tenants: 20, kills: 5, window: 30 * time.Second, limit: 2 * time.Minute},
			run:    intakeKilled,
		},
		{
			id: "R8", what: "api, workers and Redis (appendfsync always) killed at once, started again",
			target: "lost 0, positions and policies as before",
			quick:  scale{jobs: 2000, tenants: 20, kills: 1, window: 4 * time.Second},
			full:   scale{jobs: 10_000, tenants: 20, kills: 5, window: 20 * time.Second, limit: 2 * time.Minute},
			run:    everythingKilled,
		},
	}
}

// slowly answers with success after a time of its own for each delivery, so that there is always
// something in flight.
func slowly(least, most time.Duration) behaviour {
	return func(d delivery, _ int) answer {
		spread := int64(most - least)
		return answer{status: http.StatusOK, delay: least + time.Duration(int64(d.At)%spread)}
	}
}

func workersKilled(ctx context.Context, w *world, f *findings) error {
	perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
	s := settings{defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant)+1)}, pool: "70/s"}
	if err := w.open(ctx, s, "api", "worker", "worker", "worker"); err != nil {
		return err
	}
	w.sink.set(slowly(20*time.Millisecond, 300*time.Millisecond))
	from, err := w.stockPool(ctx)
	if err != nil {
		return err
	}
	wait := w.background(ctx, load{
		name: "r1", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
		insist: true,
	})
	var killed []crash
	for i := range w.scale.kills {
		mean := w.scale.window / time.Duration(w.scale.kills+1)
		if err := pause(ctx, w.between(mean/4, mean*3/4)); err != nil {
			return err
		}
		workers := w.living("worker")
		c, err := w.crash(ctx, workers[w.rng.IntN(len(workers))])
		if err != nil {
			return err
		}
		killed = append(killed, c)
		w.say("kill %d of %d: %s, %d jobs leased", i+1, w.scale.kills, c.process, len(c.leased))
		if err := pause(ctx, w.between(0, mean/4)); err != nil {
			return err
		}
		if _, err := w.start(ctx, "worker"); err != nil {
			return err
		}
	}
	if err := wait(); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	f.info("kills", float64(len(killed)), "")
	flying := inFlight(killed, e.deliveries)
	f.atLeast("in flight at the kills", float64(flying), 1, "") // else nothing was put to the test
	f.atMost("duplicates", float64(len(e.Duplicates)), float64(flying), "")
	var bad []string
	for _, d := range unjustified(killed, e.Duplicates) {
		bad = append(bad, fmt.Sprintf("job %s by %s, again by %s %v later", d.again.Job, d.before.Process,
			d.again.Process, d.again.At.since(d.before.At)))
	}
	f.none("duplicates not in flight", bad)
	e.pool(w, f, from)
	return nil
}

// redelivery kills the worker that holds k jobs of a flow, in turns with another one alive and with
// one started in its place, and waits for all of them to come again.
func redelivery(ctx context.Context, w *world, f *findings) error {
	k := w.scale.jobs // the fewest lost in flight in any round
	s := settings{lease: 2 * time.Second, sweep: 250 * time.Millisecond, defaults: tenant{rate: "20/s"}}
	if err := w.open(ctx, s, "api", "worker"); err != nil {
		return err
	}
	T := interval(w.settings.rate(""))
	var worst, worstAlone time.Duration
	var killed []crash
	for round := range w.scale.kills {
		alone := round%2 == 1
		if !alone {
			if _, err := w.start(ctx, "worker"); err != nil {
				return err
			}
		}
		if err := w.shared(ctx); err != nil {
			return err
		}
		flow := fmt.Sprintf("flow%d", round)
		hold := make(chan struct{})
		w.sink.set(func(_ delivery, nth int) answer {
			if nth == 1 {
				return answer{status: http.StatusOK, until: hold}
			}
			return answer{status: http.StatusOK}
		})
		if err := w.submit(ctx, load{name: flow, jobs: w.scale.jobs, tenants: one(flow)}); err != nil {
			return err
		}
		victim, held, err := w.holder(ctx, w.scale.jobs, flow)
		if err != nil {
			return err
		}
		again := len(w.ledger.delivered(0))
		c, err := w.crash(ctx, victim)
		if err != nil {
			return err
		}
		killed = append(killed, c)
		at := w.ledger.now()
		w.say("kill %d of %d: %s with %d jobs in flight", round+1, w.scale.kills, victim.name, len(held))
		if alone {
			if _, err := w.start(ctx, "worker"); err != nil {
				return err
			}
		}
		var last instant
		err = until(ctx, "the jobs came again", 5*time.Millisecond, func() (bool, error) {
			missing := maps.Clone(held)
			for _, d := range w.ledger.delivered(again) {
				if missing[d.Job] {
					delete(missing, d.Job)
					last = max(last, d.At)
				}
			}
			return len(missing) == 0, nil
		})
		close(hold)
		if err != nil {
			return err
		}
		k = min(k, len(held))
		if alone {
			worstAlone = max(worstAlone, last.since(at))
		} else {
			worst = max(worst, last.since(at))
		}
	}
	limit := s.lease + s.sweep + time.Duration(k)*T
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	f.info("k", float64(k), "")
	f.atMost("worst, another worker alive", ms(worst), ms(limit), "ms")
	f.timed()
	f.atMost("worst, another started", ms(worstAlone), ms(limit), "ms")
	f.timed()
	f.atMost("duplicates", float64(len(e.Duplicates)), float64(inFlight(killed, e.deliveries)), "")
	return nil
}

// holder waits until n jobs of some tenants are in flight and returns the worker that holds most of
// them, which is all unless a shard has just changed hands, with the ids of those.
func (w *world) holder(ctx context.Context, n int, tenants ...string) (*sluice, map[string]bool, error) {
	err := until(ctx, "the jobs are in flight", 5*time.Millisecond, func() (bool, error) {
		inside := 0
		for _, t := range tenants {
			inside += w.sink.insideNow(t)
		}
		return inside == n, nil
	})
	if err != nil {
		return nil, nil, err
	}
	held := map[string]map[string]bool{}
	for _, d := range w.ledger.delivered(0) {
		if !slices.Contains(tenants, d.Tenant) {
			continue
		}
		if held[d.Process] == nil {
			held[d.Process] = map[string]bool{}
		}
		held[d.Process][d.Job] = true
	}
	var most *sluice
	for _, p := range w.living("worker") {
		if most == nil || len(held[p.name]) > len(held[most.name]) {
			most = p
		}
	}
	return most, held[most.name], nil
}

func intakeKilled(ctx context.Context, w *world, f *findings) error {
	if err := w.open(ctx, settings{defaults: tenant{rate: "1000/s"}}, "worker", "api"); err != nil {
		return err
	}
	wait := w.background(ctx, load{
		name: "r4", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
		insist: true, clients: 64,
	})
	for i := range w.scale.kills {
		mean := w.scale.window / time.Duration(w.scale.kills+1)
		if err := pause(ctx, w.between(mean/2, mean)); err != nil {
			return err
		}
		w.living("api")[0].kill()
		w.say("kill %d of %d", i+1, w.scale.kills)
		if err := pause(ctx, w.between(0, mean/4)); err != nil {
			return err
		}
		if _, err := w.start(ctx, "api"); err != nil {
			return err
		}
	}
	if err := wait(); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.twice(f)
	requests, _ := w.ledger.entries()
	f.info("requests", float64(len(requests)), "")
	f.info("keys", float64(e.Keys), "")
	f.atMost("jobs beyond keys", float64(len(e.stored)-e.Keys), 0, "")
	f.atLeast("acknowledged keys", float64(e.Acknowledged), float64(e.Keys), "")
	return nil
}

// everythingKilled kills all processes in the midst of a load, with a paused tenant's queue and a
// tuned tenant's policy as what must be there again.
func everythingKilled(ctx context.Context, w *world, f *findings) error {
	const waiting = 20
	s := settings{
		fsync: "always", defaults: tenant{rate: "50/s"}, tenants: map[string]tenant{"paused": {rate: "10/s"}},
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	w.sink.set(slowly(5*time.Millisecond, 100*time.Millisecond))
	admin := w.living("api")[0]
	if _, err := w.operate(ctx, admin, "pause", "paused", `{"reason":"kept over the crash"}`); err != nil {
		return err
	}
	if _, err := w.operate(ctx, admin, http.MethodPatch, "tuned",
		`{"rate":{"limit":7,"period_ms":3000},"capacity":777,"reason":"tuned"}`); err != nil {
		return err
	}
	if err := w.submit(ctx, load{name: "paused", jobs: waiting, tenants: one("paused"),
		clients: 1}); err != nil {
		return err
	}
	before, err := w.standing(ctx)
	if err != nil {
		return err
	}
	wait := w.background(ctx, load{
		name: "r8", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
	})
	var moved []string
	for i := range w.scale.kills {
		mean := w.scale.window / time.Duration(w.scale.kills+1)
		if err := pause(ctx, w.between(mean/2, mean)); err != nil {
			return err
		}
		for _, p := range w.living("worker") {
			w.lateness(ctx, p)
		}
		w.everyone(func(p *process) { p.kill() })
		w.say("crash %d of %d", i+1, w.scale.kills)
		if err := pause(ctx, w.between(0, 500*time.Millisecond)); err != nil {
			return err
		}
		if err := w.startRedis(ctx); err != nil {
			return err
		}
		for _, role := range []string{"api", "worker", "worker"} {
			if _, err := w.start(ctx, role); err != nil {
				return err
			}
		}
		after, err := w.standing(ctx)
		if err != nil {
			return err
		}
		moved = append(moved, before.differences(after)...)
	}
	if err := wait(); err != nil {
		return err
	}
	if _, err := w.operate(ctx, w.living("api")[0], "resume", "paused", ""); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	f.info("positions", waiting, "")
	f.none("positions or policies changed", moved)
	f.info("duplicates", float64(len(e.Duplicates)), "")
	return nil
}

// everyone does the same to all living processes at once, Redis among them.
func (w *world) everyone(do func(*process)) {
	var wg sync.WaitGroup
	for _, s := range w.sluices {
		if s.alive() {
			wg.Go(func() { do(s.process) })
		}
	}
	wg.Go(func() { do(w.redis) })
	wg.Wait()
}

// standing is what must be the same before and after a crash.
type standing struct {
	positions []string // ids of the paused tenant's jobs, by position
	policies  []string
}

func (w *world) standing(ctx context.Context) (standing, error) {
	var s standing
	requests, _ := w.ledger.entries()
	var jobs []wire.Job
	for _, r := range requests {
		if r.Tenant != "paused" {
			continue
		}
		j, err := w.job(ctx, r.Tenant, r.Job)
		if err != nil {
			return s, err
		}
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(a, b wire.Job) int { return cmp.Compare(a.Position, b.Position) })
	for i, j := range jobs {
		s.positions = append(s.positions, fmt.Sprintf("job %s is %s at %d of %d", j.ID, j.State, j.Position, i+1))
	}
	for _, name := range []string{"paused", "tuned"} {
		t, err := w.operate(ctx, w.living("api")[0], http.MethodGet, name, "")
		if err != nil {
			return s, err
		}
		policy := t.InForce()
		s.policies = append(s.policies,
			fmt.Sprintf("%s: rate %v, capacity %d, paused %v, reason %q, revision %d, sources %v",
				name, policy.Rate, policy.Capacity, policy.Paused, t.Reason, t.Revision, t.Sources))
	}
	return s, nil
}

func (s standing) differences(after standing) (found []string) {
	for _, pair := range [][2][]string{{s.positions, after.positions}, {s.policies, after.policies}} {
		for i, was := range pair[0] {
			if is := pair[1][i]; is != was {
				found = append(found, was+"; then "+is)
			}
		}
	}
	return found
}
