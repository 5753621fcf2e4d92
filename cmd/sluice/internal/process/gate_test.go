package process

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
)

// Until the gate opens, /livez answers 200 and the rest 503, with a problem that is documented.
// Then it forwards everything.
func TestGate(t *testing.T) {
	g := newGate()
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	if w := ask("/livez"); w.Code != http.StatusOK {
		t.Errorf("/livez before: %d", w.Code)
	}
	for _, path := range []string{"/readyz", "/v1/jobs/x"} {
		w := ask(path)
		queuetest.Compare(t, path+" before: the status", w.Code, http.StatusServiceUnavailable)
		queuetest.Compare(t, path+" before: the Content-Type", w.Header().Get("Content-Type"),
			"application/problem+json")
		if w.Header().Get("Retry-After") == "" {
			t.Errorf("%s before: there is no Retry-After", path)
		}
	}
	// Clients find the problem in the document.
	var said wire.Problem
	if err := json.Unmarshal(ask("/v1/jobs/x").Body.Bytes(), &said); err != nil {
		t.Fatal(err)
	}
	s, err := api.New(queuetest.NewDesk(t, queue.Options{}).Queue, api.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]http.Handler{"intake": s.Intake(), "admin": s.Admin()} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/openapi.json", nil))
		if !strings.Contains(w.Body.String(), said.Type+": "+said.Title) {
			t.Errorf("%s: %s is not documented as %q", name, said.Type, said.Title)
		}
	}
	g.open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for _, path := range []string{"/livez", "/readyz"} {
		if w := ask(path); w.Code != http.StatusTeapot {
			t.Errorf("%s after: %d", path, w.Code)
		}
	}
}
