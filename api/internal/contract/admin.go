package contract

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/queue"
)

// selection is the advice of operations that change many jobs.
const selection = `the body selects the jobs, such as {"state":"dead","error":"502"}, {"ids":["…"]}, or ` +
	`{"all":true} for every job`

// Tenants returns the operations on the settings, the jobs in bulk, and the API keys of tenants.
func Tenants() []Operation {
	const tag, keyTag, callbackTag, path = "Tenants", "API keys", "Callbacks", "/v1/tenants/{tenant}"
	guards := append([]problem.Kind{problem.StorageUnavailable}, operatorKinds...)
	changes := append([]problem.Kind{problem.RevisionMismatch}, guards...)
	known := append([]problem.Kind{problem.UnknownTenant}, guards...)
	makes := append([]problem.Kind{problem.UnknownTenant}, changes...)
	settings := jsonBody(wire.Settings{}, MaxSmallBody, false)
	wholeRate := map[string]*huma.Schema{"rate": {Required: []string{"limit", "period_ms"}}}
	settings.narrower = &huma.Schema{Properties: map[string]*huma.Schema{
		"rate": wholeRate["rate"], "routes": {AdditionalProperties: &huma.Schema{Properties: wholeRate}},
	}}
	patch := &Body{
		of:   wire.Settings{},
		Spec: budget.Spec{Formats: []string{JSONFormat, patchFormat}, Limit: MaxSmallBody},
	}
	reason := jsonBody(wire.Reason{}, MaxSmallBody, true)
	switches := jsonBody(wire.Switch{}, MaxSmallBody, true)
	tenant := map[int]Answer{http.StatusOK: {"The tenant.", wire.Tenant{}, []string{"ETag"}}}
	change := []*huma.Param{tenantPathParam, ifMatchParam}
	making := append(slices.Clip(change), createAskedParam)
	trial := append(slices.Clip(change), createParam, dryRunParam)
	filter, deadFilter := jsonBody(wire.Filter{}, maxFilterBody, true),
		jsonBody(wire.Filter{}, maxFilterBody, true)
	filter.needed, deadFilter.needed = true, true
	filter.narrower = &huma.Schema{MinProperties: new(1)}
	deadFilter.narrower = &huma.Schema{
		Properties:    map[string]*huma.Schema{"state": {Enum: []any{queue.ListDead}}},
		MinProperties: new(1),
	}
	swept := map[int]Answer{http.StatusOK: {"How many jobs were changed.", wire.Swept{}, nil}}
	return []Operation{{
		ID: "list-tenants", Method: http.MethodGet, Path: "/v1/tenants", tag: tag, summary: "List tenants",
		Params: []*huma.Param{
			{Name: "limit", In: "query", Description: "Tenants per page; 50 if absent.", Schema: pageSchema(MaxPage)},
			{Name: "cursor", In: "query", Description: "next_cursor of the previous page.", Schema: textSchema(1, 0)},
		},
		answers:  map[int]Answer{http.StatusOK: {"One page.", wire.TenantList{}, nil}},
		Refusals: guards,
	}, {
		ID: "get-tenant", Method: http.MethodGet, Path: path, tag: tag,
		summary:     "Read a tenant's policy and figures",
		description: "A tenant that was never seen has the defaults.",
		Params:      []*huma.Param{tenantPathParam}, answers: tenant, Refusals: guards,
	}, {
		ID: "put-tenant", Action: "tenant.put",
		Method: http.MethodPut, Path: path, tag: tag, summary: "Replace a tenant's overrides",
		description: "Settings that the body does not name come from the configuration file and the defaults.",
		Params:      trial, Body: settings, answers: tenant, Refusals: makes,
	}, {
		ID: "patch-tenant", Action: "tenant.patch", Method: http.MethodPatch, Path: path, tag: tag,
		summary: "Change some of a tenant's settings",
		description: "A JSON merge patch (RFC 7396): null resets a setting. The change applies at once, " +
			"also to waiting jobs.",
		Params: trial, Body: patch, answers: tenant, Refusals: makes,
	}, {
		ID: "delete-tenant", Action: "tenant.delete",
		Method: http.MethodDelete, Path: path, tag: tag,
		summary:     "Delete a tenant's overrides",
		description: "The jobs stay. The configuration file and the defaults apply again.",
		Params:      change,
		answers:     map[int]Answer{http.StatusNoContent: {"The overrides are deleted.", nil, nil}},
		Refusals:    makes,
	}, {
		ID: "pause-tenant", Action: "tenant.pause",
		Method: http.MethodPost, Path: path + "/pause", tag: tag, summary: "Pause a tenant",
		description: "No job leaves the queue, or that of one route; new jobs are still admitted.",
		Params:      making, Body: switches, answers: tenant, Refusals: makes,
	}, {
		ID: "resume-tenant", Action: "tenant.resume",
		Method: http.MethodPost, Path: path + "/resume", tag: tag, summary: "Resume a tenant",
		description: "Ends a pause and a drain, or the pause of one route, also one of the configuration file. " +
			"Waiting jobs leave at the rate, without a burst.",
		Params: change, Body: switches, answers: tenant, Refusals: makes,
	}, {
		ID: "unhold-tenant", Action: "tenant.unhold",
		Method: http.MethodPost, Path: path + "/unhold", tag: tag,
		summary: "End the holds of a tenant",
		description: "Ends the holds that upstreams requested. The flows continue at the reduced rate of " +
			"the hold, which then grows by a twentieth of the full rate per second. A circuit breaker that " +
			"is still open holds a flow again as soon as one of its jobs is due. The history records the " +
			"change.",
		Params: change, Body: reason, answers: tenant, Refusals: makes,
	}, {
		ID: "drain-tenant", Action: "tenant.drain",
		Method: http.MethodPost, Path: path + "/drain", tag: tag, summary: "Drain a tenant",
		description: "No job is admitted or replayed. Waiting jobs leave at the rate.",
		Params:      making, Body: reason, answers: tenant, Refusals: makes,
	}, {
		ID: "purge-tenant", Action: "tenant.purge",
		Method: http.MethodPost, Path: path + "/purge", tag: tag,
		summary: "Cancel waiting jobs and delete dead ones",
		description: "The body selects the jobs; all of them only by all. Jobs leased by a worker stay. The " +
			"history and the log record the purge.",
		advice: selection,
		Params: []*huma.Param{tenantPathParam}, Body: filter, answers: swept,
		Refusals: append([]problem.Kind{problem.UnknownRoute}, known...),
	}, {
		ID: "erase-tenant", Action: "store.erase", role: operators.Admin,
		Method: http.MethodPost, Path: path + "/erase", tag: tag,
		summary: "Erase a tenant",
		description: "Removes all that is stored of the tenant: jobs in all states, answers, callbacks, their secrets and " +
			"endpoints, idempotency keys, API keys, history, settings of the API, and its tasks in asynq, archived ones too. The first " +
			"step revokes its API keys and drains and pauses it. Deliveries under way end by themselves, and are " +
			"removed by a later step. Settings of the configuration file stay. One request takes a few seconds. " +
			"While the answer has more, send it again with its cursor; where only running is left, after a second. " +
			"An erasure that was stopped goes on without a cursor.",
		Params: []*huma.Param{
			tenantPathParam,
			{Name: "cursor", In: "query", Description: "cursor of the answer before.", Schema: textSchema(1, 0)},
		},
		answers: map[int]Answer{http.StatusOK: {"What this step removed.", wire.Erased{}, nil}}, Refusals: guards,
	}, {
		ID: "purge-tenants", Action: "tenants.purge",
		Method: http.MethodPost, Path: "/v1/purge", tag: tag,
		summary: "Purge the jobs of many tenants",
		description: "Cancels waiting jobs and deletes dead ones of all tenants that the body selects by prefix " +
			"or tier; without either it is refused. One request looks at about 500 tenants and purges about " +
			"10,000 jobs. While the answer has more, send the same body again with its cursor and created_before.",
		Body:    jsonBody(wire.TenantsPurge{}, MaxSmallBody, false),
		answers: map[int]Answer{http.StatusOK: {"What this step did.", wire.TenantsPurged{}, nil}}, Refusals: guards,
	}, {
		ID: "replay-tenant", Action: "tenant.replay",
		Method: http.MethodPost, Path: path + "/replay", tag: tag, summary: "Replay dead jobs",
		description: "The body selects the jobs; all of them only by all. They go through their buckets again, " +
			"with all their attempts. Replay stops at the first job that does not fit. The history and the log " +
			"record it.",
		advice: selection,
		Params: []*huma.Param{tenantPathParam}, Body: deadFilter, answers: swept,
		Refusals: append([]problem.Kind{problem.UnknownRoute}, known...),
	}, {
		ID: "tenant-history", Method: http.MethodGet, Path: path + "/history", tag: tag,
		summary:     "List the last changes of a tenant's settings",
		description: "The last changes made through the API, at most 100.",
		Params:      []*huma.Param{tenantPathParam},
		answers:     map[int]Answer{http.StatusOK: {"The changes, the newest first.", wire.History{}, nil}},
		Refusals:    guards,
	}, {
		ID: "create-key", Action: "key.create",
		Method: http.MethodPost, Path: path + "/keys", tag: keyTag, summary: "Create an API key",
		description: "The secret key is shown once. A tenant may have 100 keys that have not expired.",
		Params:      []*huma.Param{tenantPathParam}, Body: jsonBody(wire.KeyRequest{}, MaxSmallBody, true),
		answers:  map[int]Answer{http.StatusCreated: {"The key.", wire.NewKey{}, nil}},
		Refusals: append([]problem.Kind{problem.TooManyKeys}, guards...),
	}, {
		ID: "list-keys", Method: http.MethodGet, Path: path + "/keys", tag: keyTag,
		summary:     "List a tenant's API keys",
		description: "The list does not contain the secret keys.",
		Params:      []*huma.Param{tenantPathParam},
		answers:     map[int]Answer{http.StatusOK: {"The keys, the oldest first.", wire.KeyList{}, nil}},
		Refusals:    guards,
	}, {
		ID: "revoke-key", Action: "key.revoke",
		Method: http.MethodDelete, Path: path + "/keys/{key}", tag: keyTag,
		summary:     "Revoke an API key",
		description: "Requests with the key are refused from one second later.",
		Params:      []*huma.Param{tenantPathParam, keyPathParam},
		answers:     map[int]Answer{http.StatusNoContent: {"The key is revoked.", nil, nil}},
		Refusals:    append([]problem.Kind{problem.UnknownKey}, guards...),
	}, {
		ID: "revoke-tokens", Action: "token.revoke",
		Method: http.MethodPost, Path: path + "/tokens/revoke", tag: keyTag,
		summary: "Revoke the tokens of a tenant",
		description: "JSON Web Tokens of the tenant that were issued before not_before are refused, from about a second " +
			"later: of one subject, or all. The issuer need not know.",
		Params: []*huma.Param{tenantPathParam}, Body: jsonBody(wire.Revocation{}, MaxSmallBody, true),
		answers:  map[int]Answer{http.StatusOK: {"What is refused now.", wire.Revoked{}, nil}},
		Refusals: append([]problem.Kind{problem.TooManyRevocations}, guards...),
	}, {
		ID: "create-callback-secret", Action: "callback.secret.create",
		Method: http.MethodPost, Path: path + "/callbacks/secrets", tag: callbackTag,
		summary: "Create a secret of callbacks",
		description: "From then on the tenant's callbacks are signed by its own secrets alone. The secret is shown once. " +
			"A tenant may have two: while one replaces the other, both sign.",
		Params: []*huma.Param{tenantPathParam}, Body: jsonBody(wire.CallbackSecretRequest{}, MaxSmallBody, true),
		answers:  map[int]Answer{http.StatusCreated: {"The secret.", wire.NewCallbackSecret{}, nil}},
		Refusals: append([]problem.Kind{problem.TooManySecrets}, guards...),
	}, {
		ID: "list-callback-secrets", Method: http.MethodGet, Path: path + "/callbacks/secrets", tag: callbackTag,
		summary:     "List a tenant's secrets of callbacks",
		description: "The list does not contain the secrets themselves.",
		Params:      []*huma.Param{tenantPathParam},
		answers:     map[int]Answer{http.StatusOK: {"The secrets, the newest first.", wire.CallbackSecretList{}, nil}},
		Refusals:    guards,
	}, {
		ID: "revoke-callback-secret", Action: "callback.secret.revoke",
		Method: http.MethodDelete, Path: path + "/callbacks/secrets/{secret}", tag: callbackTag,
		summary: "Revoke a secret of callbacks",
		description: "Attempts from then on are not signed by it. Without any secret of the tenant, callbacks.secrets of the " +
			"configuration sign again.",
		Params:   []*huma.Param{tenantPathParam, secretPathParam},
		answers:  map[int]Answer{http.StatusNoContent: {"The secret is revoked.", nil, nil}},
		Refusals: append([]problem.Kind{problem.UnknownSecret}, guards...),
	}, {
		ID: "get-callback-endpoints", role: operators.Operator,
		Method: http.MethodGet, Path: path + "/callbacks/endpoints", tag: callbackTag,
		summary: "Read a tenant's endpoints of callbacks",
		Params:  []*huma.Param{tenantPathParam},
		answers: map[int]Answer{http.StatusOK: {"The endpoints.", wire.CallbackEndpoints{}, nil}}, Refusals: guards,
	}, {
		ID: "put-callback-endpoints", Action: "callback.endpoints.put", role: operators.Admin,
		Method: http.MethodPut, Path: path + "/callbacks/endpoints", tag: callbackTag,
		summary: "Replace a tenant's endpoints of callbacks",
		description: "Callbacks of the tenant may go to URLs below an endpoint, also to private addresses, unless " +
			"callbacks.deny has them. With callbacks.mode: registered they go nowhere else, except to URLs of " +
			"callbacks.allow. It applies from about a second later, also to callbacks that wait.",
		Params: []*huma.Param{tenantPathParam}, Body: jsonBody(wire.CallbackEndpoints{}, MaxSmallBody, false),
		answers: map[int]Answer{http.StatusOK: {"The endpoints.", wire.CallbackEndpoints{}, nil}}, Refusals: guards,
	}}
}

