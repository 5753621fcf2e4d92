package process_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/redistest"
)

// TestGrace: deliveries and forwarded requests that do not end delay the stop for worker.grace.
// Then they are cut off. One that may be sent again is, by another worker, and has not lost its
// last attempt. The client of any other request gets to know that there will be no answer.
func TestGrace(t *testing.T) {
	came, free := make(chan string, 8), make(chan struct{})
	stuck := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the client leaves
		came <- r.Method + r.URL.Path
		select {
		case <-r.Context().Done():
		case <-free:
		}
	}))
	defer stuck.Close()
	settings := map[string]any{
		"routes": map[string]any{
			"default": map[string]any{"url": stuck.URL + "/job", "retry": map[string]any{"max_attempts": 1}},
			"web":     map[string]any{"forward": stuck.URL, "retry": map[string]any{"max_attempts": 1}},
		},
		"worker": map[string]any{"grace": "1s"},
		"redis":  map[string]any{"url": redistest.Start(t).URL(), "allow_unsafe": true},
	}
	type answer struct {
		status    int
		job, body string
	}
	ask := func(method, url, prefer string) answer {
		req, err := http.NewRequest(method, "http://"+url, nil)
		if err != nil {
			return answer{body: err.Error()}
		}
		if prefer != "" {
			req.Header.Set("Prefer", prefer)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return answer{body: err.Error()}
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return answer{resp.StatusCode, path.Dir(resp.Header.Get("Location")), string(text)}
	}
	var stopped time.Time
	answers := map[string]chan answer{"GET": make(chan answer, 1), "POST": make(chan answer, 1)}
	t.Run("a process that stops", func(t *testing.T) {
		now := processtest.Start(t, settings)
		a := newAsker(t)
		if got := a.ask("POST", now.API.String()+"/v1/jobs", `{"type":"t","payload":1}`, nil); got != http.StatusAccepted {
			t.Fatalf("submit: %d", got)
		}
		for method, answered := range answers {
			go func() { answered <- ask(method, now.API.String()+"/v1/forward/web/"+method, "") }()
		}
		for range 3 {
			<-came
		}
		stopped = time.Now()
	})
	if took := time.Since(stopped); took < time.Second || took > 10*time.Second {
		t.Errorf("the stop took %v, want a second and a little more", took)
	}
	if got := <-answers["POST"]; got.status != http.StatusBadGateway || !strings.Contains(got.body, "worker stopped before") {
		t.Errorf("the client of a POST got %+v", got)
	}
	kept := <-answers["GET"]
	if kept.status != http.StatusServiceUnavailable || !strings.Contains(kept.body, "shutting-down") || kept.job == "" {
		t.Errorf("the client of a GET got %+v", kept)
	}
	t.Run("the next one", func(t *testing.T) {
		now := processtest.Start(t, settings)
		got := map[string]bool{}
		for range 2 {
			select {
			case request := <-came:
				got[request] = true
			case <-time.After(20 * time.Second):
			}
		}
		if !got["POST/job"] || !got["GET/GET"] {
			t.Errorf("delivered again: %v", got)
		}
		close(free)
		if got := ask("GET", now.API.String()+kept.job+"/response", "wait=20"); got.status != http.StatusOK {
			t.Errorf("the answer to the GET: %+v", got)
		}
	})
}
