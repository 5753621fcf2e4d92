package lua_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// tellPool runs a story about a pool of 200/s, whose flows may leave much faster, on both engines.
// Without a max_cost of its own a job may cost 2,000 there.
func tellPool(t *testing.T, story func(w *world)) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			th := theme{name: "costs", tenants: []string{"evil", "quiet"}, routes: []string{"echo"}, pooled: true}
			w := newWorld(t, kind.start(t), th, 2)
			defer w.clean()
			p := shaper.DefaultPolicy()
			p.Rate, p.Capacity, p.Concurrency, p.Weight = shaper.Rate{Limit: 100_000, Period: time.Second}, 10_000, 0, 1
			w.declare(w.wall, 1, shaper.Baseline{Defaults: p, Pools: map[string]shaper.PoolSettings{
				"erp": {Routes: th.routes, Overrides: shaper.Overrides{Rate: &shaper.Rate{Limit: 200, Period: time.Second}}},
			}})
			w.pollUntilIdle() // the flows to come obey the policies in force
			story(w)
			w.drain()
		})
	}
}

// submitCosting admits a job of the cost.
func (w *world) submitCosting(tenant string, cost int64) {
	w.names++
	w.admit(admission{at: w.wall, jobs: []candidate{{
		id: fmt.Sprintf("j%06d", w.names), tenant: tenant, route: "echo", flow: tenant + "/echo", entry: tenant,
		cost: cost, maxAttempts: 3,
	}}})
}

func (w *world) boundPool(o shaper.Overrides) { w.tune(w.tuningOf("+erp", "api", o)) }

// settleCosting settles what the workers hold with this actual cost.
func (w *world) settleCosting(actual int64) {
	var items []scripts.SettleItem
	for _, ref := range w.held {
		items = append(items, scripts.SettleItem{Key: ref.id, Epoch: ref.epoch, Outcome: scripts.OutcomeSucceeded,
			MaxAttempts: 3, ActualCost: &actual})
	}
	w.held = nil
	w.settle(settlement{w.wall, items})
}

// nextOf is how long the pool gives no job to a flow that has nothing else to wait for.
func (w *world) nextOf(tenant string) time.Duration {
	w.Helper()
	start := w.wall
	w.submitCosting(tenant, 1)
	for range 5000 {
		g := w.tick(w.workers[0], w.pollOf(w.workers[0], 1000), true)
		for _, l := range g.Leases {
			if j := w.m.jobs[l.ID]; j.Flow == tenant+"/echo" {
				return max(0, l.Stamp.Sub(start))
			}
		}
		if !g.More {
			w.wall = max(w.wall, g.Next.Add(-horizon/2)-w.m.stored.off)
		}
	}
	w.fail("no job of %s leaves", tenant)
	return 0
}

func (w *world) atMost(what string, got, most time.Duration) {
	w.Helper()
	if got > most {
		w.fail("%s: %v, want at most %v", what, got, most)
	}
}

// TestPoolRefusesACost: a cost above the bound is refused, and delays nobody.
func TestPoolRefusesACost(t *testing.T) {
	tellPool(t, func(w *world) {
		w.submitCosting("evil", 1_000_000)
		w.submitCosting("evil", 2001)
		if len(w.m.jobs) != 0 || !w.m.reached["too costly for its pool"] {
			w.fail("%d jobs were admitted, want none", len(w.m.jobs))
		}
		w.atMost("another tenant waits", w.nextOf("quiet"), time.Millisecond)
		w.submitCosting("evil", 2000)
		if len(w.m.jobs) != 2 {
			w.fail("a cost of 2000 was refused")
		}
		w.tune(w.tuningOf("evil", "api", shaper.Overrides{MaxCost: new(int64(50))}))
		w.submitCosting("evil", 51)
		if len(w.m.jobs) != 2 || !w.m.reached["too_costly"] {
			w.fail("a cost of 51 was admitted to a flow with a max cost of 50")
		}
	})
}

