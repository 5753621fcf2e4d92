package api

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/7509e464/sluice/api/dashboard"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
)

// tokenScheme names the admin token in the OpenAPI document.
const tokenScheme = "token"

// intakeRouter serves the data plane.
func (s *Server) intakeRouter() (http.Handler, error) {
	r := s.newRouter(onIntake)
	r.Use(keepPlaces, s.keepLocal)
	api := newAPI(r, "Sluice intake", s.cfg.Version.Version)
	s.secure(api)
	for _, op := range append(s.guarded(s.jobOperations()), s.probeOperations()...) {
		s.mount(api, op, true)
	}
	if err := serveDocument(r, api); err != nil {
		return nil, fmt.Errorf("api: intake document: %w", err)
	}
	return r, nil
}

// adminRouter serves the control plane.
func (s *Server) adminRouter() (http.Handler, error) {
	r := s.newRouter(onAdmin)
	r.Use(s.guardAdmin)
	api := newAPI(r, "Sluice admin", s.cfg.Version.Version)
	if s.cfg.AdminToken != "" {
		api.OpenAPI().Components.SecuritySchemes = map[string]*huma.SecurityScheme{tokenScheme: {Type: "http", Scheme: "bearer"}}
	}
	operations := slices.Concat(s.tenantOperations(), s.tenantJobOperations(), s.arrivalOperations(), s.figureOperations(), s.guardOperations(), s.probeOperations())
	for _, op := range append(operations, s.versionOperation()) {
		s.mount(api, op, false)
	}
	for _, settings := range []any{wire.Settings{}, wire.RouteSettings{}} {
		allowRateText(api.OpenAPI().Components.Schemas, settings)
		allowNull(api.OpenAPI().Components.Schemas, settings)
	}
	page := hurried(s.board)
	for _, path := range []string{dashboard.PagePath, dashboard.LoginPath, dashboard.AssetsPath + "*"} {
		r.Method(http.MethodGet, path, page)
	}
	for _, path := range []string{dashboard.LoginPath, dashboard.LogoutPath} {
		r.Method(http.MethodPost, path, page)
	}
	for path, page := range s.cfg.AdminPages {
		r.Handle(path, hurried(page))
		r.Handle(path+"/*", hurried(page))
	}
	s.serveMetrics(r)
	if err := serveDocument(r, api); err != nil {
		return nil, fmt.Errorf("api: admin document: %w", err)
	}
	return r, nil
}

// metricsRouter serves metrics and nothing else.
func (s *Server) metricsRouter() http.Handler {
	r := s.newRouter(onMetrics)
	s.serveMetrics(r)
	return r
}

func (s *Server) serveMetrics(r chi.Router) {
	if s.cfg.Gatherer != nil {
		r.Handle("/metrics", hurried(promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{})))
	}
}

func jsonBody(of any, limit int64, optional bool) *body {
	return &body{of: of, formats: []string{jsonFormat}, optional: optional, limit: limit}
}

