package queue

import (
	"context"
	"encoding/json"
	"time"
)

// BreakerState is the state of a route's circuit breaker, in the order of how little it lets through.
type BreakerState int

// The states of a circuit breaker.
const (
	BreakerClosed BreakerState = iota
	BreakerHalfOpen
	BreakerOpen
)

// RouteLoad is how a route is in one worker, or in all of them together.
type RouteLoad struct {
	Breaker  BreakerState `json:"b"` // of several workers, the one that lets through the least
	InFlight int64        `json:"i"` // deliveries under way
	Ended    int64        `json:"e"` // deliveries that ended in the last minute
	Failed   int64        `json:"f"` // of them, those that did not succeed
}

// add joins the load of another worker.
func (l RouteLoad) add(other RouteLoad) RouteLoad {
	return RouteLoad{max(l.Breaker, other.Breaker), l.InFlight + other.InFlight, l.Ended + other.Ended, l.Failed + other.Failed}
}

// routesKept is how long a report of a worker's routes is kept; the worker sends the next one sooner.
const routesKept = 3 * time.Second

// ReportRoutes keeps for 3 s how the routes of a worker are. Errors: ErrUnavailable.
func (q *Queue) ReportRoutes(ctx context.Context, worker string, routes map[string]RouteLoad) error {
	return unavailable(q.engine.patient.Set(ctx, routesPrefix+worker, encodeRoutes(routes), routesKept).Err())
}

// encodeRoutes writes a report as JSON.
func encodeRoutes(routes map[string]RouteLoad) string {
	text, _ := json.Marshal(routes) // names and numbers cannot fail
	return string(text)
}

// addRoutes joins a report. A malformed report, or a malformed route of one, is ignored.
func addRoutes(routes map[string]RouteLoad, report string) {
	var loads map[string]RouteLoad
	if json.Unmarshal([]byte(report), &loads) != nil {
		return
	}
	sane := func(n int64) bool { return n >= 0 && n <= 1<<40 }
	for name, l := range loads {
		if name != "" && l.Breaker >= BreakerClosed && l.Breaker <= BreakerOpen && sane(l.InFlight) && sane(l.Ended) && sane(l.Failed) {
			routes[name] = routes[name].add(l)
		}
	}
}
