package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/shaper/simulate"
)

// k6 is a script of k6/ whose requests the test sends.
type k6 struct {
	t    *testing.T
	text string
}

func k6Script(t *testing.T, name string) k6 {
	text, err := os.ReadFile("k6/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return k6{t, string(text)}
}

// find is what a pattern's group matches in the script.
func (s k6) find(pattern string) string {
	s.t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(s.text)
	if found == nil {
		s.t.Fatalf("the script has no %s", pattern)
	}
	return found[1]
}

// number is what a variable of the script is if it is not given.
func (s k6) number(name string) int {
	s.t.Helper()
	n, err := strconv.Atoi(s.find(`__ENV\.` + name + ` \|\| (\d+)`))
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// job is the body that the script sends.
func (s k6) job() string {
	s.t.Helper()
	return `{"type":"` + s.find(`type: '([^']+)'`) + `","payload":{"n":1}}`
}

// world is the program with the configuration of the scripts, in virtual time: its API, its guards
// and its queue, from which jobs leave.
type world struct {
	t      *testing.T
	config config.Config
	queue  *queue.Queue
	intake http.Handler
	worker *queue.Consumer
	next   shaper.Instant // when the worker looks again; 0: when a job comes
	left   int
}

func newWorld(t *testing.T) *world {
	c, err := config.Load(config.Sources{File: "k6/sluice.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
		Embedded: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), engine, queue.Options{
		Shards: 1, Defaults: c.Tenants.Defaults, Tenants: c.Tenants.Named,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(q.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	settings := api.Config{
		Routes: map[string]api.RouteInfo{}, Limits: q.Limits(),
		Logger: slog.New(slog.DiscardHandler),
	}
	for name, r := range c.Routes {
		settings.Routes[name] = api.RouteInfo{MaxAttempts: int(r.Retry.MaxAttempts)}
	}
	for name, g := range c.Guards {
		settings.Guards = append(settings.Guards, guard.Intake{
			Rule: limiter.Rule{Name: name, Policy: g.Policy}, By: g.By, Endpoints: g.Endpoints,
			Routes: g.Routes, Types: g.Types, FailClosed: g.FailClosed, Shadow: g.Shadow,
		})
	}
	s, err := api.New(q, settings)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, config: c, queue: q, intake: s.Intake(), worker: q.Broker().Consumer("w", 0)}
}

// post submits a job as the scripts do.
func (w *world) post(tenant, body string) (*httptest.ResponseRecorder, wire.Problem) {
	w.t.Helper()
	r := httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, "/v1/jobs", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Sluice-Tenant", tenant)
	answer := httptest.NewRecorder()
	w.intake.ServeHTTP(answer, r)
	var p wire.Problem
	if err := json.Unmarshal(answer.Body.Bytes(), &p); err != nil {
		w.t.Fatal(err)
	}
	switch {
	case answer.Code == http.StatusAccepted && strings.HasPrefix(answer.Header().Get("Location"), "/v1/jobs/"):
	case answer.Code == http.StatusTooManyRequests && answer.Header().Get("Retry-After") > "0":
	default:
		w.t.Errorf("%d %v %s", answer.Code, answer.Header(), answer.Body)
	}
	return answer, p
}

// work lets leave what is due until then, each job at its stamp as a worker would.
func (w *world) work(until time.Time) {
	w.t.Helper()
	for next := w.next; next != 0 && !next.Time().After(until); next = w.next {
		time.Sleep(time.Until(next.Time()))
		w.poll()
	}
	time.Sleep(time.Until(until))
}

func (w *world) poll() {
	w.t.Helper()
	for more := true; more; {
		tick, err := w.worker.Tick(w.t.Context(), queue.TickOptions{
			Max: 64, Lease: time.Hour, Sweep: time.Hour, Horizon: simulate.Horizon,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		var ends []queue.Settlement
		for _, l := range tick.Leases {
			ends = append(ends, queue.Settlement{
				LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: l.MaxAttempts,
			})
		}
		if len(ends) > 0 {
			if _, err := w.queue.Broker().Settle(context.WithoutCancel(w.t.Context()), ends); err != nil {
				w.t.Fatal(err)
			}
		}
		w.left += len(ends)
		w.next = 0
		if tick.Next != 0 {
			w.next = tick.Next.Add(-simulate.Horizon / 2)
		}
		more = tick.More || len(ends) > 0
	}
}

// TestGuardScript performs the requests of guard.js: about 30 a minute against 20/m. The first 20
// are answered with 202, the others with 429; a minute after the overflow it begins anew.
func TestGuardScript(t *testing.T) {
	script := k6Script(t, "guard.js")
	requests, pass, body := script.number("REQUESTS"), script.number("PASS"), script.job()
	guard := script.find(`a\.json\('guard'\) === '([^']+)'`)
	if requests != 30 || pass != 20 {
		t.Errorf("%d requests a minute, %d pass", requests, pass)
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		every := time.Minute / time.Duration(requests)
		blockedAt := pass // the request that is the first to be refused
		free := blockedAt + int(w.config.Guards[guard].Policy.Block/every)
		for i := range free + 5 {
			answer, p := w.post("k6", body)
			want := http.StatusAccepted
			if i >= blockedAt && i < free {
				want = http.StatusTooManyRequests
			}
			if answer.Code != want {
				t.Errorf("request %d, after %v: %d, want %d: %s", i, time.Duration(i)*every, answer.Code,
					want, answer.Body)
			}
			left := time.Duration(free-i) * every
			if want == http.StatusTooManyRequests &&
				(p.Guard != guard || p.RetryAfterMS != left.Milliseconds()) {
				t.Errorf("request %d: guard %q, retry after %d ms, want %q and %v", i, p.Guard,
					p.RetryAfterMS, guard, left)
			}
			time.Sleep(every)
		}
	})
}

// TestIntakeScript performs the requests of intake.js, arrivals at a constant rate at a tenant
// whose rate and queue are smaller. The admitted ones are exactly those of the simulator; all
// others are refused, because the queue is full.
func TestIntakeScript(t *testing.T) {
	script := k6Script(t, "intake.js")
	rate, body := script.number("RATE"), script.job()
	tenant := script.find(`TENANT=(\w+)`)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		said := w.config.Tenants.Named[tenant]
		policy := said.Over(w.config.Tenants.Defaults)
		if perSecond := policy.Rate.PerSecond(); perSecond >= float64(rate) {
			t.Fatalf("the tenant's rate is %v, and %d a second arrive", policy.Rate, rate)
		}
		begin := time.Now().Add(time.Second)
		var trace simulate.Trace
		for i := range 4 * rate {
			trace = append(trace, simulate.Arrival{
				At:   shaper.InstantOf(begin.Add(time.Duration(i) * time.Second / time.Duration(rate))),
				Cost: 1,
			})
		}
		want, err := simulate.Shaper(trace, policy, simulate.Workers{Horizon: simulate.Horizon})
		if err != nil {
			t.Fatal(err)
		}
		admitted := 0
		for i, a := range trace {
			w.work(a.At.Time())
			answer, p := w.post(tenant, body)
			if refused := want.Fates[i] == simulate.Refused; refused != (answer.Code == http.StatusTooManyRequests) {
				t.Fatalf("arrival %d: %d, refused by the simulator: %v", i, answer.Code, refused)
			}
			if answer.Code == http.StatusAccepted {
				if admitted++; w.next == 0 {
					w.poll()
				}
			} else if !strings.HasSuffix(p.Type, ":queue-full") || *p.Depth < *p.Capacity ||
				*p.Capacity != policy.Capacity {
				t.Errorf("arrival %d: %s", i, answer.Body)
			}
		}
		if admitted < int(policy.Capacity) || admitted == len(trace) || w.left < 150 {
			t.Errorf("%d of %d were admitted, %d left: the script shows nothing", admitted, len(trace), w.left)
		}
		t.Logf("%d arrivals, %d admitted, %d have left", len(trace), admitted, w.left)
	})
}
