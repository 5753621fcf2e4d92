package process

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
)

// gate is a handler that stands before another one until that is ready. Meanwhile /livez is 200,
// for the process lives, and everything else 503.
type gate struct{ behind atomic.Pointer[http.Handler] }

func newGate() *gate { return &gate{} }

// open lets requests through to h from now on.
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
		"detail": "The process waits for Redis.",
	})
}
