package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// isolation are the checks that one tenant or upstream does not disturb the others.
func isolation() []check {
	checks := []check{
		{
			id: "I1", what: "one tenant offers 100 × its rate beside many quiet ones",
			target: "quiet tenants' p99 lateness ≤ 2 × alone, or ≤ 2 ms",
			quick:  scale{tenants: 300, window: 4 * time.Second},
			full:   scale{tenants: 999, window: 15 * time.Second, limit: 4 * time.Minute},
			run:    noisy,
		},
		{
			id: "I2-cap", what: "the upstream of a tenant with a cap hangs",
			target: "others' rate changes < 1 %, its in-flight ≤ its cap",
			quick:  scale{tenants: 10, window: 8 * time.Second},
			full:   scale{tenants: 10, window: 30 * time.Second, limit: 3 * time.Minute},
			run:    hanging,
		},
		{
			id: "I3", what: "a pool: one tenant with a long backlog beside many that send now and then",
			target: "their p99 wait ≤ 2 × alone, or ≤ 2 ms",
			quick:  scale{tenants: 300, jobs: 100_000, window: 4 * time.Second},
			full:   scale{tenants: 999, jobs: 1_000_000, window: 15 * time.Second, limit: 5 * time.Minute},
			run:    crowded,
		},
	}
	for _, s := range sicknesses {
		checks = append(checks, check{
			id: "I2-" + s.name, what: s.what,
			target: "a healthy route gets ≥ 97 % of its rate in every 2 s",
			quick:  scale{window: 8 * time.Second},
			full:   scale{window: 30 * time.Second, limit: 3 * time.Minute},
			run:    s.run,
		})
	}
	return checks
}

// sickness is a case of I2: routes whose upstream does not answer in time beside a healthy route.
type sickness struct {
	name, what      string
	routes, tenants int           // sick routes, and the tenants of each
	answer          time.Duration // after which the sick upstream answers; 0: not before the end
}

var sicknesses = []sickness{
	{"hang", "24 tenants of a route whose upstream hangs", 1, 24, 0},
	{"slow", "24 tenants of a route whose upstream answers after 2 s", 1, 24, 2 * time.Second},
	{"many", "49 of 50 routes lead to an upstream that hangs", 49, 1, 0},
}