// jobOperations are the data plane.
func (s *Server) jobOperations() []operation {
	const tag = "Jobs"
	admitted := append([]string{"Location", "Preference-Applied", "Idempotent-Replayed"}, limitHeaderNames...)
	return []operation{{
		id: "submit-job", method: http.MethodPost, path: "/v1/jobs", tag: tag, summary: "Submit a job",
		description: "Admits the job into its tenant's queue. With Prefer: wait=N the answer is held until the job is done or N seconds are over.",
		params:      []*huma.Param{tenantParam, keyParam, preferParam, traceParam},
		body:        jsonBody(wire.Submission{}, s.cfg.MaxBody, false),
		answers: map[int]answerDoc{
			http.StatusAccepted: {"Stored, and will be delivered.", wire.Job{}, admitted},
			http.StatusOK:       {"Done within the preferred wait.", wire.Job{}, []string{"Location", "Preference-Applied", "Idempotent-Replayed"}},
		},
		refusals: admissionKinds,
		handle:   s.postJob,
	}, {
		id: "submit-batch", method: http.MethodPost, path: "/v1/jobs/batch", tag: tag, summary: "Submit many jobs",
		description: "Judges up to 1,000 jobs of one tenant in order, in one step: each for itself, or all or none if atomic. A job that cannot be submitted has its own verdict; of an atomic batch it is the answer. Each payload may be as large as in a single submission.",
		params:      []*huma.Param{tenantParam, traceParam},
		body:        jsonBody(wire.Batch{}, maxBatchBody, false),
		answers:     map[int]answerDoc{http.StatusOK: {"One verdict per job, in order.", wire.BatchResult{}, nil}},
		refusals:    admissionKinds,
		handle:      s.postBatch,
	}, {
		id: "list-jobs", method: http.MethodGet, path: "/v1/jobs", tag: tag, summary: "List jobs",
		description: listDescription,
		params:      listParams(),
		answers:     map[int]answerDoc{http.StatusOK: {"One page.", wire.JobList{}, nil}},
		refusals:    []kind{unknownRoute, rateLimited, storageUnavailable},
		handle:      s.listJobs,
	}, {
		id: "get-job", method: http.MethodGet, path: "/v1/jobs/{id}", tag: tag, summary: "Read a job",
		description: "With Prefer: wait=N the answer is held until the job is done or N seconds are over.",
		params:      []*huma.Param{jobParam, tenantParam, preferParam},
		answers:     map[int]answerDoc{http.StatusOK: {"The job, done or not.", wire.Job{}, []string{"Preference-Applied"}}},
		refusals:    []kind{unknownJob, rateLimited, storageUnavailable},
		handle:      s.getJob,
	}, {
		id: "stream-job", method: http.MethodGet, path: "/v1/jobs/{id}/events", tag: tag, summary: "Follow a job's state",
		description: "Server-sent events: the job as it is, then again at each change of its state. The stream ends after the final state, " +
			"after 10 minutes, and when the server stops; open it again with Last-Event-ID. The end is told at once, another change within about " +
			"250 ms; a state that lasts less than that may not be seen.",
		params: []*huma.Param{jobParam, tenantParam, lastEventParam},
		answers: map[int]answerDoc{
			http.StatusOK:        {"The events.", eventStream{data: wire.Job{}}, []string{"X-Accel-Buffering"}},
			http.StatusNoContent: {"The event of the final state was received before.", nil, nil},
		},
		refusals: []kind{unknownJob, rateLimited, tooManyStreams, storageUnavailable},
		handle:   s.streamJob,
	}, {
		id: "cancel-job", method: http.MethodDelete, path: "/v1/jobs/{id}", tag: tag, summary: "Cancel a waiting job",
		description: "Cancelling it again is answered in the same way.",
		params:      []*huma.Param{jobParam, tenantParam},
		answers:     map[int]answerDoc{http.StatusOK: {"The cancelled job.", wire.Job{}, nil}},
		refusals:    []kind{unknownJob, stateConflict, storageUnavailable},
		handle:      s.deleteJob,
	}, {
		id: "replay-job", method: http.MethodPost, path: "/v1/jobs/{id}/replay", tag: tag, summary: "Bring a dead job back",
		description: "It goes through its bucket again, with fresh attempts.",
		params:      []*huma.Param{jobParam, tenantParam},
		body:        jsonBody(wire.Empty{}, maxSmallBody, true),
		answers: map[int]answerDoc{
			http.StatusAccepted: {"Queued again.", wire.Job{}, append([]string{"Location"}, limitHeaderNames...)},
		},
		refusals: append([]kind{shuttingDown}, replayKinds...),
		handle:   s.replayJob,
	}}
}

