package policies

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
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

// The routes in trouble come first, with the tenant and the job of the last failure.
func TestRouteList(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		routes map[string]reports.RouteLoad
		out    string
		n      int
	}{
		"idle": {nil, "ROUTE BREAKER IN FLIGHT ENDED FAILED LAST TENANT LAST JOB LAST FAILURE\nmail closed 0 0 0 - - -\n", 1},
		"failing": {map[string]reports.RouteLoad{
			"fine": {Ended: 9},
			"mail": {InFlight: 2, Ended: 40, Failed: 7, Last: reports.FailureOf(at, "acme", "j1", "connection\nfailed", "dial 10.0.0.7", 0)},
			"away": {Breaker: reports.BreakerOpen},
		}, `ROUTE BREAKER IN FLIGHT ENDED FAILED LAST TENANT LAST JOB LAST FAILURE
away open 0 0 0 - - -
mail closed 2 40 7 acme j1 connection failed: dial 10.0.0.7
fine closed 0 9 0 - - -
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
