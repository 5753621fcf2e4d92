package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// fakeFleet is an asynq client whose calls fail as set, with the leases of the queue.
type fakeFleet struct {
	fail     []error // of the first calls
	lose     bool    // the lease is another's
	away     int     // number of extensions that fail
	tasks    []*asynq.Task
	options  []map[asynq.OptionType]any
	extended []time.Duration
}

func (f *fakeFleet) EnqueueContext(
	ctx context.Context, task *asynq.Task, opts ...asynq.Option,
) (*asynq.TaskInfo, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, errors.New("the call has no bound")
	}
	f.tasks = append(f.tasks, task)
	o := map[asynq.OptionType]any{}
	for _, opt := range opts {
		o[opt.Type()] = opt.Value()
	}
	f.options = append(f.options, o)
	if n := len(f.tasks); n <= len(f.fail) {
		return nil, f.fail[n-1]
	}
	return &asynq.TaskInfo{}, nil
}

func (f *fakeFleet) Extend(
	_ context.Context, leases []queue.LeaseRef, d time.Duration,
) ([]queue.LeaseRef, error) {
	if f.away > 0 {
		f.away--
		return nil, queue.ErrUnavailable
	}
	f.extended = append(f.extended, d)
	if f.lose {
		return leases, nil
	}
	return nil, nil
}

func handOff(ctx context.Context, f *fakeFleet, r Route) queue.Settlement {
	d := &asynqDeliverer{route: r.withDefaults(), lease: 30 * time.Second, client: f, leases: f}
	return d.Deliver(ctx, &handlerLease)
}

func TestHandOff(t *testing.T) {
	down := errors.New("dial: connection refused")
	conflict := fmt.Errorf("%w", asynq.ErrTaskIDConflict)
	tests := []struct {
		name    string
		fleet   fakeFleet
		reports bool
		event   shaper.Event // empty: stays leased
		message string
		calls   int
	}{
		{"taken", fakeFleet{}, false, shaper.Succeed, "", 1},
		{"taken before, the answer was lost", fakeFleet{fail: []error{conflict}}, false, shaper.Succeed, "", 1},
		{"away, then taken", fakeFleet{fail: []error{down, down}}, false, shaper.Succeed, "", 3},
		{"away, then taken before", fakeFleet{fail: []error{down, conflict}}, false, shaper.Succeed, "", 2},
		{"redis away for long", fakeFleet{fail: slices.Repeat([]error{down}, 21), away: 20}, false,
			shaper.Succeed, "", 22},
		{"refused", fakeFleet{fail: slices.Repeat([]error{errors.New("OOM")}, 9)}, false, shaper.Hold,
			"asynq does not take the task: OOM", refusals},
		{"lease lost meanwhile", fakeFleet{fail: []error{down}, lose: true}, false, shaper.Retry,
			"the lease ended before asynq had taken the task", 1},
		{"reports", fakeFleet{}, true, "", "", 1},
		{"reports, settled already", fakeFleet{lose: true}, true, "", "", 1},
		{"reports, redis away", fakeFleet{away: 5}, true, "", "", 1},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			f := tt.fleet
			s := handOff(t.Context(), &f, Route{Asynq: &AsynqRoute{Queue: "orders", Reports: tt.reports}})
			var message string
			if s.Error != nil {
				message = s.Error.Message
				if s.Error.Detail != "" {
					message += ": " + s.Error.Detail
				}
			}
			queuetest.Compare(t, tt.name+": event", s.Event, tt.event)
			queuetest.Compare(t, tt.name+": error", message, tt.message)
			queuetest.Compare(t, tt.name+": calls", len(f.tasks), tt.calls)
			if tt.reports && !slices.Equal(f.extended, []time.Duration{time.Hour}) {
				t.Errorf("%s: the lease was extended by %v, want an hour", tt.name, f.extended)
			}
			for _, o := range f.options {
				if o[asynq.TaskIDOpt] != "job-1:7" {
					t.Errorf("%s: task id %v", tt.name, o[asynq.TaskIDOpt])
				}
			}
		})
	}
}

