package worker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// States of a breaker, as the metric has them.
const (
	closed   = 0.0
	halfOpen = 1.0
	open     = 2.0
)

// noAnswer is the status of an upstream that does not answer.
const noAnswer = 0

// upstream is a deliverer whose answer is set: a status, noAnswer, or what answer returns.
type upstream struct {
	status  int
	answer  deliverFunc // in the place of status
	arrived atomic.Int32
}

func (u *upstream) Deliver(ctx context.Context, l *queue.Lease) queue.Settlement {
	u.arrived.Add(1)
	if u.answer != nil {
		return u.answer(ctx, l)
	}
	return answered(l, u.status, "")
}

// answered is the settlement that the HTTP deliverer makes of an answer.
func answered(l *queue.Lease, status int, retryAfter string) queue.Settlement {
	retry := Route{}.withDefaults().Retry
	if status == noAnswer {
		return retry.again(l, "no answer within 10s", 0)
	}
	return retry.decide(l, &queue.Response{Status: status}, retryAfter, time.Now())
}

// guarded is a breaker with these settings before the upstream.
func guarded(t *testing.T, settings Breaker, u *upstream, log *slog.Logger) *breaker {
	t.Helper()
	return newBreaker("default", Route{Breaker: settings}.withDefaults(), u, stopwatch{start: time.Now()},
		new(routeLoad), log, nil)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// trip lets deliveries fail until the breaker is open.
func trip(t *testing.T, b *breaker, u *upstream) {
	t.Helper()
	u.status = noAnswer
	for float64(b.load.breaker.Load()) != open {
		b.Deliver(t.Context(), lease())
		if float64(b.load.breaker.Load()) != open {
			pass(minStreak)
		}
	}
}

// untilProbe waits for the end of the delay.
func untilProbe(b *breaker) { pass(b.all.until.since(b.watch.now())) }

func TestBreakerStories(t *testing.T) {
	const sent, held = true, false
	type step struct {
		after  time.Duration // since the step before
		status int           // what the upstream would answer
		sent   bool
		state  float64
	}
	// Delays are spread by 20 %: 10 s end between 8 and 12 s, 20 s between 16 and 24 s.
	tests := map[string][]step{
		"opens after three in a row, one probe closes it": {
			{0, noAnswer, sent, closed}, {0, 502, sent, closed}, {time.Second, 504, sent, open}, {0, 200, held, open},
			{7900 * time.Millisecond, 200, held, open}, {4200 * time.Millisecond, 200, sent, closed},
			{0, 200, sent, closed},
		},
		"a probe that fails opens it for twice as long": {
			{0, 502, sent, closed}, {0, 502, sent, closed}, {time.Second, 502, sent, open},
			{12 * time.Second, 502, sent, open},
			{15 * time.Second, 200, held, open}, {9 * time.Second, 200, sent, closed},
		},
		"closed, it counts anew and starts with the short delay": {
			{0, 502, sent, closed}, {0, 502, sent, closed}, {time.Second, 502, sent, open},
			{12 * time.Second, 502, sent, open},
			{24 * time.Second, 200, sent, closed}, {0, 502, sent, closed}, {0, 502, sent, closed},
			{time.Second, 502, sent, open},
			{12 * time.Second, 200, sent, closed},
		},
		"a success in between": {
			{0, noAnswer, sent, closed}, {0, noAnswer, sent, closed}, {0, 200, sent, closed},
			{0, noAnswer, sent, closed}, {0, noAnswer, sent, closed}, {time.Second, noAnswer, sent, open},
		},
		"any other answer is one, also to the probe": {
			{0, noAnswer, sent, closed}, {0, noAnswer, sent, closed}, {0, 500, sent, closed},
			{0, noAnswer, sent, closed}, {0, noAnswer, sent, closed}, {0, 400, sent, closed},
			{0, noAnswer, sent, closed}, {0, noAnswer, sent, closed}, {time.Second, noAnswer, sent, open},
			{12 * time.Second, 500, sent, closed},
		},
		"many in less than a second are not enough": {
			{0, 502, sent, closed}, {0, 502, sent, closed}, {0, 502, sent, closed},
			{999 * time.Millisecond, 502, sent, closed},
			{time.Millisecond, 502, sent, open},
		},
		"an upstream that refuses jobs is there: that alone opens it only after ten seconds": {
			{0, 503, sent, closed}, {0, 503, sent, closed}, {0, 503, sent, closed},
			{9999 * time.Millisecond, 503, sent, closed},
			{time.Millisecond, 503, sent, open},
		},
		"hours without jobs": {
			{0, 502, sent, closed}, {3 * time.Hour, 502, sent, closed}, {3 * time.Hour, 502, sent, open},
			{3 * time.Hour, 200, sent, closed},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &upstream{}
				b := guarded(t, Breaker{Failures: 3, Delay: 10 * time.Second}, u, quiet())
				for i, step := range steps {
					pass(step.after)
					u.status = step.status
					before := u.arrived.Load()
					s := b.Deliver(t.Context(), lease())
					if arrived := u.arrived.Load() > before; arrived != step.sent {
						t.Fatalf("step %d: sent %v", i, arrived)
					}
					if !step.sent && s.Event != shaper.Hold ||
						step.sent && s.Event != answered(lease(), step.status, "").Event {
						t.Errorf("step %d: settled as %s", i, s.Event)
					}
					if state := float64(b.load.breaker.Load()); state != step.state {
						t.Fatalf("step %d: state %v, want %v", i, state, step.state)
					}
				}
			})
		})
	}
}

