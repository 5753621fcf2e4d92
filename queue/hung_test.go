package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestHungNodeKeepsNoAnswersBack: one of two nodes hangs. A call that is bounded ends in time with
// the answers of the other, and what is sent again once the node is back has its effect once.
func TestHungNodeKeepsNoAnswersBack(t *testing.T) {
	t.Parallel()
	const bound, shards, tenants = time.Second, 16, 24
	cluster := redistest.StartCluster(t)
	q := open(t, queue.EngineOptions{URL: cluster.URL()}, func(o *queue.Options) { o.Shards = shards })
	for i := range tenants {
		s := work()
		s.Tenant = fmt.Sprint("tenant", i)
		if v, err := q.Submit(t.Context(), s); err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("Submit: %+v, %v", v, err)
		}
	}
	var refs []queue.LeaseRef
	var batch []queue.Settlement
	for n := range shards {
		for _, l := range leaseAll(t, q.Broker().Consumer("w", n)) {
			refs = append(refs, l.LeaseRef)
			batch = append(batch, queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, Attempt: 1})
		}
	}
	if len(refs) != tenants {
		t.Fatalf("%d of %d jobs leased", len(refs), tenants)
	}

	thaw := cluster.Hang(t.Context(), 0)
	bounded := func(what string, call func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		start := time.Now()
		if err := call(ctx); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s while a node hangs: %v", what, err)
		}
		if took := time.Since(start); took > failFast {
			t.Errorf("%s took %v, bounded by %v", what, took, bound)
		}
	}
	var unanswered *queue.Unanswered
	bounded("Extend", func(ctx context.Context) error {
		lost, err := q.Broker().Extend(ctx, refs, time.Minute)
		if !errors.As(err, &unanswered) || len(lost) != 0 {
			t.Fatalf("Extend: %v lost, %v", lost, err)
		}
		return err
	})
	if n := len(unanswered.Leases); n == 0 || n == tenants {
		t.Errorf("%d of %d leases were not answered for", n, tenants)
	}
	var results []queue.SettleResult
	bounded("Settle", func(ctx context.Context) (err error) {
		results, err = q.Broker().Settle(ctx, batch)
		return err
	})
	for i, r := range results {
		if hung := slices.Contains(unanswered.Leases, refs[i]); hung != (r == "") || !hung && r != queue.Settled {
			t.Errorf("settlement %d, on the node that hangs: %v, is answered %q", i, hung, r)
		}
	}
	thaw()
	again, err := q.Broker().Settle(t.Context(), batch)
	if err != nil {
		t.Fatalf("Settle, again: %v", err)
	}
	for i, r := range again {
		// One that was not answered may have arrived.
		if r != queue.Repeated && (results[i] != "" || r != queue.Settled) {
			t.Errorf("settlement %d, answered %q, is answered %q the second time", i, results[i], r)
		}
	}
}
