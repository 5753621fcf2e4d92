package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
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
		{
			name: "expiry", what: "20,000 jobs of one tenant of the shard expire at one instant",
			settings: alone(tenant{rate: "1000/s", capacity: 100_000}), attack: expiringJobs,
		},
		{
			name: "fat", what: "one tenant of the shard sends a burst of 250 payloads of 240 KB",
			settings: alone(tenant{rate: "100/s", capacity: 100_000, more: ", burst: 250"}), prepare: ownUpstream,
			ready: fatBacklog, attack: fatBurst,
		},
		{
			name: "fat-answers", what: "the upstream answers a burst of 250 jobs of one tenant with 240 KB each",
			settings: alone(tenant{rate: "100/s", capacity: 100_000, more: ", burst: 250"}), prepare: fatUpstream,
			ready: thinBacklog, attack: fatBurst,
		},
		{
			name: "fat-failures", what: "the upstream fails a burst of 250 payloads of 240 KB of one tenant",
			settings: alone(tenant{rate: "100/s", capacity: 100_000, more: ", burst: 250"}), prepare: failingUpstream,
			ready: fatBacklog, attack: fatBurst,
		},
		{
			name: "fat-forwarded", what: "128 forwarded requests of one tenant are answered with 1 MB at once",
			settings: alone(tenant{rate: "100/s", more: ", burst: 128"}), prepare: fatForward(1e6, ""),
			ready: waitingForward(128), attack: fatBurst,
		},
		{
			name: "fat-streams", what: "64 forwarded requests of one tenant get streams of 4 MB at once",
			settings: alone(tenant{rate: "100/s", more: ", burst: 128"}), prepare: fatForward(4e6, ", stream: always"),
			ready: waitingForward(64), attack: fatBurst,
		},
		{
			name: "thin-streams", what: "64 forwarded requests of one tenant are answered with 50 small pieces a second",
			settings: alone(tenant{rate: "100/s", more: ", burst: 128"}), prepare: trickle,
			ready: waitingForward(64), attack: fatBurst,
		},
		{
			name: "fat-submitted", what: "48 clients of one tenant submit payloads of 240 KB without a break",
			settings: alone(tenant{rate: "1/s", capacity: 100_000}), prepare: ownUpstream,
			attack: endless("/v1/jobs", fatJob(""), http.StatusAccepted),
		},
		{
			name: "fat-refused", what: "48 clients of one tenant send payloads of 240 KB, which are refused",
			settings: alone(tenant{rate: "1/s"}), prepare: ownUpstream,
			attack: endless("/v1/jobs", fatJob(`,"cost":0`), http.StatusUnprocessableEntity),
		},
		{
			name: "batches", what: "48 clients of one tenant submit batches of 1,000 jobs without a break",
			settings: alone(tenant{rate: "1/s", capacity: 100_000}), prepare: ownUpstream,
			attack: endless("/v1/jobs/batch", batchOf(1000), http.StatusOK),
		},
		{
			name: "small-batches", what: "48 clients of one tenant submit batches of 10 jobs without a break",
			settings: alone(tenant{rate: "1/s", capacity: 100_000}), prepare: ownUpstream,
			attack: endless("/v1/jobs/batch", batchOf(10), http.StatusOK),
		},
		{
			name: "mistakes", what: "48 clients of one tenant submit batches of 160 jobs with unknown fields without a break",
			settings: alone(tenant{rate: "1/s"}), prepare: ownUpstream,
			attack: endless("/v1/jobs/batch", `{"jobs":[`+strings.Repeat(`{"typex":1,"payloat":1},`, 160)+`{}]}`, http.StatusOK),
		},
		{
			name: "reload", what: "the file changes while there are 10,000 idle tenants",
			settings: settings{defaults: tenant{rate: "20/s", capacity: 1_000_000}}, prepare: ownUpstream,
			ready: idleTenants, attack: changedFiles,
		},
		{
			name: "blocked", what: "10,000 tenants of the shard each have a job for a route that is full",
			settings: alone(tenant{}), prepare: slowUpstream, ready: dueTenants(10_000), attack: noMore,
		},
		{
			name: "due", what: "2,000 tenants each have a job that is due at one instant",
			prepare: ownUpstream, ready: dueTenants(2000), attack: noMore,
		},
		{
			name: "guests", what: "five tenants of a pool take its capacity, and its concurrency for 3 s each",
			settings: settings{pool: "200/s", poolMore: ", capacity: 20000, concurrency: 80"},
			// The crowd may have five parts beside the twenty of the backlogs.
			quiet: quietTenants{route: poolRoute, backlog: 125}, attack: crowdedPool,
		},
	}
}

// otherRoute leads to an upstream of its own: the sink keeps every body in its ledger.
const otherRoute = "other"

// alone are settings of a store of one shard, in which all is beside the offender.
func alone(t tenant) settings {
	return settings{
		env:     []string{"SLUICE_STORE_SHARDS=1"},
		tenants: map[string]tenant{offender: t},
	}
}

