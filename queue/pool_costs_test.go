package queue_test

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// drainCosts lets jobs leave for a while, and settles each with the actual cost of its tenant, nil
// for none. It returns the costs by tenant.
func drainCosts(t *testing.T, q *queue.Queue, during time.Duration, actual map[string]int64) map[string]int64 {
	t.Helper()
	o := queue.TickOptions{Max: 8, Lease: 30 * time.Second, Horizon: 20 * time.Millisecond, Sweep: time.Second}
	c, used := q.Broker().Consumer("w", 0), map[string]int64{}
	for end := time.Now().Add(during); time.Now().Before(end); {
		tick, err := c.Tick(t.Context(), o)
		if err != nil {
			t.Fatalf("Tick: %v", err)
		}
		for _, l := range tick.Leases {
			<-time.After(time.Until(l.Stamp.Time()))
			s := queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: l.MaxAttempts}
			cost := l.Cost
			if n, known := actual[l.Tenant]; known {
				s.ActualCost, cost = &n, n
			}
			used[l.Tenant] += cost
			if _, err := q.Broker().Settle(t.Context(), []queue.Settlement{s}); err != nil {
				t.Fatalf("Settle: %v", err)
			}
		}
		if len(tick.Leases) == 0 && !tick.More {
			if tick.Next == 0 {
				t.Fatal("nothing is due")
			}
			<-time.After(max(time.Millisecond, time.Until(tick.Next.Time().Add(-o.Horizon/2))))
		}
	}
	return used
}

// quota opens a queue with a pool of 1,000 tokens and 20 requests a second, and gives each tenant
// more jobs than can leave.
func quota(t *testing.T, cost int64, tenants map[string]shaper.Overrides) *queue.Queue {
	t.Helper()
	rate := shaper.Rate{Limit: 1000, Period: time.Second}
	q := embedded(t, func(o *queue.Options) {
		o.Shards, o.Tenants = 1, tenants
		o.Pools = map[string]shaper.PoolSettings{"model": {Routes: []string{"chat"}, Overrides: shaper.Overrides{
			Rate: &rate, Rates: &[]shaper.PaceJSON{{Limit: 20, PeriodMS: 1000, Burst: 1, By: shaper.ByJobs}}}}}
	})
	w := work()
	w.Route, w.Cost = "chat", cost
	for w.Tenant = range tenants {
		if _, err := q.SubmitBatch(t.Context(), slices.Repeat([]queue.Submission{w}, 450), true); err != nil {
			t.Fatalf("SubmitBatch: %v", err)
		}
	}
	return q
}

// TestPoolUseMeetsTheLimit: actual costs correct the bucket of the pool. Its use is its rate, with
// estimates that are half or twice the use.
func TestPoolUseMeetsTheLimit(t *testing.T) {
	t.Parallel()
	during := 20 * time.Second
	if testing.Short() {
		during = 8 * time.Second
	}
	for name, actual := range map[string]map[string]int64{
		"too low":  {"a": 200, "b": 200},
		"too high": {"a": 50, "b": 50},
		"by jobs":  {"a": 1, "b": 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := quota(t, 100, map[string]shaper.Overrides{"a": {}, "b": {}})
				used := drainCosts(t, q, during, actual)
				want := 1000 * during.Seconds()
				if name == "by jobs" {
					want = 20 * during.Seconds()
				}
				if sum := float64(used["a"] + used["b"]); math.Abs(sum/want-1) > 0.03 {
					t.Errorf("%v, together %v, want %v", used, sum, want)
				}
			})
		})
	}
}

// TestPoolSharesActualCosts: what each flow gets for its weight is what it used, not what it
// estimated.
func TestPoolSharesActualCosts(t *testing.T) {
	t.Parallel()
	for name, ofA := range map[string]int64{"too low": 200, "too high": 50} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := quota(t, 100, map[string]shaper.Overrides{"a": {}, "b": {Weight: new(int64(3))}})
				used := drainCosts(t, q, 20*time.Second, map[string]int64{"a": ofA, "b": 100})
				if share := float64(used["b"]) / float64(used["a"]); math.Abs(share-3) > 0.2 {
					t.Errorf("%v: b used %.2f times as much as a, want 3", used, share)
				}
			})
		})
	}
}