// run counts the deliveries of a healthy route in every two seconds. The sick routes have no
// circuit breaker, so the slots of the workers alone keep them apart.
func (k sickness) run(ctx context.Context, w *world, f *findings) error {
	const perSecond, span = 50, 2 * time.Second
	s := settings{
		defaults:    tenant{rate: "10/s"},
		tenants:     map[string]tenant{"well": {rate: fmt.Sprintf("%d/s", perSecond), capacity: 100_000}},
		routes:      map[string]string{},
		concurrency: 256,
	}
	for _, route := range names("sick", k.routes) {
		s.routes[route] = retries + ", breaker: { failures: 0 }"
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	end := make(chan struct{})
	w.sink.set(func(d delivery, _ int) answer {
		switch {
		case !strings.HasPrefix(d.Route, "sick"):
			return answer{status: http.StatusOK, delay: 2 * time.Millisecond}
		case k.answer > 0:
			return answer{status: http.StatusOK, delay: k.answer}
		}
		return answer{status: http.StatusOK, until: end}
	})
	well := load{
		name: "well", jobs: perSecond * int((w.scale.window + 4*time.Second).Seconds()), tenants: one("well"),
	}
	if err := w.stock(ctx, []string{"well"}, well); err != nil {
		return err
	}
	for i, route := range names("sick", k.routes) {
		tenants := func(n int) string { return fmt.Sprintf("of-%d-%d", i, n%k.tenants) }
		if err := w.submit(ctx, load{name: route, jobs: 30 * k.tenants, tenants: tenants,
			route: route}); err != nil {
			return err
		}
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	w.say("beside %s for %v", k.name, w.scale.window)
	from := w.ledger.now()
	err := pause(ctx, w.scale.window)
	close(end)
	if err != nil {
		return err
	}
	counts := make([]float64, w.scale.window/span)
	for _, d := range w.ledger.delivered(0) {
		if n := int(d.At.since(from) / span); d.Tenant == "well" && d.At >= from && n < len(counts) {
			counts[n]++
		}
	}
	w.sink.set(func(delivery, int) answer { return answer{status: http.StatusOK} })
	if _, err := w.settle(ctx, f); err != nil {
		return err
	}
	f.atLeast("rate in the worst 2 s", 100*slices.Min(counts)/(perSecond*span.Seconds()), 97, "%")
	f.timed()
	return nil
}

// noisy lets the quiet tenants send alone and beside the noisy one, in turns, and compares how late
// their jobs reach the sink. A quiet tenant sends far below its rate, so its job is due when it is
// admitted, or a T after the one before if that came close.
func noisy(ctx context.Context, w *world, f *findings) error {
	if err := w.open(ctx, settings{defaults: tenant{rate: "2/s", capacity: 20}}, "api", "worker",
		"worker"); err != nil {
		return err
	}
	n := w.scale.tenants
	perSecond := min(n, 400) // at most one a second of each
	quiet := func(name string) error {
		w.say("%s: %d jobs a second by %d tenants", name, perSecond, n)
		return w.submit(ctx, load{
			name: name, jobs: int(w.scale.window.Seconds()) * perSecond, over: w.scale.window,
			tenants: spread("quiet", n), clients: 16,
		})
	}
	for _, turn := range []string{"1", "2"} {
		if err := quiet("alone-" + turn); err != nil {
			return err
		}
		seconds := int(w.scale.window.Seconds())
		wait := w.background(ctx, load{
			name: "noise-" + turn, jobs: 200 * seconds, over: w.scale.window, tenants: one("noisy"),
			clients: 16,
		})
		if err := quiet("beside-" + turn); err != nil {
			return err
		}
		if err := wait(); err != nil {
			return err
		}
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	arrived := map[string]instant{}
	phase := map[string]string{}
	for _, d := range e.deliveries {
		arrived[d.Job] = d.At
		phase[d.Job], _, _ = strings.Cut(strings.TrimPrefix(d.Body, `{"key":"`), "-")
	}
	slices.SortFunc(e.jobs, func(a, b wire.Job) int { return a.Created.Compare(b.Created) })
	T := interval(w.settings.rate(""))
	next := map[string]instant{} // by tenant
	late := map[string][]time.Duration{}
	for _, j := range e.jobs {
		due := max(w.ledger.instantOf(j.Created), next[j.Tenant])
		next[j.Tenant] = due.add(T)
		late[phase[j.ID]] = append(late[phase[j.ID]], arrived[j.ID].since(due))
	}
	requests, _ := w.ledger.entries()
	overflows := 0
	for _, r := range requests {
		if r.Status == http.StatusTooManyRequests {
			overflows++
		}
	}
	alone, beside := quantile(late["alone"], 0.99), quantile(late["beside"], 0.99)
	f.info("quiet tenants", float64(n), "")
	f.info("429s of the noisy one", float64(overflows), "")
	f.info("p50 alone", ms(quantile(late["alone"], 0.5)), "ms")
	f.info("p50 beside", ms(quantile(late["beside"], 0.5)), "ms")
	f.info("p99 alone", ms(alone), "ms")
	f.atMost("p99 beside", ms(beside), max(2*ms(alone), 2), "ms")
	f.timed()
	return nil
}

// hanging counts the deliveries of the other tenants in a window before and in one while a tenant's
// upstream does not answer.
func hanging(ctx context.Context, w *world, f *findings) error {
	const limit = 8
	s := settings{
		defaults: tenant{rate: "40/s"},
		tenants:  map[string]tenant{"hung": {rate: "100/s", concurrency: limit}},
		routes: map[string]string{"hang": "timeout: 5m, retry: { max_attempts: 5, min_backoff: 100ms, " +
			"max_backoff: 200ms }"},
		concurrency: 64,
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	hold := make(chan struct{})
	w.sink.set(func(d delivery, _ int) answer {
		if d.Route == "hang" {
			return answer{status: http.StatusOK, until: hold}
		}
		return answer{status: http.StatusOK, delay: 2 * time.Millisecond}
	})
	const settling = time.Second // after each change, until the flows run evenly
	jobs := int(40*(2*w.scale.window+3*settling).Seconds()) * w.scale.tenants
	if err := w.stock(ctx, names("other", w.scale.tenants),
		load{name: "others", jobs: jobs, tenants: spread("other", w.scale.tenants)}); err != nil {
		return err
	}
	count := func(what string) (float64, error) {
		if err := pause(ctx, settling); err != nil {
			return 0, err
		}
		w.say("%s for %v", what, w.scale.window)
		from := w.ledger.now()
		if err := pause(ctx, w.scale.window); err != nil {
			return 0, err
		}
		n := 0.0
		for _, d := range w.ledger.delivered(0) {
			if d.Tenant != "hung" && d.At >= from && d.At < from.add(w.scale.window) {
				n++
			}
		}
		return n / w.scale.window.Seconds(), nil
	}
	before, err := count("all is well")
	if err != nil {
		return err
	}
	if err := w.submit(ctx, load{name: "hung", jobs: 200, tenants: one("hung"), route: "hang"}); err != nil {
		return err
	}
	during, err := count("an upstream hangs")
	close(hold)
	if err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.twice(f)
	f.info("others before", before, "/s")
	f.info("others during", during, "/s")
	f.atMost("change", 100*math.Abs(during-before)/before, 1, "%")
	f.timed()
	f.atMost("in flight of the hung one", float64(w.sink.mostInside("hung")), limit, "")
	f.atLeast("in flight of the hung one", float64(w.sink.mostInside("hung")), 1, "")
	return nil
}
