package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

const (
	loginJob  = `{"type":"user.login","route":"login","payload":1}`
	logoutJob = `{"type":"user.logout","route":"login","payload":1}`
)

// withLogins adds a route for logins beside guards.
func withLogins(t testing.TB, store limiter.Store, guards ...guard.Intake) func(*Config) {
	return func(c *Config) {
		c.Routes["login"] = RouteInfo{MaxAttempts: 1}
		withGuards(t, store, guards...)(c)
	}
}

// batch submits jobs together and returns the status of each, or that of the whole.
func (b *bench) batch(atomic bool, jobs ...string) []int {
	b.t.Helper()
	r := b.intake.do(b.t, "POST", "/v1/jobs/batch", nil, fmt.Sprintf(`{"jobs":[%s],"atomic":%v}`,
		strings.Join(jobs, ","), atomic))
	if r.Code != http.StatusOK {
		return []int{r.Code}
	}
	var got wire.BatchResult
	if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil {
		b.t.Fatal(err)
	}
	codes := make([]int, len(got.Items))
	for i, item := range got.Items {
		codes[i] = item.Status
		refused := item.Status == http.StatusTooManyRequests
		if refused != (item.Guard != "" && item.RetryAfterMS > 0 && item.Job == nil) {
			b.t.Errorf("item %d is %+v", i, item)
		}
	}
	return codes
}

