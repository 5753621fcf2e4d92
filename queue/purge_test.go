package queue_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestPurgeAfterStepBack: jobs that a shard made while its clock stood still, Redis's having been
// set back, exist when the call begins.
func TestPurgeAfterStepBack(t *testing.T) {
	options := queue.EngineOptions{URL: redistest.Start(t).URL()}
	e, err := queue.OpenEngine(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	q := open(t, options, func(o *queue.Options) { o.Shards = 1 })
	if err := e.Client().HSet(t.Context(), "sluice:{0}:clock", scripts.ClockNumbers,
		fmt.Sprintf("%d 0 0 0 0 0 0 0 0 0 0 0 0", time.Now().Add(time.Hour).UnixMicro())).Err(); err != nil {
		t.Fatal(err)
	}
	later := work()
	later.Delay = time.Hour
	for range 3 {
		if v, err := q.Submit(t.Context(), later); err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("Submit: %+v, %v", v, err)
		}
	}
	if swept, err := q.Purge(t.Context(), "acme", queue.Filter{}); err != nil || swept.Count != 3 {
		t.Errorf("Purge: %+v, %v, want 3", swept, err)
	}
}

// TestSweepsRest: between two steps of a sweep, Redis has as long for all others as the step took,
// and half of the time while several run.
func TestSweepsRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const jobs, steps, step = 150, 3, 40 * time.Millisecond
		q := embedded(t, func(o *queue.Options) { o.Shards, o.Defaults.Rate = 1, slow })
		if _, err := q.SubmitBatch(t.Context(), slices.Repeat([]queue.Submission{work()}, jobs), true); err != nil {
			t.Fatal(err)
		}
		var calls atomic.Int64
		began := time.Now()
		q.AfterScript("cancel", func() {
			calls.Add(1)
			<-time.After(step)
		})
		swept, err := q.Purge(t.Context(), work().Tenant, queue.Filter{})
		if err != nil || swept.Count != jobs || calls.Load() != steps {
			t.Fatalf("%+v, %v, in %d steps", swept, err, calls.Load())
		}
		if took := time.Since(began); took < (2*steps-1)*step {
			t.Errorf("%d steps of %v took %v, without a rest as long between them", steps, step, took)
		}

		const sweeps = 3
		for i := range sweeps {
			of := work()
			of.Tenant = fmt.Sprint("t", i)
			if _, err := q.SubmitBatch(t.Context(), slices.Repeat([]queue.Submission{of}, jobs), true); err != nil {
				t.Fatal(err)
			}
		}
		var all errgroup.Group
		began = time.Now()
		for i := range sweeps {
			all.Go(func() error {
				_, err := q.Purge(t.Context(), fmt.Sprint("t", i), queue.Filter{})
				return err
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*sweeps*(steps-1)*step {
			t.Errorf("%d sweeps of %d steps of %v took %v: more than half of the time", sweeps, steps, step, took)
		}
	})
}
