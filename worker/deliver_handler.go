package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// DeliveryInfo describes the delivery that a Go handler serves; see Delivery.
type DeliveryInfo struct {
	ID          string    // of the job, the same in every attempt: a key for idempotent work
	Attempt     int       // number of this delivery, from 1
	MaxAttempts int       // of its route; the last attempt is the one with this number
	Tenant      string    // for example "acme"
	Route       string    // for example "default"
	Type        string    // the task's type, for example "order.create"
	Cost        int64     // that its departure was charged for; SetCost replaces it
	Stamp       time.Time // when it left its bucket, by the queue's clock
	// TraceParent is the W3C trace context of this delivery's span, which the context holds, too.
	// Without Config.Traces it is as submitted, empty for none.
	TraceParent string
	// Headers are those that the job set, by the names in api.RouteInfo.JobHeaders; nil for none.
	// The task has them, too.
	Headers map[string]string
}

type deliveryKey struct{}

// delivery is what the context of a handler holds.
type delivery struct {
	info DeliveryInfo
	cost atomic.Pointer[int64] // as SetCost reported it
}

// Delivery returns which delivery a Go handler serves, from the context that it was called with. It
// is false for any other context. It replaces asynq.GetTaskID, GetRetryCount, GetMaxRetry and
// GetQueueName.
func Delivery(ctx context.Context) (DeliveryInfo, bool) {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	if !ok {
		return DeliveryInfo{}, false
	}
	return d.info, true
}

const (
	// linger is how long a handler whose context has ended may take to return by itself. It is
	// shorter than settleTail, so that jobs that are cut off at the end of the grace are settled.
	linger = 100 * time.Millisecond
	// maxDelay bounds the result of a RetryDelay.
	maxDelay = 366 * 24 * time.Hour
	// maxStack bounds the stack of a panic in the log, in bytes.
	maxStack = 8 << 10
)

// handlerDeliverer runs jobs by a Go handler in this process.
type handlerDeliverer struct {
	route   Route
	handler asynq.Handler
	delay   asynq.RetryDelayFunc // nil: the route's backoff
	left    chan struct{}        // a token for each handler that was left behind
	log     *slog.Logger
	panics  *burstlog.Log
}

func newHandlerDeliverer(r Route, cfg Config, log *slog.Logger, panics *burstlog.Log) *handlerDeliverer {
	return &handlerDeliverer{
		route: r, handler: cfg.Handler, delay: cfg.RetryDelay, left: make(chan struct{}, cfg.Concurrency),
		log: log, panics: panics,
	}
}

// Deliver runs the handler on a goroutine of its own, because a handler that does not obey its
// context must not keep its job for ever. As in asynq's server, the attempt has failed when the
// context ends, and the handler is left behind. At most Config.Concurrency handlers are left, then
// Deliver waits for one of them.
func (d *handlerDeliverer) Deliver(ctx context.Context, l *queue.Lease) queue.Settlement {
	current := &delivery{info: DeliveryInfo{
		ID: l.ID, Attempt: l.Attempt, MaxAttempts: d.route.Retry.MaxAttempts, Tenant: l.Tenant, Route: l.Route, Type: l.Type,
		Cost: l.Cost, Stamp: l.Stamp.Time(), TraceParent: l.TraceParent,
		Headers: l.Headers,
	}}
	s := d.serve(ctx, context.WithValue(ctx, deliveryKey{}, current), l)
	s.ActualCost = current.cost.Load()
	return s
}