// TestStoredCostsAreCharged: jobs that were admitted under a higher bound, or by an older process,
// are charged for no more than the bound in force.
func TestStoredCostsAreCharged(t *testing.T) {
	tellPool(t, func(w *world) {
		w.boundPool(shaper.Overrides{MaxCost: new(int64(1_000_000))})
		w.submitCosting("evil", 1_000_000)
		w.boundPool(shaper.Overrides{})
		w.pollUntilIdle()
		w.atMost("another tenant waits", w.nextOf("quiet"), 10*time.Second)
	})
}

// TestActualCostsAreCut: an actual cost counts as the bound at most, delays the others by a moment
// at a time, and the flow that reports it sends nothing until it has repaid all of it.
func TestActualCostsAreCut(t *testing.T) {
	tellPool(t, func(w *world) {
		for range 4 {
			w.submitCosting("evil", 1)
			w.pollUntilIdle()
			w.wall = w.wall.Add(5 * time.Millisecond)
		}
		if len(w.held) != 4 {
			w.fail("%d jobs left, want 4", len(w.held))
		}
		w.settleCosting(1_000_000)
		if !w.m.reached["owes to its pool"] || !w.m.reached["cut in its pool"] {
			w.fail("nothing was cut")
		}
		if got, want := w.m.flows["evil/echo"].owed, int64(4*1999); got != want {
			w.fail("it owes %d, want %d", got, want)
		}
		w.atMost("another tenant waits", w.nextOf("quiet"), 20*time.Millisecond+horizon)
		w.tune(w.tuningOf("evil", "api", shaper.Overrides{Rate: &shaper.Rate{Limit: 100_000_000, Period: time.Second}}))
		if wait := w.nextOf("evil"); wait < 38*time.Second {
			w.fail("the flow itself waits %v, want what it has used", wait)
		}
	})
}

// TestRefundsNeverExceedTheCharge: a bound that is raised while jobs are under way gives back no
// more than they were charged for.
func TestRefundsNeverExceedTheCharge(t *testing.T) {
	tellPool(t, func(w *world) {
		w.boundPool(shaper.Overrides{MaxCost: new(int64(1_000_000))})
		for range 8 {
			w.submitCosting("evil", 1000)
		}
		w.boundPool(shaper.Overrides{MaxCost: new(int64(4))})
		for range 8 {
			w.pollUntilIdle()
			w.wall = w.wall.Add(20 * time.Millisecond)
		}
		if len(w.held) != 8 {
			w.fail("%d jobs left, want 8", len(w.held))
		}
		w.boundPool(shaper.Overrides{MaxCost: new(int64(1_000_000))})
		w.settleCosting(1)
		if !w.m.reached["cut by an earlier bound"] {
			w.fail("the earlier bound was forgotten")
		}
		if c := w.m.pools["+erp"].Cells[0]; c.Credit > 8*3*5000 {
			w.fail("the pool has a credit of %d µs, want at most what was charged too much", c.Credit)
		}
	})
}

// TestDamagedPoolHeals: a pool whose pace is 83 minutes ahead, as older processes left it, is
// brought back when it is next touched. Its line and fields are those of an older process.
func TestDamagedPoolHeals(t *testing.T) {
	tellPool(t, func(w *world) {
		w.atMost("before", w.nextOf("quiet"), time.Millisecond)
		p := w.m.pools["+erp"]
		p.Cells[0].TAT = w.wall.Add(5000 * time.Second)
		w.m.flows[p.name] = p.flow
		key := w.shard.Flow("+erp/")
		if err := w.e.HSet(w.ctx, key, "cells", fmt.Sprintf("%d:0", p.Cells[0].TAT)).Err(); err != nil {
			t.Fatal(err)
		}
		w.atMost("another tenant waits", w.nextOf("quiet"), 10*time.Second+time.Millisecond)
	})
}

