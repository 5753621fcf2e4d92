package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// losses are the checks of answers that never come.
func losses() []check {
	return []check{{
		id: "R5",
		what: "the replies of 5 % of all scripts lost, the connections closed, a tenth of the deliveries " +
			"failing",
		target: "counters exact, nothing delivered twice, no job waits for its lease to expire, stamps τ* ≤ 1 µs" +
			poolTarget,
		quick: scale{jobs: 3000, tenants: 20, window: 6 * time.Second},
		full:  scale{jobs: 20_000, tenants: 20, window: 40 * time.Second, limit: 3 * time.Minute},
		run:   repliesLost,
	}}
}

func repliesLost(ctx context.Context, w *world, f *findings) error {
	const share = 0.05
	// A job that waits for its lease to expire ends later than a lease after its admission, and no
	// other does: there is no backlog but that of the pool, for the flows carry twice the load.
	perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
	s := settings{
		lease: 3 * time.Second, defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant*2))}, pool: "70/s",
	}
	p, err := w.openProxy(share)
	if err != nil {
		return err
	}
	defer func() { _ = p.close() }()
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	salt := w.rng.Uint64()
	w.sink.set(func(d delivery, nth int) answer {
		switch x := draw(salt, d.Body); {
		case nth == 1 && x < 0.1:
			return answer{status: http.StatusInternalServerError}
		case x > 0.98: // long enough for its lease to be extended
			return answer{status: http.StatusOK, delay: s.lease / 2}
		}
		return answer{status: http.StatusOK}
	})
	from, err := w.stockPool(ctx)
	if err != nil {
		return err
	}
	// A tenth has no idempotency key: there only Sluice can prevent that a job is admitted twice
	// when it sends the script again.
	bare := w.background(ctx, load{
		name: "bare", jobs: w.scale.jobs / 10, over: w.scale.window,
		tenants: spread("tenant", w.scale.tenants), bare: true,
	})
	if err := w.submit(ctx, load{name: "r5", jobs: w.scale.jobs, over: w.scale.window,
		tenants: spread("tenant", w.scale.tenants), insist: true}); err != nil {
		return err
	}
	if err := bare(); err != nil {
		return err
	}
	if err := w.drain(ctx); err != nil {
		return err
	}
	p.lose(0) // the figures are to be read without losses
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.twice(f)
	e.stamps(w, f)
	e.pool(w, f, from)
	f.atMost("jobs beyond keys", float64(len(e.stored)-e.Keys), 0, "")
	p.report(f, share)
	if err := w.counted(ctx, f, e); err != nil {
		return err
	}
	var longest time.Duration
	for _, j := range e.jobs {
		if j.Route != poolRoute {
			longest = max(longest, j.Finished.Sub(j.Created))
		}
	}
	f.atMost("longest from admission to end", ms(longest), ms(w.settings.lease), "ms")
	requests, _ := w.ledger.entries()
	again := 0
	for _, r := range requests {
		if r.Status == http.StatusServiceUnavailable {
			again++
		}
	}
	f.info("503s", float64(again), "")
	return nil
}

// draw is a number from [0, 1) for the text.
func draw(salt uint64, text string) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", salt, text)
	return float64(h.Sum64()>>11) / (1 << 53)
}

// report adds the lost replies and checks their share.
func (p *proxy) report(f *findings, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lost := 0
	for _, n := range p.lost {
		lost += n
	}
	f.info("replies of scripts", float64(p.scripts), "")
	f.info("lost", float64(lost), "")
	f.info("lost behind them", float64(p.behind), "")
	f.atLeast("share lost", 100*float64(lost)/float64(p.scripts), 100*share*0.8, "%")
	for _, script := range slices.Sorted(maps.Keys(p.lost)) {
		f.info("lost of "+script, float64(p.lost[script]), "")
	}
}

// stamps checks that the stamps of every flow keep its rate.
func (e ended) stamps(w *world, f *findings) {
	flows := map[[2]string][]instant{}
	for _, j := range e.jobs {
		flow := [2]string{j.Tenant, j.Route}
		flows[flow] = append(flows[flow], w.ledger.instantOf(j.Started))
	}
	var worst time.Duration
	for flow, at := range flows {
		worst = max(worst, tau(w.settings.rate(flow[0]), at))
	}
	f.atMost("stamps τ*", us(worst), 1, "µs")
}

// counted compares the counters of tenants, jobs and workers with the ledger. All jobs must have
// succeeded, and no worker may have ended.
func (w *world) counted(ctx context.Context, f *findings, e ended) error {
	jobs, left := map[string]int64{}, map[string]int64{} // by tenant
	attempts := map[string]int{}                         // by job
	for _, j := range e.jobs {
		jobs[j.Tenant]++
	}
	for _, d := range e.deliveries {
		left[d.Tenant]++
		attempts[d.Job]++
	}
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(jobs)) {
		t, err := w.operate(ctx, w.living("api")[0], http.MethodGet, name, "")
		if err != nil {
			return err
		}
		is, should := counts(t), counts(wire.Tenant{Figures: wire.Figures{
			Admitted: jobs[name], Departed: left[name], Succeeded: jobs[name],
		}})
		if is != should {
			wrong = append(wrong, name+": "+is+", should be "+should)
		}
	}
	f.none("tenants counted wrong", wrong)
	wrong = nil
	for _, j := range e.jobs {
		if j.Attempts != attempts[j.ID] {
			wrong = append(wrong, fmt.Sprintf("job %s: %d attempts, %d deliveries", j.ID, j.Attempts, attempts[j.ID]))
		}
	}
	f.none("jobs with wrong attempts", wrong)
	total := map[string]float64{}
	for _, s := range w.living("worker") {
		m, err := w.metrics(ctx, s)
		if err != nil {
			return err
		}
		for _, outcome := range []string{"succeeded", "retry", "stale", "released", "dead", "held"} {
			total[outcome] += m[`sluice_deliveries_total{outcome="`+outcome+`"}`]
		}
	}
	f.atMost("workers: succeeded, off by", math.Abs(total["succeeded"]-float64(len(e.jobs))), 0, "")
	f.atMost("workers: dead or held", total["dead"]+total["held"], 0, "")
	// The last settle of a job is recognised forever. An earlier one, of a failure or of a job
	// given back, may be repeated after the job was leased and settled again, and is then stale.
	f.info("workers: stale", total["stale"], "")
	f.info("workers: released", total["released"], "")
	uncounted := float64(len(e.deliveries)-len(e.jobs)) - total["retry"]
	f.atLeast("workers: failures not counted", uncounted, 0, "")
	f.atMost("workers: failures neither counted nor stale", max(0, uncounted-total["stale"]), 0, "")
	return nil
}

// counts formats the counters of a tenant.
func counts(t wire.Tenant) string {
	return fmt.Sprintf("admitted %d, departed %d, succeeded %d, rejected %d, dead %d, depth %d, running %d",
		t.Admitted, t.Departed, t.Succeeded, t.Rejected, t.Dead, t.Depth, t.Running)
}
