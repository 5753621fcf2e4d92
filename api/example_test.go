package api_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// The intake in front of an embedded store: a submission is answered with 202 and the path of the
// job. Errors are dropped for brevity.
func ExampleNew() {
	ctx := context.Background()
	q, _ := queue.Connect(ctx, queue.EngineOptions{Embedded: true}, queue.Options{})
	defer q.Close()
	server, err := api.New(api.BackendOf(q),
		api.Config{Routes: map[string]api.RouteInfo{"default": {MaxAttempts: 5}}})
	if err != nil {
		panic(err)
	}
	defer server.End()

	r := httptest.NewRequest(http.MethodPost, "/v1/jobs",
		strings.NewReader(`{"type":"order.create","payload":{"sku":1}}`))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	server.Intake().ServeHTTP(w, r)
	fmt.Println(w.Code, strings.HasPrefix(w.Header().Get("Location"), "/v1/jobs/"),
		w.Header().Get("X-RateLimit-Remaining"))
	// Output: 202 true 999
}

// A program with the intake, the dashboard and a worker, which stops in order when ctx ends.
func ExampleServer_Run() {
	run := func(ctx context.Context) error {
		q, err := queue.Connect(ctx, queue.EngineOptions{Embedded: true}, queue.Options{})
		if err != nil {
			return err
		}
		defer q.Close()
		server, err := api.New(api.BackendOf(q), api.Config{Routes: map[string]api.RouteInfo{"default": {}}})
		if err != nil {
			return err
		}
		w, err := worker.New(q,
			worker.Config{Routes: map[string]worker.Route{"default": {URL: "http://127.0.0.1:9000/"}}})
		if err != nil {
			return err
		}
		return server.Run(ctx, api.Addresses{Intake: "127.0.0.1:0", Admin: "127.0.0.1:0"}, w.Run)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}
