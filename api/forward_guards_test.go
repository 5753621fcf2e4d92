package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/worker"
)

// TestForwardGuarded: guards name forwarding as an endpoint, and count requests by method and path
// as jobs by type.
func TestForwardGuarded(t *testing.T) {
	const yes, no = http.StatusTeapot, http.StatusTooManyRequests
	twice := limiter.Policy{
		Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 2, Period: time.Hour}, Block: time.Hour,
	}
	store, err := limiter.NewMemoryStore(100)
	if err != nil {
		t.Fatal(err)
	}
	p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) {
		c.Limits = store
		c.Guards = []guard.Intake{
			{Rule: limiter.Rule{Name: "forwards", Policy: twice}, By: []guard.By{guard.ByTenant, guard.ByEndpoint},
				Endpoints: []string{"forward"}},
			{Rule: limiter.Rule{Name: "logins", Policy: twice}, By: []guard.By{guard.ByRoute, guard.ByType},
				Types: []string{"POST /login"}, Endpoints: []string{"forward"}},
		}
	})
	codes := func(method, path, tenant string, want ...int) {
		t.Helper()
		for i, status := range want {
			resp, body := p.ask(method, "/v1/forward/partner"+path, "", "Sluice-Tenant", tenant)
			kind, name := "", ""
			if status == no {
				kind, name = "rate-limited", "logins"
				if method == "GET" {
					name = "forwards"
				}
			}
			p.want(fmt.Sprintf("%s %s of %s, number %d", method, path, tenant, i+1), status, kind, resp, body)
			if name != "" && !strings.Contains(body, `"guard":"`+name+`"`) {
				t.Errorf("refused by another guard than %s: %s", name, body)
			}
		}
	}
	codes("GET", "/x", "a", yes, yes, no)
	codes("GET", "/x", "b", yes)
	codes("POST", "/login?user=1", "c", yes)
	codes("POST", "/login?user=2", "d", yes, no)
	codes("POST", "/logout", "e", yes, yes)
	resp, body := p.ask("GET", "/v1/jobs?state=all", "", "Sluice-Tenant", "a")
	p.want("another endpoint", http.StatusOK, "", resp, body)
	if n := p.reached(); n != 7 {
		t.Errorf("%d requests reached the upstream, want 7", n)
	}
}
