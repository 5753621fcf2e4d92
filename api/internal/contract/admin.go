package contract

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
)

// Tenants are the control plane.
func Tenants() []Operation {
	const tag, keyTag, path = "Tenants", "API keys", "/v1/tenants/{tenant}"
	guards := append([]problem.Kind{problem.StorageUnavailable}, operatorKinds...)
	changes := append([]problem.Kind{problem.RevisionMismatch}, guards...)
	known := append([]problem.Kind{problem.UnknownTenant}, guards...)
	makes := append([]problem.Kind{problem.UnknownTenant}, changes...)
	settings := jsonBody(wire.Settings{}, MaxSmallBody, false)
	wholeRate := map[string]*huma.Schema{"rate": {Required: []string{"limit", "period_ms"}}}
	settings.narrower = &huma.Schema{Properties: map[string]*huma.Schema{
		"rate": wholeRate["rate"], "routes": {AdditionalProperties: &huma.Schema{Properties: wholeRate}},
	}}
	patch := &Body{of: wire.Settings{}, Spec: budget.Spec{Formats: []string{JSONFormat, patchFormat}, Limit: MaxSmallBody}}
	reason := jsonBody(wire.Reason{}, MaxSmallBody, true)
	tenant := map[int]Answer{http.StatusOK: {"The tenant.", wire.Tenant{}, []string{"ETag"}}}
	change := []*huma.Param{tenantPathParam, ifMatchParam}
	making := append(slices.Clip(change), createParam)
	trial := append(slices.Clip(making), dryRunParam)
	filter, deadFilter := jsonBody(wire.Filter{}, maxFilterBody, true), jsonBody(wire.Filter{}, maxFilterBody, true)
	deadFilter.narrower = &huma.Schema{Properties: map[string]*huma.Schema{"state": {Enum: []any{queue.ListDead}}}}
	swept := map[int]Answer{http.StatusOK: {"What was done.", wire.Swept{}, nil}}
	return []Operation{{
		Id: "list-tenants", Method: http.MethodGet, Path: "/v1/tenants", tag: tag, summary: "List tenants",
		Params: []*huma.Param{
			{Name: "limit", In: "query", Description: "Tenants a page; 50 if absent.", Schema: pageSchema(MaxPage)},
			{Name: "cursor", In: "query", Description: "next_cursor of the page before.", Schema: textSchema(1, 0)},
		},
		answers:  map[int]Answer{http.StatusOK: {"One page.", wire.TenantList{}, nil}},
		Refusals: guards,
	}, {
		Id: "get-tenant", Method: http.MethodGet, Path: path, tag: tag, summary: "Read a tenant's policy and figures",
		description: "Also for a tenant never seen: it has the defaults.",
		Params:      []*huma.Param{tenantPathParam}, answers: tenant, Refusals: guards,
	}, {
		Id: "put-tenant", Method: http.MethodPut, Path: path, tag: tag, summary: "Replace a tenant's overrides",
		description: "Settings that the body does not name are left to the configuration file and the defaults.",
		Params:      trial, Body: settings, answers: tenant, Refusals: makes,
	}, {
		Id: "patch-tenant", Method: http.MethodPatch, Path: path, tag: tag, summary: "Change some of a tenant's settings",
		description: "A JSON merge patch (RFC 7396): null resets a setting. The backlog obeys at once.",
		Params:      trial, Body: patch, answers: tenant, Refusals: makes,
	}, {
		Id: "delete-tenant", Method: http.MethodDelete, Path: path, tag: tag, summary: "Drop a tenant's overrides",
		description: "The jobs stay; the configuration file and the defaults hold again.",
		Params:      change, answers: map[int]Answer{http.StatusNoContent: {"Dropped.", nil, nil}},
		Refusals: changes,
	}, {
		Id: "pause-tenant", Method: http.MethodPost, Path: path + "/pause", tag: tag, summary: "Pause a tenant",
		description: "Nothing leaves, admission goes on.",
		Params:      making, Body: reason, answers: tenant, Refusals: makes,
	}, {
		Id: "resume-tenant", Method: http.MethodPost, Path: path + "/resume", tag: tag, summary: "Resume a tenant",
		description: "Ends a pause and a drain. The backlog leaves at the rate, without a burst.",
		Params:      making, Body: reason, answers: tenant, Refusals: makes,
	}, {
		Id: "unhold-tenant", Method: http.MethodPost, Path: path + "/unhold", tag: tag, summary: "End the holds of a tenant",
		description: "Its flows are held no longer. They go on at the part of their rate that the hold had left, and the rest comes back by a twentieth a second. A circuit breaker that is open still " +
			"holds a flow again as soon as a job of it is due. The history tells of it.",
		Params: change, Body: reason, answers: tenant, Refusals: changes,
	}, {
		Id: "drain-tenant", Method: http.MethodPost, Path: path + "/drain", tag: tag, summary: "Drain a tenant",
		description: "No job is admitted or replayed any more; what waits leaves at the rate.",
		Params:      making, Body: reason, answers: tenant, Refusals: makes,
	}, {
		Id: "purge-tenant", Method: http.MethodPost, Path: path + "/purge", tag: tag, summary: "Cancel waiting jobs and delete dead ones",
		description: "Jobs that a worker has are let be.",
		Params:      []*huma.Param{tenantPathParam}, Body: filter, answers: swept, Refusals: known,
	}, {
		Id: "replay-tenant", Method: http.MethodPost, Path: path + "/replay", tag: tag, summary: "Bring dead jobs back",
		description: "They go through their buckets again, with fresh attempts, until one finds no place.",
		Params:      []*huma.Param{tenantPathParam}, Body: deadFilter, answers: swept, Refusals: known,
	}, {
		Id: "tenant-history", Method: http.MethodGet, Path: path + "/history", tag: tag, summary: "List the last changes of a tenant's settings",
		description: "Those made through the API, at most 100.",
		Params:      []*huma.Param{tenantPathParam}, answers: map[int]Answer{http.StatusOK: {"The changes, the newest first.", wire.History{}, nil}},
		Refusals: guards,
	}, {
		Id: "create-key", Method: http.MethodPost, Path: path + "/keys", tag: keyTag, summary: "Make an API key",
		description: "The key is shown once. A tenant may have 100 that have not expired.",
		Params:      []*huma.Param{tenantPathParam}, Body: jsonBody(wire.KeyRequest{}, MaxSmallBody, true),
		answers:  map[int]Answer{http.StatusCreated: {"The key.", wire.NewKey{}, nil}},
		Refusals: append([]problem.Kind{problem.TooManyKeys}, guards...),
	}, {
		Id: "list-keys", Method: http.MethodGet, Path: path + "/keys", tag: keyTag, summary: "List a tenant's API keys",
		description: "Without what opens anything.",
		Params:      []*huma.Param{tenantPathParam}, answers: map[int]Answer{http.StatusOK: {"The keys, the oldest first.", wire.KeyList{}, nil}},
		Refusals: guards,
	}, {
		Id: "revoke-key", Method: http.MethodDelete, Path: path + "/keys/{key}", tag: keyTag, summary: "Revoke an API key",
		description: "From a second later on it opens nothing.",
		Params:      []*huma.Param{tenantPathParam, keyPathParam}, answers: map[int]Answer{http.StatusNoContent: {"Revoked.", nil, nil}},
		Refusals: append([]problem.Kind{problem.UnknownKey}, guards...),
	}}
}