func TestUnavailable(t *testing.T) {
	for _, tt := range []struct {
		status     int
		retryAfter string
		want       bool
	}{
		{noAnswer, "", true}, {502, "", true}, {503, "", true}, {504, "", true}, {503, "soon", true},
		{200, "", false}, {307, "", false}, {400, "", false}, {404, "", false}, {408, "", false},
		{425, "", false}, {429, "", false},
		{429, "5", false}, {500, "", false}, {501, "", false}, {503, "5", false}, {503, "0", false},
		{507, "", false},
	} {
		if got := unavailable(answered(lease(), tt.status, tt.retryAfter)); got != tt.want {
			t.Errorf("%d, Retry-After %q: %v", tt.status, tt.retryAfter, got)
		}
	}
}

func TestAThirdFailingAtRandomDoesNotOpenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 10}, u, quiet())
		coin := rand.New(rand.NewPCG(1, 1))
		const jobs = 20_000
		for range jobs {
			pass(10 * time.Millisecond)
			u.status = []int{http.StatusOK, http.StatusOK, http.StatusBadGateway}[coin.IntN(3)]
			b.Deliver(t.Context(), lease())
		}
		if n := u.arrived.Load(); n != jobs {
			t.Errorf("%d of %d were sent", n, jobs)
		}
	})
}

func TestHoldWhileOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 1, Delay: 10 * time.Second}, u, quiet())
		trip(t, b, u)
		for range 8 {
			left := b.all.until.since(b.watch.now())
			s := b.Deliver(t.Context(), lease())
			if s.Error == nil {
				t.Fatalf("held without an error: %+v", s)
			}
			queuetest.Compare(t, "the settlement", queuetest.Only(s, "LeaseRef", "Event", "MaxAttempts"),
				queue.Settlement{LeaseRef: lease().LeaseRef, Event: shaper.Hold, MaxAttempts: 10})
			queuetest.Compare(t, "its error", queuetest.Only(*s.Error, "Message", "Status"),
				queue.JobError{Message: "the route's circuit breaker is open: no answer within 10s"})
			if s.Delay < left || s.Delay > left+left/10 {
				t.Errorf("held for %v, want the %v that are left and up to a tenth more", s.Delay, left)
			}
			pass(time.Second)
		}
		if n := b.load.held.Load(); n != 8 {
			t.Errorf("%v are counted as held", n)
		}
	})
}

func TestDelayGrowsToItsBound(t *testing.T) {
	for delay, most := range map[time.Duration]time.Duration{
		10 * time.Second: time.Minute, 5 * time.Minute: 5 * time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			u := &upstream{}
			b := guarded(t, Breaker{Failures: 1, Delay: delay}, u, quiet())
			trip(t, b, u)
			for range 100 {
				untilProbe(b)
				b.Deliver(t.Context(), lease())
			}
			if d := b.all.until.since(b.all.changed); d < most*4/5 || d > most {
				t.Errorf("delay %v grows to %v, want about %v", delay, d, most)
			}
		})
	}
}

func TestOneProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 1}, u, quiet())
		trip(t, b, u)
		untilProbe(b)
		u.arrived.Store(0)
		u.answer = func(_ context.Context, l *queue.Lease) queue.Settlement {
			time.Sleep(5 * time.Second)
			return answered(l, 200, "")
		}
		var jobs sync.WaitGroup
		var succeeded, held atomic.Int32
		for range 50 {
			jobs.Go(func() {
				switch s := b.Deliver(t.Context(), lease()); {
				case s.Event == shaper.Succeed:
					succeeded.Add(1)
				case s.Event == shaper.Hold && s.Delay >= time.Second && s.Delay <= 1100*time.Millisecond &&
					s.Error.Message == "the route's circuit breaker is half-open: no answer within 10s":
					held.Add(1)
				}
			})
		}
		synctest.Wait()
		queuetest.Compare(t, "the jobs sent", u.arrived.Load(), 1)
		queuetest.Compare(t, "the jobs held", held.Load(), 49)
		queuetest.Compare(t, "the state", float64(b.load.breaker.Load()), halfOpen)
		// A job that comes back again and again is not held every second.
		pass(4 * time.Second)
		if s := b.Deliver(t.Context(), lease()); s.Event != shaper.Hold || s.Delay < 8*time.Second {
			t.Errorf("%+v", s)
		}
		jobs.Wait()
		if succeeded.Load() != 1 || float64(b.load.breaker.Load()) != closed {
			t.Errorf("%d succeeded, state %v", succeeded.Load(), float64(b.load.breaker.Load()))
		}
	})
}

// TestEndsOfAnEarlierTurnDoNotCount: what left before the breaker opened neither closes it nor
// opens it again.
func TestEndsOfAnEarlierTurnDoNotCount(t *testing.T) {
	for _, late := range []int{noAnswer, 200} {
		synctest.Test(t, func(t *testing.T) {
			u := &upstream{}
			b := guarded(t, Breaker{Failures: 1}, u, quiet())
			// Each of these gets its answer over end, at the chosen instant.
			leave := func() (end chan int) {
				end = make(chan int)
				u.answer = func(_ context.Context, l *queue.Lease) queue.Settlement { return answered(l, <-end, "") }
				go b.Deliver(t.Context(), lease())
				synctest.Wait()
				return end
			}
			want := func(when string, state float64) {
				synctest.Wait()
				if got := float64(b.load.breaker.Load()); got != state {
					t.Errorf("an end with %d %s: state %v, want %v", late, when, got, state)
				}
			}
			first, second, third := leave(), leave(), leave()
			u.answer = nil
			trip(t, b, u)
			first <- late
			want("while open", open)
			untilProbe(b)
			probe := leave()
			second <- late
			want("while half-open", halfOpen)
			probe <- 200
			want("of the probe", closed)
			third <- late
			want("while closed again", closed)
		})
	}
}

func TestStopDoesNotCount(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	u := &upstream{answer: func(ctx context.Context, l *queue.Lease) queue.Settlement {
		<-ctx.Done()
		return answered(l, noAnswer, "")
	}}
	b := guarded(t, Breaker{Failures: 2}, u, quiet())
	var jobs sync.WaitGroup
	for range 10 {
		jobs.Go(func() { b.Deliver(ctx, lease()) })
	}
	cancel()
	jobs.Wait()
	if state := float64(b.load.breaker.Load()); state != closed {
		t.Errorf("state %v", state)
	}
}

func TestProbeThatPanicsIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 1}, u, quiet())
		trip(t, b, u)
		untilProbe(b)
		u.answer = func(context.Context, *queue.Lease) queue.Settlement { panic("x") }
		func() {
			defer func() { _ = recover() }()
			b.Deliver(t.Context(), lease())
		}()
		if state := float64(b.load.breaker.Load()); state != open {
			t.Errorf("state %v", state)
		}
	})
}

