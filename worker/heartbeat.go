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

// run extends leases on every beat until ctx ends. A beat that fails is made up for by the next one: a lease is extended from
// the end of its first third on, so several beats may fail before it is over.
func (h *heartbeat) run(ctx context.Context) {
	ticker := time.NewTicker(h.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.beat(ctx)
		}
	}
}

// beat extends every lease that is due for it, in bounded calls side by side: one that concerns a shard which does not answer lasts as long as
// it may, and leases must not wait for more than one of those.
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
		h.probe.report(cmp.Or(errs...)) // with none, the leases that could not be extended are over: nothing is amiss here any more
	}
}

// extend makes one call and notes what it brought. Of leases that were not answered nothing is known, and their deadlines stay as they
// were.
func (h *heartbeat) extend(ctx context.Context, jobs []*job) error {
	refs := make([]queue.LeaseRef, len(jobs))
	for i, j := range jobs {
		refs[i] = j.lease.LeaseRef
	}
	// The new deadline is counted from before the call: it may be earlier than the true one, never later.
	sent := h.watch.now()
	lost, err := h.broker.Extend(ctx, refs, h.lease)
	unknown := refs
	var partly *queue.Unanswered
	switch {
	case err == nil:
		unknown = nil
	case errors.As(err, &partly):
		unknown = partly.Leases
	}
	crash.At("at-heartbeat")
	for i, j := range jobs {
		switch {
		case slices.Contains(unknown, refs[i]):
		case slices.Contains(lost, refs[i]):
			// Still in the pacer it is dropped there; a running delivery goes on, and its settlement will be stale.
			j.lost.Store(true)
		default:
			j.deadline.Store(int64(sent.add(h.lease)))
		}
	}
	return err
}