// Pools are the operations of the control plane on pools.
func Pools() []Operation {
	const tag, path = "Pools", "/v1/pools/{pool}"
	all := append([]problem.Kind{problem.StorageUnavailable}, operatorKinds...)
	known := append([]problem.Kind{problem.UnknownPool}, all...)
	changes := append([]problem.Kind{problem.RevisionMismatch}, known...)
	settings := jsonBody(wire.PoolSettings{}, MaxSmallBody, false)
	settings.narrower = &huma.Schema{Properties: map[string]*huma.Schema{"rate": {Required: []string{"limit", "period_ms"}}}}
	patch := &Body{of: wire.PoolSettings{}, Spec: budget.Spec{Formats: []string{JSONFormat, patchFormat},
		Limit: MaxSmallBody}}
	reason := jsonBody(wire.Reason{}, MaxSmallBody, true)
	pool := map[int]Answer{http.StatusOK: {"The pool.", wire.Pool{}, []string{"ETag"}}}
	change := []*huma.Param{poolPathParam, ifMatchParam}
	trial := append(slices.Clip(change), dryRunParam)
	return []Operation{{
		ID: "list-pools", Method: http.MethodGet, Path: "/v1/pools", tag: tag, summary: "List the pools",
		description: "The pools of the configuration file, by name, with their settings and figures.",
		answers:     map[int]Answer{http.StatusOK: {"The pools.", wire.PoolList{}, nil}}, Refusals: all,
	}, {
		ID: "get-pool", Method: http.MethodGet, Path: path, tag: tag,
		summary: "Read a pool's policy and figures",
		Params:  []*huma.Param{poolPathParam}, answers: pool, Refusals: known,
	}, {
		ID: "put-pool", Action: "pool.put",
		Method: http.MethodPut, Path: path, tag: tag, summary: "Replace a pool's overrides",
		description: "Settings that the body does not name come from the configuration file.",
		Params:      trial, Body: settings, answers: pool, Refusals: changes,
	}, {
		ID: "patch-pool", Action: "pool.patch", Method: http.MethodPatch, Path: path, tag: tag,
		summary:     "Change some of a pool's settings",
		description: "A JSON merge patch (RFC 7396): null resets a setting. The change applies at once, also to waiting jobs.",
		Params:      trial, Body: patch, answers: pool, Refusals: changes,
	}, {
		ID: "pause-pool", Action: "pool.pause",
		Method: http.MethodPost, Path: path + "/pause", tag: tag, summary: "Pause a pool",
		description: "No job of the pool leaves; new jobs are still admitted.",
		Params:      change, Body: reason, answers: pool, Refusals: changes,
	}, {
		ID: "resume-pool", Action: "pool.resume",
		Method: http.MethodPost, Path: path + "/resume", tag: tag,
		summary:     "Resume a pool",
		description: "Waiting jobs leave at the rate, without a burst.",
		Params:      change, Body: reason, answers: pool, Refusals: changes,
	}, {
		ID: "unhold-pool", Action: "pool.unhold",
		Method: http.MethodPost, Path: path + "/unhold", tag: tag,
		summary: "End the hold of a pool",
		description: "Ends the hold that an upstream requested. The pool continues at the reduced rate of the hold, which then grows by a twentieth of the full rate per second. " +
			"With charge, the pool also stops waiting for costs that were charged. " +
			"The history records the change.",
		Params: change, Body: jsonBody(wire.Unhold{}, MaxSmallBody, true), answers: pool, Refusals: changes,
	}, {
		ID: "pool-history", Method: http.MethodGet, Path: path + "/history", tag: tag,
		summary:     "List the last changes of a pool's settings",
		description: "The last changes made through the API, at most 100.",
		Params:      []*huma.Param{poolPathParam},
		answers:     map[int]Answer{http.StatusOK: {"The changes, the newest first.", wire.History{}, nil}},
		Refusals:    known,
	}, {
		ID: "pool-flows", Method: http.MethodGet, Path: path + "/flows", tag: tag,
		summary:     "List flows that wait in a pool",
		description: "Those that may leave next come first.",
		Params: []*huma.Param{
			poolPathParam, {Name: "limit", In: "query",
				Description: "Maximum number of flows; 50 if absent.", Schema: pageSchema(wire.MaxPage)},
		},
		answers: map[int]Answer{http.StatusOK: {"The flows.", wire.PoolFlows{}, nil}}, Refusals: known,
	}, {
		ID: "predict-pool", role: operators.Viewer, Method: http.MethodPost, Path: path + "/predict", tag: tag,
		summary: "Simulate settings of a pool with the last hour's arrivals",
		description: "Simulates the arrivals at this process in the last hour in the flows of the pool: of the " +
			"100 flows with the most arrivals, at most a million. One run uses the settings in force, the other " +
			"one applies the body to them: a JSON merge patch, as for PATCH. Changes nothing.",
		Params: []*huma.Param{poolPathParam}, Body: patch,
		answers:  map[int]Answer{http.StatusOK: {"The results of both simulations.", wire.Prediction{}, nil}},
		Refusals: known,
	}}
}

