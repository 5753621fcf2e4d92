package queue

import (
	"context"
	"testing"
	"time"

	"github.com/7509e464/sluice/queue/redistest"
	"github.com/7509e464/sluice/shaper"
)

func engines(t *testing.T) map[string]EngineOptions {
	return map[string]EngineOptions{"redis": {URL: redistest.Start(t).URL()}, "embedded": {Embedded: true}}
}

func TestSmoke(t *testing.T) {
	for name, o := range engines(t) {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			e, err := OpenEngine(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			q, err := Open(ctx, e, Options{Tenants: map[string]shaper.Overrides{}})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			v, err := q.Submit(ctx, Submission{Tenant: "a", Route: "default", Type: "t", Payload: []byte(`{"x":1}`), MaxAttempts: 5, IdempotencyKey: "k"})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", v)
			v2, err := q.Submit(ctx, Submission{Tenant: "a", Route: "default", Type: "t", Payload: []byte(`{"x":1}`), MaxAttempts: 5, IdempotencyKey: "k"})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", v2)
			shard := q.keys.ShardOf("a").Index
			c := q.Consumer("w1", shard)
			for range 3 {
				tick, err := c.Tick(ctx, TickOptions{Max: 10, Lease: 30 * time.Second, Horizon: 20 * time.Millisecond, Sweep: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%+v", tick)
				for _, l := range tick.Leases {
					lost, err := q.Extend(ctx, []LeaseRef{l.LeaseRef}, time.Minute)
					t.Log(lost, err)
					for range 2 {
						r, err := q.Settle(ctx, []Settlement{{LeaseRef: l.LeaseRef, Event: shaper.Die, MaxAttempts: 5, Error: &JobError{Message: "x"}}})
						t.Log(r, err)
					}
				}
			}
			j, err := q.Job(ctx, "a", v.Job.ID)
			t.Logf("%+v %v", j, err)
			rv, err := q.Replay(ctx, "a", v.Job.ID, 5)
			t.Logf("%+v %v", rv, err)
			j, err = q.Cancel(ctx, "a", v.Job.ID)
			t.Logf("%+v %v", j, err)
			ten, err := q.Tune(ctx, "a", Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) { x := true; o.Paused = &x; return o, nil }, Reason: "r"})
			t.Logf("%+v %v", ten, err)
			live, err := q.Beat(ctx, "w", time.Second)
			t.Log(live, err)
			tot, err := q.Totals(ctx)
			t.Log(tot, err)
			names, next, err := q.Tenants(ctx, "", 10)
			t.Log(names, next, err)
		})
	}
}