// TestAnOperatorEndsACharge: after a job of a high cost, a pool that an operator lets go gives its
// next job at once.
func TestAnOperatorEndsACharge(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprint(ends), func(t *testing.T) {
			tellPool(t, func(w *world) {
				w.submitCosting("evil", 2000)
				w.pollUntilIdle()
				r := w.tuningOf("+erp", "api", shaper.Overrides{})
				r.endHolds, r.endCharge = true, ends
				w.tune(r)
				wait := w.nextOf("quiet")
				if ends {
					w.atMost("another tenant waits", wait, time.Millisecond)
				} else if wait < 9*time.Second {
					w.fail("another tenant waits %v, want what the cost leaks", wait)
				}
			})
		})
	}
}

// TestTokensOfAMinute: a pool of 90,000 tokens a minute takes requests of 10,000.
func TestTokensOfAMinute(t *testing.T) {
	tellPool(t, func(w *world) {
		w.boundPool(shaper.Overrides{Rate: &shaper.Rate{Limit: 90_000, Period: time.Minute}})
		w.submitCosting("quiet", 10_000)
		w.submitCosting("quiet", 15_000)
		if len(w.m.jobs) != 2 {
			w.fail("%d of 2 jobs were admitted", len(w.m.jobs))
		}
		w.submitCosting("quiet", 15_001)
		if len(w.m.jobs) != 2 {
			w.fail("a cost of more than ten seconds of the rate was admitted")
		}
	})
}

// crowd is the names of n tenants.
func crowd(n int) (tenants []string) {
	for i := range n {
		tenants = append(tenants, fmt.Sprintf("crowd%02d", i))
	}
	return tenants
}

// departedCost lets tenants with one job each at a time use a pool for some time, and returns the
// actual costs that have left, each as high as given.
func (w *world) departedCost(tenants []string, tier string, within time.Duration, actual int64) (cost int64) {
	w.Helper()
	end := w.wall.Add(within)
	for _, tenant := range tenants {
		w.sendAs(tenant, tier, 1, 1)
	}
	for w.wall < end {
		g := w.tick(w.workers[0], w.pollOf(w.workers[0], 1000), true)
		var again []string
		for _, l := range g.Leases {
			again = append(again, tenantOf(w.m.jobs[l.ID].Flow))
			cost += actual
		}
		if len(w.held) > 0 {
			w.wall = w.wall.Add(horizon / 2)
			w.settleCosting(actual)
		}
		for _, tenant := range again {
			w.sendAs(tenant, tier, 1, 1)
		}
		if !g.More {
			w.wall = max(w.wall.Add(time.Millisecond), g.Next.Add(-horizon/2)-w.m.stored.off)
		}
	}
	return cost
}

// TestManyReportersKeepTheRate: tenants whose jobs cost more than anybody expected, one job of each
// at a time, keep the rate of their pool together.
func TestManyReportersKeepTheRate(t *testing.T) {
	tellPool(t, func(w *world) {
		const actual, within = 1000, 100 * time.Second
		got := w.departedCost(crowd(40), "", within, actual)
		// Two horizons of the rate had left before the first cost was known.
		if most := int64(200*within.Seconds()) + 2000 + 10*actual; got > most || got < most/2 {
			w.fail("a cost of %d left in %v, want at most %d", got, within, most)
		}
	})
}

// TestHighEstimatesTakeNothing: a tenant whose estimates are far too high takes no more of a pool
// than its part. The pool does not get all of the charge back, and its turn pays for that.
func TestHighEstimatesTakeNothing(t *testing.T) {
	tellPool(t, func(w *world) {
		estimate, actual := map[string]int64{"evil": 2000, "quiet": 10}, map[string]int64{"evil": 1, "quiet": 10}
		sums := map[string]int64{}
		for tenant, cost := range estimate {
			for range 200 {
				w.submitCosting(tenant, cost)
			}
		}
		const within = 60 * time.Second
		for end := w.wall.Add(within); w.wall < end; {
			g := w.tick(w.workers[0], w.pollOf(w.workers[0], 1000), true)
			var items []scripts.SettleItem
			for _, ref := range w.held {
				tenant := tenantOf(w.m.jobs[ref.id].Flow)
				cost := actual[tenant]
				sums[tenant] += cost
				items = append(items, scripts.SettleItem{Key: ref.id, Epoch: ref.epoch, Outcome: scripts.OutcomeSucceeded,
					MaxAttempts: 3, ActualCost: &cost})
				w.submitCosting(tenant, estimate[tenant])
			}
			if w.held = nil; len(items) > 0 {
				w.settle(settlement{w.wall, items})
			}
			if !g.More {
				w.wall = max(w.wall.Add(time.Millisecond), g.Next.Add(-horizon/2)-w.m.stored.off)
			}
		}
		if least := int64(200 * within.Seconds() / 2 * 0.97); sums["quiet"] < least {
			w.fail("departed: %v, want at least %d of quiet", sums, least)
		}
	})
}

