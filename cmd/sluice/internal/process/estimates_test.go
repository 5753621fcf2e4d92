package process_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

// On a route with cost_from, the estimate of a job that runs refuses none that leaves in time once
// its answer has the actual cost. Without the setting it does.
func TestEstimatesOfAProcess(t *testing.T) {
	answer := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte(`{"cost":1}`))
	}))
	defer upstream.Close()
	now := processtest.Start(t, map[string]any{
		"tenants": map[string]any{"defaults": map[string]any{"rate": "10/s"}},
		"routes": map[string]any{
			"default": map[string]any{"url": upstream.URL, "cost_from": "/cost"},
			"exact":   map[string]any{"url": upstream.URL, "cost_from": "none"},
		},
	})
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	jobs, err := client.New("http://"+now.API.String(), "", hc)
	if err != nil {
		t.Fatal(err)
	}
	for route, in := range map[string]bool{"default": true, "exact": false} {
		s := client.Submission{Submission: wire.Submission{Type: "t", Payload: json.RawMessage("1"), Route: route, Cost: 200}}
		if _, err := jobs.Submit(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		s.MaxWaitMS = 10_000 // of 20 s by the estimate
		if _, err := jobs.Submit(t.Context(), s); (err == nil) != in {
			t.Errorf("route %s: %v", route, err)
		}
	}
	close(answer)
	s := client.Submission{Wait: 30 * time.Second, Submission: wire.Submission{Type: "t", Payload: json.RawMessage("1")}}
	if got, err := jobs.Submit(t.Context(), s); err != nil || got.Job.State != "succeeded" {
		t.Errorf("the third job: %+v %v", got.Job, err)
	}
}
