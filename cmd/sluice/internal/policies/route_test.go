package policies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

// Unhealthy routes come first, with the tenant and the job of the last failure.
func TestRouteList(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		routes map[string]reports.RouteLoad
		out    string
		n      int
	}{
		"idle": {nil, "ROUTE BREAKER IN FLIGHT STREAMS ENDED FAILED LAST TENANT LAST JOB LAST FAILURE CALLS AUTH\nmail closed 0 0 0 0 - - - - -\n", 1},
		"failing": {map[string]reports.RouteLoad{
			"fine": {Ended: 9},
			"mail": {InFlight: 2, Streams: 3, Ended: 40, Failed: 7, Last: reports.FailureOf(at, "acme", "j1", "connection\nfailed", "dial 10.0.0.7", 0)},
			"away": {Breaker: reports.BreakerOpen},
		}, `ROUTE BREAKER IN FLIGHT STREAMS ENDED FAILED LAST TENANT LAST JOB LAST FAILURE CALLS AUTH
away open 0 0 0 0 - - - - -
mail closed 2 3 40 7 acme j1 connection failed: dial 10.0.0.7 - -
fine closed 0 0 9 0 - - - - -
`, 3},
	} {
		desk := queuetest.NewDesk(t, queue.Options{})
		if _, err := desk.Broker().Heartbeat(t.Context(), "w", time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := reports.New(store.Of(desk.Queue)).ReportRoutes(t.Context(), "w", c.routes); err != nil {
			t.Fatal(err)
		}
		s, err := api.New(desk.Queue, api.Config{Routes: map[string]api.RouteInfo{"mail": {}}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(s.Admin())
		defer server.Close()
		list := func(args ...string) (out, errs string) {
			var o, e bytes.Buffer
			args = append([]string{"route", "list", "--admin", server.URL}, args...)
			if code := run(t.Context(), args, cli.Stdio{Out: &o, Err: &e}, nil); code != cli.ExitOK {
				t.Errorf("%s: exit code %d: %s", name, code, e.String())
			}
			return o.String(), e.String()
		}
		out, errs := list()
		var narrow strings.Builder
		for line := range strings.Lines(out) {
			narrow.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
		if narrow.String() != c.out || errs != "" {
			t.Errorf("%s:\n%s%s\nwant:\n%s", name, narrow.String(), errs, c.out)
		}
		var routes wire.RouteList
		out, _ = list("--json")
		if err := json.Unmarshal([]byte(out), &routes); err != nil || len(routes.Items) != c.n {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
}

// sluice route test makes one request by the file, hides secrets, and fails as a job would.
func TestRouteTest(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/orders/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s\x1b[31m", r.Method, r.URL.Path, body, r.Header.Get("Authorization"))
	}))
	defer upstream.Close()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	lines := strings.ReplaceAll(`routes:
  partner: { url: "URL/orders", method: PUT, paths: true, job_headers: [X-Id], headers: { X-Version: "${env:KEY}", Authorization: "Bearer ${env:KEY}" } }
  any: { forward: "URL/any" }
  fleet: { asynq: { queue: q } }
  away: { url: "http://127.0.0.1:1/", oauth2: { token_url: "http://127.0.0.1:1/", client_id: c, client_secret: "${env:KEY}" } }
`, "URL", upstream.URL)
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"partner --payload 1", cli.ExitOK, []string{"PUT " + upstream.URL + "/orders\n", "Authorization: (hidden)", "X-Version: (hidden)", "status   200", "outcome  succeeded", "total ", "PUT /orders 1 (hidden)"}},
		{"partner --path /broken", cli.ExitFailed, []string{"/orders/broken", "status   500", "outcome  retry", "PUT /orders/broken {}", "would not have succeeded"}},
		{"any --path /x", cli.ExitOK, []string{"GET " + upstream.URL + "/any/x", "GET /any/x"}},
		{"any --payload b --json", cli.ExitOK, []string{`"method": "POST"`, `"status": 200`, `"outcome": "succeeded"`, `"took_ms"`}},
		{"away", cli.ExitFailed, []string{"nothing was sent", "status   none", "outcome  held", "the upstream's token could not be had", "connection refused"}},
		{"partner --header X-Id:17", cli.ExitOK, []string{"X-Id: 17"}},
		{"partner --header X-Other:17", cli.ExitUsage, []string{"--header: X-Other: must be one that the route lists"}},
		{"away --path /x", cli.ExitUsage, []string{"the route away has no paths: true"}},
		{"fleet", cli.ExitUsage, []string{"must be a route with url or forward"}},
		{"partnr", cli.ExitUsage, []string{"partner"}},
		{"partner --path x", cli.ExitUsage, []string{"--path: x: must"}},
		{"partner --method GET", cli.ExitUsage, []string{"--method: GET: must be absent"}},
		{"any --method a/b", cli.ExitUsage, []string{"--method: a/b"}},
	} {
		var o, e bytes.Buffer
		args := append([]string{"route", "test", "--config", file}, strings.Fields(c.args)...)
		code := run(t.Context(), args, cli.Stdio{Out: &o, Err: &e}, []string{"KEY=hunter2"})
		out := o.String() + e.String()
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", c.args, want, out)
			}
		}
		if code != c.code || strings.Contains(o.String(), "\x1b") || strings.Contains(out, "hunter2") {
			t.Errorf("%s: exit code %d, want %d:\n%q", c.args, code, c.code, out)
		}
	}
}