// tenantJobs is where the jobs of a tenant are on the admin listener.
const tenantJobs = "/v1/tenants/{tenant}/jobs"

// TenantJobs are the part of the control plane that is about jobs. They do what those of
// the data plane do, for the tenant in the path: the operator has no credential of the tenant's,
// spends none of its reads (api.status_rate), and no limiter guard stands before them.
func TenantJobs(adminSubmit bool, maxBody int64) []Operation {
	const tag = "Jobs of tenants"
	guards := append([]problem.Kind{problem.StorageUnavailable}, operatorKinds...)
	unknown := append([]problem.Kind{problem.UnknownJob}, guards...)
	conflicts := append([]problem.Kind{problem.StateConflict}, unknown...)
	job := []*huma.Param{tenantPathParam, jobParam}
	list := slices.DeleteFunc(listParams(), func(p *huma.Param) bool { return p == tenantParam })
	operations := []Operation{{
		Id: "list-tenant-jobs", Method: http.MethodGet, Path: tenantJobs, tag: tag, summary: "List a tenant's jobs",
		description: listDescription + " The route need not be configured.",
		Params:      append([]*huma.Param{tenantPathParam}, list...), answers: map[int]Answer{http.StatusOK: {"One page.", wire.JobList{}, nil}},
		Refusals: guards,
	}, {
		Id: "find-job", Method: http.MethodGet, Path: "/v1/jobs/{id}", tag: tag, summary: "Find a job by its id alone",
		description: "Finds the job of any tenant. The answer names the tenant.",
		Params:      []*huma.Param{jobParam}, answers: map[int]Answer{http.StatusOK: {"The job, done or not.", wire.JobDetail{}, nil}},
		Refusals: unknown,
	}, {
		Id: "get-tenant-job", Method: http.MethodGet, Path: tenantJobs + "/{id}", tag: tag, summary: "Read a job and its payload",
		Params: job, answers: map[int]Answer{http.StatusOK: {"The job, done or not.", wire.JobDetail{}, nil}},
		Refusals: unknown,
	}, {
		Id: "cancel-tenant-job", Method: http.MethodDelete, Path: tenantJobs + "/{id}", tag: tag, summary: "Cancel a waiting job of a tenant",
		description: "Cancelling it again is answered in the same way.",
		Params:      job, answers: map[int]Answer{http.StatusOK: {"The cancelled job.", wire.Job{}, nil}},
		Refusals: conflicts,
	}, {
		Id: "replay-tenant-job", Method: http.MethodPost, Path: tenantJobs + "/{id}/replay", tag: tag, summary: "Bring a dead job of a tenant back",
		description: "It goes through its bucket again, with fresh attempts.",
		Params:      job, Body: jsonBody(wire.Empty{}, MaxSmallBody, true),
		answers: map[int]Answer{
			http.StatusAccepted: {"Queued again.", wire.Job{}, append([]string{"Location"}, limitHeaderNames...)},
		},
		Refusals: slices.Concat(operatorKinds, replayKinds),
	}}
	if !adminSubmit {
		return operations
	}
	told := []string{"Location", "Preference-Applied", "Idempotent-Replayed"}
	return append(operations, Operation{
		Id: "submit-tenant-job", Method: http.MethodPost, Path: tenantJobs, tag: tag, summary: "Submit a test job for a tenant",
		description: "As POST /v1/jobs on the intake. Only where admin.submit is on, as in sluice dev; elsewhere it is 405.",
		Params:      []*huma.Param{tenantPathParam, keyParam, preferParam, traceParam},
		Body:        jsonBody(wire.Submission{}, maxBody, false),
		answers: map[int]Answer{
			http.StatusAccepted: {"Stored, and will be delivered.", wire.Job{}, append(told, limitHeaderNames...)},
			http.StatusOK:       {"Done within the preferred wait.", wire.Job{}, told},
		},
		Refusals: slices.Concat(operatorKinds, admissionKinds),
	})
}