func ownUpstream(_ *world, s *settings) (end func())  { return upstreamOf(s, 0, 200, "") }
func slowUpstream(_ *world, s *settings) (end func()) { return upstreamOf(s, 4*time.Second, 200, "") }
func fatUpstream(_ *world, s *settings) (end func()) {
	return upstreamOf(s, 0, 200, payload("fat", fat))
}
func failingUpstream(_ *world, s *settings) (end func()) { return upstreamOf(s, 0, 500, "") }

const fat = 240_000 // bytes

// upstreamOf starts the upstream of otherRoute, which gives this answer after this time.
func upstreamOf(s *settings, after time.Duration, status int, answer string) (end func()) {
	url, end := startUpstream(after, status, answer)
	s.routes = map[string]string{otherRoute: fmt.Sprintf("url: %q, timeout: 30s, breaker: { failures: 0 }", url)}
	return end
}

// fatForward makes otherRoute forward to an upstream whose answers have this many bytes.
func fatForward(bytes int, more string) func(*world, *settings) (end func()) {
	return func(_ *world, s *settings) (end func()) {
		url, end := startUpstream(0, 200, strings.Repeat("x", bytes))
		s.forwardTo(url, more)
		return end
	}
}

// forwardTo makes otherRoute forward to the upstream.
func (s *settings) forwardTo(url, more string) {
	s.routes = map[string]string{
		otherRoute: fmt.Sprintf("forward: %q, timeout: 30s, wait: 60s, connections: 512%s", url, more),
	}
}

func startUpstream(after time.Duration, status int, answer string) (url string, end func()) {
	return startHandler(func(w http.ResponseWriter, r *http.Request) {
		_ = pause(r.Context(), after)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	})
}

// startHandler starts an upstream that answers so after it has read a request.
func startHandler(answer http.HandlerFunc) (url string, end func()) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w, r)
	}))
	return up.URL, func() {
		up.CloseClientConnections()
		up.Close()
	}
}

// trickle makes otherRoute forward to an upstream whose answers come in small pieces for a minute.
func trickle(_ *world, s *settings) (end func()) {
	url, end := startHandler(func(w http.ResponseWriter, r *http.Request) {
		for range 60 * 50 {
			_, _ = io.WriteString(w, "data: a piece of an answer\n\n")
			_ = http.NewResponseController(w).Flush()
			if pause(r.Context(), 20*time.Millisecond) != nil {
				return
			}
		}
	})
	s.forwardTo(url, ", stream: always")
	return end
}

// expiringJobs stores jobs of a paused tenant whose max waits end at one instant.
func expiringJobs(ctx context.Context, w *world, f *findings) error {
	const jobs = 20_000
	if _, err := w.operate(ctx, w.living("api")[0], "pause", offender, ""); err != nil {
		return err
	}
	end := time.Now().Add(w.scale.window * 2 / 3)
	err := w.pileOf(ctx, offender, jobs, func() wire.Submission {
		return wire.Submission{Type: "battery", Payload: json.RawMessage(`1`), MaxWaitMS: time.Until(end).Milliseconds()}
	})
	if err == nil {
		f.atLeast("s before they expire", time.Until(end).Seconds(), 0, "s")
		f.timed()
		<-ctx.Done()
	}
	return err
}

// fatBacklog stores large payloads of a paused tenant. fatBurst lets what waits leave together.
func fatBacklog(ctx context.Context, w *world) error { return w.pausedBacklog(ctx, fat) }

func thinBacklog(ctx context.Context, w *world) error { return w.pausedBacklog(ctx, 0) }

func (w *world) pausedBacklog(ctx context.Context, bytes int) error {
	if _, err := w.operate(ctx, w.living("api")[0], "pause", offender, ""); err != nil {
		return err
	}
	for range 250 {
		if status := w.asOffender(ctx, otherRoute, `,"payload":`+payload("fat", bytes)); status != http.StatusAccepted {
			return fmt.Errorf("a job of the burst: %d", status)
		}
	}
	return nil
}

// waitingForward has this many clients of the paused tenant wait for answers.
func waitingForward(clients int) func(ctx context.Context, w *world) error {
	return func(ctx context.Context, w *world) error {
		if _, err := w.operate(ctx, w.living("api")[0], "pause", offender, ""); err != nil {
			return err
		}
		for range clients {
			go func() {
				_, _, _ = w.call(ctx, http.MethodPost, w.api, "/v1/forward/"+otherRoute+"/fat",
					map[string]string{"Sluice-Tenant": offender}, []byte("{}"))
			}()
		}
		return until(ctx, "all of them wait", 50*time.Millisecond, func() (bool, error) {
			waiting, _, err := w.backlog(ctx)
			return waiting == clients, err
		})
	}
}

func fatBurst(ctx context.Context, w *world, _ *findings) error {
	_, err := w.operate(ctx, w.living("api")[0], "resume", offender, "")
	<-ctx.Done()
	return err
}