func TestBreakerIsOffByDefault(t *testing.T) {
	w, err := newWorker(nil, nil, nil, Config{Routes: map[string]Route{
		"off": {URL: "http://host/"}, "on": {URL: "http://host/", Breaker: Breaker{Failures: 1}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := w.deliverers["off"].(*httpDeliverer); !ok {
		t.Errorf("%T", d)
	}
	if b, ok := w.deliverers["on"].(*breaker); !ok || b.route.Breaker.Delay != 10*time.Second {
		t.Errorf("%T", b)
	}
	if n, err := testutil.GatherAndCount(w.metrics.registry, "sluice_route_breaker_state"); n != 1 ||
		err != nil {
		t.Errorf("%d routes have a state: %v", n, err)
	}
}

// TestOutageWithTheQueue: an upstream that is away for a minute costs few attempts and no job.
// Without a breaker all would be dead.
func TestOutageWithTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jobs, outage = 60, time.Minute
		engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		q, err := queue.Open(t.Context(), engine, queue.Options{
			Shards: 1, Defaults: shaper.DefaultPolicy(), Logger: quiet(),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		b, consumers := brokerOf(q)
		w, err := newWorker(b, consumers, newTimerWaiter, Config{Logger: quiet(), Routes: map[string]Route{
			"default": {URL: "http://upstream.test/", Breaker: Breaker{Failures: 10}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var failed atomic.Int32
		w.deliverers["default"].(*breaker).
			next = deliverFunc(func(_ context.Context, l *queue.Lease) queue.Settlement {
			if time.Since(begin) > outage {
				return answered(l, 200, "")
			}
			failed.Add(1)
			return answered(l, noAnswer, "")
		})
		var ids []string
		for range jobs {
			v, err := q.Submit(t.Context(), queue.Submission{
				Tenant: "acme", Route: "default", Type: "n", MaxAttempts: 5,
			})
			if err != nil || v.Outcome != shaper.Admitted {
				t.Fatalf("%+v, %v", v, err)
			}
			ids = append(ids, v.Job.ID)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		for i, id := range ids {
			if job := ended(t, q, id); job.State != shaper.Succeeded {
				t.Errorf("job %d: %+v, %+v", i, job, job.LastError)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := failed.Load(); n < 10 || n > 20 {
			t.Errorf("%d deliveries failed", n)
		}
	})
}

// TestWorkerWithABreaker is an outage as the queue, the operator and the log see it.
func TestWorkerWithABreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var away atomic.Bool
		q := newFakeQueue(1)
		r := startRig(t, q, Config{
			Routes: map[string]Route{"default": {
				URL:     "http://me:hunter2@upstream.test/?key=hunter2",
				Breaker: Breaker{Failures: 3, Delay: 10 * time.Second},
			}},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}, func(_ context.Context, l *queue.Lease) queue.Settlement {
			if away.Load() {
				return answered(l, 502, "")
			}
			return answered(l, 200, "")
		})
		jobs := 0
		add := func(n int) {
			for range n {
				q.put(0, fmt.Sprint(jobs), 0)
				jobs++
			}
			q.wakes <- queue.Wake{Shard: 0}
			pass(time.Second)
		}
		add(2)
		away.Store(true)
		add(2)
		add(1)
		add(4)
		pass(11 * time.Second)
		add(1)
		away.Store(false)
		pass(23 * time.Second)
		add(1)
		add(2)
		r.end(t)
		queuetest.Compare(t, "the events", q.events(),
			map[shaper.Event]int{shaper.Succeed: 5, shaper.Retry: 4, shaper.Hold: 4})
		const metrics = `
# HELP sluice_route_breaker_held_total Jobs that were held, not sent, because of the circuit breaker of their route or flow.
# TYPE sluice_route_breaker_held_total counter
sluice_route_breaker_held_total{route="default"} 4
# HELP sluice_route_breaker_state Circuit breaker of a route in this worker: 0 closed, 1 half-open, 2 open.
# TYPE sluice_route_breaker_state gauge
sluice_route_breaker_state{route="default"} 0
`
		err := testutil.GatherAndCompare(r.registry, strings.NewReader(metrics),
			"sluice_route_breaker_held_total", "sluice_route_breaker_state")
		if err != nil {
			t.Error(err)
		}
		var lines []string
		for line := range strings.Lines(log.String()) {
			if _, message, ok := strings.Cut(line, `msg="circuit breaker is `); ok {
				lines = append(lines, message[:strings.IndexByte(message, 34)])
				if !strings.Contains(message, "route=default") {
					t.Errorf("whose? %s", line)
				}
			}
		}
		if got := strings.Join(lines, " "); got != "open half-open open half-open closed" {
			t.Errorf("transitions in the log: %s", got)
		}
		if !strings.Contains(log.String(), `reason="the upstream answered 502 Bad Gateway"`) ||
			strings.Contains(log.String(), "hunter2") {
			t.Error(log.String())
		}
	})
}

// deliverAll starts n deliveries to an upstream that answers after d, and returns when they are
// under way.
func deliverAll(t *testing.T, b *breaker, u *upstream, n int, d time.Duration, status int) {
	t.Helper()
	u.answer = func(ctx context.Context, l *queue.Lease) queue.Settlement {
		sleep(ctx, d)
		return answered(l, status, "")
	}
	for range n {
		go b.Deliver(t.Context(), lease())
	}
	synctest.Wait()
}

// TestAnUpstreamThatHangsOpensAtTheFirstTimeout: behind the first delivery that has failed, those
// that are under way for too long count, too.
func TestAnUpstreamThatHangsOpensAtTheFirstTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 3}, u, quiet())
		for range 6 { // one a second
			deliverAll(t, b, u, 1, 10*time.Second, noAnswer)
			pass(time.Second)
		}
		pass(3900 * time.Millisecond)
		if s := float64(b.load.breaker.Load()); s != closed {
			t.Fatalf("the state is %v before the first timeout", s)
		}
		pass(200 * time.Millisecond)
		if s := float64(b.load.breaker.Load()); s != open {
			t.Fatalf("the state is %v after the first timeout", s)
		}
		pass(8 * time.Second) // the ends of the others change nothing
		if s := float64(b.load.breaker.Load()); s != open || b.all.opened != 1 || b.all.slow != 0 {
			t.Errorf("the state is %v after they have ended, opened %d times, %d slow", s, b.all.opened, b.all.slow)
		}
	})
}

// TestASlowUpstreamThatAnswers: while every answer is a good one, no delay opens the breaker.
func TestASlowUpstreamThatAnswers(t *testing.T) {
	for _, takes := range []time.Duration{5100 * time.Millisecond, 7 * time.Second, 9900 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			u := &upstream{}
			b := guarded(t, Breaker{Failures: 10}, u, quiet())
			for range 800 {
				deliverAll(t, b, u, 1, takes, 200)
				pass(50 * time.Millisecond)
			}
			if n := u.arrived.Load(); n != 800 || b.load.held.Load() != 0 || float64(b.load.breaker.Load()) != closed {
				t.Errorf("answers after %v: %d of 800 were sent, state %d", takes, n, b.load.breaker.Load())
			}
			pass(10 * time.Second)
		})
	}
}

