package queuetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var poolTests = map[string]func(*suite){
	"flows share a rate by weight, reserve and their own rate": poolShares,
	"many tenants of a tier with a weight count as one":        poolOfGuests,
	"a change of weight is obeyed by the backlog":              poolReweighted,
	"a change of the pool is obeyed, kept and undone":          poolTuned,
	"a setting that no pool has is refused":                    poolRefuses,
	"a paused pool lets nothing leave":                         poolPaused,
	"the pool's concurrency bounds all its flows":              poolConcurrency,
	"a full pool refuses jobs of any of its flows":             poolFull,
	"a flow leaves places of its pool to the others":           poolShared,
	"every answer that asks for a pause holds the pool":        poolHeld,
	"answers to two tenants hold a pool until a probe is well": poolHeldByTwo,
	"an operator ends the hold of a flow in a pool":            poolUnheld,
	"answers to many tenants of a class hold no pool":          poolOfRefusedGuests,
	"what a flow owes is in its tenant and in its pool":        poolOwed,
	"departures cost what their jobs cost in the end":          poolCosts,
	"a new file pauses no pool, and all its flows obey it":     poolRefiled,
	"a route of no pool is not delayed":                        poolOutside,
	"a tenant is one, wherever its flows are":                  poolSpread,
	"settings reach flows in every shard":                      poolTunedEverywhere,
	"an atomic batch stays within a pool":                      poolBatch,
	"a route with jobs does not change its pool":               poolMoves,
	"flows have the names of their tenants":                    poolNames,
	"a worker that dies costs neither jobs, rate nor shares":   poolWorkerDies,
}

var hundred = shaper.Rate{Limit: 100, Period: time.Second}

// pool restarts with a pool of the routes erp and mail, and settings of tenants.
func (s *suite) pool(edit func(*shaper.Overrides), tenants map[string]shaper.Overrides) {
	s.Helper()
	o := shaper.Overrides{Rate: pointer(hundred)}
	edit(&o)
	s.restart(func(q *queue.Options) {
		q.Tenants = tenants
		q.Pools = map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp", "mail"}, Overrides: o}}
	})
}

// pooledWork is a submission of the tenant to the pool.
func pooledWork(tenant string) queue.Submission {
	w := work()
	w.Tenant, w.Route = tenant, "erp"
	return w
}

// shares leases n jobs and counts them by tenant. The stamps must be those of the pool.
func (s *suite) shares(n int, every time.Duration) map[string]int {
	s.Helper()
	leases := s.leaseUpTo(n, far)
	equal(s, "jobs leased", len(leases), n)
	byTenant, stamps := map[string]int{}, make([]shaper.Instant, len(leases))
	for i, l := range leases {
		byTenant[l.Tenant]++
		stamps[i] = l.Stamp
	}
	slices.Sort(stamps)
	first := 0 // of the grid
	for i := range stamps {
		d := stamps[i].Sub(stamps[first]) - time.Duration(i-first)*every
		if d > time.Microsecond && strings.Contains(s.Name(), "SentTwice") {
			// A pool loses the slots of an answer that is lost for longer than the slack, and
			// starts another grid.
			first, d = i, 0
		}
		if d < -time.Microsecond || d > time.Microsecond {
			s.Fatalf("stamp %d of the pool is %v off its grid of %v", i, d, every)
		}
	}
	return byTenant
}

// getAhead leases from a pool of 100/s until its next slot is 0.2 s ahead. Then none is over when a
// long poll is sent again: a flow does not get back the share that it used for a lost slot.
func (s *suite) getAhead() {
	s.Helper()
	s.shares(20, 10*time.Millisecond)
}

func (s *suite) nearly(what string, got, want, by int) {
	s.Helper()
	if got < want-by || got > want+by {
		s.Errorf("%s: %d, want %d within %d", what, got, want, by)
	}
}

