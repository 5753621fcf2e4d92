package guard

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

func memoryStore(t testing.TB) limiter.Store {
	t.Helper()
	s, err := limiter.NewMemoryStore(10_000)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// twoAMinute is a rule that no test outlasts.
var twoAMinute = limiter.Rule{
	Name: "login",
	Policy: limiter.Policy{
		Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 2, Period: time.Minute}, Block: time.Hour,
	},
}

// tally counts what a guard decides.
type tally struct {
	mu sync.Mutex
	of map[Decision]int
}

func (c *tally) observe(d Decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[Decision]int{}
	}
	c.of[d]++
}

func guardOf(t testing.TB, store limiter.Store, change func(*Config)) (http.Handler, *Guard, *tally) {
	t.Helper()
	counted := &tally{}
	cfg := Config{
		Rule: twoAMinute, Key: KeyByPath, Observe: counted.observe, Logger: slog.New(slog.DiscardHandler),
	}
	change(&cfg)
	g, err := New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := chi.NewRouter()
	r.Use(g.Handler)
	r.Post("/*", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return r, g, counted
}

func ask(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
	return w
}

// The request beyond the limit gets a problem and rate limit headers. Its key is listed as blocked
// until an operator clears it.
func TestGuardRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, g, counted := guardOf(t, memoryStore(t), func(*Config) {})
		first := ask(h, "/login")
		want := http.Header{
			"Ratelimit-Policy": {`"login";q=2;w=60`}, "Ratelimit": {`"login";r=1;t=60`},
			"X-Ratelimit-Limit": {"2"}, "X-Ratelimit-Remaining": {"1"}, "X-Ratelimit-Retry-After": {"0"},
		}
		if diff := cmp.Diff(want, first.Header()); first.Code != http.StatusNoContent || diff != "" {
			t.Errorf("%d, headers (-want +got):\n%s", first.Code, diff)
		}
		ask(h, "/login")
		refused := ask(h, "/login")
		var p wire.Problem
		if err := json.Unmarshal(refused.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		queuetest.Compare(t, "the status of the refusal", refused.Code, http.StatusTooManyRequests)
		queuetest.Compare(t, "its problem", queuetest.Only(p, "Type", "Guard", "RetryAfterMS"),
			wire.Problem{
				Type: "urn:sluice:problem:rate-limited", Guard: "login",
				RetryAfterMS: time.Hour.Milliseconds(),
			})
		queuetest.Compare(t, "its Content-Type", refused.Header().Get("Content-Type"),
			"application/problem+json")
		queuetest.Compare(t, "its RateLimit", refused.Header().Get("RateLimit"), `"login";r=0;t=3600`)
		after := refused.Header().Get("Retry-After")
		if seconds, err := strconv.Atoi(after); err != nil || seconds < 3600 || seconds > 3600+62 {
			t.Errorf("Retry-After %q, want 3600 to 3662", after)
		}
		queuetest.Compare(t, "its X-RateLimit-Retry-After",
			refused.Header().Get("X-RateLimit-Retry-After"), after)
		if ask(h, "/other").Code != http.StatusNoContent {
			t.Error("another key is refused")
		}
		list, err := g.Blocked(t.Context(), 10)
		if err != nil || len(list) != 1 {
			t.Fatalf("%v, the blocked keys %v, want one", err, list)
		}
		queuetest.Compare(t, "the blocked key", list[0].Key, "POST /login")
		if known, err := g.Clear(t.Context(), "POST /login"); err != nil || !known {
			t.Errorf("Clear: %v, %v, want the key to be known", known, err)
		}
		queuetest.Compare(t, "the status after it was cleared", ask(h, "/login").Code, http.StatusNoContent)
		if diff := cmp.Diff(map[Decision]int{Allowed: 4, Refused: 1}, counted.of); diff != "" {
			t.Error(diff)
		}
	})
}

// A guard in the shadow refuses nothing and sends no headers. It counts what it would refuse.
func TestGuardInTheShadow(t *testing.T) {
	h, _, counted := guardOf(t, memoryStore(t), func(c *Config) { c.Shadow, c.FailClosed = true, true })
	for range 5 {
		w := ask(h, "/login")
		queuetest.Compare(t, "the status", w.Code, http.StatusNoContent)
		queuetest.Compare(t, "the headers", w.Header(), http.Header{})
	}
	if diff := cmp.Diff(map[Decision]int{Allowed: 2, WouldRefuse: 3}, counted.of); diff != "" {
		t.Error(diff)
	}
}

// away is a store that cannot be asked; stuck is one that does not answer.
type away struct{ limiter.Store }

func (away) Take(context.Context, limiter.Rule, string, int64) (limiter.Decision, error) {
	return limiter.Decision{}, errors.New("away")
}

type stuck struct{ limiter.Store }

func (stuck) Take(ctx context.Context, _ limiter.Rule, _ string, _ int64) (limiter.Decision, error) {
	<-ctx.Done()
	return limiter.Decision{}, ctx.Err()
}

