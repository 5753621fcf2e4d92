package reports_test

import (
	"context"
	"fmt"
	"time"

	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

// A program reads what the live workers report: how late departures were, and the load of routes.
// Here the example itself reports for a worker, which a worker.Worker does every second.
func Example() {
	ctx := context.Background()
	q, err := queue.Connect(ctx, queue.EngineOptions{Embedded: true}, queue.Options{})
	if err != nil {
		panic(err)
	}
	defer q.Close()
	store := reports.New(store.Of(q))

	_, _ = q.Broker().Heartbeat(ctx, "worker-1", 3*time.Second)
	var late reports.Lateness
	late[reports.LatenessClass(1200*time.Microsecond)] += 99
	late[reports.LatenessClass(40*time.Millisecond)]++
	_ = store.ReportLateness(ctx, "worker-1", late)
	_ = store.ReportRoutes(ctx, "worker-1", map[string]reports.RouteLoad{
		"default": {Breaker: reports.BreakerClosed, InFlight: 3, Ended: 100, Failed: 2},
	})

	workers, err := store.Workers(ctx)
	load := workers.Routes["default"]
	fmt.Println("live:", workers.Live, err)
	fmt.Println("99 % of", workers.Lateness.Sum(), "departures late by at most",
		workers.Lateness.Quantile(0.99))
	fmt.Println("default:", load.InFlight, "in flight,", load.Failed, "of", load.Ended, "failed")
	// Output:
	// live: 1 <nil>
	// 99 % of 100 departures late by at most 1.28ms
	// default: 3 in flight, 2 of 100 failed
}