// Arrivals are the part of the control plane that is about what came.
func Arrivals() []Operation {
	const tag, path = "Arrivals", "/v1/tenants/{tenant}"
	return []Operation{{
		Id: "follow-arrivals", Method: http.MethodGet, Path: path + "/arrivals", tag: tag, summary: "Follow a tenant's arrivals",
		description: "Server-sent events: submissions that this process has asked the store to admit, from now on, as soon as they are judged and at most ten events a " +
			"second. One that is known by its idempotency key is none. The stream ends when the server stops; other processes have streams of their own.",
		Params: []*huma.Param{
			tenantPathParam, {Name: "route", In: "query", Description: "Only arrivals for this route.", Schema: textSchema(1, wire.MaxTenantBytes)},
		},
		answers:  map[int]Answer{http.StatusOK: {"The events.", eventStream{data: wire.Arrivals{}, event: ArrivalsEvent}, []string{"X-Accel-Buffering"}}},
		Refusals: append([]problem.Kind{problem.TooManyStreams}, operatorKinds...),
	}, {
		Id: "predict-tenant", Method: http.MethodPost, Path: path + "/predict", tag: tag, summary: "Try settings on the last hour's arrivals",
		description: "Replays what came to this process for the tenant in the last hour, at most a million arrivals, through the simulator: with the settings " +
			"in force, and with the body, a JSON merge patch as PATCH takes it, laid over them. Nothing is changed.",
		Params: []*huma.Param{tenantPathParam}, Body: &Body{of: wire.Settings{}, Spec: budget.Spec{Formats: []string{JSONFormat, patchFormat}, Limit: MaxSmallBody}},
		answers: map[int]Answer{http.StatusOK: {"What would have become of them.", wire.Prediction{}, nil}}, Refusals: append([]problem.Kind{problem.StorageUnavailable}, operatorKinds...),
	}}
}

