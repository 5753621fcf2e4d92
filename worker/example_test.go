package worker_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// Intake and worker inside one's own program: jobs come in over HTTP, wait in their tenant's bucket
// and are run by a Go handler. The embedded engine keeps them in memory; with EngineOptions.URL
// they are in Redis. Errors are dropped here for brevity.
func Example() {
	mux := asynq.NewServeMux()
	mux.HandleFunc("order.create", func(ctx context.Context, task *asynq.Task) error {
		d, _ := worker.Delivery(ctx)
		fmt.Printf("%s for %s, attempt %d of %d: %s\n", task.Type(), d.Tenant, d.Attempt, d.MaxAttempts,
			task.Payload())
		return nil
	})

	ctx, stop := context.WithCancel(context.Background())
	quiet := slog.New(slog.DiscardHandler)
	engine, _ := queue.OpenEngine(ctx, queue.EngineOptions{Embedded: true})
	q, _ := queue.Open(ctx, engine, queue.Options{})
	server, _ := api.New(q,
		api.Config{Routes: map[string]api.RouteInfo{"default": {MaxAttempts: 5}}})
	w, _ := worker.New(q, worker.Config{
		Handler: mux, Routes: map[string]worker.Route{"default": {Handler: true}}, Logger: quiet,
	})
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	intake := httptest.NewServer(server.Intake()) // or http.ListenAndServe

	// What a client does; it waits for the end of the job.
	req, _ := http.NewRequest("POST", intake.URL+"/v1/jobs",
		strings.NewReader(`{"type":"order.create","payload":{"sku":1}}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Prefer", "wait=10")
	resp, _ := http.DefaultClient.Do(req)
	_, _ = io.Copy(io.Discard, resp.Body)
	fmt.Println(resp.Status)
	_ = resp.Body.Close()

	http.DefaultClient.CloseIdleConnections()
	intake.Close()
	stop()
	<-done
	_ = q.Close()
	_ = engine.Close()
	// Output:
	// order.create for default, attempt 1 of 10: {"sku":1}
	// 200 OK
}
