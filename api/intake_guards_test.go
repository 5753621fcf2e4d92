package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// withGuards puts guards that let pass twice an hour before the intake.
func withGuards(t testing.TB, store limiter.Store, guards ...guard.Intake) func(*Config) {
	for i := range guards {
		if guards[i].Rule.Policy == (limiter.Policy{}) {
			guards[i].Rule.Policy = limiter.Policy{
				Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 2, Period: time.Hour},
				Block: 2 * time.Hour,
			}
		}
	}
	return func(c *Config) { c.Guards, c.Limits = guards, store }
}

func guardBy(name string, by ...guard.By) guard.Intake {
	return guard.Intake{Rule: limiter.Rule{Name: name}, By: by}
}

// codes are the statuses of that many submissions.
func codes(b *bench, n int, h headers) (out []int) {
	for range n {
		out = append(out, b.intake.do(b.t, "POST", "/v1/jobs", h, plainJob).Code)
	}
	return out
}

func (b *bench) wantCodes(what string, h headers, want ...int) {
	b.t.Helper()
	got := codes(b, len(want), h)
	for i := range want {
		if got[i] != want[i] {
			b.t.Errorf("%s: %v, want %v", what, got, want)
			return
		}
	}
}

func TestGuardsBeforeTheIntake(t *testing.T) {
	const yes, no = http.StatusAccepted, http.StatusTooManyRequests
	t.Run("by tenant", func(t *testing.T) {
		b := newBench(t, withGuards(t, limitStore(t), guardBy("tenants", guard.ByTenant)))
		b.wantCodes("acme", headers{codec.TenantHeader: "acme"}, yes, yes, no)
		b.wantCodes("other", headers{codec.TenantHeader: "other"}, yes)
		r := b.intake.do(t, "GET", "/v1/jobs?state=queued", headers{codec.TenantHeader: "acme"}, "")
		if r.Code != no || r.problem.Guard != "tenants" ||
			!strings.HasSuffix(r.problem.Type, ":rate-limited") ||
			r.problem.RetryAfterMS <= time.Hour.Milliseconds() ||
			r.Header().Get("Retry-After") == "" ||
			!strings.HasPrefix(r.Header().Get("RateLimit"), `"tenants";r=0;t=`) ||
			r.Header().Get("X-RateLimit-Remaining") != "0" {
			t.Errorf("%d %v %s", r.Code, r.Header(), r.Body)
		}
		if strings.Contains(r.Body.String(), "acme") {
			t.Error("the refusal echoes the key")
		}
	})
	t.Run("every operation answers as documented", func(t *testing.T) {
		g := guardBy("all", guard.ByTenant)
		g.Rule.Policy = limiter.Policy{
			Algorithm: limiter.FixedWindow, Rate: shaper.Rate{Limit: 1, Period: 366 * 24 * time.Hour},
		}
		b := newBench(t, withGuards(t, limitStore(t), g))
		id := b.submit(plainJob, nil).job.ID
		for _, op := range dataPlane(id) {
			if r := b.intake.do(t, op.method, op.target, nil, op.body); r.Code != no {
				t.Errorf("%s %s: %d", op.method, op.target, r.Code)
			}
		}
	})
	t.Run("some endpoints", func(t *testing.T) {
		g := guardBy("batches", guard.ByTenant)
		g.Endpoints = []string{"submit-batch"}
		b := newBench(t, withGuards(t, limitStore(t), g))
		b.wantCodes("single jobs", nil, yes, yes, yes)
		for i, want := range []int{http.StatusOK, http.StatusOK, no} {
			if r := b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+plainJob+`]}`); r.Code != want {
				t.Errorf("batch %d: %d", i, r.Code)
			}
		}
	})
	t.Run("by guest", func(t *testing.T) {
		b := newGuarded(t, []auth.Mode{auth.Keys, auth.Guest},
			withGuards(t, limitStore(t), guardBy("guests", guard.ByGuest)))
		b.wantCodes("with a key", bearing(b.key("acme", "").Secret), yes, yes, yes)
		b.wantCodes("guests", nil, yes, yes, no)
		b.wantCodes("with a key, after guests", bearing(b.key("acme", "").Secret), yes)
	})
	t.Run("nobody is a guest by name", func(t *testing.T) {
		b := newBench(t, withGuards(t, limitStore(t), guardBy("guests", guard.ByGuest)))
		b.wantCodes("named so", headers{codec.TenantHeader: "guest:192.0.2.7"}, yes, yes, yes)
	})
	t.Run("by address holds up who tries credentials", func(t *testing.T) {
		b := newGuarded(t, []auth.Mode{auth.Keys}, withGuards(t, limitStore(t), guardBy("tries", guard.ByAddress)))
		b.wantCodes("wrong keys", bearing("sluice_wrong"), http.StatusUnauthorized, http.StatusUnauthorized, no)
	})
	t.Run("by a combination", func(t *testing.T) {
		b := newBench(t, withGuards(t, limitStore(t), guardBy("both", guard.ByTenant, guard.ByEndpoint)))
		b.wantCodes("submissions", nil, yes, yes, no)
		if r := b.intake.do(t, "GET", "/v1/jobs?state=queued", nil, ""); r.Code != http.StatusOK {
			t.Errorf("another endpoint: %d", r.Code)
		}
	})
	t.Run("in the shadow", func(t *testing.T) {
		g := guardBy("trial", guard.ByTenant)
		g.Shadow = true
		b := newBench(t, withGuards(t, limitStore(t), g))
		b.wantCodes("all", nil, yes, yes, yes, yes)
		text := b.admin.send(t, mustRequest(t, "GET", "/metrics")).Body.String()
		for _, line := range []string{
			`sluice_guard_decisions_total{decision="would_refuse",guard="trial"} 2`,
			`sluice_guard_decisions_total{decision="refused",guard="trial"} 0`,
		} {
			if !strings.Contains(text, line) {
				t.Errorf("no %s", line)
			}
		}
	})
	t.Run("without the store", func(t *testing.T) {
		b := newBench(t, withGuards(t, awayStore{}, guardBy("open", guard.ByTenant)))
		b.wantCodes("open", nil, yes, yes, yes)
		closed := guardBy("closed", guard.ByTenant)
		closed.FailClosed = true
		b = newBench(t, withGuards(t, awayStore{}, closed))
		b.wantCodes("closed", nil, http.StatusServiceUnavailable)
	})
}

