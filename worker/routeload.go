package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const (
	loadEvery  = time.Second // between two reports of the routes
	loadWindow = 60          // reports that the end of a delivery is counted in
)

// routeLoad counts the deliveries of a route in this worker. Many goroutines use it at once.
type routeLoad struct {
	breaker       atomic.Int64 // a queue.BreakerState
	inFlight      atomic.Int64
	ended, failed atomic.Int64 // only grow
}

// deliver counts a delivery, but no job that the circuit breaker held. One that panics has failed.
func (l *routeLoad) deliver(attempt func() queue.Settlement) (s queue.Settlement) {
	l.inFlight.Add(1)
	s.Event = shaper.Retry // what stays of a panic
	defer func() {
		l.inFlight.Add(-1)
		if s.Cause.By == queue.HeldByBreaker {
			return
		}
		l.ended.Add(1)
		if s.Event != shaper.Succeed && s.Event != "" { // the job is handed off where there is no event
			l.failed.Add(1)
		}
	}()
	return attempt()
}

// routeLoads are the loads of all routes, by name. The map does not change.
type routeLoads map[string]*routeLoad

func newRouteLoads(routes map[string]Route) routeLoads {
	loads := make(routeLoads, len(routes))
	for name := range routes {
		loads[name] = new(routeLoad)
	}
	return loads
}

// run reports to the other processes how the routes are, until ctx ends. Without anything to report
// it calls nothing. A report that fails is not repeated: a second later there is a newer one.
func (r routeLoads) run(ctx context.Context, b broker, worker string) {
	type counts struct{ ended, failed int64 }
	past := make(map[string]*[loadWindow]counts, len(r)) // rings
	for name := range r {
		past[name] = new([loadWindow]counts)
	}
	for n := range ticks(ctx, loadEvery) {
		at := n % loadWindow
		report := map[string]queue.RouteLoad{}
		for name, l := range r {
			now, before := counts{l.ended.Load(), l.failed.Load()}, past[name][at]
			past[name][at] = now
			load := queue.RouteLoad{
				Breaker: queue.BreakerState(l.breaker.Load()), InFlight: l.inFlight.Load(),
				Ended: now.ended - before.ended, Failed: now.failed - before.failed,
			}
			if load != (queue.RouteLoad{}) {
				report[name] = load
			}
		}
		if len(report) > 0 {
			_ = b.ReportRoutes(ctx, worker, report)
		}
	}
}