// by is a lease of a tenant.
func by(tenant string) *queue.Lease {
	l := lease()
	l.Tenant = tenant
	return l
}

// statuses answers each tenant with a status.
func statuses(u *upstream, of map[string]int) {
	u.answer = func(_ context.Context, l *queue.Lease) queue.Settlement {
		return answered(l, of[l.Tenant], "")
	}
}

// TestOneTenantsFailuresHoldItAlone: a tenant whose path fails or hangs is held by a breaker of its
// own, however much it sends, and no delivery of the others is.
func TestOneTenantsFailuresHoldItAlone(t *testing.T) {
	for name, takes := range map[string]time.Duration{"fails": 0, "hangs": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &upstream{}
				b := guarded(t, Breaker{Failures: 10, Delay: 10 * time.Second}, u, quiet())
				u.answer = func(ctx context.Context, l *queue.Lease) queue.Settlement {
					if l.Tenant == "evil" {
						sleep(ctx, takes)
						return answered(l, noAnswer, "")
					}
					return answered(l, 200, "")
				}
				var held atomic.Int32
				for i := range 1200 { // a minute
					for range 5 {
						go func() {
							if s := b.Deliver(t.Context(), by("evil")); s.Cause.By == queue.HeldByFlowBreaker {
								held.Add(1)
							} else if s.Event == shaper.Hold {
								t.Errorf("held: %+v", s)
							}
						}()
					}
					if i%4 == 0 { // five a second
						if s := b.Deliver(t.Context(), by("quiet")); s.Event != shaper.Succeed {
							t.Fatalf("the quiet tenant's delivery %d: %+v, %+v", i, s, s.Error)
						}
					}
					pass(50 * time.Millisecond)
				}
				pass(10 * time.Second)
				if n := held.Load(); n < 4000 {
					t.Errorf("%d deliveries of the other were held", n)
				}
				if b.load.flows.Load() != 1 || float64(b.load.breaker.Load()) != closed {
					t.Errorf("%d flows are held, the state of the route is %v", b.load.flows.Load(), b.load.breaker.Load())
				}
			})
		})
	}
}

