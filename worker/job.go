package worker

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// job is a lease in this worker, from the poll that brought it until it is settled.
type job struct {
	lease    queue.Lease
	shard    int
	at       moment       // of its departure: its stamp by this process's clock
	deadline atomic.Int64 // the moment at which its lease ends unless it is extended
	ended    atomic.Bool  // only waits to be settled
	lost     atomic.Bool  // its lease is no longer the current one
}

// instant returns what the shard's clock shows at m, counted from the stamp.
func (j *job) instant(m moment) shaper.Instant { return j.lease.Stamp.Add(m.since(j.at)) }

// accept takes over jobs that were just leased, and ends the reservation of n slots. Jobs that
// would leave after the end of the pacer are released.
func (w *Worker) accept(n int, jobs []*job) {
	w.capacity.add(n, jobs)
	for _, j := range w.pacer.add(jobs) {
		w.giveBack(j, false)
	}
}

// giveBack releases a job that has not departed; missed if it came too late to leave at its stamp.
// Its flow counts as late where many jobs of the shard are: a busy machine misses a stamp now and
// then.
func (w *Worker) giveBack(j *job, missed bool) {
	late := false
	if missed {
		w.lateness.missed.Add(1)
		late = w.lateness.of(j.shard).miss(w.watch.now())
	}
	if j.lost.Load() {
		w.forget(j, outcomeStale)
		return
	}
	w.settle(j, queue.Settlement{Event: shaper.Release, Missed: late})
}

// forget drops a job whose lease has another owner, or continues without this worker.
func (w *Worker) forget(j *job, outcome string) {
	w.metrics.deliveries[outcome].Inc()
	w.capacity.remove(j)
}

// deliver makes one attempt, unless the lease is lost, and settles it.
func (w *Worker) deliver(ctx context.Context, j *job) {
	if j.lost.Load() {
		w.forget(j, outcomeStale)
		return
	}
	start := w.watch.now()
	late := start.since(j.at)
	w.metrics.lateness.Observe(late.Seconds())
	w.lateness.observe(late)
	w.lateness.of(j.shard).left.Add(1)
	w.metrics.wait.Observe(max(0, j.lease.Stamp.Sub(j.lease.Eligible)).Seconds())
	span := w.traces.Process(ctx, &j.lease)
	l := &j.lease
	l.TraceParent = span.TraceParent
	s := w.attempt(span.Context, l)
	s.Attempt, s.MaxAttempts = l.Attempt, cmp.Or(s.MaxAttempts, l.MaxAttempts)
	outcome := outcomeHandedOff
	if s.Event != "" {
		// The queue may still find the lease stale, or charge a hold as an attempt.
		outcome = outcomeOf(s, queue.Settled)
	}
	span.End(outcome, s, w.cfg.Routes[l.Route].Handler)
	end := w.watch.now()
	w.metrics.duration.Observe(end.since(start).Seconds())
	if s.Event == "" {
		w.forget(j, outcomeHandedOff)
		return
	}
	if s.Error != nil {
		if s.Error.At.IsZero() {
			s.Error.At = j.instant(end).Time()
		}
		s.Error.Message, s.Error.Detail = outbound.Cut(s.Error.Message), outbound.Cut(s.Error.Detail)
	}
	w.settle(j, s)
}

// attempt calls the deliverer of the job's route. A panic is a failed attempt. A job of a route
// that this worker does not have goes back: while a new configuration is rolled out, another one
// has it.
func (w *Worker) attempt(ctx context.Context, l *queue.Lease) (s queue.Settlement) {
	retry := w.cfg.Routes[l.Route].Retry
	d, known := w.deliverers[l.Route]
	if !known {
		w.errors.routeless.Add(burstlog.Key{Route: l.Route}, 1, "job", l.ID)
		return giveBack(ctx, l, queue.JobError{Message: "the route is not configured in this worker"})
	}
	load := w.loads[l.Route]
	load.inFlight.Add(1)
	defer func() {
		if p := recover(); p != nil {
			// The value is not logged, it may quote the payload.
			w.errors.panics.Add(burstlog.Key{Route: l.Route, Kind: fmt.Sprintf("%T", p)}, 1,
				"job", l.ID, "epoch", l.Epoch, "stack", string(debug.Stack()))
			s = retry.again(l, "the delivery panicked", 0)
		}
		if failed, why := load.ended(l, s); failed && s.Event != shaper.Release && why != nil {
			example := []any{"job", l.ID}
			if !w.cfg.Routes[l.Route].Handler { // the error of a handler may quote the payload
				example = append(example, "error", why.Message, "detail", why.Detail)
			}
			w.errors.failures.Add(burstlog.Key{Tenant: l.Tenant, Route: l.Route}, 1, example...)
		}
	}()
	switch s = d.Deliver(ctx, l); {
	case s.Event == shaper.Release:
		w.errors.shortages.Add(burstlog.Key{Route: l.Route}, 1, "detail", s.Error.Detail)
	case s.Event == shaper.Retry && ctx.Err() != nil: // no fault of the job: it spends no attempt
		s = queue.Settlement{Event: shaper.LeaseExpired, ActualCost: s.ActualCost}
		w.cutOff.Add(1)
	}
	return s
}

// settle hands the end of a job to the settler. The job keeps its slot until Redis has answered:
// otherwise settlements would pile up without bound during an outage.
func (w *Worker) settle(j *job, s queue.Settlement) {
	s.LeaseRef, s.Tenant, s.Attempt, s.Log = j.lease.LeaseRef, j.lease.Tenant, j.lease.Attempt, j.lease.Log
	s.PayloadBytes, s.PayloadAt = len(j.lease.Payload), j.lease.PayloadAt
	s.MaxAttempts = cmp.Or(s.MaxAttempts, j.lease.MaxAttempts)
	if s.Event == shaper.Succeed && s.MaxAttempts == j.lease.MaxAttempts {
		s.MaxAttempts = 0 // unchanged: the shortest settlement
	}
	j.ended.Store(true)
	// The payload may be large, and a settlement may have to wait for Redis.
	j.lease.Payload = nil
	w.settler.add(ending{job: j, settlement: s})
}

// settled ends the life of jobs here; results is nil when the settler gave them up.
func (w *Worker) settled(batch []ending, results []queue.SettleResult) {
	jobs := make([]*job, len(batch))
	for i, e := range batch {
		jobs[i] = e.job
		outcome := outcomeGivenUp
		if results != nil {
			outcome = outcomeOf(e.settlement, results[i])
		}
		w.metrics.deliveries[outcome].Inc()
		if load := w.loads[e.job.lease.Route]; load != nil && results != nil && results[i] != queue.Stale {
			load.costs.settled(e.job.lease.Cost, e.settlement)
			if results[i] == queue.Cut {
				l := &e.job.lease
				load.costs.cut.Add(1)
				w.errors.cut.Add(burstlog.Key{Tenant: l.Tenant, Route: l.Route}, 1, "job", l.ID)
			}
		}
		if outcome == outcomeDead && !e.settlement.Final { // else its client got the failure
			l := &e.job.lease
			w.errors.deaths.Add(burstlog.Key{Tenant: l.Tenant, Route: l.Route}, 1, "job", l.ID)
		}
	}
	w.capacity.remove(jobs...)
}
