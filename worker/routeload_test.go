package worker

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// reporter is a broker that notes what is reported of routes.
type reporter struct {
	broker
	mu   sync.Mutex
	last map[string]reports.RouteLoad
	at   []time.Time
}

func (b *reporter) ReportRoutes(_ context.Context, _ string, routes map[string]reports.RouteLoad) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last, b.at = routes, append(b.at, time.Now())
	return queue.ErrUnavailable // which changes nothing
}

// seen gives the latest report and the instants of all.
func (b *reporter) seen() (map[string]reports.RouteLoad, []time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last, b.at
}

// forwarded ends a forwarded request with an answer of the upstream, which its client gets.
func forwarded(status int) queue.Settlement {
	return queue.Settlement{Event: shaper.Succeed, Response: &queue.Response{Status: status}, Answer: []byte("HTTP")}
}

// A delivery is reported while it is under way and for a minute after its end; a breaker as long as
// it is not closed.
func TestRoutesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, loads := &reporter{}, routeLoads{"busy": new(routeLoad), "idle": new(routeLoad), "open": new(routeLoad)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		w := &Worker{
			broker: b, loads: loads, errors: newErrorLog(slog.New(slog.DiscardHandler), nil),
			deliverers: map[string]deliverer{},
		}
		go func() { defer close(ended); w.report(ctx) }()
		time.Sleep(time.Minute + 500*time.Millisecond)
		if _, at := b.seen(); len(at) != 0 {
			t.Errorf("%d reports of idle routes", len(at))
		}
		deliver := func(d deliverFunc) {
			w.deliverers["busy"] = d
			l := &queue.Lease{Route: "busy", Tenant: "acme"}
			l.ID = "a-job"
			w.attempt(ctx, l)
		}
		for _, s := range []queue.Settlement{
			{Event: shaper.Succeed}, {Event: shaper.Retry}, {Event: shaper.Die}, {Event: shaper.Hold}, {},
			{Event: shaper.Hold, Cause: queue.HoldCause{By: queue.HeldByBreaker}},
			forwarded(http.StatusNotFound), forwarded(http.StatusInternalServerError),
		} {
			deliver(func(context.Context, *queue.Lease) queue.Settlement { return s })
		}
		deliver(func(context.Context, *queue.Lease) queue.Settlement { panic("a fault of the handler") })
		loads["open"].breaker.Store(int64(reports.BreakerOpen))
		go deliver(func(context.Context, *queue.Lease) queue.Settlement {
			time.Sleep(10 * time.Second)
			return queue.Settlement{Event: shaper.Succeed}
		})
		var failure reports.Failure // the last that was reported
		report := func(want map[string]reports.RouteLoad) {
			t.Helper()
			last, at := b.seen()
			last = maps.Clone(last)
			busy := last["busy"]
			if busy.Last.Job != "" {
				failure, busy.Last = busy.Last, reports.Failure{}
				last["busy"] = busy
			}
			if diff := cmp.Diff(want, last); diff != "" {
				t.Errorf("%v after the start (-want +got):\n%s", time.Since(at[0]), diff)
			}
		}
		pass(time.Second)
		report(map[string]reports.RouteLoad{
			"busy": {InFlight: 1, Ended: 8, Failed: 5}, "open": {Breaker: reports.BreakerOpen},
		})
		pass(30 * time.Second)
		report(map[string]reports.RouteLoad{"busy": {Ended: 9, Failed: 5}, "open": {Breaker: reports.BreakerOpen}})
		if failure.Tenant != "acme" || failure.Job != "a-job" || failure.Message != "the delivery panicked" || failure.At == 0 {
			t.Errorf("the last failure is %+v", failure)
		}
		pass(30 * time.Second)
		failure = reports.Failure{}
		report(map[string]reports.RouteLoad{"busy": {Ended: 1}, "open": {Breaker: reports.BreakerOpen}})
		if failure.Job != "" {
			t.Errorf("a failure of more than a minute ago is reported: %+v", failure)
		}
		loads["open"].breaker.Store(int64(reports.BreakerClosed))
		_, before := b.seen()
		pass(time.Minute)
		_, at := b.seen()
		if n := len(at) - len(before); n > 11 {
			t.Errorf("%d reports after the end of the last delivery is a minute ago", n)
		}
		cancel()
		<-ended
		w.errors.end()
	})
}
