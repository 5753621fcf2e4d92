package worker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/crash"
	"github.com/7509e464/sluice/shaper"
)

const (
	// extendMost bounds one call, as the scripts' steps are bounded.
	extendMost = 500
	// extendWithin and a tenth of the lease are how long a call waits for Redis.
	extendWithin = 3 * time.Second
)

// job is a lease in this worker, from the poll that brought it until it is settled.
type job struct {
	lease    queue.Lease
	shard    int
	at       moment       // when it is to leave: its stamp by this process's clock
	deadline atomic.Int64 // the moment at which its lease ends unless it is extended
	ended    atomic.Bool  // only to be settled: its lease is no longer extended
	lost     atomic.Bool  // its lease is no longer the current one
}

func newJob(l queue.Lease, at, deadline moment) *job {
	j := &job{lease: l, at: at}
	j.deadline.Store(int64(deadline))
	return j
}

// instant is what the shard's clock says at m, counted from the stamp.
func (j *job) instant(m moment) shaper.Instant { return j.lease.Stamp.Add(m.since(j.at)) }

// ledger is the set of all jobs in this worker, for the heartbeat and for the stop.
type ledger struct {
	mu   sync.Mutex
	jobs map[*job]struct{}
}

func newLedger() *ledger { return &ledger{jobs: make(map[*job]struct{})} }

func (l *ledger) add(jobs []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range jobs {
		l.jobs[j] = struct{}{}
	}
}

func (l *ledger) remove(j *job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.jobs, j)
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.jobs)
}

// endingBefore lists the jobs in the pacer or running whose lease ends before m.
func (l *ledger) endingBefore(m moment) []*job {
	l.mu.Lock()
	defer l.mu.Unlock()
	var jobs []*job
	for j := range l.jobs {
		if !j.ended.Load() && !j.lost.Load() && moment(j.deadline.Load()) < m {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// keepLeases extends leases on every heartbeat until ctx ends. The next one makes up for one that
// fails: a lease is extended from the end of its first third on, so several may fail before it is
// over.
func (w *Worker) keepLeases(ctx context.Context) {
	for sleep(ctx, w.cfg.beat()) {
		w.extendAging(ctx)
	}
}

// extendAging extends every lease that is due for it, in bounded calls side by side: a call for a
// shard that does not answer lasts as long as it may, and delays no lease of the others.
func (w *Worker) extendAging(ctx context.Context) {
	aging := w.ledger.endingBefore(w.watch.now().add(w.cfg.Lease * 2 / 3))
	limited, cancel := context.WithTimeout(ctx, min(extendWithin, w.cfg.Lease/10))
	defer cancel()
	errs := make([]error, (len(aging)+extendMost-1)/extendMost)
	var calls sync.WaitGroup
	for i := range errs {
		calls.Go(func() { errs[i] = w.extend(limited, aging[i*extendMost:min((i+1)*extendMost, len(aging))]) })
	}
	calls.Wait()
	if ctx.Err() == nil {
		w.troubles.report(w.ledger, cmp.Or(errs...))
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