// endless has 48 clients send the body without a break, which is answered like this.
func endless(path, body string, status int) func(context.Context, *world, *findings) error {
	return func(ctx context.Context, w *world, f *findings) error {
		var all sync.WaitGroup
		var as, otherwise atomic.Int64
		for range 48 {
			all.Go(func() {
				for ctx.Err() == nil {
					got, _, _ := w.call(ctx, http.MethodPost, w.api, path, map[string]string{"Sluice-Tenant": offender},
						[]byte(body))
					if got == status {
						as.Add(1)
					} else if ctx.Err() == nil {
						otherwise.Add(1)
					}
				}
			})
		}
		all.Wait()
		f.info(fmt.Sprintf("%ds of the offender", status), float64(as.Load()), "")
		f.atMost("its other answers", float64(otherwise.Load()), 0, "")
		return nil
	}
}

// fatJob is a job with a large payload.
func fatJob(more string) string {
	return `{"type":"battery","route":"` + otherRoute + `","payload":` + payload("fat", fat) + more + `}`
}

func batchOf(jobs int) string {
	job := `{"type":"battery","route":"` + otherRoute + `","payload":1}`
	return `{"jobs":[` + strings.Repeat(job+",", jobs-1) + job + `]}`
}

// manyTenants submits a job for each of many tenants, which leaves at the given time.
func (w *world) manyTenants(ctx context.Context, tenants int64, at time.Time) error {
	var next atomic.Int64
	var failed atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for i := next.Add(1); i <= tenants && ctx.Err() == nil; i = next.Add(1) {
				if i%1000 == 0 {
					w.say("%d of %d tenants", i, tenants)
				}
				body := fmt.Sprintf(`{"type":"battery","route":%q,"payload":1,"delay_ms":%d}`, otherRoute,
					max(0, time.Until(at).Milliseconds()))
				if status, _, _ := w.call(ctx, http.MethodPost, w.api, "/v1/jobs",
					map[string]string{"Sluice-Tenant": fmt.Sprint("idle", i)}, []byte(body)); status != http.StatusAccepted {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 {
		return fmt.Errorf("%d of %d tenants could not submit", failed.Load(), tenants)
	}
	return ctx.Err()
}

// idleTenants lets many tenants send a job each, and waits until all have left.
func idleTenants(ctx context.Context, w *world) error {
	if err := w.manyTenants(ctx, int64(w.scale.jobs), time.Now()); err != nil {
		return err
	}
	return until(ctx, "they are idle", 50*time.Millisecond, func() (bool, error) {
		waiting, running, err := w.backlog(ctx)
		return waiting+running == 0, err
	})
}

// changedFiles gives all processes a file with another capacity, twice.
func changedFiles(ctx context.Context, w *world, f *findings) error {
	changes := 0
	for pause(ctx, w.scale.window/3) == nil && changes < 2 {
		changes++
		w.settings.defaults.capacity -= 1000
		for name, t := range w.settings.tenants {
			t.capacity -= 1000
			w.settings.tenants[name] = t
		}
		for _, p := range append(w.living("api"), w.living("worker")...) {
			if _, err := w.configure(p.name); err != nil {
				return err
			}
			p.signal(syscall.SIGHUP)
		}
	}
	<-ctx.Done()
	f.atLeast("changes of the file", float64(changes), 2, "")
	return nil
}

// dueTenants stores jobs of many tenants, one of each, which may all leave when the attack begins.
// A submission takes up to 1.2 ms.
func dueTenants(tenants int64) func(ctx context.Context, w *world) error {
	return func(ctx context.Context, w *world) error {
		at := time.Now().Add(w.scale.window + quietWindow + time.Duration(tenants)*1200*time.Microsecond)
		if err := w.manyTenants(ctx, tenants, at); err != nil {
			return err
		}
		return pause(ctx, time.Until(at)-w.scale.window/3-quietWindow/2)
	}
}

// noMore attacks with nothing but what has been stored before.
func noMore(ctx context.Context, _ *world, _ *findings) error {
	<-ctx.Done()
	return nil
}

// crowdedPool submits jobs of many tenants of the pool, faster than they leave, whose deliveries
// take long.
func crowdedPool(ctx context.Context, w *world, f *findings) error {
	w.sink.set(func(d delivery, _ int) answer {
		if strings.HasPrefix(d.Tenant, offender) {
			return answer{status: http.StatusOK, delay: 3 * time.Second}
		}
		return answer{status: http.StatusOK}
	})
	for i := range 5 {
		if err := w.pile(ctx, fmt.Sprint(offender, i), poolRoute, 4000); err != nil && ctx.Err() == nil {
			f.because("tenant %d of the crowd: %v", i, err) // its part of the pool is full
		}
	}
	<-ctx.Done()
	return nil
}

// asOffender submits a job of the offender, with further fields after a comma.
func (w *world) asOffender(ctx context.Context, route, more string) (status int) {
	if !strings.Contains(more, "payload") {
		more += `,"payload":"of the offender"`
	}
	body := `{"type":"battery","route":"` + route + `"` + more + `}`
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