// tenantJobs is where the jobs of a tenant are on the admin listener.
const tenantJobs = "/v1/tenants/{tenant}/jobs"

// TenantJobs returns the operations on single jobs of a tenant. They do the same as those of the
// data plane, for the tenant in the path. They need no credential of the tenant, do not count in
// its reads (api.status_rate), and have no limiter guards. adminSubmit adds the submission of jobs.
// maxBody is the largest body of one, in bytes.
func TenantJobs(adminSubmit bool, maxBody int64) []Operation {
	const tag = "Jobs of tenants"
	guards := append([]problem.Kind{problem.StorageUnavailable}, operatorKinds...)
	unknown := append([]problem.Kind{problem.UnknownJob}, guards...)
	conflicts := append([]problem.Kind{problem.StateConflict}, unknown...)
	job := []*huma.Param{tenantPathParam, jobParam}
	body := &huma.Param{
		Name: "request_body", In: "query", Schema: &huma.Schema{Type: huma.TypeBoolean},
		Description: "true: with the first 4 KiB of the body of a forwarded request.",
	}
	list := slices.DeleteFunc(listParams(), func(p *huma.Param) bool { return p == tenantParam })
	list = append(list, &huma.Param{Name: "error", In: "query", Schema: textSchema(1, wire.MaxErrorBytes),
		Description: "Only jobs whose last error contains this text, in any case of letters: its message, its " +
			"detail, or the body of the answer of the upstream."})
	operations := []Operation{{
		ID: "list-tenant-jobs", Method: http.MethodGet, Path: tenantJobs, tag: tag, summary: "List a tenant's jobs",
		description: listDescription + " The route is a configured one, or one that the tenant still has jobs or settings of.",
		Params:      append([]*huma.Param{tenantPathParam}, list...),
		answers:     map[int]Answer{http.StatusOK: {"One page.", wire.JobList{}, nil}},
		Refusals:    append([]problem.Kind{problem.UnknownRoute}, guards...),
	}, {
		ID: "find-job", Action: "job.read", Method: http.MethodGet, Path: "/v1/jobs/{id}", tag: tag,
		summary:     "Find a job by its id alone",
		description: "Finds a job of any tenant. The answer names the tenant.",
		Params:      []*huma.Param{jobParam, body},
		answers:     map[int]Answer{http.StatusOK: {"The job, done or not.", wire.JobDetail{}, nil}},
		Refusals:    unknown,
	}, {
		ID: "get-tenant-job", Action: "job.read",
		Method: http.MethodGet, Path: tenantJobs + "/{id}", tag: tag,
		summary:     "Read a job and its payload",
		description: "With Prefer: wait=N the answer waits until the job is done, at most N seconds.",
		Params:      append(slices.Clip(job), body, preferParam),
		answers: map[int]Answer{http.StatusOK: {
			"The job, done or not.", wire.JobDetail{}, []string{"Preference-Applied"},
		}},
		Refusals: unknown,
	}, {
		ID: "stream-tenant-job", Method: http.MethodGet, Path: tenantJobs + "/{id}/events", tag: tag,
		summary:     "Follow the state of a job of a tenant",
		description: "Server-sent events, as those of the intake.",
		Params:      append(slices.Clip(job), lastEventParam),
		answers:     streamAnswers,
		Refusals:    append([]problem.Kind{problem.TooManyStreams}, unknown...),
	}, {
		ID: "cancel-tenant-job", Action: "job.cancel",
		Method: http.MethodDelete, Path: tenantJobs + "/{id}", tag: tag,
		summary:     "Cancel a waiting job of a tenant",
		description: "Cancelling a cancelled job again gives the same answer.",
		Params:      job, answers: map[int]Answer{http.StatusOK: {"The cancelled job.", wire.Job{}, nil}},
		Refusals: conflicts,
	}, {
		ID: "replay-tenant-job", Action: "job.replay",
		Method: http.MethodPost, Path: tenantJobs + "/{id}/replay", tag: tag,
		summary:     "Replay a dead job of a tenant",
		description: "The job goes through its bucket again, with all its attempts.",
		Params:      job, Body: jsonBody(wire.Empty{}, MaxSmallBody, true),
		answers: map[int]Answer{
			http.StatusAccepted: {
				"The job is queued again.", wire.Job{}, append([]string{"Location"}, limitHeaderNames...),
			},
		},
		Refusals: slices.Concat(operatorKinds, replayKinds),
	}}
	if !adminSubmit {
		return operations
	}
	headers := []string{"Location", "Preference-Applied", "Idempotent-Replayed"}
	return append(operations, Operation{
		ID: "submit-tenant-job", Action: "job.submit",
		Method: http.MethodPost, Path: tenantJobs, tag: tag,
		summary:     "Submit a test job for a tenant",
		description: "Like POST /v1/jobs on the intake. Available only if admin.submit is on, as in sluice dev.",
		Params:      []*huma.Param{tenantPathParam, keyParam, preferParam, traceParam},
		Body:        jsonBody(wire.Submission{}, maxBody, false),
		answers: map[int]Answer{
			http.StatusAccepted: {
				"The job is stored and will be delivered.", wire.Job{}, append(headers, limitHeaderNames...),
			},
			http.StatusOK: {"The job was done within the preferred wait.", wire.Job{}, headers},
		},
		Refusals: slices.Concat(operatorKinds, admissionKinds),
	})
}