// busy lets tenants use a pool for some time, and returns the actual costs that have left, by
// tenant. Each has jobs waiting all the time, of the estimate 1.
func (w *world) busy(tiers map[string]string, actual map[string]int64, within time.Duration) map[string]int64 {
	w.Helper()
	costs := map[string]int64{}
	for _, tenant := range slices.Sorted(maps.Keys(actual)) {
		w.sendAs(tenant, tiers[tenant], 20, 1)
	}
	for end := w.wall.Add(within); w.wall < end; {
		g := w.tick(w.workers[0], w.pollOf(w.workers[0], 1000), true)
		var items []scripts.SettleItem
		sent := map[string]int{}
		for _, ref := range w.held {
			tenant := tenantOf(w.m.jobs[ref.id].Flow)
			sent[tenant]++
			cost := actual[tenant]
			costs[tenant] += cost
			items = append(items, scripts.SettleItem{Key: ref.id, Epoch: ref.epoch, Outcome: scripts.OutcomeSucceeded,
				MaxAttempts: 3, ActualCost: &cost})
		}
		if w.held = nil; len(items) > 0 {
			w.settle(settlement{w.wall, items})
		}
		for _, tenant := range slices.Sorted(maps.Keys(sent)) {
			w.sendAs(tenant, tiers[tenant], sent[tenant], 1)
		}
		if !g.More {
			w.wall = max(w.wall.Add(time.Millisecond), g.Next.Add(-horizon/2)-w.m.stored.off)
		}
	}
	return costs
}

// TestDebtsTakeTheirTurn: tenants whose jobs cost more than anybody expected use their part of the
// pool, alone or in a class. Together with the others they use its rate.
func TestDebtsTakeTheirTurn(t *testing.T) {
	const within, rate, actual = 12 * time.Second, 200, 100
	check := func(w *world, costs map[string]int64) {
		w.Helper()
		quiet, evil := costs["quiet"], rest(costs, "quiet")
		// At both ends, the jobs of two horizons leave before their costs are known.
		most := int64(rate*within.Seconds()) + 2*8*actual
		if part := int64(rate*within.Seconds()) / 2; float64(quiet) < 0.97*float64(part) || quiet+evil > most || evil < part/2 {
			w.fail("quiet %d, the others %d: want at least %d for quiet, and at most %d", quiet, evil, part, most)
		}
	}
	t.Run("alone", func(t *testing.T) {
		tellPool(t, func(w *world) {
			check(w, w.busy(nil, map[string]int64{"evil": actual, "quiet": 1}, within))
		})
	})
	t.Run("beside a low rate", func(t *testing.T) {
		tellPool(t, func(w *world) { // it leaves in slots of 5 ms: each 20 ms, not each 16.7
			w.tune(w.tuningOf("quiet", "api", shaper.Overrides{Rate: &shaper.Rate{Limit: 60, Period: time.Second}}))
			costs := w.busy(nil, map[string]int64{"evil": actual, "quiet": 1}, within)
			slow, all := int64(60*within.Seconds()), int64(rate*within.Seconds())
			if costs["quiet"] < slow*4/5 || costs["quiet"]+costs["evil"] < all*9/10 {
				w.fail("%v: want at least %d of quiet and %d in all", costs, slow*4/5, all*9/10)
			}
		})
	})
	t.Run("of a class", func(t *testing.T) {
		tellClass(t, 1, func(w *world) {
			tiers, costs := map[string]string{}, map[string]int64{"quiet": 1}
			for _, tenant := range crowd(8) {
				tiers[tenant], costs[tenant] = "free", actual
			}
			check(w, w.busy(tiers, costs, within))
		})
	})
}

