// Package handoff lets an asynq fleet report how the tasks that Sluice handed off to it have ended.
// It is for the fleet's process: its middleware goes around the handlers, which run unchanged.
//
//	mux := asynq.NewServeMux()
//	mux.Use(handoff.Middleware(q.Broker(), handoff.Options{})) // q is opened as a Reporter
//	mux.HandleFunc("order.create", createOrder)
//
// It acts on tasks of routes with reports (worker.AsynqRoute.Reports) and passes every other task
// through. A task's id names a lease of its job, and the middleware acts on that lease:
//
//	before the handler    the lease is checked and extended; without the current one the task is skipped
//	while it runs         the lease is extended every third of AsynqRoute.ReportWithin
//	nil                   the job has succeeded
//	asynq.RevokeTask      the job has succeeded, with the error kept beside it
//	asynq.SkipRetry       the job is dead
//	any other error,      after the last retry the job is dead, as asynq archives the task; before that
//	panic, timeout        it stays leased for another ReportWithin, in which asynq's retry must begin
//
// What it promises: at most one task settles a job, and a task does not start when the job was
// handed off again since. Neither the end of a worker nor of a fleet's server loses a job, because
// the lease does not depend on the worker. Without a sign of a task for ReportWithin, the job goes
// back into its bucket and is handed off again under a new epoch. That costs no attempt, up to
// twenty times. Reasons are a fleet that stood still, a purged asynq queue, or a report that could
// not be made.
//
// What it does not promise: that a handler runs once. asynq may run a task again whose server
// crashed or could not reach Redis; so may Sluice, when a report was lost.
//
// Three ends of a task never reach its handler and so are not reported: archived or deleted by hand
// through asynq's inspector, by asynq's recoverer when the server crashed in the last retry, and by
// the server's own end in the last retry. The job is then handed off again after ReportWithin.
//
// A handler reports the actual cost of its job with SetCost. The cost of the run that ends the job
// counts.
//
// The queue for the reports is opened with queue.Options.Reporter, so that it leaves the workers'
// policies alone, and with the retention of the workers, for settlements use it.
package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker/internal/ticket"
)

// Reporter extends and ends leases; *queue.Broker is one. A call may be repeated after an error.
type Reporter interface {
	// Extend makes leases last at least that long from now; lost lists those no longer current.
	Extend(ctx context.Context, leases []queue.LeaseRef, lease time.Duration) (lost []queue.LeaseRef, err error)
	// Settle ends leases; queue.Stale is the result for one that is not current.
	Settle(ctx context.Context, batch []queue.Settlement) (results []queue.SettleResult, err error)
}

var _ Reporter = (*queue.Broker)(nil)

// Options are the settings of the middleware. The zero value of a field means its default.
type Options struct {
	// Patience is how long a call is repeated while Redis does not answer, before and after the
	// handler; default 30s. Then a task that could not be checked, or reported as succeeded,
	// returns an error, so that asynq tries it again.
	Patience time.Duration
	Logger   *slog.Logger // default slog.Default()
}

// Middleware returns middleware that reports the ends of tasks to r. It must be the outermost one,
// the first that is given to ServeMux.Use, so that it sees what asynq sees.
func Middleware(r Reporter, o Options) asynq.MiddlewareFunc {
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			t, ok := ticket.Parse(id, task.Headers())
			if !ok {
				return next.ProcessTask(ctx, task)
			}
			retried, _ := asynq.GetRetryCount(ctx)
			most, _ := asynq.GetMaxRetry(ctx)
			d := &delivery{
				reporter: r, ticket: t, last: retried >= most, patience: o.Patience,
				log: o.Logger.With("job", t.Ref.ID, "epoch", t.Ref.Epoch),
			}
			ctx = context.WithValue(ctx, deliveryKey{}, d)
			return d.run(ctx, func() error { return next.ProcessTask(ctx, task) })
		})
	}
}

type deliveryKey struct{}

// SetCost reports the actual cost of the job whose task a handler runs: a whole number from 0 to
// shaper.MaxCost. It replaces the cost that the job was submitted with. The last call before the
// handler ends counts. An error means that n is out of bounds, or that ctx is not the context of a
// task of a route with reports; then nothing changes.
func SetCost(ctx context.Context, n int64) error {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	switch {
	case !ok:
		return errors.New("handoff: SetCost needs the context of a task of a route with reports")
	case n < 0 || n > shaper.MaxCost:
		return fmt.Errorf("handoff: cost %d, want 0 to %d", n, shaper.MaxCost)
	}
	d.cost.Store(&n)
	return nil
}

