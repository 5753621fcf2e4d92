package api

import (
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/listen"
)

// newRouter returns a router that counts every answer, sets safe headers, and answers errors with
// problems.
func (s *Server) newRouter(where string) *chi.Mux {
	unserved := nothingAt(where)
	r := chi.NewRouter()
	r.Use(s.observe, s.survive, openly, middleware.GetHead)
	r.NotFound(unserved)
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		allowed := allowedMethods(r, req)
		if len(allowed) == 0 { // chi did not match the path, because it does not know the method
			unserved(w, req)
			return
		}
		p := problem.MethodNotAllowed.With("allowed: " + strings.Join(allowed, ", ") + "; " + where)
		p.AllowedMethods = allowed
		p.SetHeader("Allow", strings.Join(allowed, ", ")).Write(w, req)
	})
	return r
}

// openly serves the paths that need no credential, as requests that nobody pays for.
func openly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isOpen(r) {
			listen.Unpaid(w, r, func() { next.ServeHTTP(w, r) })
		} else {
			next.ServeHTTP(w, r)
		}
	})
}

// nothingAt answers unknown paths.
func nothingAt(where string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { problem.NotFound.With(where).Write(w, r) }
}

// Details of a 404 by listener: the request may have been meant for the other one.
const (
	onIntake = "this is the listener of the API, for jobs (api.listen); tenants, keys, metrics and the " +
		"dashboard are on the admin listener (admin.listen); /docs lists the paths here"
	onAdmin = "this is the admin listener, for tenants, keys, metrics and the dashboard (admin.listen); " +
		"jobs are submitted and read on the listener of the API (api.listen); /docs lists the paths here"
	onMetrics = "this is the listener of metrics (metrics.listen), which serves /metrics only"
)

// allowedMethods returns the methods of the request's path. chi offers them only to its own
// handler.
func allowedMethods(router chi.Routes, r *http.Request) []string {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var allowed []string
	for _, m := range []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	} {
		probe := m
		if m == http.MethodHead { // answered as GET
			probe = http.MethodGet
		}
		if router.Match(chi.NewRouteContext(), probe, path) {
			allowed = append(allowed, m)
		}
	}
	return slices.Clip(allowed)
}

// observe counts every request under its route's pattern and logs it at debug, with ids and without
// its content.
func (s *Server) observe(next http.Handler) http.Handler { return s.observeAs("unmatched", next) }

// observeAs is observe for requests that the router does not match.
func (s *Server) observeAs(pattern string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		w.Header()["X-Content-Type-Options"] = noSniff
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		defer func() {
			route, id := pattern, ""
			if rc := chi.RouteContext(r.Context()); rc != nil {
				if pattern := rc.RoutePattern(); pattern != "" && !strings.HasSuffix(pattern, "*") {
					route = pattern
				}
				id = rc.URLParam("id")
			}
			status := ww.Status()
			if status == 0 {
				status = http.StatusOK
			}
			took := time.Since(start)
			s.metrics.request(r.Method, route, status, took)
			if s.log.Enabled(r.Context(), slog.LevelDebug) {
				s.log.LogAttrs(r.Context(), slog.LevelDebug, "request", slog.String("method", r.Method),
					slog.String("route", route), slog.Int("status", status), slog.Duration("took", took),
					slog.String("job", id))
			}
		}()
		next.ServeHTTP(ww, r)
	})
}

// survive turns a panic into an internal fault. If the answer has begun, it closes the connection
// so that the client gets an error.
func (s *Server) survive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			fault := recover()
			if fault == nil {
				return
			}
			if err, isErr := fault.(error); isErr && errors.Is(err, http.ErrAbortHandler) {
				if !r.ProtoAtLeast(1, 1) {
					listen.Reset(w)
				}
				panic(fault)
			}
			s.log.Error("panic in a handler", "fault", faultText(fault), "stack", string(debug.Stack()))
			if ww, wraps := w.(middleware.WrapResponseWriter); wraps && ww.Status() != 0 {
				panic(http.ErrAbortHandler)
			}
			problem.InternalFault.With("the server's log has the cause").Write(w, r)
		}()
		next.ServeHTTP(w, r)
	})
}