func (b *bench) wantBatch(what string, got []int, want ...int) {
	b.t.Helper()
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// counted is what the metric says of a guard, without what it says nothing of.
func (b *bench) counted(guard string) map[string]string {
	b.t.Helper()
	out := map[string]string{}
	for line := range strings.SplitSeq(b.admin.send(b.t, mustRequest(b.t, "GET", "/metrics")).Body.String(),
		"\n") {
		rest, is := strings.CutPrefix(line, `sluice_guard_decisions_total{decision="`)
		decision, rest, _ := strings.Cut(rest, `",guard="`)
		if name, n, _ := strings.Cut(rest, `"} `); is && name == guard && n != "0" {
			out[decision] = n
		}
	}
	return out
}

func TestGuardsOfJobs(t *testing.T) {
	const yes, no = http.StatusAccepted, http.StatusTooManyRequests
	logins := func(by ...guard.By) guard.Intake {
		g := guardBy("logins", by...)
		g.Routes = []string{"login"}
		return g
	}
	post := func(t *testing.T, b *bench, what, body string, want ...int) {
		t.Helper()
		for i, code := range want {
			if r := b.intake.do(t, "POST", "/v1/jobs", nil, body); r.Code != code {
				t.Errorf("%s, %d: %d %s, want %d", what, i, r.Code, r.Body, code)
			}
		}
	}
	t.Run("for a route", func(t *testing.T) {
		b := newBench(t, withLogins(t, limitStore(t), logins(guard.ByAddress)))
		post(t, b, "orders", plainJob, yes, yes, yes, yes)
		post(t, b, "what is no job, or for no route", `{"type":"user.login","route":"login"}`, 422, 422, 422)
		post(t, b, "logins of both types", loginJob, yes)
		post(t, b, "logins of both types", logoutJob, yes)
		r := b.intake.do(t, "POST", "/v1/jobs", nil, loginJob)
		if r.want(t, no, "rate-limited"); r.problem.Guard != "logins" || r.problem.RetryAfterMS <= 0 ||
			r.Header().Get("Retry-After") == "" ||
			!strings.HasPrefix(r.Header().Get("RateLimit"), `"logins";r=0;t=`) {
			t.Errorf("%v %s", r.Header(), r.Body)
		}
		post(t, b, "orders, after logins", plainJob, yes)
		if diff := cmp.Diff(map[string]string{"allowed": "2", "refused": "1"}, b.counted("logins")); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("for a type", func(t *testing.T) {
		g := guardBy("logins", guard.ByTenant)
		g.Types = []string{"user.login", "user.reset"}
		b := newBench(t, withLogins(t, limitStore(t), g))
		post(t, b, "another type", logoutJob, yes, yes, yes)
		post(t, b, "logins", loginJob, yes, yes, no)
	})
	t.Run("by route and type", func(t *testing.T) {
		b := newBench(t, withLogins(t, limitStore(t), guardBy("each", guard.ByTenant, guard.ByRoute, guard.ByType)))
		post(t, b, "logins", loginJob, yes, yes, no)
		post(t, b, "another type", logoutJob, yes, yes, no)
		post(t, b, "another route", plainJob, yes)
	})
	t.Run("jobs of a batch count one by one", func(t *testing.T) {
		b := newBench(t, withLogins(t, limitStore(t), logins(guard.ByTenant)))
		b.wantBatch("a batch", b.batch(false, plainJob, loginJob, loginJob, plainJob, loginJob, logoutJob,
			plainJob), yes, yes, yes, yes, no, no, yes)
		b.wantBatch("another", b.batch(false, loginJob, plainJob), no, yes)
		b.wantBatch("of refused ones alone", b.batch(false, loginJob), no)
		if diff := cmp.Diff(map[string]string{"allowed": "2", "refused": "4"}, b.counted("logins")); diff != "" {
			t.Error(diff)
		}
		if got := len(b.queue.IDs()); got != 6 {
			t.Errorf("%d jobs are there", got)
		}
	})
	t.Run("an atomic batch counts as a whole", func(t *testing.T) {
		b := newBench(t, withLogins(t, limitStore(t), logins(guard.ByTenant)))
		r := b.intake.do(t, "POST", "/v1/jobs/batch", nil,
			`{"jobs":[`+strings.Join([]string{loginJob, plainJob, loginJob, loginJob},
				",")+`],"atomic":true}`)
		if r.want(t, no, "rate-limited"); r.Header().Get("Retry-After") != "" ||
			r.problem.RetryAfterMS != 0 ||
			!strings.Contains(r.problem.Detail, "3 at once exceed the limit at any time") {
			t.Errorf("%v %s", r.Header(), r.Body)
		}
		b.wantBatch("what fits", b.batch(true, loginJob, plainJob, loginJob), yes, yes, yes)
		r = b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+loginJob+`],"atomic":true}`)
		if r.want(t, no, "rate-limited"); r.Header().Get("Retry-After") == "" {
			t.Errorf("%v %s", r.Header(), r.Body)
		}
		// The answer to a request above the limit names the instant of a full limit: the key is
		// blocked now, for two hours less what a slow machine took since.
		r = b.intake.do(t, "POST", "/v1/jobs/batch", nil,
			`{"jobs":[`+strings.Join([]string{loginJob, loginJob, loginJob}, ",")+`],"atomic":true}`)
		if r.want(t, no, "rate-limited"); r.Header().Get("Retry-After") != "" ||
			r.Header().Get("X-RateLimit-Retry-After") != "0" ||
			!strings.HasPrefix(r.Header().Get("RateLimit"), `"logins";r=0;t=7`) {
			t.Errorf("%v %s", r.Header(), r.Body)
		}
	})
	t.Run("replays", func(t *testing.T) {
		b := newBench(t, withLogins(t, limitStore(t), logins(guard.ByTenant)))
		order, login := b.dead(plainJob, "refused"), b.dead(loginJob, "refused")
		again := func(id string, want int) {
			t.Helper()
			if r := b.intake.do(t, "POST", "/v1/jobs/"+id+"/replay", nil, ""); r.Code != want {
				t.Errorf("%d %s, want %d", r.Code, r.Body, want)
			}
		}
		again(login, yes)
		for range 3 {
			again(login, http.StatusConflict) // it waits: nothing is brought
		}
		b.queue.Finish(login, shaper.Dead, nil, &queue.JobError{Message: "refused"})
		again(login, no)
		again(order, yes)
		if r := b.admin.do(t, "POST", "/v1/tenants/default/jobs/"+login+"/replay", nil, ""); r.Code != yes {
			t.Errorf("by the operator: %d", r.Code)
		}
	})
	t.Run("the second guard is not asked for what the first refused", func(t *testing.T) {
		first, second := logins(guard.ByTenant), guardBy("types", guard.ByType)
		second.Rule.Policy = limiter.Policy{
			Algorithm: limiter.TokenBucket, Rate: shaper.Rate{Limit: 3, Period: time.Hour},
		}
		b := newBench(t, withLogins(t, limitStore(t), first, second))
		b.wantBatch("a batch", b.batch(false, loginJob, loginJob, loginJob, plainJob, plainJob, plainJob,
			plainJob), yes, yes, no, yes, yes, yes, no)
		if diff := cmp.Diff(map[string]string{"allowed": "5", "refused": "1"}, b.counted("types")); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("guests", func(t *testing.T) {
		b := newGuarded(t, []auth.Mode{auth.Keys, auth.Guest}, withLogins(t, limitStore(t), logins(guard.ByGuest)))
		for range 3 {
			if r := b.intake.do(t, "POST", "/v1/jobs", bearing(b.key("acme", "").Secret), loginJob); r.Code != yes {
				t.Errorf("with a key: %d", r.Code)
			}
		}
		post(t, b, "guests", loginJob, yes, yes, no)
	})
	t.Run("in the shadow", func(t *testing.T) {
		g := logins(guard.ByTenant)
		g.Shadow = true
		b := newBench(t, withLogins(t, limitStore(t), g))
		b.wantBatch("a batch", b.batch(false, loginJob, loginJob, loginJob, loginJob, loginJob), yes, yes,
			yes, yes, yes)
		if diff := cmp.Diff(map[string]string{"allowed": "2", "would_refuse": "3"},
			b.counted("logins")); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("without the store", func(t *testing.T) {
		b := newBench(t, withLogins(t, awayStore{}, logins(guard.ByTenant)))
		b.wantBatch("open", b.batch(false, loginJob, plainJob, loginJob), yes, yes, yes)
		if diff := cmp.Diff(map[string]string{"failed_open": "2"}, b.counted("logins")); diff != "" {
			t.Error(diff)
		}
		closed := logins(guard.ByTenant)
		closed.FailClosed = true
		b = newBench(t, withLogins(t, awayStore{}, closed))
		b.wantBatch("closed", b.batch(false, loginJob, plainJob), http.StatusServiceUnavailable)
		b.wantBatch("closed, of others", b.batch(false, plainJob), yes)
		post(t, b, "closed", loginJob, http.StatusServiceUnavailable)
	})
	t.Run("endpoints", func(t *testing.T) {
		g := logins(guard.ByTenant)
		g.Endpoints = []string{"submit-batch"}
		b := newBench(t, withLogins(t, limitStore(t), g), func(c *Config) { c.AdminSubmit = true })
		post(t, b, "single jobs", loginJob, yes, yes, yes)
		b.wantBatch("a batch", b.batch(false, loginJob, loginJob, loginJob), yes, yes, no)
		for range 3 {
			if r := b.admin.do(t, "POST", "/v1/tenants/default/jobs", nil, loginJob); r.Code != yes {
				t.Errorf("of the operator: %d", r.Code)
			}
		}
	})
}

func TestGuardsOfJobsAreListed(t *testing.T) {
	g := guardBy("logins", guard.ByAddress, guard.ByType)
	g.Routes, g.Types = []string{"login"}, []string{"user.login"}
	b := newBench(t, withLogins(t, limitStore(t), g))
	var got wire.GuardList
	if r := b.admin.do(t, "GET", "/v1/guards", nil, ""); json.Unmarshal(r.Body.Bytes(), &got) != nil ||
		len(got.Items) != 1 ||
		!slices.Equal(got.Items[0].Routes, g.Routes) || !slices.Equal(got.Items[0].Types, g.Types) ||
		!slices.Equal(got.Items[0].By, []string{"address", "type"}) {
		t.Errorf("%s", r.Body)
	}
	g.Routes, g.Endpoints = []string{"nowhere"}, []string{"get-job"}
	_, err := newIntakeGuards(Config{Guards: []guard.Intake{g}, Limits: limitStore(t)})
	for _, part := range []string{`no route "nowhere"`, `"get-job" submits none`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("no word of %q: %v", part, err)
		}
	}
}

// TestBatchIsAsGoodAsSingleJobs: of n jobs that come together the same number pass as of n that
// come one after the other at the same instant, and what is left afterwards is the same: under
// every limiter, whatever was used before.
func TestBatchIsAsGoodAsSingleJobs(t *testing.T) {
	type step struct {
		Jobs  int
		Later time.Duration
	}
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{
			rapid.IntRange(1, 30).Draw(rt, "jobs"),
			time.Duration(rapid.IntRange(0, 2000).Draw(rt, "later")) * time.Millisecond,
		}
	}), 1, 6)
	rapid.Check(t, func(rt *rapid.T) {
		p := limiter.Policy{
			Algorithm: rapid.SampledFrom(limiter.Algorithms()).Draw(rt, "algorithm"),
			Rate:      shaper.Rate{Limit: rapid.Int64Range(1, 20).Draw(rt, "limit"), Period: time.Second},
		}
		if p.Algorithm == limiter.SlidingLog {
			p.Block = rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(rt, "block")
		}
		story := steps.Draw(rt, "steps")
		var differs error
		synctest.Test(t, func(t *testing.T) { // rapid's own T is not for the goroutine of a bubble
			guard, err := guard.New(limitStore(t), guard.Config{
				Rule: limiter.Rule{Name: "r", Policy: p}, Key: guard.KeyByPath,
			})
			if err != nil {
				t.Fatal(err)
			}
			g, c := &intakeGuard{Guard: guard}, &call{r: httptest.NewRequest("POST", "/", nil)}
			for i, s := range story {
				together, _ := g.admit(c, "together", s.Jobs, false)
				singly := 0
				for range s.Jobs {
					one, _ := g.admit(c, "singly", 1, false)
					singly += one
				}
				a, errA := g.Ask(t.Context(), "together", 0)
				b, errB := g.Ask(t.Context(), "singly", 0)
				if err := errors.Join(errA, errB); err != nil {
					t.Fatal(err)
				}
				if together != singly || a != b {
					differs = errors.Join(differs,
						fmt.Errorf("step %d: %d pass together and leave %+v, %d singly and leave %+v", i,
							together, a, singly, b))
				}
				time.Sleep(s.Later)
			}
		})
		if differs != nil {
			rt.Fatal(differs)
		}
	})
}