// Arrivals returns the operations that follow the arrivals of a tenant and simulate settings with
// them.
func Arrivals() []Operation {
	const tag, path = "Arrivals", "/v1/tenants/{tenant}"
	return []Operation{{
		ID: "follow-arrivals", Method: http.MethodGet, Path: path + "/arrivals", tag: tag,
		summary: "Follow a tenant's arrivals",
		description: "Server-sent events: new submissions at this process, admitted or refused, in at most " +
			"ten events a second. Repeated submissions with a known idempotency key are left out. The " +
			"stream ends when the server stops. Other processes have streams of their own.",
		Params: []*huma.Param{
			tenantPathParam,
			{Name: "route", In: "query", Description: "Only arrivals for this route.",
				Schema: textSchema(1, wire.MaxTenantBytes)},
		},
		answers: map[int]Answer{http.StatusOK: {
			"The events.", eventStream{data: wire.Arrivals{}, event: ArrivalsEvent},
			[]string{"X-Accel-Buffering"},
		}},
		Refusals: append([]problem.Kind{problem.TooManyStreams, problem.UnknownRoute}, operatorKinds...),
	}, {
		ID: "predict-tenant", role: operators.Viewer, Method: http.MethodPost, Path: path + "/predict", tag: tag,
		summary: "Simulate settings with the last hour's arrivals",
		description: "Simulates the tenant's arrivals at this process in the last hour, at most a million. " +
			"One run uses the settings in force, the other one applies the body to them: a JSON merge " +
			"patch, as for PATCH. A flow of a pool shares it with the flows of other tenants that wait there " +
			"now, as if they waited all the time. Changes nothing.",
		Params: []*huma.Param{tenantPathParam},
		Body: &Body{
			of:   wire.Settings{},
			Spec: budget.Spec{Formats: []string{JSONFormat, patchFormat}, Limit: MaxSmallBody},
		},
		answers:  map[int]Answer{http.StatusOK: {"The results of both simulations.", wire.Prediction{}, nil}},
		Refusals: append([]problem.Kind{problem.StorageUnavailable}, operatorKinds...),
	}}
}

