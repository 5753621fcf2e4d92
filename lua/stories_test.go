package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// tell runs a story that random histories are unlikely to find, with the model beside it, on both
// engines.
func tell(t *testing.T, rate string, story func(w *world)) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t, kind.start(t), themes[0], 1)
			defer w.clean()
			p := shaper.DefaultPolicy()
			if err := p.Rate.UnmarshalText([]byte(rate)); err != nil {
				t.Fatal(err)
			}
			p.Capacity, p.Concurrency = 10_000, 0
			w.declare(w.wall, 1, shaper.Baseline{Defaults: p})
			story(w)
			w.drain()
		})
	}
}

// submit admits n jobs after a delay.
func (w *world) submit(n int, delay time.Duration) { w.submitAs("acme", n, delay) }

// submitAs admits n jobs of a tenant after a delay.
func (w *world) submitAs(tenant string, n int, delay time.Duration) {
	r := admission{at: w.wall}
	for range n {
		w.names++
		r.jobs = append(r.jobs, candidate{
			id: fmt.Sprintf("j%06d", w.names), tenant: tenant, route: "echo", flow: tenant + "/echo",
			entry: tenant, delay: delay, cost: 1, maxAttempts: 3,
			payload: []byte("payload"),
		})
	}
	w.admit(r)
}

// pollUntilIdle polls until nothing is left to do now.
func (w *world) pollUntilIdle() {
	for w.tick(w.workers[0], w.pollOf(w.workers[0], 1000), true).More {
	}
}

// settleAll settles what the workers hold, all alike.
func (w *world) settleAll(outcome scripts.Outcome, delay time.Duration) {
	var items []scripts.SettleItem
	for _, ref := range w.held {
		items = append(items, scripts.SettleItem{
			Key: ref.id, Epoch: ref.epoch, Outcome: outcome, Delay: delay, MaxAttempts: 3,
		})
	}
	w.held = nil
	w.settle(settlement{w.wall, items})
}

// TestDeadOutlivesIdleness: a tenant with dead letters is not forgotten, so what is replayed obeys
// pause and resume.
func TestDeadOutlivesIdleness(t *testing.T) {
	tell(t, "10/s", func(w *world) {
		w.submit(1, 0)
		w.pollUntilIdle()
		w.settleAll(scripts.OutcomeDead, 0)
		for range 3 {
			w.wall = w.wall.Add(idleAfter + time.Second)
			w.pollUntilIdle()
		}
		w.replay(revival{at: w.wall, tenant: "acme", id: w.ids[0], tag: 1, maxAttempts: 3})
		for _, paused := range []bool{true, false} {
			w.tune(w.tuningOf("acme", "api", shaper.Overrides{Paused: &paused}))
			w.pollUntilIdle()
			w.wall = w.wall.Add(time.Second)
		}
		w.pollUntilIdle()
		if len(w.held) != 1 {
			w.fail("after pause and resume the job does not leave")
		}
	})
}

// TestForgottenDeadLetter: a dead letter may outlive its flow in Redis, because the shard's clock
// trims it earlier. It can be neither deleted nor replayed, so that no flow is stored that is not
// in the index of its tenant.
func TestForgottenDeadLetter(t *testing.T) {
	tell(t, "10/s", func(w *world) {
		w.submit(1, 0)
		w.pollUntilIdle()
		w.settleAll(scripts.OutcomeDead, 0)
		w.wall = w.wall.Add(retention.Dead + retention.Idempotency)
		w.claim(w.wall, "all", 10)
		w.handed(w.wall, w.claims)
		w.claims = nil
		for range 3 {
			w.wall = w.wall.Add(idleAfter + time.Second)
			w.pollUntilIdle()
		}
		if len(w.m.flows) != 0 {
			w.fail("not forgotten")
		}
		w.cancel(cancellation{at: w.wall, tenant: "acme", ids: w.ids, dead: true})
		w.replay(revival{at: w.wall, tenant: "acme", id: w.ids[0], tag: 1, maxAttempts: 3})
		if s := w.compare(); s.Keys["flow:acme/echo"] != nil {
			w.fail("a flow is stored that no index names")
		}
		w.submit(1, 0)
	})
}

