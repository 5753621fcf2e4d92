package worker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestWithTheQueue is the way of jobs through the real queue and real HTTP: 202 to settled, one of them by way of a retry.
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
		"default": {URL: server.URL, Retry: Retry{MaxAttempts: 3, MinBackoff: 500 * time.Millisecond, MaxBackoff: time.Second}},
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
		v, err := q.Submit(t.Context(), queue.Submission{Tenant: "acme", Route: "default", Type: "n", Payload: fmt.Append(nil, i), MaxAttempts: 3})
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
	// Deliveries 5 ms apart may overtake each other on the wire; what counts is that each came, and once.
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the upstream got %q, want %q", got, want)
	}
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
