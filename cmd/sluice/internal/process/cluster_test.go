package process_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
)

// TestProcessOnACluster: what users do works on a Redis Cluster, with tenants on both nodes.
// TestGuardsOnACluster is about guards.
func TestProcessOnACluster(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	cluster := redistest.StartCluster(t)
	t.Run("deliveries", func(t *testing.T) { useProcess(t, cluster.URL()) })
	t.Run("operations", func(t *testing.T) { operateProcess(t, cluster.URL()) })
	for i, slots := range cluster.Slots(t.Context()) {
		if len(slots) < 3 {
			t.Errorf("node %d has keys in the slots %v alone", i+1, slots)
		}
	}
}

// operateProcess submits with keys, waits, replays, purges, tunes, and follows the figures.
func operateProcess(t *testing.T, redisURL string) {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "bad") {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, body)
	}))
	defer upstream.Close()
	now := processtest.Start(t, map[string]any{
		"redis": map[string]any{"url": redisURL},
		"auth":  map[string]any{"mode": "keys"},
		"pools": map[string]any{"shared": map[string]any{"rate": "500/s", "routes": []any{"pooled"}}},
		"routes": map[string]any{
			"default": map[string]any{"url": upstream.URL},
			"pooled":  map[string]any{"url": upstream.URL},
			"partner": map[string]any{"forward": upstream.URL},
		},
	})
	hc := &http.Client{}
	t.Cleanup(hc.CloseIdleConnections)
	dial := func(at, token string) *client.Client {
		c, err := client.New("http://"+at, token, hc)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, operator := t.Context(), dial(now.Admin.String(), "")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	live, err := operator.Live(ctx, client.View{Tenant: "tenant 1"}, time.Minute)
	must(err)
	defer live.Close()
	for i := range 8 {
		tenant := fmt.Sprint("tenant ", i)
		key, err := operator.CreateKey(ctx, tenant, wire.KeyRequest{Name: "test"})
		must(err)
		intake := dial(now.API.String(), key.Secret)
		submit := func(payload, route string, wait time.Duration) wire.Job {
			t.Helper()
			got, err := intake.Submit(ctx, client.Submission{Wait: wait, Submission: wire.Submission{
				Type: "t", Route: route, Payload: json.RawMessage(payload),
			}})
			must(err)
			return got.Job
		}
		for _, route := range []string{"default", "pooled"} {
			queuetest.Compare(t, "the end of a job that is waited for", submit("1", route, 20*time.Second).State, "succeeded")
		}
		queuetest.Compare(t, "the end of a bad one", submit(`"bad"`, "default", 20*time.Second).State, "dead")
		swept, err := operator.ReplayAll(ctx, tenant, wire.Filter{State: "dead"})
		must(err)
		queuetest.Compare(t, "replayed jobs", swept.Count, 1)
		queuetest.Await(t, "its second end", func() bool {
			page, err := intake.Jobs(ctx, client.List{State: "dead"})
			must(err)
			return len(page.Items) == 1
		})

		paused, err := operator.Patch(ctx, tenant, map[string]any{"paused": true, "rate": map[string]any{"limit": 7, "period_ms": 1000}})
		must(err)
		queuetest.Compare(t, "the tuned rate", paused.Rate.Limit, 7)
		for range 3 {
			submit("1", "default", 0)
		}
		swept, err = operator.Purge(ctx, tenant, wire.Filter{State: "queued"})
		must(err)
		queuetest.Compare(t, "purged jobs", swept.Count, 3)
		_, err = operator.Resume(ctx, tenant, "")
		must(err)

		queuetest.Compare(t, "a forwarded request", forwarded(t, hc, now.API.String(), key.Secret, i), fmt.Sprintf("PUT /orders/%d?q ping", i))
		must(operator.RevokeKey(ctx, tenant, key.ID))
		queuetest.Await(t, "the end of the key", func() bool { _, err := intake.Jobs(ctx, client.List{}); return err != nil })
	}
	all, err := operator.Tenants(ctx, "", 100)
	must(err)
	if found := slices.ContainsFunc(all.Items, func(s wire.Tenant) bool { return s.Tenant == "tenant 7" }); !found {
		t.Errorf("the list of %d tenants lacks one", len(all.Items))
	}
	_, err = operator.PausePool(ctx, "shared", "")
	must(err)
	pool, err := operator.Pool(ctx, "shared")
	must(err)
	queuetest.Compare(t, "the pool is paused", *pool.Paused, true)
	for {
		event, err := live.Next()
		must(err)
		var shown struct {
			Tenant string `json:"tenant"`
		}
		if event.Name == "tenant" && json.Unmarshal(event.Data, &shown) == nil && shown.Tenant == "tenant 1" {
			break
		}
	}
}

// forwarded is the body of the answer to a request that is forwarded.
func forwarded(t *testing.T, hc *http.Client, at, key string, i int) string {
	t.Helper()
	target := fmt.Sprintf("http://%s/v1/forward/partner/orders/%d?q", at, i)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, target, strings.NewReader("ping"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Sluice-Api-Key", key)
	resp, err := hc.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
