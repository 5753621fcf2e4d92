package process_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
)

// TestGuardsOfAProcess: a guest sends two jobs a minute, is then blocked as the configuration says,
// and is let go by the operator.
func TestGuardsOfAProcess(t *testing.T) {
	now := processtest.Start(t, map[string]any{
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
		"auth":   map[string]any{"mode": "guest"},
		"guards": map[string]any{"guests": map[string]any{
			"rate": "2/m", "algorithm": "sliding-log", "block": "60s", "by": []any{"guest"},
			"endpoints": []any{"submit-job"},
		}},
	})
	ask := newAsker(t).ask
	submit := func(want int) {
		t.Helper()
		if got := ask("POST", now.API.String()+"/v1/jobs", `{"type":"t","payload":1}`, nil); got != want {
			t.Errorf("a submission: %d, want %d", got, want)
		}
	}
	submit(http.StatusAccepted)
	submit(http.StatusAccepted)
	submit(http.StatusTooManyRequests)
	if got := ask("GET", now.API.String()+"/v1/jobs?state=queued", "", nil); got != http.StatusOK {
		t.Errorf("an operation that is not guarded: %d", got)
	}
	var blocked wire.BlockedList
	guard := now.Admin.String() + "/v1/guards/guests/blocked"
	queuetest.Compare(t, "the status of the blocked keys", ask("GET", guard, "", &blocked), http.StatusOK)
	if len(blocked.Items) != 1 || blocked.Items[0].Key != "guest:127.0.0.1" {
		t.Errorf("the blocked keys are %+v, want guest:127.0.0.1 alone", blocked.Items)
	}
	if got := ask("DELETE", guard+"/guest:127.0.0.1", "", nil); got != http.StatusNoContent {
		t.Errorf("clear: %d", got)
	}
	submit(http.StatusAccepted)
}

// A guard of logins counts those alone and those in batches, and no orders.
func TestLoginsOfAProcess(t *testing.T) {
	now := processtest.Start(t, map[string]any{
		"routes": map[string]any{
			"default": map[string]any{"url": "http://127.0.0.1:9/"},
			"login":   map[string]any{"url": "http://127.0.0.1:9/login"},
		},
		"tenants": map[string]any{"defaults": map[string]any{"paused": true}},
		"guards": map[string]any{"logins": map[string]any{
			"rate": "5/m", "by": []any{"address"}, "routes": []any{"login"},
		}},
	})
	a := newAsker(t)
	const login, order = `{"type":"user.login","route":"login","payload":1}`,
		`{"type":"order.create","payload":1}`
	single := func(body string, want int) {
		t.Helper()
		if got := a.ask("POST", now.API.String()+"/v1/jobs", body, nil); got != want {
			t.Errorf("%s: %d, want %d", body, got, want)
		}
	}
	for range 3 {
		single(login, http.StatusAccepted)
		single(order, http.StatusAccepted)
	}
	var got wire.BatchResult
	code := a.ask("POST", now.API.String()+"/v1/jobs/batch",
		`{"jobs":[`+strings.Join([]string{login, order, login, login, order}, ",")+`]}`, &got)
	if code != http.StatusOK {
		t.Fatal(code)
	}
	for i, want := range []int{202, 202, 202, 429, 202} {
		if got.Items[i].Status != want {
			t.Errorf("job %d of the batch: %+v, want %d", i, got.Items[i], want)
		}
	}
	refusal := got.Items[3].Problem
	queuetest.Compare(t, "the guard that refuses", refusal.Guard, "logins")
	if refusal.RetryAfterMS < 1 || refusal.RetryAfterMS > 12_000 {
		t.Errorf("retry_after_ms is %d, want 1 to 12000", refusal.RetryAfterMS)
	}
	single(login, http.StatusTooManyRequests)
	single(order, http.StatusAccepted)
	var tenant wire.Tenant
	if a.ask("GET", now.Admin.String()+"/v1/tenants/default", "", &tenant); tenant.Depth != 11 {
		t.Errorf("%d jobs wait", tenant.Depth)
	}
}

// TestGuardsOnACluster: the keys of a guard are spread over the nodes of a Redis Cluster, each gets
// its limit and no more, and the operator sees and clears those of all nodes.
func TestGuardsOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	now := processtest.Start(t, map[string]any{
		"redis":   map[string]any{"url": cluster.URL()},
		"routes":  map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
		"tenants": map[string]any{"defaults": map[string]any{"paused": true}},
		"guards": map[string]any{
			"orders": map[string]any{
				"rate": "3/h", "algorithm": "sliding-log", "block": "2h", "by": []any{"tenant"},
				"types": []any{"order"}, "on_error": "closed",
			},
			"all": map[string]any{"rate": "5/h", "by": []any{"tenant", "endpoint"}, "on_error": "closed"},
		},
	})
	a := newAsker(t)
	const tenants = 20
	for i := range tenants {
		a.tenant = fmt.Sprintf("tenant %d", i)
		var codes []int
		for _, kind := range []string{"order", "order", "order", "order", "other", "other"} {
			codes = append(codes, a.ask("POST", now.API.String()+"/v1/jobs", `{"type":"`+kind+`","payload":1}`, nil))
		}
		// The sixth is beyond the guard of all.
		if want := []int{202, 202, 202, 429, 202, 429}; !slices.Equal(codes, want) {
			t.Errorf("%s: %v, want %v", a.tenant, codes, want)
		}
	}
	nodes := cluster.Slots(t.Context())
	if len(nodes[0]) < 3 || len(nodes[1]) < 3 {
		t.Errorf("the slots with keys are %v", nodes)
	}
	var blocked wire.BlockedList
	guard := now.Admin.String() + "/v1/guards/orders/blocked"
	if got := a.ask("GET", guard, "", &blocked); got != http.StatusOK || len(blocked.Items) != tenants {
		t.Fatalf("%d, %d keys", got, len(blocked.Items))
	}
	for _, item := range blocked.Items {
		if got := a.ask("DELETE", guard+"/"+url.PathEscape(item.Key), "", nil); got != http.StatusNoContent {
			t.Errorf("clear %s: %d", item.Key, got)
		}
	}
	if a.ask("GET", guard, "", &blocked); len(blocked.Items) != 0 {
		t.Errorf("still blocked: %+v", blocked.Items)
	}
}
