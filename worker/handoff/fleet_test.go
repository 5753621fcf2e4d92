package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
	"github.com/7509e464/sluice/worker/handoff"
)

// fleet is a queue on a real Redis with what is at both ends of it: workers that hand jobs off, and
// asynq servers.
type fleet struct {
	*testing.T
	redis     *redistest.Server
	lease     time.Duration
	engine    *queue.Engine
	q         *queue.Queue
	inspector *asynq.Inspector

	mu   sync.Mutex
	runs []string // the payloads of the tasks that ran
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	redis := redistest.Start(t)
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: redis.URL(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	policy := shaper.DefaultPolicy()
	policy.Rate.Limit = 500
	q, err := queue.Open(t.Context(), engine, queue.Options{Shards: 1, Defaults: policy, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(q.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return &fleet{
		T: t, redis: redis, lease: time.Second, engine: engine, q: q,
		inspector: asynq.NewInspectorFromRedisClient(engine.Client()),
	}
}

// work starts a worker; the returned function stops it.
func (f *fleet) work(to worker.AsynqRoute) (stop func()) {
	f.Helper()
	w, err := worker.New(f.q, worker.Config{
		AsynqClient: f.engine.Client(), Lease: f.lease, Sweep: 50 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
		Routes: map[string]worker.Route{"fleet": {Asynq: &to, Retry: worker.Retry{MaxAttempts: 2}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	}
}

// serve starts an asynq server; the returned function stops it.
func (f *fleet) serve(handler func(payload string, retried int) error) (stop func()) {
	f.Helper()
	mux := asynq.NewServeMux()
	mux.Use(handoff.Middleware(f.q.Broker(), handoff.Options{Logger: slog.New(slog.DiscardHandler)}))
	mux.HandleFunc("order.", func(ctx context.Context, task *asynq.Task) error {
		payload := string(task.Payload())
		f.mu.Lock()
		f.runs = append(f.runs, payload)
		f.mu.Unlock()
		retried, _ := asynq.GetRetryCount(ctx)
		return handler(payload, retried)
	})
	server := asynq.NewServerFromRedisClient(f.engine.Client(), asynq.Config{
		Queues: map[string]int{"orders": 1}, Concurrency: 8, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 20 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	})
	if err := server.Start(mux); err != nil {
		f.Fatal(err)
	}
	return server.Shutdown
}

func (f *fleet) submit(payload string) string {
	f.Helper()
	v, err := f.q.Submit(f.Context(), queue.Submission{
		Tenant: "acme", Route: "fleet", Type: "order.create", Payload: []byte(payload), MaxAttempts: 2,
	})
	if err != nil || v.Outcome != shaper.Admitted {
		f.Fatalf("%+v, %v", v, err)
	}
	return v.Job.ID
}

// until waits until the condition holds, for which nothing signals.
func (f *fleet) until(what string, holds func() bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 20*time.Second)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			f.Fatalf("never: %s", what)
		}
	}
}

// pending waits until n tasks wait in asynq's queue, and returns them.
func (f *fleet) pending(n int) []*asynq.TaskInfo {
	f.Helper()
	var tasks []*asynq.TaskInfo
	f.until(fmt.Sprintf("%d tasks pending", n), func() bool {
		tasks, _ = f.inspector.ListPendingTasks("orders") // an error as long as there is no queue
		return len(tasks) == n
	})
	return tasks
}

// jobOf is the job that became the task. The epoch after it is higher where a slow machine gave a
// late job back.
func jobOf(task *asynq.TaskInfo) string {
	id, _, _ := strings.Cut(task.ID, ":")
	return id
}

// state is the job as it is now.
func (f *fleet) state(id string) queue.Job {
	f.Helper()
	job, err := f.q.Job(f.Context(), "acme", id)
	if err != nil {
		f.Fatal(err)
	}
	return job
}

// ended waits for the end of a job.
func (f *fleet) ended(id string) queue.Job {
	f.Helper()
	f.until("the end of "+id, func() bool { return f.state(id).State.Done() })
	return f.state(id)
}

func (f *fleet) ran() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.runs)
	return f.runs
}

// TestReportsOfAFleet is the way of jobs through asynq's own server, the worker that handed them
// off being gone.
func TestReportsOfAFleet(t *testing.T) {
	f := newFleet(t)
	stopWorker := f.work(worker.AsynqRoute{Queue: "orders", Reports: true})
	payloads := []string{"fine", "again", "skip", "revoke", "never", "panic"}
	ids := map[string]string{}
	for _, p := range payloads {
		ids[p] = f.submit(p)
	}
	for _, task := range f.pending(len(payloads)) {
		queuetest.Compare(t, "the job of the task", jobOf(task), ids[string(task.Payload)])
		queuetest.Compare(t, "the task", queuetest.Only(*task, "Type", "MaxRetry", "Timeout", "Retention"),
			asynq.TaskInfo{Type: "order.create", MaxRetry: 1, Timeout: 10 * time.Second, Retention: 5 * time.Minute})
	}
	stopWorker()
	for p, id := range ids {
		if job := f.state(id); job.State != shaper.Leased {
			t.Errorf("%s before its end: %+v", p, job)
		}
	}
	defer f.serve(func(payload string, retried int) error {
		switch {
		case payload == "again" && retried == 0, payload == "never":
			return errors.New("no stock")
		case payload == "skip":
			return fmt.Errorf("bad sku: %w", asynq.SkipRetry)
		case payload == "revoke":
			return asynq.RevokeTask
		case payload == "panic":
			panic("secret")
		}
		return nil
	})()
	for p, want := range map[string]struct {
		state   shaper.State
		message string
	}{
		"fine": {shaper.Succeeded, ""}, "again": {shaper.Succeeded, ""},
		"skip":   {shaper.Dead, "bad sku: skip retry for the task"},
		"revoke": {shaper.Succeeded, "revoke task"}, "never": {shaper.Dead, "no stock"},
		"panic": {shaper.Dead, "panic"},
	} {
		job := f.ended(ids[p])
		var message string
		if job.LastError != nil {
			message = job.LastError.Message
		}
		queuetest.Compare(t, p+": job", queuetest.Only(job, "State", "Attempts", "MaxAttempts"),
			queue.Job{State: want.state, Attempts: 1, MaxAttempts: 2})
		queuetest.Compare(t, p+": last error", message, want.message)
	}
	if want := []string{"again", "again", "fine", "never", "never", "panic", "panic", "revoke",
		"skip"}; !slices.Equal(f.ran(), want) {
		t.Errorf("ran %v, want %v", f.ran(), want)
	}
}

// TestJobIsHandedOffAgain is a fleet that stood still for longer than ReportWithin: of a job's two
// tasks only the newer one runs.
func TestJobIsHandedOffAgain(t *testing.T) {
	f := newFleet(t)
	stopWorker := f.work(worker.AsynqRoute{Queue: "orders", Reports: true, ReportWithin: 2 * time.Second})
	id := f.submit("fine")
	tasks := f.pending(2)
	stopWorker()
	if jobOf(tasks[0]) != id || jobOf(tasks[1]) != id || tasks[0].ID == tasks[1].ID {
		t.Fatalf("tasks %s and %s", tasks[0].ID, tasks[1].ID)
	}
	stopServer := f.serve(func(string, int) error { return nil })
	job := f.ended(id)
	f.until("both tasks completed", func() bool {
		completed, err := f.inspector.ListCompletedTasks("orders")
		return err == nil && len(completed) == 2
	})
	stopServer()
	if job.State != shaper.Succeeded || !slices.Equal(f.ran(), []string{"fine"}) {
		t.Errorf("%+v, ran %v", job, f.ran())
	}
}

// TestWithoutReports is a route whose jobs are done when asynq has them, in a fleet that has the
// middleware all the same.
func TestWithoutReports(t *testing.T) {
	f := newFleet(t)
	defer f.work(worker.AsynqRoute{Queue: "orders"})()
	id := f.submit("fine")
	if job := f.ended(id); job.State != shaper.Succeeded {
		t.Errorf("%+v", job)
	}
	if tasks := f.pending(1); jobOf(tasks[0]) != id || len(tasks[0].Headers) != 1 || tasks[0].Headers["Sluice-Tenant"] != "acme" {
		t.Errorf("task %+v", tasks[0])
	}
	stop := f.serve(func(string, int) error { return nil })
	f.until("the task ran", func() bool { return len(f.ran()) == 1 })
	stop()
}

// TestRedisIsKilledDuringHandOff breaks off calls whose effect nobody knows: every job becomes a
// task all the same, and only one.
func TestRedisIsKilledDuringHandOff(t *testing.T) {
	f := newFleet(t)
	f.lease = 10 * time.Second
	defer f.work(worker.AsynqRoute{Queue: "orders"})()
	const jobs = 100
	ids := make([]string, jobs)
	for i := range ids {
		ids[i] = f.submit(fmt.Sprint(i))
	}
	f.until("some tasks", func() bool {
		info, err := f.inspector.GetQueueInfo("orders")
		return err == nil && info.Pending >= 10
	})
	f.redis.Kill()
	f.redis.Restart()
	for _, id := range ids {
		f.until("the end of "+id, func() bool {
			job, err := f.q.Job(f.Context(), "acme", id)
			return err == nil && job.State == shaper.Succeeded
		})
	}
	tasks, err := f.inspector.ListPendingTasks("orders", asynq.PageSize(2*jobs))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, task := range tasks {
		got = append(got, jobOf(task))
	}
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		t.Errorf("%d tasks for %d jobs, %d of them different", len(got), jobs, len(slices.Compact(got)))
	}
}
