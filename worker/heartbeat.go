package worker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/queue"
)

const (
	// extendMost bounds one call, as the scripts' steps are bounded.
	extendMost = 500
	// extendWithin and a tenth of the lease are how long a call waits for Redis.
	extendWithin = 3 * time.Second
)

// keepLeases extends leases on every heartbeat until ctx ends. The next one makes up for one that
// fails: a lease is extended from the end of its first third on, so several may fail before it is
// over.
//
// Calls are bounded and made side by side: one for a shard that does not answer lasts as long as it
// may, and delays no lease of the others.
func (w *Worker) keepLeases(ctx context.Context) {
	for sleep(ctx, w.cfg.beat()) {
		limited, cancel := context.WithTimeout(ctx, min(extendWithin, w.cfg.Lease/10))
		batches := slices.Collect(slices.Chunk(w.capacity.endingBefore(w.watch.now().add(w.cfg.Lease*2/3)),
			extendMost))
		errs := make([]error, len(batches))
		var calls sync.WaitGroup
		for i, jobs := range batches {
			calls.Go(func() { errs[i] = w.extend(limited, jobs) })
		}
		calls.Wait()
		cancel()
		if ctx.Err() == nil {
			w.errors.report("leases", cmp.Or(errs...))
		}
	}
}

// extend makes one call. Leases without an answer keep their deadlines.
func (w *Worker) extend(ctx context.Context, jobs []*job) error {
	refs := make([]queue.LeaseRef, len(jobs))
	for i, j := range jobs {
		refs[i] = j.lease.LeaseRef
	}
	// Counted from before the call, so that the deadline is never later than the true one.
	sent := w.watch.now()
	lost, err := w.broker.Extend(ctx, refs, w.cfg.Lease)
	unknown := refs
	if partly, ok := errors.AsType[*queue.Unanswered](err); ok {
		unknown = partly.Leases
	} else if err == nil {
		unknown = nil
	}
	crash.At("at-heartbeat")
	for i, j := range jobs {
		switch {
		case slices.Contains(unknown, refs[i]):
		case slices.Contains(lost, refs[i]):
			// The pacer drops it; a running delivery goes on, and its settlement will be stale.
			j.lost.Store(true)
		default:
			j.deadline.Store(int64(sent.add(w.cfg.Lease)))
		}
	}
	return err
}
