package queue_test

import (
	"context"
	"fmt"

	"github.com/7509e464/sluice/queue"
)

// A queue on the embedded engine admits a job, which then waits for a worker.
func Example() {
	ctx := context.Background()
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{Embedded: true})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	q, err := queue.Open(ctx, engine, queue.Options{})
	if err != nil {
		panic(err)
	}
	defer q.Close()
	v, err := q.Submit(ctx, queue.Submission{
		Tenant: "acme", Route: "default", Type: "mail", Payload: []byte(`{}`), MaxAttempts: 3,
	})
	if err != nil {
		panic(err)
	}
	job, err := q.Job(ctx, "acme", v.Job.ID)
	fmt.Println(v.Outcome, job.State, job.Position, err)
	// Output: admitted queued 1 <nil>
}
