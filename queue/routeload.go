package queue

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
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
	Breaker  BreakerState // of several workers, the one that lets through the least
	InFlight int64        // deliveries under way
	Ended    int64        // deliveries that ended in the last minute
	Failed   int64        // of them, those that did not succeed
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

// encodeRoutes writes a report like "default:2:3:40:5 other:0:1:0:0": route, breaker, in flight, ended, failed.
func encodeRoutes(routes map[string]RouteLoad) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		l := routes[name]
		fmt.Fprintf(&b, " %s:%d:%d:%d:%d", url.QueryEscape(name), l.Breaker, l.InFlight, l.Ended, l.Failed)
	}
	return strings.TrimPrefix(b.String(), " ")
}

// addRoutes joins a report in the form of encodeRoutes. What is malformed, as another version may write, is left out.
func addRoutes(routes map[string]RouteLoad, report string) {
	for part := range strings.FieldsSeq(report) {
		fields := strings.Split(part, ":")
		if len(fields) != 5 {
			continue
		}
		name, err := url.QueryUnescape(fields[0])
		var n [4]int64
		for i := range n {
			var failed error
			if n[i], failed = strconv.ParseInt(fields[i+1], 10, 64); failed != nil || n[i] < 0 || n[i] > 1<<40 {
				err = strconv.ErrRange
			}
		}
		if err != nil || name == "" || n[0] > int64(BreakerOpen) {
			continue
		}
		routes[name] = routes[name].add(RouteLoad{BreakerState(n[0]), n[1], n[2], n[3]})
	}
}