// TestStoredOutlivesIdleness: a tenant is not forgotten while it has much in the store, so it gets
// no new share by waiting.
func TestStoredOutlivesIdleness(t *testing.T) {
	tell(t, "1000000/s", func(w *world) {
		w.submit(220, 0)
		w.pollUntilIdle()
		w.settleAll(scripts.OutcomeSucceeded, 0)
		known := func() bool { return len(w.m.names["acme"]) > 0 }
		w.wall = w.wall.Add(idleAfter + time.Second)
		w.pollUntilIdle()
		if !known() {
			w.fail("forgotten while its answers are stored")
		}
		w.wall = w.wall.Add(2 * retention.Finished)
		w.pollUntilIdle()
		if known() {
			w.fail("not forgotten after them")
		}
	})
}

// TestPromotionIsBounded: invariant 11. However many jobs become eligible at once, a poll moves a
// bounded number of them.
func TestPromotionIsBounded(t *testing.T) {
	const jobs = 1000
	tell(t, "1/s", func(w *world) {
		w.submit(jobs, time.Second)
		w.pollUntilIdle()
		w.wall = w.wall.Add(time.Second)
		w.tick(w.workers[0], w.pollOf(w.workers[0], 1000), true)
		if left := w.e.ZCard(w.ctx, w.shard.Later("acme/echo")).Val(); left < jobs-500 {
			w.fail("one poll promoted %d jobs", jobs-left)
		}
		// What is left for the drain is short enough for the slow engine.
		w.cancel(cancellation{at: w.wall, tenant: "acme", ids: w.ids[20:]})
	})
}

// TestFreeLeasesEnd: twenty holds cost nothing, each further one an attempt.
func TestFreeLeasesEnd(t *testing.T) {
	tell(t, "10/s", func(w *world) {
		w.submit(1, 0)
		holds := 0
		for ; w.m.jobs[w.ids[0]].State != shaper.Dead; holds++ {
			w.pollUntilIdle()
			w.settleAll(scripts.OutcomeHeld, time.Second)
			w.wall = w.wall.Add(3 * time.Second) // the hold, and the slow time after it
		}
		if want := shaper.FreeLeases + 3; holds != want {
			w.fail("dead after %d holds, want %d", holds, want)
		}
	})
}

// TestOverdueAtItsStamp: a job whose stamp would be after its deadline expires and takes no slot. A
// poll that may lease one job and drops it reports that work is left.
func TestOverdueAtItsStamp(t *testing.T) {
	tell(t, "100/s", func(w *world) {
		start := w.wall
		one := func() scripts.Grant { return w.tick(w.workers[0], w.pollOf(w.workers[0], 1), true) }
		w.submit(1, 0)
		w.admit(admission{at: w.wall, jobs: []candidate{{
			id: "overdue", tenant: "acme", route: "echo", flow: "acme/echo", entry: "acme",
			maxWait: 15 * time.Millisecond, cost: 1, maxAttempts: 1,
		}}})
		w.submit(2, 0)
		one()
		w.settleAll(scripts.OutcomeHeld, 12*time.Millisecond)
		w.wall = start.Add(5 * time.Millisecond)
		one()
		w.settleAll(scripts.OutcomeSucceeded, 0)
		w.wall = start.Add(13 * time.Millisecond)
		g := one()
		if state := w.m.jobs["overdue"].State; state != shaper.Expired {
			w.fail("the overdue job is %v, want expired", state)
		}
		if len(g.Leases) != 0 || !g.More {
			w.fail("the poll is %+v, want no lease, and that work is left", g)
		}
		if g := one(); len(g.Leases) != 1 || g.Leases[0].Stamp != start.Add(32*time.Millisecond) {
			w.fail("the next job leaves otherwise than in the slot of the one dropped: %+v", g)
		}
	})
}

