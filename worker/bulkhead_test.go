package worker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestAHealthyRouteKeepsItsRate: beside upstreams that hang or are slow, another route has its rate
// in every two seconds, and a flow that wakes up among them has it at once. The scripts are the
// real ones, on the embedded engine. With -short there are fewer windows.
func TestAHealthyRouteKeepsItsRate(t *testing.T) {
	const (
		perSecond = 50
		window    = 2 * time.Second
	)
	windows := 5
	if testing.Short() {
		windows = 3
	}
	for _, tt := range []struct {
		name          string
		sick, tenants int
		sameRoute     bool // the healthy tenant sends to the upstream that hangs for the others
		takes         time.Duration
		workers       int
		wakes         time.Duration // when the healthy flow has its first job
		failures      int           // of the breaker; 0: none
		sluggish      bool          // deliveries of the sick take that long and succeed
	}{
		{name: "24 tenants of a route that hangs", sick: 1, tenants: 24, takes: 10 * time.Second, workers: 2},
		{name: "24 tenants of a slow route with a breaker", sick: 1, tenants: 24, takes: 8 * time.Second,
			workers: 2, sluggish: true, failures: 10},
		{name: "49 of 50 routes hang", sick: 49, tenants: 1, takes: 10 * time.Second, workers: 2},
		{name: "the flow wakes up beside 49 routes", sick: 49, tenants: 1, takes: time.Minute, workers: 1,
			wakes: 5 * time.Second},
		{name: "24 tenants hang on the same route", sick: 1, tenants: 24, sameRoute: true, takes: time.Minute,
			workers: 1, wakes: 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				log := slog.New(slog.DiscardHandler)
				engine, err := queue.OpenEngine(ctx, queue.EngineOptions{Embedded: true, Logger: log})
				if err != nil {
					t.Fatal(err)
				}
				policy := shaper.DefaultPolicy()
				policy.Rate.Limit, policy.Capacity = perSecond, 10_000
				q, err := queue.Open(ctx, engine, queue.Options{Shards: 16, Defaults: policy, Logger: log})
				if err != nil {
					t.Fatal(err)
				}
				of := Breaker{Failures: tt.failures}
				routes := map[string]Route{"well": {URL: "http://upstream.test/", Breaker: of}}
				var sick []string
				for i := range tt.sick {
					sick = append(sick, fmt.Sprint("sick-", i))
					routes[sick[i]] = Route{URL: "http://upstream.test/", Breaker: of}
				}
				healthy := "well"
				if tt.sameRoute {
					delete(routes, "well")
					healthy = sick[0]
				}
				var mu sync.Mutex
				var departed []time.Time
				deliver := func(ctx context.Context, l *queue.Lease) queue.Settlement {
					if l.Tenant != "healthy" {
						sleep(ctx, tt.takes)
						if tt.sluggish {
							return queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed}
						}
						return Route{}.withDefaults().Retry.again(l, "no answer within 10s", 0)
					}
					mu.Lock()
					departed = append(departed, time.Now())
					mu.Unlock()
					sleep(ctx, 5*time.Millisecond)
					return queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed}
				}
				submit := func(tenant, route string, n int) {
					batch := make([]queue.Submission, n)
					for i := range batch {
						batch[i] = queue.Submission{
							Tenant: tenant, Route: route, Type: "test", MaxAttempts: 5, Payload: []byte(`{}`),
						}
					}
					if _, err := q.SubmitBatch(ctx, batch, true); err != nil {
						t.Fatal(err)
					}
				}
				for i, route := range sick {
					for k := range tt.tenants {
						submit(fmt.Sprintf("sick-%d-%d", i, k), route, 200)
					}
				}
				backlog := (windows + 2) * 2 * perSecond
				if tt.wakes == 0 {
					submit("healthy", healthy, backlog)
				}
				var running sync.WaitGroup
				for range tt.workers {
					b, consumers := brokerOf(q)
					w, err := newWorker(b, consumers, newTimerWaiter, Config{
						Routes: routes, Concurrency: 256, Grace: time.Second, Logger: log,
					})
					if err != nil {
						t.Fatal(err)
					}
					for name, d := range w.deliverers {
						if b, ok := d.(*breaker); ok {
							b.next = deliverFunc(deliver)
						} else {
							w.deliverers[name] = deliverFunc(deliver)
						}
					}
					running.Go(func() { _ = w.Run(ctx) })
				}
				pass(max(time.Second, tt.wakes))
				if tt.wakes > 0 {
					submit("healthy", healthy, backlog)
				}
				start := time.Now()
				pass(time.Duration(windows) * window)
				counts := make([]int, windows)
				mu.Lock()
				for _, at := range departed {
					if i := int(at.Sub(start) / window); !at.Before(start) && i < windows {
						counts[i]++
					}
				}
				mu.Unlock()
				full := int(window.Seconds()) * perSecond
				for i, n := range counts {
					if n < full*97/100 {
						t.Errorf("%d of %d departures in window %d of %v", n, full, i, counts)
						break
					}
				}
				cancel()
				running.Wait()
				q.Close()
				engine.Close()
			})
		})
	}
}
