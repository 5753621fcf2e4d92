package worker

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/shaper"
)

func TestNewNamesEveryProblem(t *testing.T) {
	_, err := newWorker(nil, nil, nil, Config{
		Lease: time.Millisecond, Concurrency: -1,
		Routes: map[string]Route{
			"a": {URL: "ftp://user:secret@host/x?token=secret"},
			"b": {
				URL: "http://host/", Secrets: []string{"whsec_!secret"},
				Retry: Retry{MinBackoff: time.Minute, MaxBackoff: time.Second},
			},
		},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, field := range []string{
		"lease", "horizon", "concurrency", "routes.a.url", "routes.b.secrets[0]",
		"routes.b.retry.max_backoff",
	} {
		if !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s is missing in %v", field, err)
		}
	}
	if strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), "token") ||
		strings.Contains(err.Error(), "!secret") {
		t.Errorf("a secret is quoted: %v", err)
	}
}

func TestNewWantsOneKindOfRoute(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	handler := asynq.NotFoundHandler()
	orders := &AsynqRoute{Queue: "orders"}
	tests := []struct {
		name  string
		route Route
		cfg   Config
		want  []string // problems, each as field: value: rule begins
	}{
		{"url", Route{URL: "http://host/"}, Config{}, nil},
		{"handler", Route{Handler: true}, Config{Handler: handler}, nil},
		{"asynq", Route{Asynq: orders}, Config{AsynqClient: client}, nil},
		{"asynq with reports", Route{Asynq: &AsynqRoute{Queue: "orders", Reports: true,
			ReportWithin: time.Minute}}, Config{AsynqClient: client}, nil},
		{"nothing", Route{}, Config{}, []string{"routes.r: nothing: must have exactly one of url, handler, " +
			"asynq and forward"}},
		{"two", Route{URL: "http://host/", Handler: true}, Config{Handler: handler},
			[]string{"routes.r: url, handler: "}},
		{"all, and nothing for them", Route{URL: "ftp://host/", Handler: true, Asynq: orders}, Config{}, []string{
			"routes.r: url, handler, asynq: ", "routes.r.url: ",
			"routes.r.handler: true: needs Config.Handler",
			"routes.r.asynq: orders: needs Config.AsynqClient",
		}},
		{"handler without one", Route{Handler: true}, Config{},
			[]string{"routes.r.handler: true: needs Config.Handler"}},
		{"blank queue", Route{Asynq: &AsynqRoute{Queue: " "}}, Config{AsynqClient: client},
			[]string{`routes.r.asynq.queue: " ": `}},
		{"reports sooner than the lease", Route{Asynq: &AsynqRoute{Queue: "q", ReportWithin: time.Second}},
			Config{AsynqClient: client}, []string{"routes.r.asynq.report_within: 1s: "}},
		{"most attempts", Route{URL: "http://host/", Retry: Retry{MaxAttempts: 65_535}}, Config{}, nil},
		{"more attempts than are counted", Route{URL: "http://host/", Retry: Retry{MaxAttempts: 65_536}},
			Config{}, []string{"routes.r.retry.max_attempts: 65536: must be 1 to 65535"}},
		{"breaker", Route{URL: "http://host/", Breaker: Breaker{Failures: 3, Delay: time.Hour}}, Config{}, nil},
		{"breaker out of bounds", Route{
			URL: "http://host/", Breaker: Breaker{Failures: -1, Share: 101, Delay: time.Hour + 1},
		}, Config{}, []string{
			"routes.r.breaker.failures: -1: ", "routes.r.breaker.share: 101: ", "routes.r.breaker.delay: 1h0m0.000000001s: ",
		}},
		{"breaker without requests", Route{Handler: true, Breaker: Breaker{Failures: 3}}, Config{Handler: handler}, []string{"routes.r.breaker.failures: 3: "}},
		{"cost from", Route{URL: "http://host/", CostFrom: "/usage/total_tokens"}, Config{}, nil},
		{"cost from no pointer", Route{URL: "http://host/", CostFrom: "usage.total_tokens"}, Config{}, []string{`routes.r.cost_from: "usage.total_tokens": must be none, header or a JSON pointer`}},
		{"no cost, cost of a header", Route{URL: "http://host/", CostFrom: "none", MinCost: new(int64(0))}, Config{}, nil},
		{"cost of a header", Route{Forward: &Forward{URL: "http://host/"}, CostFrom: "header", MinCost: new(int64(1_000_000))}, Config{}, nil},
		{"least cost out of bounds", Route{URL: "http://host/", MinCost: new(int64(1_000_001))}, Config{}, []string{"routes.r.min_cost: 1000001: must be 0 to 1000000"}},
		{"paths without a URL", Route{Handler: true, Paths: true}, Config{Handler: handler}, []string{"routes.r.paths: true: are below a url only"}},
		{"cost without requests", Route{Handler: true, CostFrom: "/usage"}, Config{Handler: handler}, []string{"routes.r.cost_from: /usage: reads answers of a url or forward only"}},
		{"secrets without requests", Route{Handler: true, Secrets: []string{"whsec_c2VjcmV0c2VjcmV0c2VjcmV0"}}, Config{Handler: handler}, []string{"routes.r.secrets: (hidden): "}},
	}
	for _, tt := range tests {
		tt.cfg.Routes = map[string]Route{"r": tt.route}
		_, err := newWorker(nil, nil, nil, tt.cfg)
		var problems shaper.Problems
		if (err != nil) != (len(tt.want) > 0) ||
			err != nil && (!errors.As(err, &problems) || len(problems) != len(tt.want)) {
			t.Errorf("%s: %v, want %d problems", tt.name, err, len(tt.want))
			continue
		}
		for i, p := range problems {
			got := p.Field + ": " + p.Value + ": " + p.Rule
			if !slices.ContainsFunc(tt.want, func(w string) bool { return strings.HasPrefix(got, w) }) {
				t.Errorf("%s: problem %d is %q", tt.name, i, got)
			}
		}
	}
}

func TestNewReportsMetricsThatAreRegisteredAlready(t *testing.T) {
	registry := prometheus.NewRegistry()
	for i := range 2 {
		if _, err := newWorker(nil, nil, nil, Config{Registerer: registry}); (err != nil) != (i == 1) {
			t.Errorf("worker %d: %v", i, err)
		}
	}
}
