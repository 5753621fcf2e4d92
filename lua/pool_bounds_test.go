package lua_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// serving is a departure from a pool, as the model has it.
type serving struct {
	flow     string
	segment  int         // of the pool
	rate     shaper.Rate // of the pool
	at       shaper.Instant
	cost     int64
	reserved bool
}

// sharer is a flow of the pool under test.
type sharer struct {
	tenant, flow string
	weight, cost int64 // of its costliest job
	reserve      shaper.Rate
	steady       bool // it is a candidate all the time
	off          bool
}

// TestPoolBounds: over random histories of the real scripts, with the model beside them, the stamps
// of the pool and those of its flows conform to their rates (in drain). Two flows that are
// candidates all the time get the same for their weights but for a job each, over every interval. A
// reserve is behind by at most a job, and by the slots of other reserves and of the job under way.
//
// It takes a hundred histories on each engine. SLUICE_PARITY_STEPS=1000 makes them 100,000 steps.
func TestPoolBounds(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			length := steps(t, map[string]int{"redis": 30, "embedded": 8}[kind.name])
			var histories, done, departures atomic.Int64
			start := time.Now()
			rapid.Check(t, func(rt *rapid.T) {
				w := newWorld(rt, e, theme{name: "bounds", routes: []string{"echo"}, pooled: true}, int(histories.Add(1)))
				defer w.clean()
				w.T = rt
				flows := w.openPool()
				for i := range length {
					w.stepPool(flows)
					if i%50 == 49 {
						w.compare()
					}
				}
				for i := range flows {
					for j := range i {
						w.shared(flows[i], flows[j])
					}
					w.reserved(flows, i)
				}
				departures.Add(int64(len(w.m.served)))
				w.cancelAll()
				w.drain()
				done.Add(int64(length))
			})
			t.Logf("%d steps in %d histories, %d departures, %v", done.Load(), histories.Load(), departures.Load(), time.Since(start).Round(time.Second))
		})
	}
}

// openPool declares a pool and the settings of its flows. Reserves are slow enough for all to be
// met at once before one of them is behind by a job.
func (w *world) openPool() (flows []*sharer) {
	t := w.T
	p := shaper.DefaultPolicy()
	p.Capacity, p.Concurrency, p.Weight, p.Rate = 10_000, 0, 1, shaper.Rate{Limit: 1_000_000, Period: time.Second}
	w.declare(w.wall, 1, shaper.Baseline{
		Defaults: p, Pools: map[string]shaper.PoolSettings{"erp": {Routes: w.th.routes, Overrides: poolAt(t)}},
	})
	rates := []shaper.Rate{{Limit: 1_000_000, Period: time.Second}, {Limit: 40, Period: time.Second}, {Limit: 7, Period: 300 * time.Millisecond}}
	reserves := []shaper.Rate{{}, {}, {Limit: 1, Period: time.Second}, {Limit: 3, Period: 2 * time.Second}, slowest}
	for i := range rapid.IntRange(2, 6).Draw(t, "flows") {
		f := &sharer{
			tenant: fmt.Sprint("t", i), flow: fmt.Sprintf("t%d/echo", i), steady: i < 2 || rapid.Bool().Draw(t, "steady"),
			weight: rapid.SampledFrom([]int64{1, 1, 2, 3, 7, 100, 1000}).Draw(t, "weight"), cost: rapid.Int64Range(1, 5).Draw(t, "cost"),
			reserve: rapid.SampledFrom(reserves).Draw(t, "reserve"),
		}
		own := rates[0]
		if !f.steady {
			own = rapid.SampledFrom(rates).Draw(t, "own rate")
		}
		o := shaper.Overrides{Weight: &f.weight, Rate: &own}
		if f.reserve != (shaper.Rate{}) {
			o.Reserve = &f.reserve
		}
		w.tune(w.tuningOf(f.tenant, "file", o))
		flows, w.th.tenants = append(flows, f), append(w.th.tenants, f.tenant)
	}
	return flows
}

