package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestPoolIsLimitedByItsFlows: a pool whose flows wait for their own rates, or are paused, is not
// limited by workers. One with a job that could have left is.
func TestPoolIsLimitedByItsFlows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rate := perSecond(50).Rate
		q := embedded(t, func(o *queue.Options) {
			o.Shards = 1
			o.Tenants = map[string]shaper.Overrides{
				"slow": {Rate: &shaper.Rate{Limit: 1, Period: time.Hour}}, "paused": {Paused: new(true)},
			}
			o.Pools = map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: &rate}}}
		})
		limitedBy := func() string {
			p, err := q.Pool(t.Context(), "erp")
			all, failed := q.AllPools(t.Context())
			if err != nil || failed != nil || len(all) != 1 || all[0].LimitedBy != p.LimitedBy {
				t.Fatalf("%+v %v, of all pools %+v %v", p, err, all, failed)
			}
			return p.LimitedBy
		}
		w := work()
		w.Route = "erp"
		for _, w.Tenant = range []string{"slow", "slow", "paused"} {
			if _, err := q.Submit(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
		o := queue.TickOptions{Max: 8, Lease: time.Minute, Horizon: 20 * time.Millisecond, Sweep: time.Second}
		c := q.Broker().Consumer("w", 0)
		for leased := 0; leased == 0; {
			tick, err := c.Tick(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			leased = len(tick.Leases)
		}
		for _, at := range []time.Duration{50 * time.Millisecond, 10 * time.Second} { // soon, and when workers would be late
			<-time.After(at)
			if by := limitedBy(); by != "flows" {
				t.Errorf("a pool of flows that may not leave yet is limited by %s", by)
			}
		}
		w.Tenant = "free"
		if _, err := q.Submit(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		if by := limitedBy(); by != "workers" {
			t.Errorf("a pool with a job that nobody leases is limited by %s", by)
		}
	})
}

// TestFlowOfAnIdlePoolIsLimitedByItsRate: what a costly job owes to the flow's own rate limits the
// flow once an operator has ended what it owed to the pool, though the pool gives it less.
func TestFlowOfAnIdlePoolIsLimitedByItsRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rate := perSecond(10).Rate
		q := embedded(t, func(o *queue.Options) {
			o.Shards, o.Defaults.Rate = 1, perSecond(50).Rate
			o.Pools = map[string]shaper.PoolSettings{"erp": {
				Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: &rate, MaxCost: new(int64(1000))},
			}}
		})
		w := work()
		w.Route = "erp"
		for _, w.Cost = range []int64{900, 5} {
			admitted(t, q, w)
		}
		c := q.Broker().Consumer("w", 0)
		for leased := 0; leased == 0; {
			tick, err := c.Tick(t.Context(), queue.TickOptions{Max: 8, Lease: time.Minute, Horizon: 20 * time.Millisecond, Sweep: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			leased = len(tick.Leases)
		}
		limits := func() string {
			flow, err := q.Tenant(t.Context(), w.Tenant)
			pool, failed := q.Pool(t.Context(), "erp")
			if err != nil || failed != nil {
				t.Fatal(err, failed)
			}
			return flow.LimitedBy + ", its pool by " + pool.LimitedBy
		}
		<-time.After(5 * time.Second)
		if by := limits(); by != "pool, its pool by rate" {
			t.Errorf("a flow that owes to its pool is limited by %s", by)
		}
		if _, err := q.TunePool(t.Context(), "erp", queue.Change{
			Edit:     func(o shaper.Overrides) (shaper.Overrides, error) { return o, nil },
			EndHolds: true, EndCharge: true,
		}); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second)
		if by := limits(); by != "rate, its pool by flows" {
			t.Errorf("a flow that owes to its own rate is limited by %s", by)
		}
	})
}