func poolShares(s *suite) {
	s.pool(func(*shaper.Overrides) {}, map[string]shaper.Overrides{
		"a": {Weight: pointer(int64(4))}, "b": {Weight: pointer(int64(2))}, "c": {Rate: &shaper.Rate{Limit: 5, Period: time.Second}},
		"d": {Reserve: &shaper.Rate{Limit: 20, Period: time.Second}},
	})
	for _, tenant := range []string{"a", "b", "c", "d"} {
		s.backlog(200, pooledWork(tenant))
	}
	s.getAhead()
	got := s.shares(200, 10*time.Millisecond) // two seconds
	s.nearly("a, weight 4", got["a"], 86, 2)
	s.nearly("b, weight 2", got["b"], 43, 2)
	s.nearly("c, at most 5/s", got["c"], 10, 1)
	s.nearly("d, 20/s reserved and weight 1", got["d"], 61, 2)
	a, c := s.tenant("a"), s.tenant("c")
	equal(s, "what limits a", a.LimitedBy, "pool") // of its own rate, the pool gives it a part
	equal(s, "what limits its flow", a.Routes["erp"].LimitedBy, "pool")
	equal(s, "the rate of its pool", a.Routes["erp"].PoolRate, 100)
	equal(s, "its part of the pool", a.Routes["erp"].Part, 0.4) // 80/s by weight, 4 of 8
	equal(s, "its effective rate", a.EffectiveRate, 100)
	equal(s, "what limits c", c.LimitedBy, "rate") // 5/s, and the pool would give it 10
	equal(s, "its effective rate", c.Routes["erp"].EffectiveRate, 5)
	scanned := s.scan(100)
	equal(s, "what limits a in a scan", scanned["a"].LimitedBy, "pool")
	equal(s, "its pools' rate in a scan", scanned["a"].PoolRate, 100)
	equal(s, "what limits c in a scan", scanned["c"].LimitedBy, "rate")
}

// poolOfGuests has 80 guests with 6 jobs each beside a customer, and then a new guest for each job.
func poolOfGuests(s *suite) {
	s.restart(func(q *queue.Options) {
		q.Tiers, q.PoolWeights = map[string]shaper.Overrides{"free": {}}, map[string]int64{"free": 1}
		q.Pools = map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: pointer(hundred)}}}
	})
	s.backlog(200, pooledWork("customer"))
	guests := 0
	comes := func(jobs int) {
		guests++
		w := pooledWork(fmt.Sprint("guest:", guests))
		w.Tier, w.Guest = "free", true
		s.backlog(jobs, w)
	}
	for range 80 {
		comes(6)
	}
	s.getAhead()
	s.nearly("the customer beside 80 guests", s.shares(100, 10*time.Millisecond)["customer"], 50, 1)
	for range 80 {
		comes(1)
	}
	s.nearly("the customer beside 80 more", s.shares(100, 10*time.Millisecond)["customer"], 50, 1)
	p, err := s.q.Pool(s.ctx, "erp")
	if err != nil {
		s.Fatal(err)
	}
	equal(s, "weights", p.Weights, 2)
	if p.Waiting < 100 {
		s.Errorf("%d flows wait", p.Waiting)
	}
	flows, err := s.q.PoolFlows(s.ctx, "erp", 100)
	if err != nil || len(flows) != 100 {
		s.Fatalf("%d flows, %v", len(flows), err)
	}
	parts := 0.0
	for _, f := range flows {
		if f.Class == "free" {
			parts += f.Part
		} else {
			equal(s, "part of the customer", f.Part, 0.5)
		}
	}
	if whole := parts * float64(p.Waiting-1) / 99; whole < 0.49 || whole > 0.51 {
		s.Errorf("the guests are entitled to %v, want half", whole)
	}
}

