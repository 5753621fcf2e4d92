package worker

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// watchedLog is a log that says when a text has come.
type watchedLog struct {
	mu   sync.Mutex
	text strings.Builder
	want string
	came chan struct{}
}

func (l *watchedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := strings.Contains(l.text.String(), l.want)
	l.text.Write(p)
	if !had && strings.Contains(l.text.String(), l.want) {
		close(l.came)
	}
	return len(p), nil
}

func (l *watchedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A flow that has stopped because of its dead letters is logged, with the tenant encoded; so is the
// burst of deaths, in one line.
func TestStoppedFlowIsLogged(t *testing.T) {
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
		Embedded: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	policy := shaper.DefaultPolicy()
	policy.Rate.Limit = 200
	const kept = 3
	q, err := queue.Open(t.Context(), engine, queue.Options{
		Shards: 4, Defaults: policy, Retention: queue.Retention{DeadCapacity: kept},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	log := &watchedLog{want: "a flow has stopped", came: make(chan struct{})}
	w, err := New(q, Config{
		Lease: 3 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Routes: map[string]Route{"default": {URL: server.URL}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	const tenant = "a tenant's name"
	for range kept + 2 {
		if _, err := q.Submit(t.Context(), queue.Submission{Tenant: tenant, Route: "default", Type: "n",
			Payload: []byte("1"), MaxAttempts: 3}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-log.came:
	case <-time.After(20 * time.Second):
		t.Errorf("nothing is logged:\n%s", log)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	text := log.String()
	for _, want := range []string{
		`level=WARN msg="jobs died and are kept as dead letters"`,
		` tenant=` + store.EncodeName(tenant) + ` route=default`, "level=ERROR msg=\"a flow has stopped",
	} {
		if strings.Count(text, want) == 0 {
			t.Errorf("%s is missing:\n%s", want, text)
		}
	}
	if strings.Contains(text, tenant) || strings.Count(text, "jobs died") != 1 {
		t.Error(text)
	}
}

// TestFailuresAreLogged: an upstream that answers 500 is in the log at once, summed by tenant and
// route, and in the metrics of the route; what a handler says is not logged. A client that leaves
// is no failure of the upstream.
func TestFailuresAreLogged(t *testing.T) {
	var text bytes.Buffer
	w := &Worker{
		cfg:   Config{Routes: map[string]Route{"web": {}, "go": {Handler: true}}},
		loads: routeLoads{"web": new(routeLoad), "go": new(routeLoad)}, deliverers: map[string]deliverer{},
		errors: newErrorLog(slog.New(slog.NewTextHandler(&text, nil)), nil),
	}
	fail := deliverFunc(func(context.Context, *queue.Lease) queue.Settlement {
		return queue.Settlement{Event: shaper.Retry, Error: &queue.JobError{Message: "the upstream answered 500", Status: 500}}
	})
	w.deliverers["web"], w.deliverers["go"] = fail, fail
	for range 3 {
		for _, route := range []string{"web", "go"} {
			w.attempt(t.Context(), &queue.Lease{Route: route, Tenant: "acme"})
		}
	}
	w.deliverers["web"] = deliverFunc(func(context.Context, *queue.Lease) queue.Settlement {
		return queue.Settlement{Event: shaper.Die, Final: true, Left: true, Error: &queue.JobError{Message: "the client left"}}
	})
	w.attempt(t.Context(), &queue.Lease{Route: "web", Tenant: "acme"})
	w.errors.end()
	const line = `level=WARN msg="deliveries failed" tenant=acme route=`
	if got := text.String(); strings.Count(got, line) != 2 || !strings.Contains(got, "route=web count=3") ||
		strings.Count(got, `error="the upstream answered 500"`) != 1 {
		t.Error(got)
	}
	if l := w.loads["web"]; l.ends.Load() != 4 || l.failures.Load() != 3 {
		t.Errorf("%d of %d failed", l.failures.Load(), l.ends.Load())
	}
}

// TestOutOfHoldsIsADeadLetter: metrics and log count a job whose holds are used up as a dead
// letter.
func TestOutOfHoldsIsADeadLetter(t *testing.T) {
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
		Embedded: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	policy := shaper.DefaultPolicy()
	policy.Rate.Limit = 1000
	q, err := queue.Open(t.Context(), engine, queue.Options{
		Shards: 1, Defaults: policy, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	log := &watchedLog{want: "jobs died", came: make(chan struct{})}
	w, err := New(q, Config{
		Logger: slog.New(slog.NewTextHandler(log, nil)),
		Routes: map[string]Route{"default": {
			URL: server.URL, Retry: Retry{MaxAttempts: 1, MinBackoff: time.Millisecond},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	v, err := q.Submit(t.Context(), queue.Submission{
		Tenant: "acme", Route: "default", Type: "n", Payload: []byte("1"), MaxAttempts: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	job := ended(t, q, v.Job.ID)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	held, dead := testutil.ToFloat64(w.metrics.deliveries[outcomeHeld]),
		testutil.ToFloat64(w.metrics.deliveries[outcomeDead])
	queuetest.Compare(t, "the state", job.State, shaper.Dead)
	queuetest.Compare(t, "the times it was held", held, shaper.FreeLeases)
	queuetest.Compare(t, "the deaths", dead, 1)
	if n := strings.Count(log.String(), "jobs died"); n != 1 {
		t.Errorf("the death is logged %d times, want once:\n%s", n, log)
	}
}