// poolAt draws the rate of the pool.
func poolAt(t *rapid.T) shaper.Overrides {
	return shaper.Overrides{Rate: new(rapid.SampledFrom([]shaper.Rate{
		{Limit: 200, Period: time.Second}, {Limit: 333, Period: time.Second}, {Limit: 1000, Period: time.Second}, {Limit: 7, Period: 30 * time.Millisecond},
	}).Draw(t, "pool's rate"))}
}

// stepPool fills up the queues, lets time pass and polls; some leases end, and now and then a flow
// pauses or goes on, or the pool changes its rate.
func (w *world) stepPool(flows []*sharer) {
	t := w.T
	switch k := rapid.IntRange(0, 29).Draw(t, "change"); {
	case k < len(flows) && !flows[k].steady:
		f := flows[k]
		f.off = !f.off
		w.tune(w.tuningOf(f.tenant, "api", shaper.Overrides{Paused: new(f.off)}))
	case k == 29:
		w.tune(w.tuningOf("+erp", "api", poolAt(t)))
	}
	for _, f := range flows {
		const least, more = 45, 20 // a poll leases fewer
		if len(w.m.queue[f.flow]) >= least {
			continue
		}
		r := admission{at: w.wall}
		for i := range least + more - len(w.m.queue[f.flow]) {
			w.names++
			r.jobs = append(r.jobs, candidate{
				id: fmt.Sprintf("j%06d", w.names), tenant: f.tenant, route: "echo", flow: f.flow, entry: f.tenant,
				cost: 1 + int64(w.names*7+i)%f.cost, maxAttempts: 30,
			})
		}
		w.admit(r)
	}
	w.wall = w.wall.Add(rapid.SampledFrom([]time.Duration{10_000, 10_000, 1, 2500, 20_000, 35_000, 140_000}).Draw(t, "pass") * time.Microsecond)
	c := w.workers[0]
	r := w.pollOf(c, rapid.SampledFrom([]int{200, 200, 200, 5, 1}).Draw(t, "most"))
	w.tick(c, r, true)
	w.endSome(flows)
}

// endSome settles the leases, most of the time. A job that is released is eligible from then on,
// and a late poll gives earlier slots: so none of a steady flow is.
func (w *world) endSome(flows []*sharer) {
	if rapid.IntRange(0, 3).Draw(w.T, "ends") == 0 || len(w.held) == 0 {
		return
	}
	outcomes := []scripts.Outcome{scripts.OutcomeRetry, scripts.OutcomeDead, scripts.OutcomeReleased}
	if slices.ContainsFunc(flows, func(f *sharer) bool { return f.steady && f.flow == w.m.jobs[w.held[0].id].Flow }) {
		outcomes = outcomes[:2]
	}
	outcome := rapid.SampledFrom(outcomes).Draw(w.T, "outcome of one")
	r := settlement{at: w.wall}
	for i, ref := range w.held {
		s := scripts.SettleItem{Key: ref.id, Epoch: ref.epoch, Outcome: scripts.OutcomeSucceeded}
		if i == 0 {
			s.Outcome, s.Delay = outcome, 50*time.Millisecond
		}
		r.items = append(r.items, s)
	}
	w.held = nil
	w.settle(r)
}

// cancelAll cancels what waits, so that the drain is short.
func (w *world) cancelAll() {
	for flow, queue := range w.m.queue {
		r := cancellation{at: w.wall, tenant: tenantOf(flow)}
		for _, waits := range queue.list() {
			r.ids = append(r.ids, waits.Name)
		}
		if len(r.ids) > 10 {
			r.ids = r.ids[10:]
			w.cancel(r)
		}
	}
}

