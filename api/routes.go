package api

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/internal/operators"
)

// tokenScheme names the admin token in the OpenAPI document.
const tokenScheme = "token"

// intakeRouter serves the data plane.
func (s *Server) intakeRouter() (http.Handler, error) {
	r := s.newRouter(onIntake)
	r.Use(reserveConnections, s.keepLocal)
	api := contract.New(r, "Sluice intake", s.cfg.Version.Version)
	s.secure(api)
	handlers := s.handlers()
	for _, op := range append(s.guarded(contract.Jobs(s.cfg.MaxBody)), contract.Probes()...) {
		s.mount(api, op, handlers[op.ID], true)
	}
	for _, op := range s.guarded(contract.Forward(s.cfg.MaxBody)) { // served by forwarding
		s.document(api, op, true)
	}
	if err := contract.Serve(r, api); err != nil {
		return nil, fmt.Errorf("api: intake document: %w", err)
	}
	return s.forwarding(r), nil
}

// adminRouter serves the control plane.
func (s *Server) adminRouter() (http.Handler, error) {
	r := s.newRouter(onAdmin)
	r.Use(s.authorizeAdmin)
	api := contract.New(r, "Sluice admin", s.cfg.Version.Version)
	if s.cfg.AdminToken != "" {
		api.OpenAPI().Components.SecuritySchemes = map[string]*huma.SecurityScheme{tokenScheme: {
			Type: "http", Scheme: "bearer",
		}}
	}
	operations := slices.Concat(contract.Tenants(), contract.Pools(),
		contract.TenantJobs(s.cfg.AdminSubmit, s.cfg.MaxBody),
		contract.Arrivals(), contract.Figures(), contract.Audit(),
		contract.Guards(), contract.Operators(), contract.Probes())
	handlers := s.handlers()
	for _, op := range append(operations, contract.Version()) {
		s.mount(api, op, handlers[op.ID], false)
	}
	contract.DescribeSettings(api)
	page := deadline.Handler(s.signing(s.board))
	for _, path := range []string{
		dashboard.PagePath, dashboard.LoginPath, dashboard.SignOnPath, dashboard.CallbackPath, dashboard.AssetsPath + "*",
	} {
		r.Method(http.MethodGet, path, page)
	}
	for _, path := range []string{dashboard.LoginPath, dashboard.LogoutPath} {
		r.Method(http.MethodPost, path, page)
	}
	for path, page := range s.cfg.AdminPages {
		page = deadline.Handler(s.pageRead(path, unframed(restrict(operators.Admin, page))))
		r.Handle(path, page)
		r.Handle(path+"/*", page)
	}
	s.serveMetrics(r.With(func(next http.Handler) http.Handler { return restrict(operators.Viewer, next) }))
	if err := contract.Serve(r, api); err != nil {
		return nil, fmt.Errorf("api: admin document: %w", err)
	}
	return r, nil
}

// unframed serves a page that no other page may show within itself.
func unframed(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "frame-ancestors 'none'")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		page.ServeHTTP(w, r)
	})
}

// metricsRouter serves metrics and nothing else.
func (s *Server) metricsRouter() http.Handler {
	r := s.newRouter(onMetrics)
	s.serveMetrics(r)
	return r
}

func (s *Server) serveMetrics(r chi.Router) {
	if s.cfg.Gatherer != nil {
		r.Handle("/metrics", deadline.Handler(promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{})))
	}
}

// handler serves one operation.
type handler func(*call) (*answer, error)

// handlers returns the handler of each operation of package contract, by id.
func (s *Server) handlers() map[string]handler {
	return map[string]handler{
		"submit-job":     s.postJob,
		"submit-batch":   s.postBatch,
		"list-jobs":      s.listJobs,
		"get-job":        s.getJob,
		"stream-job":     s.streamJob,
		"get-answer":     s.getAnswer,
		"cancel-job":     s.deleteJob,
		"replay-job":     s.replayJob,
		"livez":          s.livez,
		"readyz":         s.readyz,
		"version":        s.version,
		"list-tenants":   s.listTenants,
		"get-tenant":     s.getTenant,
		"put-tenant":     s.putTenant,
		"patch-tenant":   s.patchTenant,
		"delete-tenant":  s.deleteTenant,
		"pause-tenant":   s.pauseTenant,
		"resume-tenant":  s.resumeTenant,
		"unhold-tenant":  s.unholdTenant,
		"drain-tenant":   s.drainTenant,
		"purge-tenant":   s.purgeTenant,
		"erase-tenant":   s.eraseTenant,
		"purge-tenants":  s.purgeTenants,
		"replay-tenant":  s.replayTenant,
		"tenant-history": s.tenantHistory,
		"list-pools":     s.listPools,
		"get-pool":       s.ofPool(s.getPool),
		"put-pool":       s.ofPool(s.putPool),
		"patch-pool":     s.ofPool(s.patchPool),
		"pause-pool":     s.ofPool(s.pausePool),
		"resume-pool":    s.ofPool(s.resumePool),
		"unhold-pool":    s.ofPool(s.unholdPool),
		"pool-history":   s.ofPool(s.poolHistory),
		"pool-flows":     s.ofPool(s.poolFlows),
		"predict-pool":   s.ofPool(s.predictPool),
		"create-key":     s.createKey,
		"list-keys":      s.listKeys,
		"revoke-key":     s.revokeKey,
		"revoke-tokens":  s.revokeTokens,

		"create-callback-secret": s.createCallbackSecret,
		"list-callback-secrets":  s.listCallbackSecrets,
		"revoke-callback-secret": s.revokeCallbackSecret,
		"get-callback-endpoints": s.getCallbackEndpoints,
		"put-callback-endpoints": s.putCallbackEndpoints,
		"create-operator":        s.createOperator,
		"list-operators":         s.listOperators,
		"revoke-operator":        s.revokeOperator,
		"get-self":               s.getSelf,
		"list-sessions":          s.listSessions,
		"end-session":            s.endSession,
		"list-tenant-jobs":       s.listTenantJobs,
		"find-job":               s.findJob,
		"get-tenant-job":         s.getTenantJob,
		"cancel-tenant-job":      s.ofTenant(s.deleteJob),
		"replay-tenant-job":      s.ofTenant(s.replayJob),
		"stream-tenant-job":      s.ofTenant(s.streamJob),
		"submit-tenant-job":      s.ofTenant(s.submitTenantJob),
		"follow-arrivals":        s.followArrivals,
		"predict-tenant":         s.predictTenant,
		"list-guards":            s.listGuards,
		"list-blocked":           s.listBlocked,
		"clear-blocked":          s.clearBlocked,
		"list-audit":             s.listAudit,
		"get-stats":              s.getStats,
		"list-routes":            s.listRoutes,
		"stream-figures":         s.streamFigures,
	}
}