// While the store fails or hangs, a guard lets requests pass, unless it fails closed. In the shadow
// it always lets them pass.
func TestGuardWithoutItsStore(t *testing.T) {
	for name, store := range map[string]limiter.Store{"away": away{}, "stuck": stuck{}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				open, _, counted := guardOf(t, store, func(*Config) {})
				if w := ask(open, "/login"); w.Code != http.StatusNoContent || counted.of[FailedOpen] != 1 {
					t.Errorf("open: %d, %v", w.Code, counted.of)
				}
				closed, _, counted := guardOf(t, store, func(c *Config) { c.FailClosed = true })
				refused := ask(closed, "/login")
				if refused.Header().Get("Retry-After") == "" {
					t.Error("closed: the refusal has no Retry-After")
				}
				queuetest.Compare(t, "closed: the status", refused.Code, http.StatusServiceUnavailable)
				queuetest.Compare(t, "closed: the decisions", counted.of, map[Decision]int{FailedClosed: 1})
				shadow, _, counted := guardOf(t, store, func(c *Config) { c.FailClosed, c.Shadow = true, true })
				if w := ask(shadow, "/login"); w.Code != http.StatusNoContent || counted.of[FailedOpen] != 1 {
					t.Errorf("shadow: %d, %v", w.Code, counted.of)
				}
			})
		})
	}
}

// Each mode sends its own headers, and the mode none sends none.
func TestGuardHeaderModes(t *testing.T) {
	for mode, want := range map[problem.HeaderMode]int{
		problem.IETF: 2, problem.Legacy: 3, problem.Both: 5, problem.None: 0,
	} {
		h, _, _ := guardOf(t, memoryStore(t), func(c *Config) { c.Headers = mode })
		if got := ask(h, "/x").Header(); len(got) != want {
			t.Errorf("%s: %v", mode, got)
		}
	}
}

// An address is that of the connection, unless a trusted proxy forwards another. A request that
// lacks a part of the key is not counted. The value of a header is hashed.
func TestGuardKeys(t *testing.T) {
	byAddress, err := KeyByAddress(netip.MustParsePrefix("10.0.0.0/8"))
	if err != nil {
		t.Fatal(err)
	}
	byNetwork, err := KeyByNetwork()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := KeyByAddress(netip.MustParsePrefix("0.0.0.0/0")); err == nil {
		t.Error("everybody is a proxy")
	}
	request := func(from, forwarded, key string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/login", nil)
		r.RemoteAddr = from
		if forwarded != "" {
			r.Header.Set("X-Forwarded-For", forwarded)
		}
		if key != "" {
			r.Header.Set("X-API-Key", key)
		}
		return r
	}
	for name, tt := range map[string]struct {
		key     KeyFunc
		r       *http.Request
		want    string
		counted bool
	}{
		"address":         {byAddress, request("192.0.2.7:1234", "", ""), "192.0.2.7", true},
		"address, forged": {byAddress, request("192.0.2.7:1234", "198.51.100.1", ""), "192.0.2.7", true},
		"address, of a proxy": {
			byAddress, request("10.1.1.1:1234", "198.51.100.1", ""), "198.51.100.1", true,
		},
		"address, IPv6":  {byAddress, request("[2001:db8:1:2:3::4]:1", "", ""), "2001:db8:1:2::/64", true},
		"network, IPv6":  {byNetwork, request("[2001:db8:1:2:3::4]:1", "", ""), "2001:db8:1::/48", true},
		"path":           {KeyByPath, request("192.0.2.7:1", "", ""), "POST /login", true},
		"header, absent": {KeyByHeader("X-API-Key"), request("192.0.2.7:1", "", ""), "", false},
		"combination": {
			KeyOf(byAddress, KeyByPath), request("192.0.2.7:1", "", ""), "192.0.2.7&POST+%2Flogin", true,
		},
		"combination, not complete": {
			KeyOf(byAddress, KeyByHeader("X-API-Key")), request("192.0.2.7:1", "", ""), "", false,
		},
	} {
		if got, counted := tt.key(tt.r); got != tt.want || counted != tt.counted {
			t.Errorf("%s: %q, %v", name, got, counted)
		}
	}
	const secret = "sluice_secret"
	one, counted := KeyByHeader("X-API-Key")(request("192.0.2.7:1", "", secret))
	other, _ := KeyByHeader("X-API-Key")(request("192.0.2.7:1", "", "another"))
	queuetest.Compare(t, "a request with the header is counted", counted, true)
	queuetest.Compare(t, "the length of a header's key", len(one), 22)
	if one == other {
		t.Errorf("two values of the header have the key %q", one)
	}
	if strings.Contains(one, "secret") {
		t.Errorf("the key %q reveals the header", one)
	}
}

// All problems of the settings are reported at once.
func TestGuardRefusesBadSettings(t *testing.T) {
	_, err := New(nil, Config{Rule: limiter.Rule{Name: "a b"}})
	var ps shaper.Problems
	if !errors.As(err, &ps) {
		t.Fatalf("%v, want shaper.Problems", err)
	}
	queuetest.Contains(t, "the error", err.Error(), "no store", "no key", "the name must")
}

// Of concurrent requests with one key, exactly the limit passes.
func TestGuardUnderConcurrentRequests(t *testing.T) {
	h, _, counted := guardOf(t, memoryStore(t), func(c *Config) { c.Rule.Policy.Rate.Limit = 50 })
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 16 {
				if ask(h, "/login").Code == http.StatusNoContent {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() != 50 || counted.of[Refused] != 64*16-50 {
		t.Errorf("%d passed, %v", passed.Load(), counted.of)
	}
}