func poolNames(s *suite) {
	s.pool(func(*shaper.Overrides) {}, nil)
	want := []string{"guest:192.0.2.7", "later, 10 %", "plain", strings.Repeat("long", 20)}
	for _, tenant := range want {
		w := pooledWork(tenant)
		if strings.HasPrefix(tenant, "later") {
			w.Delay = time.Minute
		}
		s.backlog(1, w)
	}
	flows, err := s.q.PoolFlows(s.ctx, "erp", 100)
	equal(s, "the error", err, nil)
	var got []string
	for _, f := range flows {
		got = append(got, f.Tenant)
		equal(s, "the route of "+f.Tenant, f.Route, "erp")
	}
	slices.Sort(got)
	slices.Sort(want)
	equal(s, "tenants", fmt.Sprint(got), fmt.Sprint(want))
}

func poolReweighted(s *suite) {
	s.pool(func(*shaper.Overrides) {}, nil)
	s.backlog(200, pooledWork(tenant))
	s.backlog(200, pooledWork("other"))
	s.getAhead()
	got := s.shares(100, 10*time.Millisecond)
	s.nearly("with equal weights", got[tenant], 50, 1)
	s.tune(func(o *shaper.Overrides) { o.Weight = pointer(int64(3)) })
	got = s.shares(100, 10*time.Millisecond)
	s.nearly("with three times the weight", got[tenant], 75, 2)
}

func (s *suite) tunePool(edit func(*shaper.Overrides)) queue.Pool {
	s.Helper()
	p, err := s.q.TunePool(s.ctx, "erp", queue.Change{Reason: "test", Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		edit(&o)
		return o, nil
	}})
	if err != nil {
		s.Fatalf("TunePool: %v", err)
	}
	return p
}

func poolTuned(s *suite) {
	s.pool(func(*shaper.Overrides) {}, nil)
	s.backlog(300, pooledWork(tenant))
	s.shares(20, 10*time.Millisecond)
	double := shaper.Rate{Limit: 200, Period: time.Second}
	p := s.tunePool(func(o *shaper.Overrides) { o.Rate = &double })
	equal(s, "the rate", p.Policy.Rate, double)
	equal(s, "its source", p.Sources["rate"], shaper.SourceAPI)
	equal(s, "the revision", p.Revision, 1)
	equal(s, "the reason", p.Reason, "test")
	equal(s, "flows that wait", p.Waiting, 1)
	s.shares(100, 5*time.Millisecond)
	s.pool(func(o *shaper.Overrides) { o.Burst = pointer(int64(2)) }, nil) // another file
	p, err := s.q.Pool(s.ctx, "erp")
	equal(s, "the error", err, nil)
	equal(s, "the rate under another file", p.Policy.Rate, double)
	equal(s, "the burst of the file", p.Policy.Burst, 2)
	p = s.tunePool(func(o *shaper.Overrides) { *o = shaper.Overrides{} })
	equal(s, "the rate after the reset", p.Policy.Rate, hundred)
	history, err := s.q.PoolHistory(s.ctx, "erp")
	equal(s, "the error", err, nil)
	equal(s, "changes in the history", len(history), 2)
	if _, err := s.q.Pool(s.ctx, "none"); !errors.Is(err, queue.ErrNoPool) {
		s.Errorf("a pool that there is not: %v", err)
	}
}

func poolRefuses(s *suite) {
	s.pool(func(*shaper.Overrides) {}, nil)
	_, err := s.q.TunePool(s.ctx, "erp", queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Weight = pointer(int64(3))
		return o, nil
	}})
	var problems shaper.Problems
	if !errors.As(err, &problems) || problems[0].Field != "weight" {
		s.Errorf("a weight of a pool: %v", err)
	}
}

func poolPaused(s *suite) {
	s.pool(func(o *shaper.Overrides) { o.Paused = pointer(true) }, nil)
	s.admit(pooledWork(tenant))
	s.none()
	s.tunePool(func(o *shaper.Overrides) { o.Paused = pointer(false) })
	s.lease(1)
}

