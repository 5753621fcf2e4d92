package process

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
)

// gate answers requests until the handler behind it is ready: /livez with 200, because the process
// lives, and everything else with 503.
type gate struct{ behind atomic.Pointer[http.Handler] }

func newGate() *gate { return &gate{} }

// open passes all further requests to h.
func (g *gate) open(h http.Handler) { g.behind.Store(&h) }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := g.behind.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	if r.URL.Path == "/livez" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"status": "ok"})
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "urn:sluice:problem:starting", "title": "Starting", "status": http.StatusServiceUnavailable,
		"detail": "The process is waiting for Redis.",
	})
}
