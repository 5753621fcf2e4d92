package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestWithTheQueue is the way of jobs through the real queue and real HTTP: 202 to settled, one of
// them by way of a retry.
func TestWithTheQueue(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	policy := shaper.DefaultPolicy()
	policy.Rate.Limit = 200
	q, err := queue.Open(t.Context(), engine, queue.Options{Shards: 4, Defaults: policy, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()

	const jobs = 20
	var mu sync.Mutex
	var got []string
	failed := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if string(body) == "7" && !failed {
			failed = true
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		got = append(got, string(body)+" "+r.Header.Get("Sluice-Attempt"))
	}))
	defer server.Close()
	w, err := New(q, Config{Lease: 3 * time.Second, Logger: log, Routes: map[string]Route{
		"default": {
			URL:   server.URL,
			Retry: Retry{MaxAttempts: 3, MinBackoff: 500 * time.Millisecond, MaxBackoff: time.Second},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()

	var ids []string
	var want []string
	for i := range jobs {
		v, err := q.Submit(t.Context(), queue.Submission{
			Tenant: "acme", Route: "default", Type: "n", Payload: fmt.Append(nil, i), MaxAttempts: 3,
		})
		if err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("job %d: %+v, %v", i, v, err)
		}
		ids = append(ids, v.Job.ID)
		if i != 7 {
			want = append(want, fmt.Sprint(i, " 1"))
		}
	}
	want = append(want, "7 2") // behind the others, after its backoff
	for i, id := range ids {
		if job := ended(t, q, id); job.State != shaper.Succeeded {
			t.Errorf("job %d: %+v", i, job)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Deliveries 5 ms apart may overtake each other on the wire; what counts is that each came, and
	// once.
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the upstream got %q, want %q", got, want)
	}
}

// TestHandlersAndHandOffWithTheQueue is the way of jobs through the real queue to the two kinds of
// route that are not HTTP.
func TestHandlersAndHandOffWithTheQueue(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	policy := shaper.DefaultPolicy()
	policy.Rate.Limit = 200
	q, err := queue.Open(t.Context(), engine, queue.Options{Shards: 4, Defaults: policy, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	mux := asynq.NewServeMux()
	mux.HandleFunc("again", func(ctx context.Context, _ *asynq.Task) error {
		if d, ok := Delivery(ctx); !ok || d.Attempt < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	mux.HandleFunc("skip", func(context.Context, *asynq.Task) error { return asynq.SkipRetry })
	mux.HandleFunc("never", func(context.Context, *asynq.Task) error { panic("secret") })
	w, err := New(q, Config{
		Lease: 3 * time.Second, Logger: log, Handler: mux, AsynqClient: engine.Client(),
		RetryDelay: func(n int, _ error, _ *asynq.Task) time.Duration {
			return time.Duration(n) * time.Millisecond
		},
		Routes: map[string]Route{
			"default": {Handler: true, Retry: Retry{MaxAttempts: 3}},
			"fleet":   {Asynq: &AsynqRoute{Queue: "orders"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	submit := func(route, kind, payload string) string {
		v, err := q.Submit(t.Context(), queue.Submission{
			Tenant: "acme", Route: route, Type: kind, Payload: []byte(payload), MaxAttempts: 3,
		})
		if err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("%s to %s: %+v, %v", kind, route, v, err)
		}
		return v.Job.ID
	}
	for _, tt := range []struct {
		kind     string
		state    shaper.State
		attempts int
		message  string
	}{
		{"again", shaper.Succeeded, 3, "not yet"}, {"skip", shaper.Dead, 1, "skip retry for the task"},
		{"never", shaper.Dead, 3, "panic"}, {"unknown", shaper.Dead, 1, `handler not found for task "unknown"`},
	} {
		job := ended(t, q, submit("default", tt.kind, "{}"))
		if job.LastError == nil {
			t.Fatalf("%s ended without an error: %+v", tt.kind, job)
		}
		queuetest.Compare(t, tt.kind+": state", job.State, tt.state)
		queuetest.Compare(t, tt.kind+": attempts", job.Attempts, tt.attempts)
		queuetest.Compare(t, tt.kind+": last error", job.LastError.Message, tt.message)
	}
	want := map[string]string{}
	for i := range 10 {
		payload := fmt.Sprint(i)
		want[submit("fleet", "order.create", payload)] = payload
	}
	for id := range want {
		if job := ended(t, q, id); job.State != shaper.Succeeded || job.Attempts != 1 {
			t.Errorf("%+v", job)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	got := map[string]string{}
	tasks, err := asynq.NewInspectorFromRedisClient(engine.Client()).ListPendingTasks("orders")
	for _, task := range tasks {
		// The epoch after it is higher where a slow machine gave a late job back.
		id, _, _ := strings.Cut(task.ID, ":")
		got[id] = string(task.Payload)
	}
	if err != nil {
		t.Errorf("ListPendingTasks: %v", err)
	}
	queuetest.Compare(t, "the payloads that asynq has", got, want)
	queuetest.Compare(t, "the tasks that asynq has", len(tasks), len(want))
}

// ended waits for the end of a job.
func ended(t *testing.T, q *queue.Queue, id string) queue.Job {
	t.Helper()
	end, stop, err := q.Watch(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for {
		job, err := q.Job(t.Context(), "acme", id)
		if err != nil {
			t.Fatal(err)
		}
		if job.State.Done() {
			return job
		}
		<-end
	}
}