// One client has 65,536 guests in its /48. A guard by network counts them together.
func TestGuardByNetwork(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Guest}, withGuards(t, limitStore(t), guardBy("networks", guard.ByNetwork)))
	for _, c := range []struct {
		from string
		want int
	}{
		{"[2001:db8:1:1::1]:1", http.StatusAccepted}, {"[2001:db8:1:2::1]:1", http.StatusAccepted},
		{"[2001:db8:1:3::1]:1", http.StatusTooManyRequests}, {"[2001:db8:2:1::1]:1", http.StatusAccepted},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "http://localhost/v1/jobs",
			strings.NewReader(plainJob))
		r.Header.Set("Content-Type", "application/json")
		r.RemoteAddr = c.from
		b.s.Intake().ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d %s, want %d", c.from, w.Code, w.Body, c.want)
		}
	}
}

func TestGuardsThroughTheAdminAPI(t *testing.T) {
	b := newBench(t, withGuards(t, limitStore(t), guardBy("one", guard.ByTenant),
		guardBy("two", guard.ByAddress)))
	const tenant = "guest:2001:db8:1:2::/64"
	of := headers{codec.TenantHeader: tenant}
	for _, code := range codes(b, 2, of) {
		if code != http.StatusAccepted {
			t.Fatal(code)
		}
	}
	codes(b, 1, of)
	read := func(path string, into any) {
		t.Helper()
		r := b.admin.do(t, "GET", path, nil, "")
		if err := json.Unmarshal(r.Body.Bytes(), into); err != nil || r.Code != http.StatusOK {
			t.Fatalf("%s: %d %v", path, r.Code, err)
		}
	}
	var guards wire.GuardList
	read("/v1/guards", &guards)
	if len(guards.Items) != 2 || guards.Items[0].Guard != "one" || guards.Items[0].Limit != 2 ||
		guards.Items[0].BlockMS != 7_200_000 || guards.Items[0].OnError != "open" ||
		guards.Items[0].By[0] != "tenant" {
		t.Errorf("%+v", guards)
	}
	var blocked wire.BlockedList
	read("/v1/guards/two/blocked", &blocked) // which was asked first, and refused
	if len(blocked.Items) != 1 || blocked.Items[0].Key != "192.0.2.1" || blocked.Items[0].LeftMS <= 0 ||
		blocked.Items[0].LeftMS > 7_200_000 {
		t.Errorf("%+v", blocked)
	}
	free := func(path string, want int) {
		t.Helper()
		if r := b.admin.do(t, "DELETE", path, nil, ""); r.Code != want {
			t.Errorf("DELETE %s: %d %s", path, r.Code, r.Body)
		}
	}
	free("/v1/guards/two/blocked/192.0.2.1", http.StatusNoContent)
	free("/v1/guards/two/blocked/192.0.2.1", http.StatusNotFound)
	free("/v1/guards/three/blocked/192.0.2.1", http.StatusNotFound)
	codes(b, 1, of) // now the other one refuses
	read("/v1/guards/one/blocked?limit=1", &blocked)
	if len(blocked.Items) != 1 || blocked.Items[0].Key != tenant {
		t.Errorf("%+v", blocked)
	}
	free("/v1/guards/one/blocked/guest:2001:db8:1:2::%2F64", http.StatusNoContent)
	b.wantCodes("after it was cleared", of, http.StatusAccepted)
	for _, path := range []string{"/v1/guards/three/blocked", "/v1/guards/one/blocked?limit=0"} {
		if r := b.admin.do(t, "GET", path, nil, ""); r.Code != http.StatusNotFound &&
			r.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", path, r.Code)
		}
	}
}

func TestGuardsRefuseBadSettings(t *testing.T) {
	bad := guard.Intake{
		Rule: limiter.Rule{Name: "x", Policy: twoPerMinute.Policy}, By: []guard.By{"colour", guard.ByGuest},
		Endpoints: []string{"login"},
	}
	a, err := auth.New(t.Context(), auth.Config{Modes: []auth.Mode{auth.Keys}, Keys: &lateStore{}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = newIntakeGuards(Config{Auth: a, Guards: []guard.Intake{bad, bad, {}}, Limits: limitStore(t)})
	for _, part := range []string{
		"duplicate guard", "colour", `no operation "login"`, "counts guests", "no parts",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("no word of %q: %v", part, err)
		}
	}
}

func mustRequest(t testing.TB, method, target string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, "http://localhost"+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func limitStore(t testing.TB) limiter.Store {
	t.Helper()
	s, err := limiter.NewMemoryStore(10_000)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// awayStore is a store that fails.
type awayStore struct{ limiter.Store }

func (awayStore) Take(context.Context, limiter.Rule, string, int64) (limiter.Decision, error) {
	return limiter.Decision{}, errors.New("refused to connect")
}

var twoPerMinute = limiter.Rule{
	Name: "login",
	Policy: limiter.Policy{
		Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 2, Period: time.Minute}, Block: time.Hour,
	},
}