func TestTaskOfAJob(t *testing.T) {
	for _, tt := range []struct {
		route     Route
		retries   int
		timeout   time.Duration
		retention time.Duration
	}{
		{Route{}, 9, 10 * time.Second, 5 * time.Minute},
		{Route{Timeout: 200 * time.Millisecond, Retry: Retry{MaxAttempts: 1}}, 1, time.Second, 5 * time.Minute},
		{Route{Timeout: time.Second, Retry: Retry{MaxAttempts: 2}}, 1, time.Second, 5 * time.Minute},
		{Route{Timeout: 1001 * time.Millisecond, Retry: Retry{MaxAttempts: 3}}, 2, 2 * time.Second, 5 * time.Minute},
	} {
		for _, reports := range []bool{false, true} {
			f := &fakeFleet{}
			r := tt.route
			r.Asynq = &AsynqRoute{Queue: "orders", Reports: reports, ReportWithin: time.Minute}
			handOff(t.Context(), f, r)
			task, o := f.tasks[0], f.options[0]
			if task.Type() != "order.create" || string(task.Payload()) != `{"sku":"secret"}` {
				t.Errorf("task %q with %q", task.Type(), task.Payload())
			}
			queuetest.Compare(t, "the queue", o[asynq.QueueOpt], any("orders"))
			queuetest.Compare(t, "the retries", o[asynq.MaxRetryOpt], any(tt.retries))
			queuetest.Compare(t, "the timeout", o[asynq.TimeoutOpt], any(tt.timeout))
			queuetest.Compare(t, "the retention", o[asynq.RetentionOpt], any(tt.retention))
			if h := task.Headers(); h["Sluice-Tenant"] != "acme" || (len(h) > 1) != reports || reports && h["Sluice-Report-Within"] != "60000" {
				t.Errorf("reports %v: headers %v", reports, h)
			}
		}
	}
}

// TestTaskWithHeaders: the headers of a job are those of its task, and replace none of Sluice's.
func TestTaskWithHeaders(t *testing.T) {
	f := &fakeFleet{}
	r := Route{Asynq: &AsynqRoute{Queue: "orders", Reports: true, ReportWithin: time.Minute}}.withDefaults()
	d := &asynqDeliverer{route: r, client: f, leases: f}
	l := handlerLease
	l.ContentType, l.TraceParent = "text/csv", "00-1-2-01"
	l.Headers = map[string]string{"X-Request-Id": "17"}
	d.Deliver(t.Context(), &l)
	queuetest.Compare(t, "the headers", f.tasks[0].Headers(), map[string]string{
		"X-Request-Id": "17", "Content-Type": "text/csv", "traceparent": "00-1-2-01", "Sluice-Report-Within": "60000",
		"Sluice-Max-Attempts": "10", "Sluice-Tenant": "acme",
	})
	queuetest.Compare(t, "the lease's", l.Headers, map[string]string{"X-Request-Id": "17"})
}

func TestBlankTypeIsDead(t *testing.T) {
	f := &fakeFleet{}
	d := &asynqDeliverer{route: Route{Asynq: &AsynqRoute{Queue: "orders"}}.withDefaults(), client: f, leases: f}
	l := handlerLease
	l.Type = " \t"
	if s := d.Deliver(t.Context(), &l); s.Event != shaper.Die || s.Error == nil || len(f.tasks) != 0 {
		t.Errorf("%+v", s)
	}
}

func TestHandOffEndsWithTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		f := &fakeFleet{fail: slices.Repeat([]error{errors.New("down")}, 1000), away: 1000}
		if s := handOff(ctx, f, Route{Asynq: &AsynqRoute{Queue: "orders"}}); s.Event != shaper.Retry ||
			!strings.Contains(s.Error.Message, "the worker stopped") {
			t.Errorf("%+v", s)
		}
		if n := len(f.tasks); n < 30 || n > 60 {
			t.Errorf("%d calls in 20 s", n)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		f = &fakeFleet{away: 1000}
		if s := handOff(ctx, f, Route{Asynq: &AsynqRoute{Queue: "orders", Reports: true}}); s.Event != "" {
			t.Errorf("%+v", s)
		}
	})
}

func TestHandedOffJobHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{Concurrency: 2}, func(context.Context, *queue.Lease) queue.Settlement {
			return queue.Settlement{}
		})
		for i := range 10 {
			q.put(0, fmt.Sprint(i), 0)
		}
		q.wakes <- queue.Wake{Shard: 0}
		pass(5 * time.Minute)
		if n := testutil.ToFloat64(r.metrics.deliveries[outcomeHandedOff]); n != 10 || r.capacity.taken() != 0 {
			t.Errorf("%v handed off, %d slots taken", n, r.capacity.taken())
		}
		r.end(t)
		if len(q.settled) != 0 || len(q.extended) != 0 {
			t.Errorf("settled %v, extended %v", q.settled, q.extended)
		}
	})
}