// tenantOperations are the control plane.
func (s *Server) tenantOperations() []operation {
	const tag, keyTag, path = "Tenants", "API keys", "/v1/tenants/{tenant}"
	guards := append([]kind{storageUnavailable}, operatorKinds...)
	changes := append([]kind{revisionMismatch}, guards...)
	known := append([]kind{unknownTenant}, guards...)
	makes := append([]kind{unknownTenant}, changes...)
	settings := jsonBody(wire.Settings{}, maxSmallBody, false)
	wholeRate := map[string]*huma.Schema{"rate": {Required: []string{"limit", "period_ms"}}}
	settings.narrower = &huma.Schema{Properties: map[string]*huma.Schema{
		"rate": wholeRate["rate"], "routes": {AdditionalProperties: &huma.Schema{Properties: wholeRate}},
	}}
	patch := &body{of: wire.Settings{}, formats: []string{jsonFormat, patchFormat}, limit: maxSmallBody}
	reason := jsonBody(wire.Reason{}, maxSmallBody, true)
	tenant := map[int]answerDoc{http.StatusOK: {"The tenant.", wire.Tenant{}, []string{"ETag"}}}
	change := []*huma.Param{tenantPathParam, ifMatchParam}
	making := append(slices.Clip(change), createParam)
	trial := append(slices.Clip(making), dryRunParam)
	filter, deadFilter := jsonBody(wire.Filter{}, maxFilterBody, true), jsonBody(wire.Filter{}, maxFilterBody, true)
	deadFilter.narrower = &huma.Schema{Properties: map[string]*huma.Schema{"state": {Enum: []any{queue.ListDead}}}}
	swept := map[int]answerDoc{http.StatusOK: {"What was done.", wire.Swept{}, nil}}
	return []operation{{
		id: "list-tenants", method: http.MethodGet, path: "/v1/tenants", tag: tag, summary: "List tenants",
		params: []*huma.Param{
			{Name: "limit", In: "query", Description: "Tenants a page; 50 if absent.", Schema: pageSchema(maxPage)},
			{Name: "cursor", In: "query", Description: "next_cursor of the page before.", Schema: textSchema(1, 0)},
		},
		answers:  map[int]answerDoc{http.StatusOK: {"One page.", wire.TenantList{}, nil}},
		refusals: guards,
		handle:   s.listTenants,
	}, {
		id: "get-tenant", method: http.MethodGet, path: path, tag: tag, summary: "Read a tenant's policy and figures",
		description: "Also for a tenant never seen: it has the defaults.",
		params:      []*huma.Param{tenantPathParam}, answers: tenant, refusals: guards, handle: s.getTenant,
	}, {
		id: "put-tenant", method: http.MethodPut, path: path, tag: tag, summary: "Replace a tenant's overrides",
		description: "Settings that the body does not name are left to the configuration file and the defaults.",
		params:      trial, body: settings, answers: tenant, refusals: makes, handle: s.putTenant,
	}, {
		id: "patch-tenant", method: http.MethodPatch, path: path, tag: tag, summary: "Change some of a tenant's settings",
		description: "A JSON merge patch (RFC 7396): null resets a setting. The backlog obeys at once.",
		params:      trial, body: patch, answers: tenant, refusals: makes, handle: s.patchTenant,
	}, {
		id: "delete-tenant", method: http.MethodDelete, path: path, tag: tag, summary: "Drop a tenant's overrides",
		description: "The jobs stay; the configuration file and the defaults hold again.",
		params:      change, answers: map[int]answerDoc{http.StatusNoContent: {"Dropped.", nil, nil}},
		refusals: changes, handle: s.deleteTenant,
	}, {
		id: "pause-tenant", method: http.MethodPost, path: path + "/pause", tag: tag, summary: "Pause a tenant",
		description: "Nothing leaves, admission goes on.",
		params:      making, body: reason, answers: tenant, refusals: makes, handle: s.pauseTenant,
	}, {
		id: "resume-tenant", method: http.MethodPost, path: path + "/resume", tag: tag, summary: "Resume a tenant",
		description: "Ends a pause and a drain. The backlog leaves at the rate, without a burst.",
		params:      making, body: reason, answers: tenant, refusals: makes, handle: s.resumeTenant,
	}, {
		id: "unhold-tenant", method: http.MethodPost, path: path + "/unhold", tag: tag, summary: "End the holds of a tenant",
		description: "Its flows are held no longer. They go on at the part of their rate that the hold had left, and the rest comes back by a twentieth a second. A circuit breaker that is open still " +
			"holds a flow again as soon as a job of it is due. The history tells of it.",
		params: change, body: reason, answers: tenant, refusals: changes, handle: s.unholdTenant,
	}, {
		id: "drain-tenant", method: http.MethodPost, path: path + "/drain", tag: tag, summary: "Drain a tenant",
		description: "No job is admitted or replayed any more; what waits leaves at the rate.",
		params:      making, body: reason, answers: tenant, refusals: makes, handle: s.drainTenant,
	}, {
		id: "purge-tenant", method: http.MethodPost, path: path + "/purge", tag: tag, summary: "Cancel waiting jobs and delete dead ones",
		description: "Jobs that a worker has are let be.",
		params:      []*huma.Param{tenantPathParam}, body: filter, answers: swept, refusals: known, handle: s.purgeTenant,
	}, {
		id: "replay-tenant", method: http.MethodPost, path: path + "/replay", tag: tag, summary: "Bring dead jobs back",
		description: "They go through their buckets again, with fresh attempts, until one finds no place.",
		params:      []*huma.Param{tenantPathParam}, body: deadFilter, answers: swept, refusals: known, handle: s.replayTenant,
	}, {
		id: "tenant-history", method: http.MethodGet, path: path + "/history", tag: tag, summary: "List the last changes of a tenant's settings",
		description: "Those made through the API, at most 100.",
		params:      []*huma.Param{tenantPathParam}, answers: map[int]answerDoc{http.StatusOK: {"The changes, the newest first.", wire.History{}, nil}},
		refusals: guards, handle: s.tenantHistory,
	}, {
		id: "create-key", method: http.MethodPost, path: path + "/keys", tag: keyTag, summary: "Make an API key",
		description: "The key is shown once. A tenant may have 100 that have not expired.",
		params:      []*huma.Param{tenantPathParam}, body: jsonBody(wire.KeyRequest{}, maxSmallBody, true),
		answers:  map[int]answerDoc{http.StatusCreated: {"The key.", wire.NewKey{}, nil}},
		refusals: append([]kind{tooManyKeys}, guards...), handle: s.createKey,
	}, {
		id: "list-keys", method: http.MethodGet, path: path + "/keys", tag: keyTag, summary: "List a tenant's API keys",
		description: "Without what opens anything.",
		params:      []*huma.Param{tenantPathParam}, answers: map[int]answerDoc{http.StatusOK: {"The keys, the oldest first.", wire.KeyList{}, nil}},
		refusals: guards, handle: s.listKeys,
	}, {
		id: "revoke-key", method: http.MethodDelete, path: path + "/keys/{key}", tag: keyTag, summary: "Revoke an API key",
		description: "From a second later on it opens nothing.",
		params:      []*huma.Param{tenantPathParam, keyPathParam}, answers: map[int]answerDoc{http.StatusNoContent: {"Revoked.", nil, nil}},
		refusals: append([]kind{unknownKey}, guards...), handle: s.revokeKey,
	}}
}

// probeOperations are served on both listeners.
func (s *Server) probeOperations() []operation {
	const tag = "Probes"
	fine := map[int]answerDoc{http.StatusOK: {"All is well.", wire.Health{}, nil}}
	return []operation{
		{id: "livez", method: http.MethodGet, path: "/livez", tag: tag, summary: "Whether the process runs", answers: fine, handle: s.livez},
		{
			id: "readyz", method: http.MethodGet, path: "/readyz", tag: tag, summary: "Whether work would be taken", answers: fine,
			refusals: []kind{storageUnavailable, shuttingDown}, handle: s.readyz,
		},
	}
}

func (s *Server) versionOperation() operation {
	return operation{
		id: "version", method: http.MethodGet, path: "/version", tag: "Probes", summary: "Which program answers",
		answers: map[int]answerDoc{http.StatusOK: {"The version.", wire.Version{}, nil}}, handle: s.version,
	}
}
