package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// ended is how a drained world has ended.
type ended struct {
	balance
	stored     map[string]bool // ids of all jobs in Redis
	jobs       []wire.Job      // all of them, as their tenants see them
	deliveries []delivery
}

// settle waits until the queue is drained and checks the ledger and Redis: nothing lost, nothing
// unexpected, every job ended once. It keeps the stamps for T1.
func (w *world) settle(ctx context.Context, f *findings) (ended, error) {
	var e ended
	if err := w.drain(ctx); err != nil {
		return e, err
	}
	requests, deliveries := w.ledger.entries()
	e.deliveries = deliveries
	e.balance = reckon(requests, deliveries)
	var err error
	if e.stored, err = w.stored(ctx); err != nil {
		return e, err
	}
	owners := map[string]string{} // of the known jobs
	for _, d := range deliveries {
		owners[d.Job] = d.Tenant
	}
	for _, r := range requests {
		if r.Job != "" {
			owners[r.Job] = r.Tenant
		}
	}
	for id := range e.stored {
		if _, known := owners[id]; !known {
			e.Lost = append(e.Lost, "job "+id+" is in Redis and was never delivered")
		}
	}
	for id := range owners {
		if !e.stored[id] {
			e.Lost = append(e.Lost, "job "+id+" is missing in Redis")
			delete(owners, id)
		}
	}
	if e.jobs, err = w.read(ctx, owners); err != nil {
		return e, err
	}
	var open []string
	for _, j := range e.jobs {
		if !j.Done {
			open = append(open, j.ID+" is "+j.State)
		}
	}
	f.info("jobs", float64(len(e.stored)), "")
	f.none("lost", e.Lost)
	f.none("unexpected", e.Unexpected)
	if len(open) > 0 {
		f.none("not ended", open)
	}
	if e.Recovered > 0 {
		f.info("recovered", float64(e.Recovered), "")
	}
	w.rates.stamps(w, e.jobs)
	w.rates.arrivals(w, deliveries)
	for _, s := range w.living("worker") {
		w.lateness(ctx, s)
	}
	return e, nil
}

// drain waits until no job waits or runs.
func (w *world) drain(ctx context.Context) error {
	return until(ctx, "the queue is empty", 250*time.Millisecond, func() (bool, error) {
		waiting, running, err := w.backlog(ctx)
		if err != nil {
			return false, nil // a process that is just being started
		}
		w.say("draining: %d jobs wait, %d run", waiting, running)
		return waiting+running == 0, nil
	})
}

// read gets the jobs, ids with their tenants, from the API.
func (w *world) read(ctx context.Context, owners map[string]string) ([]wire.Job, error) {
	w.say("reading %d jobs", len(owners))
	ids := slices.Sorted(maps.Keys(owners))
	jobs := make([]wire.Job, len(ids))
	errs := make(chan error, 16)
	var wg sync.WaitGroup
	for k := range cap(errs) {
		wg.Go(func() {
			var err error
			for i := k; i < len(ids) && err == nil; i += cap(errs) {
				jobs[i], err = w.job(ctx, owners[ids[i]], ids[i])
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return nil, fmt.Errorf("read the jobs: %w", err)
		}
	}
	return jobs, nil
}

// twice checks that nothing was delivered twice.
func (e ended) twice(f *findings) {
	var again []string
	for _, d := range e.Duplicates {
		again = append(again, fmt.Sprintf("job %s by %s at %v (%d), again by %s at %v", d.before.Job,
			d.before.Process,
			time.Duration(d.before.At), d.before.Status, d.again.Process, time.Duration(d.again.At)))
	}
	f.none("delivered twice", again)
}

// succeeded checks that every job succeeded.
func (e ended) succeeded(f *findings) {
	var others []string
	for _, j := range e.jobs {
		if j.State != "succeeded" {
			others = append(others, j.ID+" is "+j.State)
		}
	}
	if len(others) > 0 {
		f.none("not succeeded", others)
	}
}
