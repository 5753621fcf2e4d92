package policies

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// admin is the admin listener over a queue with these pools, in which jobs of two tenants wait.
func admin(t *testing.T, pools map[string]shaper.PoolSettings) (url string) {
	t.Helper()
	reserve := func(limit int64) *shaper.Rate { return &shaper.Rate{Limit: limit, Period: time.Second} }
	q := queuetest.NewDesk(t, queue.Options{Pools: pools, Tenants: map[string]shaper.Overrides{
		"acme":     {Weight: new(int64(8)), Reserve: reserve(15)},
		"umbrella": {Reserve: reserve(10)},
	}})
	for _, tenant := range []string{"umbrella", "acme", "acme", "acme", "acme", "acme"} {
		if _, err := q.Submit(t.Context(), queue.Submission{Tenant: tenant, Route: "other", Type: "t",
			Payload: []byte("1")}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := api.New(q.Queue, api.Config{Routes: map[string]api.RouteInfo{"other": {MaxAttempts: 5}},
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Admin())
	t.Cleanup(server.Close)
	return server.URL
}

func TestPoolCommands(t *testing.T) {
	erp := admin(t, map[string]shaper.PoolSettings{"erp": {Routes: []string{"other"},
		Overrides: shaper.Overrides{Rate: &shaper.Rate{Limit: 20, Period: time.Second}}}})
	none := admin(t, nil)
	for _, c := range []struct {
		args []string
		code int
		out  []string // parts of standard output, without repeated spaces
		errs string   // part of standard error
		at   string
	}{
		{[]string{"list"}, cli.ExitOK, []string{"POOL RATE CAPACITY DEPTH RUNNING FLOWS LIMITED BY",
			"erp 20/s unbounded 6 0 2 workers, oversubscribed"}, "", erp},
		{[]string{"list"}, cli.ExitOK, nil, "declares no pools", none},
		{[]string{"list", "--json"}, cli.ExitOK, []string{`"items": []`}, "", none},
		{[]string{"get", "erp"}, cli.ExitOK, []string{"routes other", "rate 20/s file", "capacity unbounded default",
			"concurrency 0 default", "their weights 9", "their reserves 25/s, more than the rate"}, "", erp},
		{[]string{"get", "erp", "--json"}, cli.ExitOK, []string{`"oversubscribed": true`}, "", erp},
		{[]string{"set", "erp", "--rate", "50/s", "--rates", "100000/h burst 9", "--dry-run"},
			cli.ExitOK, []string{"rate 50/s api", "rates 100000/h burst 9 api",
				"their reserves 25/s\n"}, "", erp},
		{[]string{"get", "erp"}, cli.ExitOK, []string{"rate 20/s file"}, "", erp},
		{[]string{"set", "erp", "--rate", "30/s", "--concurrency", "4", "--reason", "contract"},
			cli.ExitOK, []string{"rate 30/s api", "concurrency 4 api", "reason contract"}, "", erp},
		{[]string{"set", "erp", "--reset", "rate"}, cli.ExitOK, []string{"rate 20/s file",
			"concurrency 4 api"}, "", erp},
		{[]string{"set", "erp", "--reset", "weight"}, cli.ExitUsage, nil, "must be one of the settings of a pool: ",
			erp},
		{[]string{"set", "erp"}, cli.ExitUsage, nil, "at least one setting is required", erp},
		{[]string{"set", "erp", "--burst", "0"}, cli.ExitFailed, nil, "burst", erp},
		{[]string{"pause", "erp", "--reason", "maintenance"}, cli.ExitOK, []string{"paused true api",
			"limited by paused"}, "", erp},
		{[]string{"resume", "erp"}, cli.ExitOK, []string{"paused false default"}, "", erp},
		{[]string{"unhold", "erp"}, cli.ExitOK, []string{"effective rate 20/s"}, "", erp},
		{[]string{"unhold", "erp", "--charge"}, cli.ExitOK, []string{"max cost 200 default", "hold flow, the pool for 1m0s at most"}, "", erp},
		{[]string{"history", "erp"}, cli.ExitOK, []string{"hold and charge ended", "holds ended", "paused reset, was true",
			"rate reset, was 30/s",
			"maintenance paused set to true", "contract rate set to 30/s, concurrency set to 4"}, "", erp},
		{[]string{"flows", "erp"}, cli.ExitOK, []string{"acme other 5 0 0 0 8 15/s 60%",
			"umbrella other 1 0 0 0 1 10/s 40%"}, "", erp},
		{[]string{"flows", "erp", "--limit", "1", "--json"}, cli.ExitOK, []string{`"part": 0.4`}, "",
			erp},
		{[]string{"flows", "erp", "--limit", "1001"}, cli.ExitFailed, nil, "limit", erp},
		{[]string{"get", "er"}, cli.ExitFailed, nil, "must be one of the pools of the configuration file: erp", erp},
		{[]string{"get", "nowhere"}, cli.ExitFailed, nil, "sluice pool list prints the pools", erp},
	} {
		var out, errs bytes.Buffer
		args := append([]string{"pool"}, c.args...)
		code := run(t.Context(), append(args, "--admin", c.at), cli.Stdio{In: strings.NewReader(""),
			Out: &out, Err: &errs}, nil)
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		printed := strings.Join(lines, "\n") + "\n"
		if code != c.code || !strings.Contains(errs.String(), c.errs) {
			t.Errorf("%v: exit code %d, want %d: %s", c.args, code, c.code, &errs)
		}
		for _, part := range c.out {
			if !strings.Contains(printed, part) {
				t.Errorf("%v: want %q in\n%s", c.args, part, printed)
			}
		}
	}
}

func TestOwedByAPool(t *testing.T) {
	var out strings.Builder
	if err := printPool(&out, wire.Pool{Owed: 2939}, false); err != nil ||
		!strings.Contains(out.String(), "2939: flows and tiers repay it before their next jobs") {
		t.Errorf("%v\n%s", err, &out)
	}
}