// TestPollOfNothing: a poll before anything is due writes nothing. The instant that it returns is
// that of the next work, which may be an expiry.
func TestPollOfNothing(t *testing.T) {
	tell(t, "1/s", func(w *world) {
		off := true
		w.tune(w.tuningOf("acme", "api", shaper.Overrides{Paused: &off}))
		w.admit(admission{at: w.wall, jobs: []candidate{{
			id: "j", tenant: "acme", route: "echo", flow: "acme/echo", entry: "acme",
			maxWait: 100 * time.Millisecond, cost: 1, maxAttempts: 1,
		}}})
		w.pollUntilIdle()
		before := w.compare()
		g := w.tick(w.workers[0], w.pollOf(w.workers[0], 10), true)
		if diff := difference(before, w.compare()); diff != "" {
			w.fail("a poll at nothing wrote:\n%s", diff)
		}
		w.wall = g.Next.Add(-horizon / 2)
		w.tick(w.workers[0], w.pollOf(w.workers[0], 10), true)
		if state := w.m.jobs["j"].State; state != shaper.Expired {
			w.fail("where the worker was to poll the job is still %v", state)
		}
	})
}

// TestClockGoesOnAfterAStepBack: the shard's clock runs on from where it was, also when no poll
// after the step finds anything to do.
func TestClockGoesOnAfterAStepBack(t *testing.T) {
	tell(t, "1/s", func(w *world) {
		w.submit(2, 0)
		w.pollUntilIdle()
		w.settleAll(scripts.OutcomeSucceeded, 0)
		w.pollUntilIdle()
		w.wall = w.wall.Add(-time.Hour)
		for range 5 {
			w.wall = w.wall.Add(300 * time.Millisecond)
			w.pollUntilIdle()
		}
		if len(w.held) != 1 {
			w.fail("a second and a half after the step the next job has not left")
		}
	})
}

// TestExpiredAtItsPromotion: a job whose turn would come too late is filed under the sequence that
// it was promoted with.
func TestExpiredAtItsPromotion(t *testing.T) {
	tell(t, "50/s", func(w *world) {
		w.names++
		w.admit(admission{at: w.wall, jobs: []candidate{{
			id: fmt.Sprintf("j%06d", w.names), tenant: "acme", route: "echo", flow: "acme/echo", entry: "acme",
			delay: 3 * time.Millisecond, maxWait: 40 * time.Millisecond, cost: 1, maxAttempts: 3,
			payload: []byte("payload"),
		}}})
		w.wall = w.wall.Add(10 * time.Millisecond)
		w.submit(1, 0)
		w.wall = w.wall.Add(10*time.Millisecond + 331*time.Microsecond)
		w.pollUntilIdle()
	})
}

// TestSettledAgainAfterForgotten: a settlement that is sent again is answered although the tenant
// is forgotten.
func TestSettledAgainAfterForgotten(t *testing.T) {
	tell(t, "10/s", func(w *world) {
		w.submit(1, 0)
		w.pollUntilIdle()
		held := w.held
		w.settleAll(scripts.OutcomeSucceeded, 0)
		w.wall = w.wall.Add(idleAfter + time.Second)
		w.pollUntilIdle()
		w.held = held
		w.settleAll(scripts.OutcomeSucceeded, 0)
	})
}