func poolConcurrency(s *suite) {
	s.pool(func(o *shaper.Overrides) { o.Concurrency = pointer(int64(3)) }, nil)
	s.backlog(5, pooledWork(tenant))
	s.backlog(5, pooledWork("other"))
	leases := s.lease(3)
	equal(s, "leased beyond the cap", len(s.leaseUpTo(10, far)), 0)
	s.settle(leases[0], shaper.Succeed)
	s.lease(1)
}

func poolFull(s *suite) {
	s.pool(func(o *shaper.Overrides) { o.Capacity = pointer(int64(3)) }, nil)
	s.backlog(2, pooledWork(tenant))
	s.admit(pooledWork("other"))
	v := s.submit(pooledWork("third"))
	equal(s, "the outcome", v.Outcome, shaper.Full)
	equal(s, "that it is the pool's", v.OfPool, true)
	equal(s, "the depth", v.Depth, 3)
	equal(s, "the capacity", v.Capacity, 3)
	if v.RetryAfter <= 0 || v.RetryAfter > time.Second {
		s.Errorf("retry after %v, want the time until a job of the pool leaves", v.RetryAfter)
	}
	s.admit(work()) // not in the pool
}

func poolShared(s *suite) {
	s.pool(func(o *shaper.Overrides) { o.Concurrency, o.Capacity = pointer(int64(20)), pointer(int64(40)) }, nil)
	s.backlog(30, pooledWork(tenant))
	v := s.submit(pooledWork(tenant))
	equal(s, "the outcome beyond three times what is left", v.Outcome, shaper.Full)
	equal(s, "that it is the pool's", v.OfPool, true)
	equal(s, "that it is the flow's part", v.OfPart, true)
	equal(s, "its part", v.Capacity, 30)
	equal(s, "what it holds", v.Depth, 30)
	if v.RetryAfter <= 0 || v.RetryAfter > time.Second {
		s.Errorf("retry after %v, want the time until a job of the pool leaves", v.RetryAfter)
	}
	leases := s.leaseUpTo(20, time.Minute)
	equal(s, "leased of the only flow", len(leases), 15)
	s.backlog(5, pooledWork("other"))
	equal(s, "leased beside the greedy flow", s.leaseUpTo(20, time.Minute)[0].Tenant, "other")
}

func poolHeld(s *suite) {
	s.restart(func(q *queue.Options) {
		q.Pools = map[string]shaper.PoolSettings{"erp": {
			Routes: []string{"erp", "mail"}, Overrides: shaper.Overrides{Rate: pointer(hundred)},
			HoldPool: true, MaxHold: 10 * time.Minute,
		}}
	})
	s.backlog(2, pooledWork(tenant))
	s.backlog(2, pooledWork("other"))
	l := s.lease(1)[0]
	s.settle(l, shaper.Hold, pausing)
	equal(s, "leased while the pool is held", len(s.leaseUpTo(10, time.Minute)), 0)
	p, err := s.q.Pool(s.ctx, "erp")
	equal(s, "the error", err, nil)
	equal(s, "what limits the pool", p.LimitedBy, "held")
	equal(s, "by what it is held", p.HeldBy.Status, 429)
	equal(s, "what limits a flow of it", s.tenant("other").LimitedBy, "pool")
	equal(s, "until when that is held", s.tenant("other").HeldUntil, p.HeldUntil)
	if left := time.Until(p.HeldUntil); left > 10*time.Minute {
		s.Errorf("held for %v, more than max_hold", left)
	}
}

