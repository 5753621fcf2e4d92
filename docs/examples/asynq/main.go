// Command asynq is asynq handlers behind Sluice in one program: jobs come in over HTTP, wait in
// their tenant's bucket, and leave at its rate into the handlers.
//
//	go run ./docs/examples/asynq                                       jobs in memory
//	REDIS_URL=redis://127.0.0.1:6379/0 go run ./docs/examples/asynq    jobs in Redis, for any number of such processes
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// handlers are those that an asynq server had, as they were.
func handlers() *asynq.ServeMux {
	mux := asynq.NewServeMux()
	mux.HandleFunc("order.create", func(ctx context.Context, task *asynq.Task) error {
		d, _ := worker.Delivery(ctx) // new, if you like: whose job it is, and which attempt
		fmt.Printf("%s %s of %s, attempt %d: %s\n", time.Now().Format("15:04:05.000"), task.Type(), d.Tenant,
			d.Attempt, task.Payload())
		return nil
	})
	return mux
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	worker.ReserveProcessor() // both make departures more exact on few cores
	worker.ShortenSlices()
	at := api.Addresses{Intake: "127.0.0.1:8080", Admin: "127.0.0.1:8081"}
	if err := run(ctx, os.Getenv("REDIS_URL"), at); err != nil {
		log.Fatal(err)
	}
}

// run serves the intake and the admin listener, which has the dashboard, and runs the jobs. When
// ctx ends, all of it stops in order.
func run(ctx context.Context, redisURL string, at api.Addresses) error {
	metrics := prometheus.NewRegistry() // of all parts, for /metrics of the admin listener
	policy := shaper.DefaultPolicy()
	policy.Rate = shaper.Rate{Limit: 5, Period: time.Second}
	q, err := queue.Connect(ctx, queue.EngineOptions{URL: redisURL, Embedded: redisURL == ""},
		queue.Options{Defaults: policy, Registerer: metrics})
	if err != nil {
		return err
	}
	defer q.Close()
	const attempts = 5 // the API shows the number, and the worker obeys it
	server, err := api.New(q, api.Config{Registerer: metrics, Gatherer: metrics,
		Routes: map[string]api.RouteInfo{"default": {MaxAttempts: attempts}}})
	if err != nil {
		return err
	}
	w, err := worker.New(q, worker.Config{Handler: handlers(), Registerer: metrics,
		Routes: map[string]worker.Route{"default": {Handler: true, Retry: worker.Retry{MaxAttempts: attempts}}}})
	if err != nil {
		return err
	}
	return server.Run(ctx, at, w.Run)
}