// TestLostGrantsKeepShares: a grant of a pool that its worker never saw is given back with the
// turns that it used, so flows of equal weight get equal parts.
func TestLostGrantsKeepShares(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			th := theme{name: "lost grants", tenants: []string{"a", "b"}, routes: []string{"echo"}, pooled: true}
			w := newWorld(t, kind.start(t), th, 1)
			defer w.clean()
			p := shaper.DefaultPolicy()
			p.Capacity, p.Concurrency, p.Weight, p.Rate = 10_000, 0, 1, shaper.Rate{Limit: 1_000_000, Period: time.Second}
			pool := shaper.Overrides{Rate: &shaper.Rate{Limit: 200, Period: time.Second}}
			w.declare(w.wall, 1, shaper.Baseline{
				Defaults: p, Pools: map[string]shaper.PoolSettings{"erp": {Routes: th.routes, Overrides: pool}},
			})
			for _, tenant := range th.tenants {
				w.submitAs(tenant, 100, 0)
			}
			got, c := map[string]int{}, w.workers[0]
			// After 12 ms, the next slot is before the instant at which the grant is given back.
			waits := []time.Duration{50 * time.Millisecond, 12 * time.Millisecond}
			poll := func(learnt bool) scripts.Grant {
				r := w.pollOf(c, 1) // so that the same flow would lose each time
				return w.tick(c, r, learnt)
			}
			for n := 0; got["a"]+got["b"] < 80; n++ {
				poll(false)
				w.wall = w.wall.Add(waits[n/40%2])
				for range 2 { // the first one gives the grant back
					for _, l := range poll(true).Leases {
						got[tenantOf(w.m.jobs[l.ID].Flow)]++
					}
				}
			}
			if apart := got["a"] - got["b"]; apart < -2 || apart > 2 {
				w.fail("departures %v, want equal parts", got)
			}
			w.drain()
		})
	}
}

// retry is the decision on one more job now.
func (w *world) retry(edit ...func(*candidate)) scripts.Decision {
	w.names++
	c := candidate{
		id: fmt.Sprintf("j%06d", w.names), tenant: "acme", route: "echo", flow: "acme/echo", entry: "acme", cost: 1,
		maxAttempts: 3, payload: []byte("payload"),
	}
	for _, e := range edit {
		e(&c)
	}
	w.admit(admission{at: w.wall, jobs: []candidate{c}})
	return w.decided[0]
}

// TestRetryAfterKnowsConcurrency: while as many deliveries run as may, the time that a refusal
// tells goes by how long the last ones took. Nobody knows it before one has ended.
func TestRetryAfterKnowsConcurrency(t *testing.T) {
	tell(t, "100/s", func(w *world) {
		one, two := int64(1), int64(2)
		w.tune(w.tuningOf("acme", "api", shaper.Overrides{Concurrency: &one, Capacity: &two}))
		w.submit(1, 0)
		w.pollUntilIdle()
		w.submit(2, 0)
		w.wall = w.wall.Add(100 * time.Millisecond)
		if v := w.retry(); v.Outcome != shaper.Full || v.RetryAfter != 0 || v.Start != 0 || v.NextSlot != 0 {
			w.fail("before a delivery has ended: %+v", v)
		}
		late := w.retry(func(c *candidate) { c.flow, c.route, c.maxWait = "acme/mail", "mail", time.Second })
		if late.Outcome != shaper.Admitted {
			w.fail("another route: %+v", late)
		}
		w.wall = w.wall.Add(2400 * time.Millisecond)
		w.settleAll(scripts.OutcomeSucceeded, 0) // after 2.5 s
		w.pollUntilIdle()                        // and the next one leaves
		w.submit(1, 0)
		w.wall = w.wall.Add(500 * time.Millisecond)
		if v := w.retry(); v.RetryAfter != 2*time.Second || !v.Estimated || v.NextSlot.Round(time.Millisecond) != 2*time.Second {
			w.fail("half a second into a delivery: %+v", v)
		}
		w.wall = w.wall.Add(3 * time.Second)
		if v := w.retry(); v.RetryAfter != 2500*time.Millisecond {
			w.fail("in one that takes longer than any before: %+v", v)
		}
	})
}

