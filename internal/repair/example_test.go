package repair_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/7509e464/sluice/internal/repair"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

// The queue of a flow is lost, so its job would never leave. A check with repair finds the job and
// queues it again; the next check finds nothing. Errors are dropped here for brevity.
func Example() {
	ctx := context.Background()
	engine, _ := queue.OpenEngine(ctx, queue.EngineOptions{Embedded: true})
	defer engine.Close()
	q, _ := queue.Open(ctx, engine, queue.Options{Shards: 1, Logger: slog.New(slog.DiscardHandler)})
	defer q.Close()
	_, _ = q.Submit(ctx, queue.Submission{Tenant: "acme", Route: "default", Type: "mail", MaxAttempts: 3})
	_ = engine.Client().Del(ctx, store.NewKeyspace(1).ShardOf("acme").Queue("acme/default"))

	for range 2 {
		checked, err := q.Check(ctx, true, func(found []repair.Finding) error {
			for _, f := range found {
				if f.Kind == "unindexed" {
					fmt.Println(f.Kind+":", repair.Kinds[f.Kind])
				}
			}
			return nil
		})
		fmt.Println(checked.Flows, "flow and", checked.Jobs, "job checked", err)
	}
	// Output:
	// unindexed: a job is stored and in no index, so that it would never leave
	// 1 flow and 1 job checked <nil>
	// 1 flow and 1 job checked <nil>
}