// inFlight lets n jobs of the estimate 1 leave.
func (w *world) inFlight(tenant string, n int) {
	w.Helper()
	before := len(w.held)
	for range n {
		w.submitCosting(tenant, 1)
	}
	for range 100 {
		if len(w.held)-before == n {
			return
		}
		w.pollUntilIdle()
		w.wall = w.wall.Add(5 * time.Millisecond)
	}
	w.fail("%d jobs left, want %d", len(w.held)-before, n)
}

// TestDebtsOfOneAreNotThoseOfAll: while one tenant owes much, the first answer to another one may
// stop the pool for max_cost, but not the answers to all that it has in flight.
func TestDebtsOfOneAreNotThoseOfAll(t *testing.T) {
	tellPool(t, func(w *world) {
		for _, tenant := range []string{"evil", "other"} {
			w.inFlight(tenant, 8)
			w.settleCosting(1_000_000)
		}
		if !w.m.reached["paid at once"] {
			w.fail("nothing was paid at once")
		}
		w.atMost("a third tenant waits", w.nextOf("quiet"), 10*time.Second+horizon)
	})
}

// TestUnusedTimeRepays: a tenant with one job at a time, whose delivery takes longer than its cost
// leaks, waits for nothing afterwards.
func TestUnusedTimeRepays(t *testing.T) {
	tellPool(t, func(w *world) {
		w.inFlight("quiet", 1)
		w.wall = w.wall.Add(3 * time.Second)
		w.settleCosting(500)
		w.atMost("the next job waits", w.nextOf("quiet"), horizon)
	})
}

// TestADebtEnds: a flow owes after its rate was changed, and until an operator lets it go.
func TestADebtEnds(t *testing.T) {
	tellPool(t, func(w *world) {
		for range 8 {
			w.submitCosting("evil", 1)
			w.pollUntilIdle()
			w.wall = w.wall.Add(5 * time.Millisecond)
		}
		w.settleCosting(1000)
		w.tune(w.tuningOf("evil", "api", shaper.Overrides{Rate: &shaper.Rate{Limit: 50_000, Period: time.Second}}))
		if got, want := w.m.flows["evil/echo"].owed, int64(8*999); got != want {
			w.fail("it owes %d, want %d", got, want)
		}
		r := w.tuningOf("evil", "api", shaper.Overrides{Rate: &shaper.Rate{Limit: 100_000_000, Period: time.Second}})
		r.endHolds = true
		w.tune(r)
		if !w.m.reached["forgiven what it owed"] {
			w.fail("nothing was owed")
		}
		w.atMost("an operator has let it go, and it waits", w.nextOf("evil"), time.Second)
	})
}

