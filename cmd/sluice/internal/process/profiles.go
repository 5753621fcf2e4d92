package process

import (
	"net/http"
	"net/http/pprof"
	"time"
)

const (
	profilesPath = "/debug/pprof"
	// longestProfile bounds the duration of one profile, and so of its answer.
	longestProfile = 2 * time.Minute
)

// profiles serves the runtime's profiles of this process, for `go tool pprof`.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(profilesPath+"/", pprof.Index)
	mux.HandleFunc(profilesPath+"/cmdline", http.NotFound) // it may show a password
	mux.HandleFunc(profilesPath+"/profile", pprof.Profile)
	mux.HandleFunc(profilesPath+"/symbol", pprof.Symbol)
	mux.HandleFunc(profilesPath+"/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Fails without a deadline to extend.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(longestProfile))
		mux.ServeHTTP(w, r)
	})
}