// delivery is one run of a task.
type delivery struct {
	reporter Reporter
	ticket   ticket.Ticket
	last     bool // asynq will not retry it
	cost     atomic.Pointer[int64]
	patience time.Duration
	log      *slog.Logger
}

// Errors of handlers that did not return.
var (
	errPanicked = errors.New("panic")
	errLate     = errors.New("the handler did not end within the task's timeout")
)

// run fences the handler off, runs it and reports its end.
func (d *delivery) run(ctx context.Context, handler func() error) (err error) {
	current, err := d.extend(ctx)
	if err != nil {
		return fmt.Errorf("handoff: the task was not run, its lease could not be checked: %w", err)
	}
	if !current {
		d.log.Info("a task is skipped: its job was handed off again, or has ended")
		return nil
	}
	stop := d.keep(ctx)
	err = errPanicked // unless the handler returns; asynq recovers the panic and logs the stack
	defer func() {
		stop()
		if reported := d.report(ctx, err); err == nil {
			err = reported
		}
	}()
	return handler()
}

// keep extends the lease until the returned function is called, which waits for the end of that.
// asynq does not wait for a handler whose timeout is over. In the last retry keep reports the job's
// end then, because the handler may never return.
func (d *delivery) keep(ctx context.Context) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(max(d.ticket.Within/3, time.Millisecond))
		defer ticker.Stop()
		over := ctx.Done()
		for {
			select {
			case <-done:
				return
			case <-over:
				over = nil
				if d.last && errors.Is(ctx.Err(), context.DeadlineExceeded) {
					_ = d.report(ctx, errLate) // logged
				}
			case <-ticker.C:
				if _, err := d.extend(ctx); err != nil {
					d.log.Warn("the lease of a running task could not be extended", "error", err)
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// report reports what asynq does with the handler's result. Its error, which is logged, means that
// Redis did not answer within Patience.
func (d *delivery) report(ctx context.Context, result error) error {
	s := queue.Settlement{
		LeaseRef: d.ticket.Ref, Tenant: d.ticket.Tenant, MaxAttempts: d.ticket.MaxAttempts, ActualCost: d.cost.Load(),
	}
	if result != nil {
		s.Error = &queue.JobError{Message: outbound.Cut(result.Error()), At: time.Now().UTC()}
	}
	switch {
	case result == nil, errors.Is(result, asynq.RevokeTask):
		s.Event = shaper.Succeed
	case errors.Is(result, asynq.SkipRetry):
		s.Event = shaper.Die
	case d.last && !errors.Is(ctx.Err(), context.Canceled):
		s.Event = shaper.Die
	default:
		// asynq will retry the task, even the last time if it cancelled the context: a server that
		// stops puts its tasks back into the queue.
		_, err := d.extend(ctx)
		if err != nil {
			d.log.Warn("the lease of a task that asynq will retry could not be extended", "error", err)
		}
		return err
	}
	err := d.insist(ctx, func(ctx context.Context) error {
		results, err := d.reporter.Settle(ctx, []queue.Settlement{s})
		if err == nil && results[0] == queue.Stale {
			d.log.Warn("the end of a task was ignored: its job was handed off again, or has ended", "event", s.Event)
		}
		return err
	})
	if err != nil {
		d.log.Error("the end of a task could not be reported", "event", s.Event, "error", err)
		return fmt.Errorf("handoff: the end of the task could not be reported: %w", err)
	}
	return nil
}

// extend extends the lease by ReportWithin and reports whether it is still the current one.
func (d *delivery) extend(ctx context.Context) (current bool, err error) {
	err = d.insist(ctx, func(ctx context.Context) error {
		lost, err := d.reporter.Extend(ctx, []queue.LeaseRef{d.ticket.Ref}, d.ticket.Within)
		current = err == nil && len(lost) == 0
		return err
	})
	return current, err
}

// insist repeats the call until it succeeds, for as long as the patience lasts, and returns its
// last error. It ignores the end of the task's own context: that must be reported as well.
func (d *delivery) insist(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.patience)
	defer cancel()
	for pause := 25 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := call(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}