// TestIdleSlotsEndWithTheirReason: a costly job leaves the pool idle for a flow that comes soon.
// Once that flow does not come, or the job no longer costs much, the pool goes on within 100 ms.
func TestIdleSlotsEndWithTheirReason(t *testing.T) {
	waiting := func(w *world, tenant string) (ids []string) {
		for id, j := range w.m.jobs {
			if j.State.Waiting() && j.Flow == tenant+"/echo" {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		return ids
	}
	for name, act := range map[string]func(w *world){
		"the job is cancelled": func(w *world) {
			w.cancel(cancellation{at: w.wall, tenant: "evil", ids: waiting(w, "evil")[:1]})
		},
		"the other job is cancelled": func(w *world) {
			w.cancel(cancellation{at: w.wall, tenant: "quiet", ids: waiting(w, "quiet")})
		},
		"the other flow is paused": func(w *world) {
			w.tune(w.tuningOf("quiet", "api", shaper.Overrides{Paused: new(true)}))
		},
		"the other flow may leave at once": func(w *world) {
			w.tune(w.tuningOf("quiet", "api", shaper.Overrides{Rate: &shaper.Rate{Limit: 1000, Period: time.Second}}))
		},
		"the pool is faster": func(w *world) {
			w.boundPool(shaper.Overrides{Rate: &shaper.Rate{Limit: 100_000, Period: time.Second}})
		},
		"the job counts less": func(w *world) { w.boundPool(shaper.Overrides{MaxCost: new(int64(2))}) },
	} {
		t.Run(name, func(t *testing.T) {
			tellPool(t, func(w *world) {
				w.tune(w.tuningOf("quiet", "api", shaper.Overrides{Rate: &shaper.Rate{Limit: 30, Period: time.Minute}}))
				w.submitCosting("quiet", 1) // leaves, and the next two seconds later
				w.submitCosting("quiet", 1)
				w.submitCosting("evil", 20)
				w.pollUntilIdle()
				w.wall = w.wall.Add(100 * time.Millisecond)
				w.submitCosting("evil", 1000)
				w.submitCosting("evil", 1)
				for range 5 {
					w.pollUntilIdle()
					w.wall = w.wall.Add(horizon)
				}
				if !w.m.reached["leaves its slot to one before it"] || len(waiting(w, "evil")) != 2 {
					w.fail("of the costly flow %v wait, want 2", waiting(w, "evil"))
				}
				act(w)
				before := len(waiting(w, "evil"))
				for end := w.wall.Add(100*time.Millisecond + 2*horizon); w.wall < end; w.wall = w.wall.Add(horizon / 2) {
					w.pollUntilIdle()
				}
				if len(waiting(w, "evil")) == before {
					w.fail("the pool still waits")
				}
			})
		})
	}
}

// TestPoolIdlesForNobody: a flow that does not come when a pool has idled for it takes no more of
// the pool. One that comes gets no more than its part by weight.
func TestPoolIdlesForNobody(t *testing.T) {
	const span = 4 * time.Second // of the pool's 200/s, so 800 of cost
	soon := func(w *world) {
		w.names++
		w.admit(admission{at: w.wall, jobs: []candidate{{
			id: fmt.Sprintf("j%06d", w.names), tenant: "evil", route: "echo", flow: "evil/echo", entry: "evil",
			cost: 1, delay: 130 * time.Millisecond, maxAttempts: 3,
		}}})
	}
	for name, c := range map[string]struct {
		weight int64 // of the flow with costly jobs
		every  int   // steps
		act    func(w *world)
	}{
		"a job that is put off again and again": {1, 5, func(w *world) {
			for id, j := range w.m.jobs {
				if j.State.Waiting() && j.Flow == "evil/echo" {
					w.cancel(cancellation{at: w.wall, tenant: "evil", ids: []string{id}})
					break
				}
			}
			soon(w)
		}},
		"a flow of little weight": {1000, 25, soon},
	} {
		t.Run(name, func(t *testing.T) {
			tellPool(t, func(w *world) {
				w.tune(w.tuningOf("quiet", "api", shaper.Overrides{Weight: new(c.weight)}))
				for range 12 {
					w.submitCosting("quiet", 100)
				}
				left := 0
				for step, end := 0, w.wall.Add(span); w.wall < end; step++ {
					if step%c.every == 0 {
						c.act(w)
					}
					w.pollUntilIdle()
					for _, ref := range w.held {
						if w.m.jobs[ref.id].Flow == "quiet/echo" {
							left++
						}
					}
					w.settleAll(scripts.OutcomeSucceeded, 0)
					w.wall = w.wall.Add(horizon / 2)
				}
				if left < 7 {
					w.fail("%d jobs of cost 100 left in %v, want 7 of 8", left, span)
				}
			})
		})
	}
}
