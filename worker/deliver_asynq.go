package worker

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker/internal/ticket"
)

const (
	// taskRetention is how long asynq keeps a completed task with its payload. Until then its id
	// cannot be taken twice. It covers the refusals of one lease, since another has another id:
	// with a day, ten tasks a second of 64 KB were a gigabyte after half an hour.
	taskRetention = 5 * time.Minute
	// enqueueTimeout bounds one call of asynq's client.
	enqueueTimeout = 5 * time.Second
	// refusals is how often asynq may refuse a task before the flow is held.
	refusals = 5
)

// enqueuer is the part of *asynq.Client that hands tasks over.
type enqueuer interface {
	EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error)
}

// extender is the part of the queue that extends leases.
type extender interface {
	Extend(ctx context.Context, leases []queue.LeaseRef, lease time.Duration) (lost []queue.LeaseRef, err error)
}

// asynqDeliverer hands jobs off to an asynq queue.
type asynqDeliverer struct {
	route  Route
	lease  time.Duration
	client enqueuer
	leases extender
}

// Deliver makes the job an asynq task. The task's id has the lease's epoch, so a conflict means
// that this delivery has made the task already and the answer was lost: a success.
//
// While Redis does not answer, the call is repeated with the same id, for as long as the lease is
// current: a new id would run a task twice that exists already.
func (d *asynqDeliverer) Deliver(ctx context.Context, l *queue.Lease) queue.Settlement {
	if strings.TrimSpace(l.Type) == "" {
		return queue.Settlement{
			LeaseRef: l.LeaseRef, Event: shaper.Die, MaxAttempts: d.route.Retry.MaxAttempts,
			Error: &queue.JobError{Message: "asynq takes no task whose type is blank"},
		}
	}
	task, options := d.task(l)
	var pause pauses
	for refused := 1; ; {
		err := d.enqueue(ctx, task, options)
		if err == nil {
			return d.handedOff(ctx, l)
		}
		if refused == refusals {
			return d.hold(l, err)
		}
		if !sleep(ctx, pause.next()) {
			return d.route.Retry.again(l, "the worker stopped before asynq had taken the task", 0)
		}
		lost, err := d.leases.Extend(ctx, []queue.LeaseRef{l.LeaseRef}, d.lease)
		switch {
		case err != nil:
			// Redis does not answer the queue either: asynq has not refused the task.
		case len(lost) > 0:
			// Another worker hands the job off; this settlement is stale.
			return d.route.Retry.again(l, "the lease ended before asynq had taken the task", 0)
		default:
			refused++
		}
	}
}

// task returns the job as an asynq task with its options. asynq counts retries, not attempts, and
// whole seconds. It gets at least one retry, because without any it archives a task whose server
// crashed.
func (d *asynqDeliverer) task(l *queue.Lease) (*asynq.Task, []asynq.Option) {
	to, attempts := d.route.Asynq, d.route.Retry.MaxAttempts
	options := []asynq.Option{
		asynq.TaskID(ticket.TaskID(l.LeaseRef)),
		asynq.Queue(to.Queue),
		asynq.MaxRetry(max(1, attempts-1)),
		asynq.Timeout(outbound.WholeSeconds(d.route.Timeout)),
		asynq.Retention(taskRetention),
	}
	headers := map[string]string{}
	maps.Copy(headers, taskHeaders(l))
	headers["Sluice-Tenant"] = l.Tenant
	if to.Reports {
		maps.Copy(headers, ticket.Ticket{Ref: l.LeaseRef, Tenant: l.Tenant, Within: to.ReportWithin, MaxAttempts: attempts}.Headers())
	}
	if l.TraceParent != "" {
		headers["traceparent"] = l.TraceParent
	}
	return asynq.NewTaskWithHeaders(l.Type, l.Payload, headers), options
}

func (d *asynqDeliverer) enqueue(ctx context.Context, task *asynq.Task, options []asynq.Option) error {
	crash.At("before-enqueue")
	err := bounded(ctx, enqueueTimeout, func(ctx context.Context) error {
		_, err := d.client.EnqueueContext(ctx, task, options...)
		return err
	})
	crash.At("after-enqueue")
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil
	}
	return err
}

// handedOff ends the delivery of a job that asynq has taken. With reports it extends the lease
// until the report is due, so that the end of a worker changes nothing. It does so after the task
// exists: a crash in between must not leave a job without a task.
func (d *asynqDeliverer) handedOff(ctx context.Context, l *queue.Lease) queue.Settlement {
	if !d.route.Asynq.Reports {
		return queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: d.route.Retry.MaxAttempts}
	}
	var pause pauses
	for ctx.Err() == nil {
		// A lease that is lost by now was settled by a task that has ended already.
		if _, err := d.leases.Extend(ctx, []queue.LeaseRef{l.LeaseRef}, d.route.Asynq.ReportWithin); err == nil {
			break
		}
		sleep(ctx, pause.next())
	}
	return queue.Settlement{}
}

// hold holds the flow: Redis answers and refuses the task, because memory is full or a key is of
// another type. A pause may help, and the job is not the cause.
func (d *asynqDeliverer) hold(l *queue.Lease, err error) queue.Settlement {
	return queue.Settlement{
		LeaseRef: l.LeaseRef, Event: shaper.Hold, Delay: min(d.route.Retry.MinBackoff, maxHold),
		MaxAttempts: d.route.Retry.MaxAttempts,
		Cause:       queue.HoldCause{By: queue.HeldByHandOff},
		Error:       &queue.JobError{Message: "asynq does not take the task", Detail: err.Error()},
	}
}
