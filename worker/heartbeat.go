package worker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/crash"
)

const (
	// extendMost bounds one call, as the scripts' steps are bounded.
	extendMost = 500
	// extendWithin and a tenth of the lease are how long a call waits for Redis.
	extendWithin = 3 * time.Second
)

// heartbeat keeps the leases of the jobs that wait in the pacer or run.
type heartbeat struct {
	broker broker
	ledger *ledger
	watch  stopwatch
	probe  *probe
	lease  time.Duration
	every  time.Duration
}

// run extends leases on every heartbeat until ctx ends. The next one makes up for one that fails: a
// lease is extended from the end of its first third on, so several may fail before it is over.
func (h *heartbeat) run(ctx context.Context) {
	for range ticks(ctx, h.every) {
		h.beat(ctx)
	}
}

// beat extends every lease that is due for it, in bounded calls side by side: a call for a shard
// that does not answer lasts as long as it may, and delays no lease of the others.
func (h *heartbeat) beat(ctx context.Context) {
	aging := h.ledger.endingBefore(h.watch.now().add(h.lease * 2 / 3))
	limited, cancel := context.WithTimeout(ctx, min(extendWithin, h.lease/10))
	defer cancel()
	errs := make([]error, (len(aging)+extendMost-1)/extendMost)
	var calls sync.WaitGroup
	for i := range errs {
		calls.Go(func() { errs[i] = h.extend(limited, aging[i*extendMost:min((i+1)*extendMost, len(aging))]) })
	}
	calls.Wait()
	if ctx.Err() == nil {
		h.probe.report(cmp.Or(errs...))
	}
}

// extend makes one call. Leases without an answer keep their deadlines.
func (h *heartbeat) extend(ctx context.Context, jobs []*job) error {
	refs := make([]queue.LeaseRef, len(jobs))
	for i, j := range jobs {
		refs[i] = j.lease.LeaseRef
	}
	// Counted from before the call, so that the deadline is never later than the true one.
	sent := h.watch.now()
	lost, err := h.broker.Extend(ctx, refs, h.lease)
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
			j.deadline.Store(int64(sent.add(h.lease)))
		}
	}
	return err
}