// poolOfRefusedGuests: all tenants of a class may be one client, so their answers count as those of
// one tenant. That to a customer makes two.
func poolOfRefusedGuests(s *suite) {
	s.restart(func(q *queue.Options) {
		q.Tiers, q.PoolWeights = map[string]shaper.Overrides{"free": {}}, map[string]int64{"free": 1}
		q.Pools = map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: pointer(hundred)}}}
	})
	refused := func(name, tier string) string {
		w := pooledWork(name)
		w.Tier, w.Guest = tier, tier != ""
		s.backlog(1, w)
		s.settle(s.lease(1)[0], shaper.Hold, pausing)
		p, err := s.q.Pool(s.ctx, "erp")
		equal(s, "the error", err, nil)
		return p.LimitedBy
	}
	for i := range 5 {
		if by := refused(fmt.Sprint("guest:", i), "free"); by == "held" {
			s.Fatalf("the pool is held by the answers to %d guests", i+1)
		}
	}
	equal(s, "what limits the pool then", refused("customer", ""), "held")
}

// poolUnheld: the flow of a pool may be in another shard than the settings of its tenant. The end
// of its holds reaches it, for a tenant without settings and for one with some.
func poolUnheld(s *suite) {
	s.spreadOut()
	shard := store.NewKeyspace(16).ShardOf("+erp").Index
	consumer := s.q.Broker().Consumer("of the pool", shard)
	leased := func() (all []queue.Lease) {
		s.await("polls", func() bool {
			tick, err := consumer.Tick(s.ctx, pollOptions(1, far))
			equal(s, "the error", err, nil)
			all = append(all, tick.Leases...)
			return !tick.More || len(all) == 1
		})
		return all
	}
	// A pool loses a slot that is over when its poll is sent again, so its slots are to be ahead.
	dear := pooledWork("other")
	dear.Cost = 1000
	s.admit(dear)
	s.await("the job of a high cost", func() bool { return len(leased()) == 1 })
	for _, has := range []string{"no settings", "settings"} {
		s.backlog(1, pooledWork(tenant))
		var l []queue.Lease
		s.await("the job", func() bool { l = leased(); return len(l) == 1 })
		s.settle(l[0], shaper.Hold, pausing)
		equal(s, has+": held", s.tenant(tenant).Routes["erp"].LimitedBy, "held")
		t, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: keep, EndHolds: true})
		equal(s, has+": the error", err, nil)
		equal(s, has+": the end of the hold", t.Routes["erp"].HeldUntil, time.Time{})
		equal(s, has+": held then", s.tenant(tenant).Routes["erp"].LimitedBy == "held", false)
		s.await("the job after the hold", func() bool { l = leased(); return len(l) == 1 })
		s.settle(l[0], shaper.Succeed)
		s.tune(func(o *shaper.Overrides) { o.Capacity = pointer(int64(10)) })
	}
}

// pausing asks for an hour.
func pausing(x *queue.Settlement) {
	x.Delay, x.Cause = time.Hour, queue.HoldCause{By: queue.HeldByRetryAfter, Status: 429}
}

// poolOwed: a job that costs more than its estimate makes its flow owe the rest, until an operator
// ends that.
func poolOwed(s *suite) {
	s.pool(func(*shaper.Overrides) {}, nil)
	owed := func(what string, want int64) {
		s.Helper()
		p, err := s.q.Pool(s.ctx, "erp")
		if err != nil {
			s.Fatalf("Pool: %v", err)
		}
		equal(s, "what the pool is owed "+what, p.Owed, want)
		equal(s, "what the flow owes "+what, s.tenant("acme").Routes["erp"].Owed, want)
		equal(s, "what the tenant owes in a scan "+what, s.scan(10)["acme"].Owed, want)
	}
	s.admit(pooledWork("acme"))
	s.admit(pooledWork("acme"))
	owed("before a cost is known", 0)
	equal(s, "the result", s.settle(s.lease(1)[0], shaper.Succeed, costing(50)), queue.Settled)
	owed("after a high cost", 49)
	keep := func(o shaper.Overrides) (shaper.Overrides, error) { return o, nil }
	if _, err := s.q.Tune(s.ctx, "acme", queue.Change{Edit: keep, EndHolds: true}); err != nil {
		s.Fatalf("Tune: %v", err)
	}
	owed("after unhold", 0)
}

