// Command asynq is asynq handlers behind Sluice in one program: jobs come in over HTTP, wait in
// their tenant's bucket, and leave at its rate into the handlers.
//
//	go run ./docs/examples/asynq                                       jobs in memory
//	REDIS_URL=redis://127.0.0.1:6379/0 go run ./docs/examples/asynq    jobs in Redis, for any number of such processes
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/listen"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// handlers are those that an asynq server had, as they were.
func handlers() *asynq.ServeMux {
	mux := asynq.NewServeMux()
	mux.HandleFunc("order.create", func(ctx context.Context, task *asynq.Task) error {
		d, _ := worker.Delivery(ctx) // new, if you like: whose job it is, and which attempt
		fmt.Printf("%s %s of %s, attempt %d: %s\n", time.Now().Format("15:04:05.000"), task.Type(), d.Tenant, d.Attempt, task.Payload())
		return nil
	})
	return mux
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("REDIS_URL"), "127.0.0.1:8080", "127.0.0.1:8081"); err != nil {
		log.Fatal(err)
	}
}

// run serves the intake and the admin listener, and runs the jobs, until ctx ends.
func run(ctx context.Context, redisURL, intake, admin string) error {
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{URL: redisURL, Embedded: redisURL == ""})
	if err != nil {
		return err
	}
	defer engine.Close()
	policy := shaper.DefaultPolicy()
	policy.Rate = shaper.Rate{Limit: 5, Period: time.Second}
	metrics := prometheus.NewRegistry() // of all parts, for /metrics of the admin listener
	q, err := queue.Open(ctx, engine, queue.Options{Defaults: policy, Registerer: metrics})
	if err != nil {
		return err
	}
	defer q.Close()

	server, err := api.New(api.BackendOf(q), api.Config{Routes: map[string]api.RouteInfo{"default": {MaxAttempts: 5}}, Registerer: metrics, Gatherer: metrics})
	if err != nil {
		return err
	}
	worker.ReserveProcessor()
	worker.ShortenTurns()
	w, err := worker.New(q, worker.Config{Handler: handlers(), Routes: map[string]worker.Route{"default": {Handler: true}}, Registerer: metrics})
	if err != nil {
		return err
	}
	server.Remember() // the dashboard begins with the minutes before it was opened

	// Whatever fails ends the rest. The end has an order: no new jobs, then the worker with what it
	// runs, then the listeners.
	all, ctx := errgroup.WithContext(ctx)
	listeners := []*http.Server{
		listen.Server(intake, server.Intake(), slog.Default()),
		listen.Server(admin, server.Admin(), slog.Default()), // with the dashboard at /
	}
	for _, l := range listeners {
		all.Go(func() error {
			if err := l.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	context.AfterFunc(ctx, server.Drain)
	all.Go(func() error {
		err := w.Run(ctx)
		server.End()
		for _, l := range listeners {
			_ = l.Close()
		}
		return err
	})
	return all.Wait()
}
