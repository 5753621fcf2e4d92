package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// classBaseline is a pool of 200/s in which the tenants of the tier free are a class of the weight,
// 0 for none.
func classBaseline(weight int64) shaper.Baseline {
	p := shaper.DefaultPolicy()
	p.Rate, p.Capacity, p.Concurrency, p.Weight = shaper.Rate{Limit: 100_000, Period: time.Second}, 10_000, 0, 1
	b := shaper.Baseline{
		Defaults: p, Tiers: map[string]shaper.Overrides{"free": {}},
		Pools: map[string]shaper.PoolSettings{"erp": {Routes: []string{"echo"}, Overrides: shaper.Overrides{
			Rate: &shaper.Rate{Limit: 200, Period: time.Second}}}},
	}
	if weight > 0 {
		b.PoolWeights = map[string]int64{"free": weight}
	}
	return b
}

// tellClass runs a story about a class in a pool on both engines.
func tellClass(t *testing.T, weight int64, story func(w *world)) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			th := theme{name: "classes", tenants: []string{"customer"}, routes: []string{"echo"}, pooled: true}
			w := newWorld(t, kind.start(t), th, 2)
			defer w.clean()
			w.declare(w.wall, 1, classBaseline(weight))
			w.pollUntilIdle() // so that all flows obey the file: the model looks at many at once
			story(w)
			w.drain()
		})
	}
}

// sendAs admits n jobs of a tenant whose credential claims a tier, each of the cost.
func (w *world) sendAs(tenant, tier string, n int, cost int64) {
	r := admission{at: w.wall, tiers: map[string]string{tenant: tier}}
	for range n {
		w.names++
		r.jobs = append(r.jobs, candidate{id: fmt.Sprintf("j%06d", w.names), tenant: tenant, route: "echo", flow: tenant + "/echo",
			entry: tenant, cost: cost, maxAttempts: 3})
	}
	w.admit(r)
}

// served counts what leaves in a time, by tenant, and calls each after a job.
func (w *world) served(within time.Duration, each func(tenant string)) map[string]int64 {
	w.Helper()
	costs, end := map[string]int64{}, w.wall.Add(within)
	for w.wall < end {
		for {
			r := w.pollOf(w.workers[0], 1000)
			g := w.tick(w.workers[0], r, true)
			for _, l := range g.Leases {
				j := w.m.jobs[l.ID]
				if costs[tenantOf(j.Flow)] += j.Cost; each != nil {
					each(tenantOf(j.Flow))
				}
			}
			if len(w.held) > 0 {
				w.settleAll(scripts.OutcomeSucceeded, 0)
			}
			if !g.More {
				break
			}
		}
		w.wall = w.wall.Add(horizon / 2)
	}
	return costs
}

func rest(costs map[string]int64, but string) (sum int64) {
	for tenant, cost := range costs {
		if tenant != but {
			sum += cost
		}
	}
	return sum
}

// TestGuestsAreOneFlow: 80 guests with backlogs take half of the pool from a customer, not 80 parts
// of 81: also if each of their jobs is that of a new guest, and whatever their jobs cost.
func TestGuestsAreOneFlow(t *testing.T) {
	tellClass(t, 1, func(w *world) {
		w.sendAs("customer", "", 600, 1)
		guests := 0
		comes := func(n int, cost int64) {
			guests++
			w.sendAs(fmt.Sprint("guest", guests), "free", n, cost)
		}
		half := func(what string, costs map[string]int64, most int64) {
			w.Helper()
			if own, others := costs["customer"], rest(costs, "customer"); max(own-others, others-own) > most {
				w.fail("%s: the customer got %d, the guests %d", what, own, others)
			}
		}
		for range 80 {
			comes(6, 1)
		}
		costs := w.served(time.Second, nil)
		half("a backlog", costs, 2)
		for tenant, cost := range costs {
			if tenant != "customer" && (cost < 1 || cost > 2) {
				w.fail("the guests got %v", costs)
			}
		}
		half("new guests", w.served(time.Second, func(tenant string) {
			if tenant != "customer" {
				comes(1, 1)
			}
		}), 2)
		for range 40 {
			comes(1, 20)
		}
		half("costly jobs", w.served(2*time.Second, nil), 22)
		w.compare()
	})
}