// poolCosts: a departure counts for its estimate until its actual cost is known, and for nothing
// once it was given back unused.
func poolCosts(s *suite) {
	s.pool(func(*shaper.Overrides) {}, nil)
	total := map[string]int64{}
	cost := func(what, tenant string, departed, want int64) {
		s.Helper()
		total[tenant] = want
		p, err := s.q.Pool(s.ctx, "erp")
		if err != nil {
			s.Fatalf("Pool: %v", err)
		}
		equal(s, "departures of the pool "+what, p.Departed, departed)
		equal(s, "their costs "+what, p.Costs, total["acme"]+total["other"])
		equal(s, "those of the flow "+what, s.scan(10)[tenant].Pooled[0].Costs, want)
	}
	leave := func(tenant string, cost int64) queue.Lease {
		w := pooledWork(tenant)
		w.Cost = cost
		s.admit(w)
		return s.lease(1)[0]
	}
	l := leave("acme", 5)
	cost("at the estimate", "acme", 1, 5)
	s.settle(l, shaper.Succeed, costing(3))
	cost("at a lower cost", "acme", 1, 3)
	s.settle(leave("acme", 1), shaper.Succeed)
	cost("without a cost", "acme", 2, 4)
	l = leave("other", 20)
	s.settle(l, shaper.Release)
	cost("after a job was given back", "other", 2, 0)
	s.settle(s.lease(1)[0], shaper.Succeed, costing(70))
	cost("at a cost far above the estimate", "other", 3, 70)
	s.admit(pooledWork("acme"))
	s.admit(pooledWork("other"))
	flows, err := s.q.PoolFlows(s.ctx, "erp", 10)
	equal(s, "the error", err, nil)
	for _, f := range flows {
		equal(s, "the costs in the list of flows of "+f.Tenant, f.Costs, total[f.Tenant])
	}
	equal(s, "flows that wait", len(flows), 2)
}

// poolHeldByTwo: the answer to one tenant holds its flow. That to a second one holds the pool.
// Then jobs of a third one leave as probes; the success of one ends the hold.
func poolHeldByTwo(s *suite) {
	s.pool(func(*shaper.Overrides) {}, nil)
	limitedBy := func() string {
		p, err := s.q.Pool(s.ctx, "erp")
		equal(s, "the error", err, nil)
		return p.LimitedBy
	}
	s.backlog(3, pooledWork(tenant))
	s.settle(s.lease(1)[0], shaper.Hold, pausing)
	s.backlog(3, pooledWork("other"))
	other := s.lease(1)[0]
	equal(s, "whose job leaves beside the held flow", other.Tenant, "other")
	if by := limitedBy(); by == "held" {
		s.Errorf("the answer to one tenant holds the pool")
	}
	s.settle(other, shaper.Hold, pausing)
	equal(s, "what limits the pool", limitedBy(), "held")
	s.backlog(20, pooledWork("third"))
	const reach = 20 * time.Second
	probes := s.leaseUpTo(20, reach) // one in five seconds
	for i := 2; len(probes) == 0 && i < 10; i++ {
		// A pool loses the slots of an answer that is lost for longer than the slack.
		probes = s.leaseUpTo(20, time.Duration(i)*reach)
	}
	if len(probes) < 1 || len(probes) > 5 {
		s.Fatalf("%d probes in %v", len(probes), reach)
	}
	equal(s, "whose", probes[0].Tenant, "third")
	s.settle(probes[0], shaper.Succeed)
	if by := limitedBy(); by == "held" {
		s.Errorf("the pool is held after a probe has succeeded")
	}
	if n := len(s.leaseUpTo(20-len(probes), far)); n < 10 {
		s.Errorf("%d jobs leave then", n)
	}
}

