package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// sharedCases are attacks of one tenant on what it shares with others: a pool or a route.
func sharedCases() []starving {
	pooled := settings{pool: "200/s"}
	inPool := quietTenants{route: poolRoute, backlog: 150}
	return []starving{
		{
			name: "cost", what: "one tenant of a pool sends jobs that cost 1,000,000",
			settings: pooled, attack: dearJobs,
			quiet: quietTenants{route: poolRoute, backlog: 150, span: 500 * time.Millisecond},
		},
		{
			name: "hold", what: "the upstream answers one tenant of a pool with 429 and Retry-After: 3600",
			settings: pooled, quiet: inPool,
			attack: badAnswers(poolRoute, answer{status: http.StatusTooManyRequests,
				header: map[string]string{"Retry-After": "3600"}}),
		},
		{
			name: "slow", what: "one tenant sends requests to a path of a forward route that takes 7.5 s of 8 s",
			settings: settings{
				routes:  map[string]string{forwardRoute: "forward timeout: 8s, wait: 30s"},
				tenants: map[string]tenant{offender: {rate: "1000/s", more: ", burst: 100"}},
			},
			quiet: quietTenants{route: forwardRoute, forward: true}, ready: slowPath, attack: slowSuccesses,
		},
		{
			name: "charge", what: "the upstream answers one tenant of a pool with Sluice-Cost: 1000000",
			settings: pooled, quiet: inPool,
			attack: badAnswers(poolRoute, answer{status: http.StatusOK, header: map[string]string{"Sluice-Cost": "1000000"}}),
		},
		{
			name: "free", what: "the upstream answers one tenant of a pool with Sluice-Cost: 0",
			settings: pooled, quiet: inPool,
			attack: badAnswers(poolRoute, answer{status: http.StatusOK, header: map[string]string{"Sluice-Cost": "0"}}),
		},
	}
}

// asOffender submits a job of the offender, with further fields after a comma.
func (w *world) asOffender(ctx context.Context, route, more string) (status int) {
	body := `{"type":"battery","route":"` + route + `","payload":"of the offender"` + more + `}`
	status, _, _ = w.call(ctx, http.MethodPost, w.api, "/v1/jobs",
		map[string]string{"Sluice-Tenant": offender}, []byte(body))
	return status
}

// counted counts answers by their status, and reports them.
type counted map[int]int

func (c counted) report(f *findings) {
	for _, status := range []int{200, 202, 422, 429, 503} {
		if c[status] > 0 {
			f.info(fmt.Sprintf("%ds of the offender", status), float64(c[status]), "")
		}
	}
}

// dearJobs submits jobs that cost as much as a job may.
func dearJobs(ctx context.Context, w *world, f *findings) error {
	answers := counted{}
	for pause(ctx, 100*time.Millisecond) == nil {
		answers[w.asOffender(ctx, poolRoute, `,"cost":1000000`)]++
	}
	answers.report(f)
	return nil
}

// badAnswers submits jobs of the offender, which the upstream answers so.
func badAnswers(route string, with answer) func(ctx context.Context, w *world, f *findings) error {
	return func(ctx context.Context, w *world, f *findings) error {
		w.sink.set(func(d delivery, _ int) answer {
			if d.Tenant == offender {
				return with
			}
			return answer{status: http.StatusOK}
		})
		answers := counted{}
		for pause(ctx, 50*time.Millisecond) == nil {
			answers[w.asOffender(ctx, route, "")]++
		}
		answers.report(f)
		f.atLeast("deliveries of the offender", float64(w.sink.mostInside(offender)), 1, "")
		return nil
	}
}

// slowPath makes the upstream succeed late for the offender, and in 10 ms for the others.
func slowPath(_ context.Context, w *world) error {
	w.sink.set(func(d delivery, _ int) answer {
		if d.Tenant == offender {
			return answer{status: http.StatusOK, delay: 7500 * time.Millisecond}
		}
		return answer{status: http.StatusOK, delay: 10 * time.Millisecond}
	})
	return nil
}

// slowSuccesses forwards requests of the offender to the slow path.
func slowSuccesses(ctx context.Context, w *world, f *findings) error {
	for range 80 {
		go func() {
			_, _, _ = w.call(ctx, http.MethodPost, w.api, "/v1/forward/"+forwardRoute+"/slow",
				map[string]string{"Sluice-Tenant": offender}, []byte("{}"))
		}()
	}
	<-ctx.Done()
	f.atLeast("slow requests at once", float64(w.sink.mostInside(offender)), 10, "")
	return nil
}
