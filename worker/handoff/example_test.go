package handoff_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
	"github.com/7509e464/sluice/worker/handoff"
)

// Both sides in one program, on the embedded engine: the worker hands a job off at its departure,
// an asynq server runs it, and the middleware reports its end. The two usually are different
// programs on one Redis. Errors are dropped here for brevity.
func ExampleMiddleware() {
	ctx, stop := context.WithCancel(context.Background())
	quiet := slog.New(slog.DiscardHandler)
	engine, _ := queue.OpenEngine(ctx, queue.EngineOptions{Embedded: true})
	q, _ := queue.Open(ctx, engine, queue.Options{})

	// Sluice's side.
	w, _ := worker.New(q, worker.Config{AsynqClient: engine.Client(), Logger: quiet,
		Routes: map[string]worker.Route{
			"fleet": {Asynq: &worker.AsynqRoute{Queue: "orders", Reports: true}},
		}})
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()

	// The fleet's side.
	mux := asynq.NewServeMux()
	mux.Use(handoff.Middleware(q.Broker(), handoff.Options{}))
	mux.HandleFunc("order.create", func(_ context.Context, task *asynq.Task) error {
		fmt.Printf("%s: %s\n", task.Type(), task.Payload())
		return nil
	})
	server := asynq.NewServerFromRedisClient(engine.Client(), asynq.Config{
		Queues: map[string]int{"orders": 1}, TaskCheckInterval: 50 * time.Millisecond, LogLevel: asynq.FatalLevel,
	})
	_ = server.Start(mux)

	v, _ := q.Submit(ctx, queue.Submission{
		Tenant: "acme", Route: "fleet", Type: "order.create", Payload: []byte(`{"sku":1}`), MaxAttempts: 5,
	})
	ended, forget, _ := q.Watch(ctx, v.Job.ID)
	if job, _ := q.Job(ctx, "acme", v.Job.ID); !job.State.Done() {
		<-ended
	}
	job, _ := q.Job(ctx, "acme", v.Job.ID)
	fmt.Println(job.State)

	forget()
	server.Shutdown()
	stop()
	<-done
	_ = q.Close()
	_ = engine.Close()
	// Output:
	// order.create: {"sku":1}
	// succeeded
}