// Guards are the part of the control plane that is about guards.
func Guards() []Operation {
	const tag, path = "Guards", "/v1/guards"
	unknown := append([]problem.Kind{problem.UnknownGuard, problem.StorageUnavailable}, operatorKinds...)
	return []Operation{{
		Id: "list-guards", Method: http.MethodGet, Path: path, tag: tag, summary: "List the guards",
		description: "Limiters in front of the intake, as the configuration has them.",
		answers:     map[int]Answer{http.StatusOK: {"The guards.", wire.GuardList{}, nil}}, Refusals: operatorKinds,
	}, {
		Id: "list-blocked", Method: http.MethodGet, Path: path + "/{guard}/blocked", tag: tag, summary: "List the blocked keys of a guard",
		description: "Keys that overflowed and are refused for a while, those that are free soonest first.",
		Params: []*huma.Param{
			guardPathParam, {Name: "limit", In: "query", Description: "Keys at most; 50 if absent.", Schema: pageSchema(MaxPage)},
		},
		answers: map[int]Answer{http.StatusOK: {"The keys.", wire.BlockedList{}, nil}}, Refusals: unknown,
	}, {
		Id: "clear-blocked", Method: http.MethodDelete, Path: path + "/{guard}/blocked/{blocked}", tag: tag, summary: "Let a key of a guard pass again",
		description: "Forgets the key, blocked or not: it is as if it had never been used.",
		Params:      []*huma.Param{guardPathParam, blockPathParam},
		answers:     map[int]Answer{http.StatusNoContent: {"Forgotten.", nil, nil}}, Refusals: unknown,
	}}
}

// Figures show the figures in motion.
func Figures() []Operation {
	const tag = "Figures"
	low, most := 0.0, float64(MaxLines)
	return []Operation{{
		Id: "get-stats", Method: http.MethodGet, Path: "/v1/stats", tag: tag, summary: "Read the figures of all tenants together",
		description: "Also while the store is away: it is not ok, then. They are at most a quarter of a second old.",
		answers:     map[int]Answer{http.StatusOK: {"The figures.", wire.Overview{}, nil}}, Refusals: operatorKinds,
	}, {
		Id: "list-routes", Method: http.MethodGet, Path: "/v1/routes", tag: tag, summary: "List the routes with their circuit breakers",
		description: "Over all workers that were heard of in the last 3 seconds: the state of the circuit breaker, deliveries under way, and how many failed in the last minute. The routes of this " +
			"process's configuration are always there. While the store is away they are as they were before.",
		answers: map[int]Answer{http.StatusOK: {"The routes.", wire.RouteList{}, nil}}, Refusals: operatorKinds,
	}, {
		Id: "stream-figures", Method: http.MethodGet, Path: "/v1/stream", tag: tag, summary: "Follow the figures",
		description: "Server-sent events. `history` comes once, before the first `overview`, and has the minutes " +
			"before. `overview` comes four times a second. `tenants` comes once a second, less often where there " +
			"are too many tenants to read at that rate. With the parameter tenant, `tenant_history` comes once, " +
			"then `tenant` four times a second. A slow client misses events and never gets old ones later. The " +
			"stream ends after 10 minutes, and when the server has stopped working; open it again. While no " +
			"client is connected, the server still samples for the history: all tenants together up to once a " +
			"second, and each tenant every five seconds while it has traffic. A process serves " +
			strconv.Itoa(LiveStreams) + " such streams at once.",
		Params: []*huma.Param{
			{Name: "tenant", In: "query", Description: "The tenant of the `tenant` events.", Schema: textSchema(1, 255)},
			{Name: "q", In: "query", Description: "Only tenants whose name contains this, in upper or lower case.", Schema: textSchema(0, MaxSearch)},
			{Name: "sort", In: "query", Description: "Which tenants come first: those with the most jobs waiting, the longest wait, the most refusals, or by name; depth if absent.",
				Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"depth", "oldest_wait", "refused", "name"}}},
			{Name: "limit", In: "query", Description: "Tenants in an event; 50 if absent. With 0 there are no such events.",
				Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: &low, Maximum: &most}},
		},
		answers:  map[int]Answer{http.StatusOK: {"The events.", figureEvents{}, []string{"X-Accel-Buffering"}}},
		Refusals: append([]problem.Kind{problem.TooManyStreams, problem.ShuttingDown}, operatorKinds...),
	}}
}

const (
	LiveStreams = 100 // streams of figures of one process at once: each sorts its tenants itself
	MaxLines    = 500 // tenants in one event
	MaxSearch   = 255 // bytes of the parameter q
)

// Events of a stream of figures.
const (
	OverviewEvent = "overview"
	TenantsEvent  = "tenants"
	TenantEvent   = "tenant"
)

// Bounds of a page of tenants.
const (
	DefaultPage = 50
	MaxPage     = 200
)

const (
	HistoryEvent       = "history"
	ArrivalsEvent      = "arrivals"
	TenantHistoryEvent = "tenant_history"
)
