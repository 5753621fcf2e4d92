package queue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// evicting is a queue of one shard, and a way to delete all records of jobs as a Redis that evicts
// may.
func evicting(t *testing.T, policy shaper.Policy) (q *queue.Queue, evict func()) {
	t.Helper()
	options := queue.EngineOptions{URL: redistest.Start(t).URL()}
	e, err := queue.OpenEngine(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return open(t, options, func(o *queue.Options) { o.Shards, o.Defaults = 1, policy }), func() {
		t.Helper()
		keys, err := e.Client().Keys(t.Context(), "sluice:*:job:*").Result()
		if err == nil {
			err = e.Client().Del(t.Context(), keys...).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestEvictedRecordCountsNoBytes: the bytes of an evicted record leave the sum.
func TestEvictedRecordCountsNoBytes(t *testing.T) {
	q, evict := evicting(t, shaper.Policy{
		Rate: shaper.Rate{Limit: 1000, Period: time.Second}, Burst: 1, Capacity: 10, CapacityBytes: 1000,
	})
	large := work()
	large.Payload, large.Cost = slices.Repeat([]byte("1"), 900), 100
	submit := func() {
		t.Helper()
		if v, err := q.Submit(t.Context(), large); err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("Submit: %+v, %v", v, err)
		}
	}
	submit()
	evict()
	leaseAll(t, q.Broker().Consumer("w", 0))
	submit()
}

// TestManyEvictedRecords has more lost records, queued and scheduled, than one poll takes out:
// those behind them leave all the same, and whatever is leased is handed out.
func TestManyEvictedRecords(t *testing.T) {
	const lost, kept = 150, 150
	q, evict := evicting(t, shaper.Policy{
		Rate: shaper.Rate{Limit: 100, Period: time.Second}, Burst: 1, Capacity: 10_000,
	})
	c := q.Broker().Consumer("w", 0)
	later := work()
	later.Delay = time.Second / 2
	for _, s := range []queue.Submission{later, work()} {
		if v, err := q.SubmitBatch(t.Context(), slices.Repeat([]queue.Submission{s}, lost),
			true); err != nil || v[0].Outcome != shaper.Admitted {
			t.Fatalf("SubmitBatch: %v, %v", v[0].Outcome, err)
		}
	}
	evict()
	if v, err := q.SubmitBatch(t.Context(), slices.Repeat([]queue.Submission{work()}, kept),
		true); err != nil || v[0].Outcome != shaper.Admitted {
		t.Fatalf("SubmitBatch: %v, %v", v[0].Outcome, err)
	}
	o := looking
	o.Max, o.Horizon = 250, time.Minute
	leased := 0
	for polls := 0; leased < kept && polls < 20; polls++ {
		tick, err := c.Tick(t.Context(), o)
		if err != nil {
			t.Fatalf("Tick: %v", err)
		}
		leased += len(tick.Leases)
	}
	tenant, err := q.Tenant(t.Context(), "acme")
	if err != nil {
		t.Errorf("Tenant: %v", err)
	}
	queuetest.Compare(t, "the jobs leased", leased, kept)
	queuetest.Compare(t, "the figures", queuetest.Only(tenant.Figures, "Running", "Depth"),
		queue.Figures{Running: kept})
}
