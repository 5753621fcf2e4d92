package api_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// A program with the intake, the dashboard and a worker, which stops in order when ctx ends.
func ExampleServer_Run() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	at := api.Addresses{Intake: "127.0.0.1:8080", Admin: "127.0.0.1:8081"}
	if err := run(ctx, at); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, at api.Addresses) error {
	q, err := queue.Connect(ctx, queue.EngineOptions{Embedded: true}, queue.Options{})
	if err != nil {
		return err
	}
	defer q.Close()
	server, err := api.New(q, api.Config{Routes: map[string]api.RouteInfo{"default": {}}})
	if err != nil {
		return err
	}
	w, err := worker.New(q,
		worker.Config{Routes: map[string]worker.Route{"default": {URL: "http://127.0.0.1:9000/"}}})
	if err != nil {
		return err
	}
	return server.Run(ctx, at, w.Run)
}
