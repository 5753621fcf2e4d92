package process_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

// TestGrace: a delivery and a forwarded request that do not end delay the stop for worker.grace.
func TestGrace(t *testing.T) {
	came := make(chan struct{}, 2)
	stuck := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the client leaves
		came <- struct{}{}
		<-r.Context().Done()
	}))
	defer stuck.Close()
	var stopped time.Time
	answered := make(chan int, 1)
	t.Run("a process", func(t *testing.T) {
		now := processtest.Start(t, map[string]any{
			"routes": map[string]any{
				"default": map[string]any{"url": stuck.URL}, "web": map[string]any{"forward": stuck.URL},
			},
			"worker": map[string]any{"grace": "1s"},
		})
		a := newAsker(t)
		if got := a.ask("POST", now.API.String()+"/v1/jobs", `{"type":"t","payload":1}`, nil); got != http.StatusAccepted {
			t.Fatalf("submit: %d", got)
		}
		go func() {
			resp, err := http.Post("http://"+now.API.String()+"/v1/forward/web/", "text/plain", nil)
			if err != nil {
				answered <- 0
				return
			}
			_ = resp.Body.Close()
			answered <- resp.StatusCode
		}()
		<-came
		<-came
		stopped = time.Now()
	})
	if took := time.Since(stopped); took < time.Second || took > 10*time.Second {
		t.Errorf("the stop took %v, want a second and a little more", took)
	}
	// The worker gives the delivery up at the instant at which the server stops waiting for it.
	if got := <-answered; got != http.StatusServiceUnavailable && got != http.StatusBadGateway {
		t.Errorf("the client that waited got %d", got)
	}
}