// poolRefiled: while hundreds of flows take over new policies, each poll lets jobs leave, but
// perhaps for the first of a worker, which learns of the pool.
func poolRefiled(s *suite) {
	const tenants = 400
	s.pool(func(*shaper.Overrides) {}, nil)
	for i := range tenants {
		s.backlog(2, pooledWork(fmt.Sprint("tenant", i)))
	}
	s.shares(20, 10*time.Millisecond)
	s.policies(func(b *shaper.Baseline) {
		b.Defaults.Weight = 3
		b.Pools = map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp", "mail"}, Overrides: shaper.Overrides{Rate: pointer(hundred)}}}
	}, nil)
	left := 0
	for i := range 30 {
		tick := s.poll([]string{"w", "x"}[i%2], pollOptions(10, far))
		if left += len(tick.Leases); len(tick.Leases) == 0 && i != 1 {
			s.Errorf("poll %d after the change leases nothing: %+v", i, tick)
		}
	}
	s.nearly("jobs that left in the meantime", left, 300, 10)
	p, err := s.q.Pool(s.ctx, "erp")
	for began := time.Now(); err == nil && p.Weights != 3*p.Waiting && time.Since(began) < 10*time.Second; {
		s.poll("w", pollOptions(1, near)) // retunes come one after the other
		p, err = s.q.Pool(s.ctx, "erp")
	}
	equal(s, "the error", err, nil)
	equal(s, "the sum of weights", p.Weights, 3*p.Waiting)
}

func poolOutside(s *suite) {
	s.pool(func(o *shaper.Overrides) { o.Rate = &slow }, nil)
	s.backlog(3, pooledWork(tenant))
	s.backlog(20, work())
	equal(s, "jobs of no pool", len(slices.DeleteFunc(s.leaseUpTo(100, time.Second), func(l queue.Lease) bool { return l.Route != "default" })), 20)
}

func poolSpread(s *suite) {
	s.spreadOut()
	out := s.admit(work())
	in := s.admit(pooledWork(tenant))
	t := s.tenant(tenant)
	equal(s, "the depth", t.Depth, 2)
	equal(s, "the depth of the route in the pool", t.Routes["erp"].Depth, 1)
	for _, j := range []queue.Job{out, in} {
		equal(s, "the job", s.job(j.ID).Route, j.Route)
	}
	equal(s, "jobs listed", len(s.list(queue.List{Tenant: tenant, State: queue.ListAll, Limit: 10})), 2)
	equal(s, "tenants scanned", len(s.scan(10)), 1)
	equal(s, "the depth in a scan", s.scan(10)[tenant].Depth, 2)
	only := pooledWork("only in the pool")
	s.admit(only)
	names, next := []string{}, ""
	for {
		page, more, err := s.q.Tenants(s.ctx, next, 10)
		equal(s, "the error", err, nil)
		names = append(names, page...)
		if next = more; next == "" {
			break
		}
	}
	slices.Sort(names)
	equal(s, "tenants listed", strings.Join(names, ", "), tenant+", only in the pool")
	s.cancel(in.ID)
	s.cancel(out.ID)
	equal(s, "the depth after both were cancelled", s.tenant(tenant).Depth, 0)
}

// spreadOut opens a store with many shards, where the pool is in another shard than the tenant.
func (s *suite) spreadOut() {
	s.Helper()
	keys := store.NewKeyspace(16)
	if keys.ShardOf(tenant) == keys.ShardOf("+erp") {
		s.Fatal("the tenant and the pool are in one shard")
	}
	err := errors.Join(s.q.Close(), s.engine.Client().Del(s.ctx, "sluice:meta").Err()) // the store has one shard
	equal(s, "the error", err, nil)
	s.open(func(o *queue.Options) {
		o.Shards = 16
		o.Pools = map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp", "mail"}, Overrides: shaper.Overrides{Rate: pointer(hundred)}}}
	})
}

