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
		<-time.After(10 * time.Second)
		if by := limitedBy(); by != "flows" {
			t.Errorf("a pool of flows that may not leave yet is limited by %s", by)
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
