package process_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
)

// TestPasswordForAWhile: a Redis that wants a password for a while is away. Clients get 503, and no
// delivery that is under way is repeated, though each ends meanwhile.
func TestPasswordForAWhile(t *testing.T) {
	t.Parallel()
	const jobs = 8
	var deliveries, under atomic.Int64
	end := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		deliveries.Add(1)
		under.Add(1)
		<-end
		under.Add(-1)
	}))
	defer upstream.Close()
	s := redistest.Start(t)
	now := processtest.Start(t, map[string]any{
		"redis":   map[string]any{"url": s.URL()},
		"routes":  map[string]any{"default": map[string]any{"url": upstream.URL}},
		"tenants": map[string]any{"defaults": map[string]any{"rate": "1000/s"}},
		"worker":  map[string]any{"lease": "5s"},
	})
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	submit := func() *http.Response {
		r, err := hc.Post("http://"+now.API.String()+"/v1/jobs", "application/json",
			strings.NewReader(`{"type":"t","payload":1}`))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		return r
	}
	for range jobs {
		if r := submit(); r.StatusCode != http.StatusAccepted {
			t.Fatal(r.Status)
		}
	}
	queuetest.Await(t, "the deliveries", func() bool { return under.Load() == jobs })

	options, err := redis.ParseURL(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	defer c.Close()
	admin := c.Conn()
	password := func(is string) {
		t.Helper()
		if err := admin.ConfigSet(t.Context(), "requirepass", is).Err(); err != nil {
			t.Fatal(err)
		}
		admin.Do(t.Context(), "client", "kill", "type", "normal")
	}
	password("x")
	queuetest.Await(t, "a refusal", func() bool { return submit().StatusCode != http.StatusAccepted })
	if r := submit(); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("%s, Retry-After %q, want 503", r.Status, r.Header.Get("Retry-After"))
	}
	close(end)
	queuetest.Await(t, "settlements to be refused", func() bool {
		return under.Load() == 0 &&
			metric(t, hc, now.Admin.String(), `sluice_script_errors_total\{fault="state",script="settle"\}`)
	})
	password("")
	operator := asker{T: t, client: hc}
	queuetest.Await(t, "the jobs to succeed", func() bool {
		var page wire.JobList
		operator.ask("GET", now.Admin.String()+"/v1/tenants/default/jobs?state=succeeded", "", &page)
		return len(page.Items) >= jobs
	})
	if n := deliveries.Load(); n != jobs {
		t.Errorf("%d deliveries of %d jobs", n, jobs)
	}
}
