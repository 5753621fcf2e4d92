package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/crash"
)

// extendMost bounds one call, as the scripts' steps are bounded.
const extendMost = 500

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

// beat extends every lease that is due for it, in bounded calls.
func (h *heartbeat) beat(ctx context.Context) {
	aging := h.ledger.endingBefore(h.watch.now().add(h.lease * 2 / 3))
	if len(aging) == 0 {
		h.probe.report(nil) // the leases that could not be extended are over: nothing is amiss here any more
	}
	for jobs := range slices.Chunk(aging, extendMost) {
		if !h.extend(ctx, jobs) {
			return
		}
	}
}

// extend makes one call and notes what it brought. Of leases that were not answered nothing is known, and their deadlines stay as they
// were. It reports whether any was answered.
func (h *heartbeat) extend(ctx context.Context, jobs []*job) bool {
	refs := make([]queue.LeaseRef, len(jobs))
	for i, j := range jobs {
		refs[i] = j.lease.LeaseRef
	}
	// The new deadline is counted from before the call: it may be earlier than the true one, never later.
	sent := h.watch.now()
	lost, err := h.broker.Extend(ctx, refs, h.lease)
	if ctx.Err() != nil && err != nil {
		return false
	}
	unknown := refs
	var partly *queue.Unanswered
	switch {
	case err == nil:
		unknown = nil
	case errors.As(err, &partly):
		unknown = partly.Leases
	}
	crash.At("at-heartbeat")
	h.probe.report(err)
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
	return len(unknown) < len(refs)
}