// serve runs the handler with the given values in its context.
func (d *handlerDeliverer) serve(ctx, values context.Context, l *queue.Lease) queue.Settlement {
	limited, cancel := context.WithTimeout(values, d.route.Timeout)
	defer cancel()
	ended := make(chan queue.Settlement, 1)
	// Made before the goroutine, because the payload of a job that has ended is dropped. Clipped: a
	// handler that appends to it must not write into what lies behind it.
	task := asynq.NewTaskWithHeaders(l.Type, slices.Clip(l.Payload), taskHeaders(l))
	go func() {
		s := d.route.Retry.again(l, "the handler ended its goroutine", 0) // unless it returns or panics
		defer func() { ended <- s }()
		s = d.run(ctx, limited, l, task)
	}()
	select {
	case s := <-ended:
		return s
	case <-limited.Done():
	}
	select {
	case s := <-ended:
		return s
	case <-time.After(linger):
	}
	select {
	case s := <-ended:
		return s
	case d.left <- struct{}{}:
	}
	go func() {
		<-ended
		<-d.left
	}()
	d.log.Error("a handler goes on after its context has ended, and is left behind",
		"job", l.ID, "epoch", l.Epoch, "route", l.Route, "left", len(d.left))
	return d.route.Retry.again(l, d.late(ctx).Error(), 0)
}

// run calls the handler and decides what its result means.
func (d *handlerDeliverer) run(parent, ctx context.Context, l *queue.Lease, task *asynq.Task) (s queue.Settlement) {
	err := d.recovered(l, func() error { return d.handler.ProcessTask(ctx, task) })
	// The error's own methods and a RetryDelay may panic as well.
	panicked := d.recovered(l, func() error {
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = d.late(parent)
		}
		s = d.decide(l, task, err)
		return nil
	})
	if panicked != nil {
		return d.route.Retry.again(l, panicked.Error(), 0)
	}
	return s
}

// taskHeaders returns the headers of a job as those of a task, with its content type; nil for none.
func taskHeaders(l *queue.Lease) map[string]string {
	headers := maps.Clone(l.Headers)
	if l.ContentType != "" {
		if headers == nil {
			headers = map[string]string{}
		}
		headers["Content-Type"] = l.ContentType
	}
	return headers
}

// decide decides what a handler's result means for the job, as far as possible as asynq's server
// would:
//
//	nil                          succeeded
//	asynq.RevokeTask             succeeded, with the error kept: asynq neither retries nor archives it
//	asynq.SkipRetry              dead at once
//	asynq.ErrHandlerNotFound     dead at once: no later attempt would find a handler either
//	anything else                tried again after a backoff
func (d *handlerDeliverer) decide(l *queue.Lease, task *asynq.Task, err error) queue.Settlement {
	s := queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: d.route.Retry.MaxAttempts}
	switch {
	case err == nil:
		return s
	case errors.Is(err, asynq.RevokeTask):
	case errors.Is(err, asynq.SkipRetry), errors.Is(err, asynq.ErrHandlerNotFound):
		s.Event = shaper.Die
	default:
		s = d.route.Retry.again(l, err.Error(), 0)
		if d.delay != nil {
			s.Delay = min(max(0, d.delay(l.Attempt-1, err, task)), maxDelay)
		}
		return s
	}
	s.Error = &queue.JobError{Message: err.Error()}
	return s
}

// late returns why a handler had to end.
func (d *handlerDeliverer) late(parent context.Context) error {
	if parent.Err() != nil {
		return errors.New("the worker stopped before the handler had ended")
	}
	return fmt.Errorf("the handler did not end within %v", d.route.Timeout)
}

// recovered calls f and turns a panic into an error. The value of the panic is neither logged nor
// stored, because it may quote the payload; the runtime's own errors do not.
func (d *handlerDeliverer) recovered(l *queue.Lease, f func() error) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		stack := debug.Stack()
		if bytes.Contains(stack, []byte("asynq.(*ResultWriter).")) { // a nil one raised the panic
			err = errors.New("panic: the handler uses the task's ResultWriter, which only asynq's own server has")
		} else if r, ok := p.(runtime.Error); ok {
			err = fmt.Errorf("panic: %w", r)
		} else {
			err = errors.New("panic")
		}
		d.panics.Add(burstlog.Key{Route: l.Route, Kind: fmt.Sprintf("%T", p)}, 1,
			"job", l.ID, "stack", string(stack[:min(len(stack), maxStack)]))
	}()
	return f()
}