// TestEstimatesRefuseNoDeadline: a job is refused for its max wait by the paces alone, which are
// certain, and not by how long deliveries may take.
func TestEstimatesRefuseNoDeadline(t *testing.T) {
	tell(t, "100/s", func(w *world) {
		one := int64(1)
		w.tune(w.tuningOf("acme", "api", shaper.Overrides{Concurrency: &one}))
		w.submit(2, 0)
		w.pollUntilIdle()
		soon := func(c *candidate) { c.maxWait = time.Second }
		if v := w.retry(soon); v.Outcome != shaper.Admitted || v.Start != 0 {
			w.fail("nobody knows: %+v", v)
		}
		w.wall = w.wall.Add(5 * time.Second)
		w.settleAll(scripts.OutcomeSucceeded, 0)
		w.pollUntilIdle()
		w.wall = w.wall.Add(time.Millisecond)
		if v := w.retry(soon); v.Outcome != shaper.Admitted || v.Start < v.Now.Add(4*time.Second) {
			w.fail("an estimate beyond its max wait: %+v", v)
		}
	})
}

// TestAKeyUsedAgain: a dead letter may outlive its idempotency key. Replayed, it leaves the key to
// the job that has taken it since.
func TestAKeyUsedAgain(t *testing.T) {
	tell(t, "10/s", func(w *world) {
		keyed := func(id string) {
			w.admit(admission{at: w.wall, jobs: []candidate{{
				id: id, tenant: "acme", route: "echo", flow: "acme/echo", entry: "acme",
				idem: "h", print: "p", cost: 1, maxAttempts: 3, payload: []byte("payload"),
			}}})
		}
		key := w.shard.Idem("acme", "h")
		keyed("first")
		w.pollUntilIdle()
		w.settleAll(scripts.OutcomeDead, 0)
		w.e.Del(w.ctx, key) // as after its retention
		delete(w.m.idem, "acme:h")
		keyed("second")
		w.replay(revival{at: w.wall, tenant: "acme", id: "first", tag: 1, maxAttempts: 3})
		for range 2 {
			w.wall = w.wall.Add(time.Second)
			w.pollUntilIdle()
			w.settleAll(scripts.OutcomeSucceeded, 0)
			if known := scripts.ParseKnown(w.e.Get(w.ctx, key).Val()); known.ID != "second" {
				w.fail("the key is of %q, want the second job", known.ID)
			}
		}
	})
}

// TestOwnLinesOfAnOlderFile: the own lines of a tenant may be those of a file whose pool is gone.
// The flow is in the pool of the file in force, whether the former pool was ever used or not. Its
// other settings stay.
func TestOwnLinesOfAnOlderFile(t *testing.T) {
	fast := shaper.Rate{Limit: 100, Period: time.Second}
	routed := func(pools ...string) shaper.Baseline {
		b := shaper.Baseline{Defaults: shaper.DefaultPolicy(), Pools: map[string]shaper.PoolSettings{}}
		b.Defaults.Weight = 1
		for _, name := range pools {
			b.Pools[name] = shaper.PoolSettings{Routes: []string{"echo"}, Overrides: shaper.Overrides{Rate: &fast}}
		}
		return b
	}
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t, kind.start(t), themes[0], 1)
			defer w.clean()
			own := func() { w.tune(w.tuningOf("acme", "api", shaper.Overrides{Rate: &fast, Weight: new(int64(7))})) }
			for i, pools := range [][]string{{"used"}, {"unused"}, {"crm"}, {}, {"erp"}} {
				w.declare(w.wall, int64(2*i+1), routed(pools...))
				if len(pools) == 0 || pools[0] != "unused" {
					w.submit(2, time.Second)
				}
				w.compare()
				own()
			}

			// A process of an older version took the flow to the pool of its own lines.
			w.declare(w.wall, 20, routed("crm"))
			f := w.m.flows["acme/echo"]
			f.revision = 20
			w.m.flows["acme/echo"] = f
			if err := w.e.HSet(w.ctx, w.prefix+"flow:acme/echo", "policy", fmt.Sprintf("20 = %s", lineIn(f.home, f.policy))).Err(); err != nil {
				t.Fatal(err)
			}
			own()
			w.compare()
			if f = w.m.flows["acme/echo"]; f.home != "+crm" || f.policy.Weight != 7 || f.Depth == 0 {
				t.Errorf("the flow is in %q with weight %d", f.home, f.policy.Weight)
			}
			w.drain()
		})
	}
}
