package process_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

// The setting job_headers of a route lets its jobs set these headers, and no others.
func TestJobHeadersOfAProcess(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.Header.Get("X-Request-Id")))
	}))
	defer upstream.Close()
	now := processtest.Start(t, map[string]any{
		"routes": map[string]any{"default": map[string]any{"url": upstream.URL, "job_headers": []any{"X-Request-Id"}}},
	})
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	jobs, err := client.New("http://"+now.API.String(), "", hc)
	if err != nil {
		t.Fatal(err)
	}
	s := client.Submission{Wait: 30 * time.Second, Submission: wire.Submission{
		Type: "t", Payload: json.RawMessage("1"), Headers: map[string]string{"X-Request-Id": "17"},
	}}
	if got, err := jobs.Submit(t.Context(), s); err != nil || got.Job.Response == nil || got.Job.Response.Body != "17" {
		t.Errorf("%+v %v", got.Job, err)
	}
	s.Headers = map[string]string{"X-Other": "17"}
	if _, err := jobs.Submit(t.Context(), s); err == nil || !strings.Contains(err.Error(), "headers.X-Other") {
		t.Errorf("a header that is not listed: %v", err)
	}
}