func poolTunedEverywhere(s *suite) {
	s.spreadOut()
	w := pooledWork(tenant)
	s.admit(w)
	s.tune(func(o *shaper.Overrides) { o.Capacity = pointer(int64(1)) })
	equal(s, "the outcome in the pool", s.submit(w).Outcome, shaper.Full)
	s.admit(work())
	equal(s, "the outcome outside", s.submit(work()).Outcome, shaper.Full)
	s.tune(func(o *shaper.Overrides) { o.Capacity = nil })
	s.admit(w)
}

func poolBatch(s *suite) {
	s.spreadOut()
	in, out := pooledWork(tenant), work()
	_, err := s.q.SubmitBatch(s.ctx, []queue.Submission{in, out}, true)
	var problems shaper.Problems
	if !errors.As(err, &problems) || problems[0].Field != "atomic" {
		s.Errorf("an atomic batch over two shards: %v", err)
	}
	for i, v := range s.batch(false, in, out, in) {
		equal(s, "the outcome", v.Outcome, shaper.Admitted)
		equal(s, "the route", v.Job.Route, []string{"erp", "default", "erp"}[i])
	}
}

func poolMoves(s *suite) {
	s.pool(func(*shaper.Overrides) {}, nil)
	j := s.admit(pooledWork(tenant))
	baseline := shaper.Baseline{Defaults: shaper.Policy{Rate: quick, Burst: 1, Capacity: 1000}}
	var moves *queue.MoveError
	if err := s.q.SetPolicies(s.ctx, baseline, nil); !errors.As(err, &moves) {
		s.Fatalf("a file without the pool: %v, want it refused", err)
	}
	equal(s, "jobs in the way", moves.Jobs, 1)
	equal(s, "their routes", strings.Join(moves.Routes, ","), "erp")
	s.cancel(j.ID)
	equal(s, "the error once they are gone", s.q.SetPolicies(s.ctx, baseline, nil), nil)
	equal(s, "pools", len(s.q.Pools()), 0)
}

// pollWhileMore polls as a worker does: at once, while a poll reports that more is to be done.
func (s *suite) pollWhileMore(worker string, o queue.TickOptions) (leases []queue.Lease) {
	for more := true; more; {
		tick := s.poll(worker, o)
		leases, more = append(leases, tick.Leases...), tick.More
	}
	return leases
}

func poolWorkerDies(s *suite) {
	s.pool(func(*shaper.Overrides) {}, map[string]shaper.Overrides{"a": {Weight: pointer(int64(3))}})
	for _, tenant := range []string{"a", "b"} {
		s.backlog(100, pooledWork(tenant))
	}
	var died, later []queue.Lease
	s.await("jobs to be leased", func() bool {
		died = append(died, s.pollWhileMore("w", short())...)
		return len(died) >= 12
	})
	lost := map[string]bool{} // and not yet leased again
	for _, l := range died {
		lost[l.ID] = true
	}
	lives := short()
	lives.Lease = time.Minute
	s.await("them to be leased again, among others", func() bool {
		for _, l := range s.pollWhileMore("x", lives) {
			delete(lost, l.ID)
			later = append(later, l)
		}
		return len(lost) == 0 && len(later) >= 40
	})
	byTenant, seen, all := map[string]int{}, map[string]bool{}, slices.Concat(died, later)
	for _, l := range later {
		byTenant[l.Tenant]++
		equal(s, "whether a job is leased once more than it was lost", seen[l.ID], false)
		seen[l.ID] = true
	}
	s.nearly("a, weight 3", byTenant["a"], len(later)*3/4, 2)
	slices.SortFunc(all, func(a, b queue.Lease) int { return cmp.Compare(a.Stamp, b.Stamp) })
	for i := 1; i < len(all); i++ {
		if gap := all[i].Stamp.Sub(all[i-1].Stamp); gap < 10*time.Millisecond {
			s.Errorf("two stamps of the pool are %v apart, want 10ms at least", gap)
		}
	}
}