// Guards returns the operations on the limiters in front of the intake.
func Guards() []Operation {
	const tag, path = "Guards", "/v1/guards"
	unknown := append([]problem.Kind{problem.UnknownGuard, problem.StorageUnavailable}, operatorKinds...)
	return []Operation{{
		ID: "list-guards", Method: http.MethodGet, Path: path, tag: tag, summary: "List the guards",
		description: "The limiters in front of the intake that are configured.",
		answers:     map[int]Answer{http.StatusOK: {"The guards.", wire.GuardList{}, nil}}, Refusals: operatorKinds,
	}, {
		ID: "list-blocked", role: operators.Operator, // a key may be a path that a client wrote
		Method: http.MethodGet, Path: path + "/{guard}/blocked", tag: tag,
		summary:     "List the blocked keys of a guard",
		description: "Keys that exceeded the limit and are blocked for a while, those that are free soonest first.",
		Params: []*huma.Param{
			guardPathParam,
			{Name: "limit", In: "query", Description: "Maximum number of keys; 50 if absent.",
				Schema: pageSchema(MaxPage)},
		},
		answers: map[int]Answer{http.StatusOK: {"The keys.", wire.BlockedList{}, nil}}, Refusals: unknown,
	}, {
		ID: "clear-blocked", Action: "guard.clear",
		Method: http.MethodDelete, Path: path + "/{guard}/blocked/{blocked}", tag: tag,
		summary:     "Unblock a key of a guard",
		description: "Deletes what is counted under the key, including a block.",
		Params:      []*huma.Param{guardPathParam, blockPathParam},
		answers:     map[int]Answer{http.StatusNoContent: {"The key is deleted.", nil, nil}}, Refusals: unknown,
	}}
}