// TestGuestsOpenNoBreaker: failures of any number of guests are those of one tenant.
func TestGuestsOpenNoBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 10, Delay: 10 * time.Second}, u, quiet())
		u.answer = func(_ context.Context, l *queue.Lease) queue.Settlement {
			if queue.IsGuest(l.Tenant) {
				return answered(l, noAnswer, "")
			}
			return answered(l, 200, "")
		}
		for i := range 1200 {
			b.Deliver(t.Context(), by(fmt.Sprint("guest:192.0.2.", i%200)))
			if i%5 == 0 {
				if s := b.Deliver(t.Context(), by(fmt.Sprint("customer-", i%3))); s.Event != shaper.Succeed {
					t.Fatalf("a customer's delivery %d: %+v, %+v", i, s, s.Error)
				}
			}
			pass(50 * time.Millisecond)
		}
		pass(10 * time.Second)
	})
}

// TestABreakerOpenedByOneHoldsNoOther: a tenant alone opens the breaker of its route. A tenant that
// comes later is sent at once. If it finds the upstream well, the first remains held by itself;
// otherwise all are held.
func TestABreakerOpenedByOneHoldsNoOther(t *testing.T) {
	for _, status := range []int{200, noAnswer} {
		synctest.Test(t, func(t *testing.T) {
			u := &upstream{}
			b := guarded(t, Breaker{Failures: 3, Delay: 10 * time.Second}, u, quiet())
			statuses(u, map[string]int{"evil": noAnswer, "new": status, "third": 200})
			deliver := func(tenant string) string {
				s := b.Deliver(t.Context(), by(tenant))
				return string(s.Event) + " " + s.Cause.By
			}
			for range 3 {
				deliver("evil")
				pass(minStreak)
			}
			queuetest.Compare(t, "the state", float64(b.load.breaker.Load()), open)
			queuetest.Compare(t, "its next job", deliver("evil"), "hold breaker")
			if status == 200 {
				queuetest.Compare(t, "the other's", deliver("new"), "succeed ")
				queuetest.Compare(t, "the state", float64(b.load.breaker.Load()), closed)
				queuetest.Compare(t, "its next job", deliver("evil"), "hold flow_breaker")
				return
			}
			queuetest.Compare(t, "the other's", deliver("new"), "retry ")
			queuetest.Compare(t, "its next one", deliver("new"), "hold breaker")
			queuetest.Compare(t, "the state", float64(b.load.breaker.Load()), open)
			queuetest.Compare(t, "a third", deliver("third"), "hold breaker")
			// The probe is a job of the one that has not failed.
			untilProbe(b)
			queuetest.Compare(t, "a flow that failed", deliver("evil"), "hold breaker")
			queuetest.Compare(t, "a flow that did not", deliver("third"), "succeed ")
			queuetest.Compare(t, "the state", float64(b.load.breaker.Load()), closed)
			// The others are probed one by one.
			queuetest.Compare(t, "the probe", deliver("evil"), "retry ")
			queuetest.Compare(t, "the next", deliver("evil"), "hold flow_breaker")
		})
	}
}

// TestAFailedProbeIsNotWaitedFor: if no flow without failures has a job, one that failed probes.
func TestAFailedProbeIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 2, Delay: 10 * time.Second}, u, quiet())
		statuses(u, map[string]int{"a": noAnswer, "b": noAnswer})
		for _, tenant := range []string{"a", "b", "b", "a"} {
			b.Deliver(t.Context(), by(tenant))
			pass(minStreak)
		}
		b.Deliver(t.Context(), by("gone"))
		untilProbe(b)
		if s := b.Deliver(t.Context(), by("a")); s.Event != shaper.Hold {
			t.Errorf("%+v", s)
		}
		pass(2200 * time.Millisecond)
		if s := b.Deliver(t.Context(), by("a")); s.Event != shaper.Retry {
			t.Errorf("%+v", s)
		}
	})
}