// TestCostlyJobsOfAClass: beside guests whose jobs are costly, a customer whose own rate is near
// its part gets what it would beside one flow with such jobs; so do guests beside a customer's. It
// was one job for each costly job.
func TestCostlyJobsOfAClass(t *testing.T) {
	slow := shaper.Overrides{Rate: &shaper.Rate{Limit: 60, Period: time.Second}}
	quietCustomer := func(w *world) string {
		w.tune(w.tuningOf("customer", "api", slow))
		w.sendAs("customer", "", 600, 1)
		return "customer"
	}
	for name, story := range map[string]func(w *world) (quiet string){
		"of one guest": func(w *world) string {
			w.sendAs("guest", "free", 20, 100)
			return quietCustomer(w)
		},
		"each of another guest": func(w *world) string {
			for i := range 20 {
				w.sendAs(fmt.Sprint("guest", i), "free", 1, 100)
			}
			return quietCustomer(w)
		},
		"beside a guest": func(w *world) string {
			b := classBaseline(1)
			b.Tiers["free"] = slow
			w.declare(w.wall, 2, b)
			w.pollUntilIdle()
			w.sendAs("customer", "", 20, 100)
			w.sendAs("guest", "free", 600, 1)
			return "guest"
		},
	} {
		t.Run(name, func(t *testing.T) {
			tellClass(t, 1, func(w *world) {
				quiet := story(w)
				w.served(time.Second, nil)
				costs := w.served(5*time.Second, nil)
				if costs[quiet] < 35*5 || rest(costs, quiet) < 60*5 {
					w.fail("in five seconds the quiet one got %d, all others %d", costs[quiet], rest(costs, quiet))
				}
				w.compare()
			})
		})
	}
}

// TestPositionsBesideAClass: the start that a customer and a guest are told comes true, up to half
// a turn of the 41 guests, who have half of the pool.
func TestPositionsBesideAClass(t *testing.T) {
	tellClass(t, 1, func(w *world) {
		for i := range 40 {
			w.sendAs(fmt.Sprint("guest", i), "free", 20, 1)
		}
		told := map[string]shaper.Instant{}
		tell := func(tenant, tier string, jobs int) {
			w.sendAs(tenant, tier, jobs, 1)
			told[w.ids[len(w.ids)-1]] = w.decided[len(w.decided)-1].Start
		}
		tell("customer", "", 100)
		w.sendAs("customer", "", 300, 1) // so that it keeps waiting, as estimates assume
		tell("guest40", "free", 5)
		w.served(3*time.Second, nil)
		for id, start := range told {
			if off := w.m.jobs[id].Stamp.Sub(start); max(off, -off) > 205*time.Millisecond {
				w.fail("a job of %s left %v after the time it was told", w.m.jobs[id].Flow, off)
			}
		}
	})
}

// TestAClassBegins: flows that wait already join the class with a new file, and the sum of weights
// is that of the class.
func TestAClassBegins(t *testing.T) {
	tellClass(t, 0, func(w *world) {
		for i := range 30 {
			w.sendAs(fmt.Sprint("guest", i), "free", 10, 1)
		}
		w.sendAs("customer", "", 200, 1)
		w.served(horizon, nil)
		w.declare(w.wall, 2, classBaseline(3))
		w.pollUntilIdle()
		costs := w.served(time.Second, nil)
		if got := costs["customer"]; got < 48 || got > 52 {
			w.fail("of 200 the customer got %d, want a quarter", got)
		}
		if weights := w.m.pools["+erp"].weights; weights != 4 {
			w.fail("the weights add up to %d, want 4", weights)
		}
		w.declare(w.wall, 3, classBaseline(0))
		w.pollUntilIdle()
		if weights := w.m.pools["+erp"].weights; weights != 31 {
			w.fail("without a class the weights add up to %d, want 31", weights)
		}
	})
}