// Figures returns the operations that show live figures.
func Figures() []Operation {
	const tag = "Figures"
	low, most := 0.0, float64(MaxLines)
	return []Operation{{
		ID: "get-stats", Method: http.MethodGet, Path: "/v1/stats", tag: tag,
		summary:     "Read the figures of all tenants together",
		description: "The figures are at most 250 ms old. While the store is unavailable, store.ok is false.",
		answers:     map[int]Answer{http.StatusOK: {"The figures.", wire.Overview{}, nil}}, Refusals: operatorKinds,
	}, {
		ID: "list-routes", Method: http.MethodGet, Path: "/v1/routes", tag: tag,
		summary: "List the routes with their circuit breakers",
		description: "Sums over all workers that reported in the last 3 seconds: the state of the circuit " +
			"breaker, running deliveries, and failures in the last minute. The routes of this " +
			"process's configuration are always listed. While the store is unavailable, the last known " +
			"state is returned.",
		answers: map[int]Answer{http.StatusOK: {"The routes.", wire.RouteList{}, nil}}, Refusals: operatorKinds,
	}, {
		ID: "stream-figures", Method: http.MethodGet, Path: "/v1/stream", tag: tag, summary: "Follow the figures",
		description: "Server-sent events. `history` comes once, before the first `overview`, and has the minutes " +
			"before. `overview` comes four times a second. `pools` and `tenants` come once a second, less often where there " +
			"are too many tenants to read at that rate. With the parameter tenant, `tenant_history` comes once, " +
			"then `tenant` four times a second. With the parameter pool, `pool_history` comes once, then `pool` " +
			"four times a second and `pool_flows` as often as `tenants`. A slow client misses events and never gets old ones later. The " +
			"stream ends after 10 minutes, and when the server has stopped working; open it again. While no " +
			"client is connected, the server still samples for the history: all tenants together up to once a " +
			"second, and each tenant every five seconds while it has traffic. A process serves " +
			strconv.Itoa(LiveStreams) + " such streams at once.",
		Params: []*huma.Param{
			{Name: "tenant", In: "query", Description: "The tenant of the `tenant` events.",
				Schema: textSchema(1, 255)},
			{Name: "pool", In: "query",
				Description: "The pool of the `pool` and `pool_flows` events. There are none of an unknown pool.",
				Schema:      textSchema(1, 255)},
			{Name: "q", In: "query",
				Description: "Only tenants whose name contains this text, ignoring case.",
				Schema:      textSchema(0, MaxSearch)},
			{Name: "sort", In: "query", Description: "Order of the tenants: most waiting jobs, longest " +
				"wait, most refusals, most dead letters, or by name; depth if absent.",
				Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"depth", "oldest_wait", "refused", "dead", "name"}}},
			{Name: "limit", In: "query", Description: "Tenants per event; 50 if absent. 0 turns `tenants` and `pools` events off.",
				Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: &low, Maximum: &most}},
		},
		answers:  map[int]Answer{http.StatusOK: {"The events.", figureEvents{}, []string{"X-Accel-Buffering"}}},
		Refusals: append([]problem.Kind{problem.TooManyStreams, problem.ShuttingDown}, operatorKinds...),
	}}
}

// Bounds of the stream of figures.
const (
	LiveStreams = 100 // streams of one process at once: each sorts its tenants itself
	MaxLines    = 500 // tenants in one event
	MaxSearch   = 255 // bytes of the parameter q
)

// Names of the events of both streams; the comment is the type of the data.
const (
	OverviewEvent      = "overview"       // wire.Overview
	TenantsEvent       = "tenants"        // wire.TenantLines
	TenantEvent        = "tenant"         // wire.TenantNow
	HistoryEvent       = "history"        // wire.FigureHistory
	TenantHistoryEvent = "tenant_history" // wire.TenantHistory
	PoolsEvent         = "pools"          // wire.PoolLines
	PoolEvent          = "pool"           // wire.PoolNow
	PoolHistoryEvent   = "pool_history"   // wire.PoolHistory
	PoolSharesEvent    = "pool_flows"     // wire.PoolShares
	ArrivalsEvent      = "arrivals"       // wire.Arrivals, in the stream of arrivals
)

// Bounds of a page of tenants.
const (
	DefaultPage = 50  // items without the parameter limit
	MaxPage     = 200 // items at most
)