// TestAShareOfFailuresOpens: at least half of the deliveries of at least half of the tenants.
func TestAShareOfFailuresOpens(t *testing.T) {
	for name, tt := range map[string]struct {
		fail  map[string]int // of ten deliveries of a tenant; the last ones
		state float64
	}{
		"six of ten of all":           {map[string]int{"a": 6, "b": 6, "c": 6}, open},
		"four of ten of all":          {map[string]int{"a": 4, "b": 4, "c": 4}, closed},
		"all of two, none of one":     {map[string]int{"a": 10, "b": 10, "c": 0}, open},
		"all of one, none of two":     {map[string]int{"a": 10, "b": 0, "c": 0}, closed},
		"all of one, half of another": {map[string]int{"a": 10, "b": 5, "c": 0}, open},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &upstream{}
				b := guarded(t, Breaker{Failures: 100}, u, quiet())
				for i := range 10 {
					for tenant, fail := range tt.fail {
						u.status = 200
						if i >= 10-fail {
							u.status = 502
						}
						b.Deliver(t.Context(), by(tenant))
					}
					pass(100 * time.Millisecond)
				}
				queuetest.Compare(t, "the state", float64(b.load.breaker.Load()), tt.state)
			})
		})
	}
}

// TestJobsThatWereNotSent say nothing about the upstream, whatever their clients put into them.
func TestJobsThatWereNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 3}, u, quiet())
		broken := func(_ context.Context, l *queue.Lease) queue.Settlement {
			return (&forwarder{route: Route{Forward: &Forward{}}.withDefaults()}).Deliver(t.Context(), l) // its payload is no request
		}
		for range 100 {
			u.answer = broken
			b.Deliver(t.Context(), lease())
			pass(minStreak)
		}
		queuetest.Compare(t, "the state after those", float64(b.load.breaker.Load()), closed)
		u.answer = nil
		trip(t, b, u)
		untilProbe(b)
		u.answer = broken
		b.Deliver(t.Context(), lease())
		queuetest.Compare(t, "the state after such a probe", float64(b.load.breaker.Load()), open)
		u.answer, u.status = nil, 200
		b.Deliver(t.Context(), lease())
		queuetest.Compare(t, "the state after the next one", float64(b.load.breaker.Load()), closed)
	})
}

// TestSlowDeliveriesBesideQuickOnes: as long as an upstream answers others in time, it is not taken
// for one that hangs.
func TestSlowDeliveriesBesideQuickOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 3}, u, quiet())
		for range 20 {
			deliverAll(t, b, u, 2, 9*time.Second, 200)
			pass(time.Second)
			deliverAll(t, b, u, 1, 0, 200)
			if s := float64(b.load.breaker.Load()); s != closed {
				t.Fatalf("the state is %v", s)
			}
		}
		pass(10 * time.Second)
	})
}

// TestASlowProbeCloses: an upstream that is slow and answers is sent jobs again.
func TestASlowProbeCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 3}, u, quiet())
		trip(t, b, u)
		untilProbe(b)
		deliverAll(t, b, u, 1, 9*time.Second, 200)
		pass(8 * time.Second)
		if s := float64(b.load.breaker.Load()); s != halfOpen {
			t.Fatalf("the state is %v while the probe is out", s)
		}
		pass(2 * time.Second)
		if s := float64(b.load.breaker.Load()); s != closed {
			t.Errorf("the state is %v after a slow probe has succeeded", s)
		}
	})
}

// A probe that fails opens the breaker again, even if the upstream is only overloaded by now and
// the streak is shorter than minOverload.
func TestProbeOfAnOverloadedUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{}
		b := guarded(t, Breaker{Failures: 3, Delay: time.Second}, u, quiet())
		trip(t, b, u)
		untilProbe(b)
		u.status = http.StatusServiceUnavailable
		b.Deliver(t.Context(), lease())
		if state := float64(b.load.breaker.Load()); state != open {
			t.Errorf("state %v after the probe, want open", state)
		}
	})
}
