package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestReporterLeavesThePoliciesAlone: a process that only reports ends has no configuration of its
// own, and must neither unsay the workers' nor settle by other paces.
func TestReporterLeavesThePoliciesAlone(t *testing.T) {
	ctx := context.Background()
	capacity := int64(7)
	policy := shaper.DefaultPolicy()
	policy.Rate = shaper.Rate{Limit: 1, Period: time.Hour}
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{URL: redistest.Start(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	q, err := queue.Open(ctx, engine, queue.Options{
		Defaults: policy, Tenants: map[string]shaper.Overrides{"acme": {Capacity: &capacity}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	reporter, err := queue.Open(ctx, engine, queue.Options{Reporter: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reporter.Close() }()
	report(t, ctx, q, reporter)

	tenant, err := q.Tenant(ctx, "acme")
	if err != nil {
		t.Fatal(err)
	}
	queuetest.Compare(t, "the capacity after the report", tenant.Policy.Capacity, capacity)
	queuetest.Compare(t, "the figures after the report",
		queuetest.Only(tenant.Figures, "Succeeded", "Departed"), queue.Figures{Succeeded: 1, Departed: 1})
	v, err := q.Submit(ctx, queue.Submission{
		Tenant: "acme", Route: "fleet", Type: "t", Payload: []byte("1"), MaxAttempts: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if wait := v.Start.Sub(v.Now); wait < 59*time.Minute || wait > time.Hour {
		t.Errorf("the next job leaves in %v: the report changed the pace of 1/h", wait)
	}
}

// report has the worker's queue lease a job and the reporter settle it.
func report(t *testing.T, ctx context.Context, q, reporter *queue.Queue) {
	t.Helper()
	v, err := q.Submit(ctx, queue.Submission{
		Tenant: "acme", Route: "fleet", Type: "t", Payload: []byte("1"), MaxAttempts: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for shard := range q.Broker().Shards() {
		c := q.Broker().Consumer("w", shard)
		for range 2 { // the first poll at a shard takes up the defaults
			tick, err := c.Tick(ctx, queue.TickOptions{
				Max: 1, Lease: time.Minute, Horizon: 20 * time.Millisecond, Sweep: time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range tick.Leases {
				if lost, err := reporter.Broker().
					Extend(ctx, []queue.LeaseRef{l.LeaseRef}, time.Hour); err != nil || len(lost) > 0 {
					t.Fatalf("extend: lost %v, %v", lost, err)
				}
				results, err := reporter.Broker().Settle(ctx, []queue.Settlement{{
					LeaseRef: l.LeaseRef, Event: shaper.Succeed,
				}})
				if err != nil || results[0] != queue.Settled {
					t.Fatalf("settle: %v, %v", results, err)
				}
			}
		}
	}
	if j, err := q.Job(ctx, "acme", v.Job.ID); err != nil || j.State != shaper.Succeeded {
		t.Fatalf("the job: %+v, %v", j, err)
	}
}
