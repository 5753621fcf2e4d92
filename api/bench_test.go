package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// BenchmarkSubmit is the submission path without the network and the store.
func BenchmarkSubmit(b *testing.B) { submitAll(b, func(c *Config) { c.Registerer = nil }) }

// submitAll submits jobs to a server with this configuration.
func submitAll(b *testing.B, configure func(*Config)) {
	b.Helper()
	bench := newBench(b, configure)
	bench.admin.do(b, "PATCH", "/v1/tenants/default", nil, `{"capacity":1000000000}`)
	h := bench.s.Intake()
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "/v1/jobs", strings.NewReader(plainJob))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusAccepted {
			b.Fatal(w.Code, w.Body)
		}
	}
}