// shared checks that two steady flows got the same for their weights, but for a job each, over
// every interval: the difference is a walk whose range is bounded.
func (w *world) shared(a, b *sharer) {
	if !a.steady || !b.steady {
		return
	}
	var low, high, walk float64
	for _, s := range w.m.served {
		switch {
		case s.reserved:
		case s.flow == a.flow:
			walk += float64(s.cost) / float64(a.weight)
		case s.flow == b.flow:
			walk -= float64(s.cost) / float64(b.weight)
		}
		low, high = min(low, walk), max(high, walk)
	}
	bound := float64(a.cost)/float64(a.weight) + float64(b.cost)/float64(b.weight) + 0.002
	if high-low > bound {
		w.fail("%+v and %+v differ by %v for their weights, want at most %v", a, b, high-low, bound)
	}
}

// reserved checks that a steady flow with a reserve is never behind it by more than a job and the
// slots of others. An interval ends where the pool changes its rate, or leaves slots unused because
// nobody polled in time.
func (w *world) reserved(flows []*sharer, i int) {
	f := flows[i]
	if !f.steady || f.reserve == (shaper.Rate{}) {
		return
	}
	var others, costliest int64
	for k, other := range flows {
		if k != i && other.reserve != (shaper.Rate{}) {
			others += other.cost
		}
		costliest = max(costliest, other.cost)
	}
	const slowest = 5000 // µs between two slots at the slowest rate of the pool
	perMicro := f.reserve.PerSecond() / 1e6
	bound := float64(f.cost) + perMicro*slowest*float64(costliest+others)
	var behind, least float64
	for k, s := range w.m.served {
		if k > 0 {
			before := w.m.served[k-1]
			gap := float64(s.at - before.at)
			if behind += gap * perMicro; before.segment != s.segment || gap > float64(before.cost)*1e6/s.rate.PerSecond()+1 {
				behind, least = 0, 0
			}
		}
		if behind-least > bound {
			w.fail("%+v is %v behind its reserve at %v, want at most %v", f, behind-least, s.at, bound)
		}
		if s.flow == f.flow {
			behind -= float64(s.cost)
		}
		least = min(least, behind)
	}
}

// TestFlowsComeToAPoolAtOnce: while the flows of 1,100 tenants come at one instant, each poll reads
// a part of them and lets jobs leave. A flow from which jobs leave all the time keeps its reserve,
// and all others are candidates after a dozen polls: also before the next slot, without using up
// the reserve.
func TestFlowsComeToAPoolAtOnce(t *testing.T) {
	const others = 1100
	const steps = others/oldestMost + 1
	story := func(w *world, slow bool) {
		w.tune(w.tuningOf("customer", "api", shaper.Overrides{
			Rate: &shaper.Rate{Limit: 20, Period: time.Second}, Reserve: &shaper.Rate{Limit: 20, Period: time.Second},
		}))
		w.sendAs("customer", "", 100, 1)
		w.served(time.Second, nil)
		if slow { // the slot after the next one is a minute ahead
			w.tune(w.tuningOf("+erp", "api", shaper.Overrides{Rate: &shaper.Rate{Limit: 1, Period: time.Minute}}))
			w.wall = w.wall.Add(time.Minute)
		}
		for i := range others {
			w.sendAs(fmt.Sprint("other", i), "", 1, 1)
		}
		for n := 1; ; n++ {
			g := w.tick(w.workers[0], w.pollOf(w.workers[0], 1000), true)
			if n == 1 && len(g.Leases) == 0 {
				w.fail("no job leaves with the first poll")
			}
			if !g.More {
				break
			}
			if n == steps {
				w.fail("after %d polls not all are candidates", n)
			}
		}
		w.settleAll(scripts.OutcomeSucceeded, 0)
		if slow {
			w.tune(w.tuningOf("+erp", "api", shaper.Overrides{}))
		}
		costs := w.served(2*time.Second, nil)
		if own, others := costs["customer"], rest(costs, "customer"); own < 39 || others < 350 {
			w.fail("in two seconds the customer got %d of 40, all others %d", own, others)
		}
		w.compare()
	}
	t.Run("at its rate", func(t *testing.T) { tellClass(t, 0, func(w *world) { story(w, false) }) })
	t.Run("while it waits", func(t *testing.T) { tellClass(t, 0, func(w *world) { story(w, true) }) })
}
