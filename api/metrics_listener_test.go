package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestMetricsListener(t *testing.T) {
	b := newBench(t)
	ask := func(path string) (status int, body string) {
		w := httptest.NewRecorder()
		b.s.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://collected.example"+path, nil))
		return w.Code, w.Body.String()
	}
	if status, text := ask("/metrics"); status != http.StatusOK ||
		!strings.Contains(text, "sluice_queue_depth 0\n") {
		t.Errorf("%d %.200s", status, text)
	}
	for _, path := range []string{"/", "/v1/tenants", "/v1/jobs", "/livez"} {
		if status, text := ask(path); status != http.StatusNotFound || !strings.Contains(text, "not-found") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}
