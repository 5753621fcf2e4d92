package contract

import (
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
)

const (
	// StreamFormat is the media type of server-sent events.
	StreamFormat = "text/event-stream"
	// StateEvent is the name of an event that has a job in a new state.
	StateEvent = "state"
)

// Kinds that several operations answer with; see also Operation.Kinds.
var (
	// operatorKinds are those of the control plane.
	operatorKinds = []problem.Kind{
		problem.Unauthorized, problem.Forbidden, problem.RateLimited, problem.StorageUnavailable,
	}
	// admissionKinds are those of operations that admit jobs.
	admissionKinds = []problem.Kind{
		problem.UnknownRoute, problem.ForwardOnly, problem.DeadlineFarAway, problem.TooCostly, problem.KeyReused, problem.QueueFull,
		problem.QueueBytesFull, problem.NeverFits, problem.StoreFull, problem.TenantDraining, problem.Forbidden,
		problem.StorageUnavailable, problem.ShuttingDown,
	}
	// replayKinds are those of a replay. The job is stored already, and has no deadline.
	replayKinds = []problem.Kind{
		problem.UnknownJob, problem.StateConflict, problem.QueueFull, problem.QueueBytesFull,
		problem.TenantDraining, problem.Forbidden, problem.StorageUnavailable,
	}
	// RouterKinds are the kinds of problem for requests that reach no operation.
	RouterKinds = []problem.Kind{problem.NotFound, problem.MethodNotAllowed}
)

// Bounds of bodies, in bytes.
const (
	DefaultMaxBody = 256 << 10 // of a submission
	MaxBatchBody   = 8 << 20   // of a batch
	MaxSmallBody   = 64 << 10  // of settings, reasons and empty bodies
	maxFilterBody  = 128 << 10 // of a purge or a replay
)

func jsonBody(of any, limit int64, optional bool) *Body {
	return &Body{of: of, Spec: budget.Spec{Formats: []string{JSONFormat}, Optional: optional, Limit: limit}}
}

func rawBody(b *Body) *Body {
	b.Raw = true
	return b
}

// rawParams are the parameters of a submission whose body is the payload.
func rawParams() (out []*huma.Param) {
	schema := huma.SchemaFromType(huma.NewMapRegistry("", huma.DefaultSchemaNamer), reflect.TypeFor[wire.Submission]())
	for _, name := range codec.RawNames {
		p := *schema.Properties[name]
		text := p.Description
		p.Description, p.Examples = "", nil
		out = append(out, &huma.Param{Name: name, In: "query", Schema: &p, Description: "Of a raw body: " + text})
	}
	return out
}

// Jobs returns the operations of the data plane. maxBody is the largest body of one submission, in
// bytes.
func Jobs(maxBody int64) []Operation {
	const tag = "Jobs"
	admitted := append([]string{"Location", "Preference-Applied", "Idempotent-Replayed"}, limitHeaderNames...)
	return []Operation{{
		ID: "submit-job", Scope: queue.ScopeSubmit, Method: http.MethodPost, Path: "/v1/jobs", tag: tag, summary: "Submit a job",
		description: "Admits the job into its tenant's queue. With Prefer: wait=N the answer waits until " +
			"the job is done, at most N seconds, and needs the scope read, too. With type in the query the body is the payload, of any " +
			"format: its bytes and its Content-Type are delivered, and the query has what the JSON body " +
			"has otherwise. Then the header Sluice-Set-NAME is the member NAME of headers.",
		Params: append([]*huma.Param{tenantParam, keyParam, preferParam, traceParam}, rawParams()...),
		Body:   rawBody(jsonBody(wire.Submission{}, maxBody, false)),
		answers: map[int]Answer{
			http.StatusAccepted: {"The job is stored and will be delivered.", wire.Job{}, admitted},
			http.StatusOK: {
				"The job was done within the preferred wait.", wire.Job{},
				[]string{"Location", "Preference-Applied", "Idempotent-Replayed"},
			},
		},
		Refusals: admissionKinds,
	}, {
		ID: "submit-batch", Scope: queue.ScopeSubmit, Method: http.MethodPost, Path: "/v1/jobs/batch", tag: tag, summary: "Submit many jobs",
		description: "Submits up to 1,000 jobs of one tenant, in order. Each job has its own result. With " +
			"atomic, all jobs are admitted or none, and a job that is refused refuses the batch. Each " +
			"payload may be as large as in a single submission.",
		Params:   []*huma.Param{tenantParam, traceParam},
		Body:     jsonBody(wire.Batch{}, MaxBatchBody, false),
		answers:  map[int]Answer{http.StatusOK: {"One result per job, in order.", wire.BatchResult{}, nil}},
		Refusals: admissionKinds,
	}, {
		ID: "list-jobs", Scope: queue.ScopeRead, Method: http.MethodGet, Path: "/v1/jobs", tag: tag, summary: "List jobs",
		description: listDescription,
		Params:      listParams(),
		answers:     map[int]Answer{http.StatusOK: {"One page.", wire.JobList{}, nil}},
		Refusals:    []problem.Kind{problem.UnknownRoute, problem.RateLimited, problem.StorageUnavailable},
	}, {
		ID: "get-job", Scope: queue.ScopeRead, Method: http.MethodGet, Path: "/v1/jobs/{id}", tag: tag, summary: "Read a job",
		description: "With Prefer: wait=N the answer waits until the job is done, at most N seconds.",
		Params:      []*huma.Param{jobParam, tenantParam, preferParam},
		answers: map[int]Answer{http.StatusOK: {
			"The job, done or not.", wire.Job{}, []string{"Preference-Applied"},
		}},
		Refusals: []problem.Kind{problem.UnknownJob, problem.RateLimited, problem.StorageUnavailable},
	}, {
		ID: "stream-job", Scope: queue.ScopeRead, Method: http.MethodGet, Path: "/v1/jobs/{id}/events", tag: tag,
		summary: "Follow a job's state",
		description: "Server-sent events: the job now, then again at each change of its state. The stream " +
			"ends after the final state, after 10 minutes, and when the server stops. Open it again with " +
			"Last-Event-ID. The final state is sent at once, other changes within about 250 ms, so a " +
			"shorter state may be missed.",
		Params:  []*huma.Param{jobParam, tenantParam, lastEventParam},
		answers: streamAnswers,
		Refusals: []problem.Kind{
			problem.UnknownJob, problem.RateLimited, problem.TooManyStreams, problem.StorageUnavailable,
		},
	}, {
		ID: "get-answer", Scope: queue.ScopeRead, Method: http.MethodGet, Path: "/v1/jobs/{id}/response", tag: tag,
		summary: "Read the answer to a forwarded request",
		description: "The answer of the upstream as it was: status, headers and body, for the retention of " +
			"the route. With Prefer: wait=N it waits for the answer, at most N seconds, up to 300. With " +
			"Accept: text/event-stream alone, as an EventSource sends it, it waits for 300 seconds.",
		Params: []*huma.Param{jobParam, tenantParam, preferAnswerParam},
		answers: map[int]Answer{
			anyStatus: upstreamAnswer(),
			http.StatusAccepted: {
				"There is no answer yet.", wire.Job{}, []string{"Location", "Sluice-Job", "Preference-Applied"},
			},
		},
		Refusals: append([]problem.Kind{
			problem.UnknownJob, problem.RateLimited, problem.StorageUnavailable,
		}, answerKinds...),
	}, {
		ID: "cancel-job", Scope: queue.ScopeCancel, Method: http.MethodDelete, Path: "/v1/jobs/{id}", tag: tag,
		summary:     "Cancel a waiting job",
		description: "Cancelling a cancelled job again gives the same answer.",
		Params:      []*huma.Param{jobParam, tenantParam},
		answers:     map[int]Answer{http.StatusOK: {"The cancelled job.", wire.Job{}, nil}},
		Refusals:    []problem.Kind{problem.UnknownJob, problem.StateConflict, problem.StorageUnavailable},
	}, {
		ID: "replay-job", Scope: queue.ScopeReplay, Method: http.MethodPost, Path: "/v1/jobs/{id}/replay", tag: tag,
		summary:     "Replay a dead job",
		description: "The job goes through its bucket again, with all its attempts.",
		Params:      []*huma.Param{jobParam, tenantParam},
		Body:        jsonBody(wire.Empty{}, MaxSmallBody, true),
		answers: map[int]Answer{
			http.StatusAccepted: {
				"The job is queued again.", wire.Job{}, append([]string{"Location"}, limitHeaderNames...),
			},
		},
		Refusals: append([]problem.Kind{problem.ShuttingDown}, replayKinds...),
	}}
}

const listDescription = "Jobs in one state or in all, newest first within each state and route, page by " +
	"page. A job whose state changes between two pages may be on neither or on both. " +
	"One request does a bounded amount of work in Redis, about 5 ms: a page may have fewer jobs than the " +
	"limit, or none, and be followed by others. The list ends with the page that has no next_cursor."

// listParams are the query parameters of GET /v1/jobs.
func listParams() []*huma.Param {
	state := textSchema(0, 0)
	for _, name := range codec.StateNames(queue.ListStates()) {
		state.Enum = append(state.Enum, name)
	}
	limit := pageSchema(wire.MaxPage)
	limit.Default = codec.DefaultJobs
	instant := &huma.Schema{Type: huma.TypeString, Format: "date-time"}
	return []*huma.Param{
		tenantParam,
		{Name: "state", In: "query", Required: true, Schema: state,
			Description: "The state of the jobs, or all. Of succeeded, expired and cancelled jobs, only " +
				"the last 1,000 of a flow are listed."},
		{Name: "route", In: "query", Schema: textSchema(1, wire.MaxTypeBytes),
			Description: "Only jobs for this configured route; every route if absent."},
		{Name: "type", In: "query", Schema: textSchema(1, wire.MaxTypeBytes),
			Description: "Only jobs of this type."},
		{Name: "created_after", In: "query", Schema: instant,
			Description: "Only jobs created at this instant or later."},
		{Name: "created_before", In: "query", Schema: instant,
			Description: "Only jobs created before this instant."},
		{Name: "idempotency_key", In: "query", Schema: textSchema(1, wire.MaxKeyBytes),
			Description: "Only the job with this key. A job past its retention has no route and no type."},
		{Name: "limit", In: "query", Schema: limit, Description: "Jobs per page; 100 if absent."},
		{Name: "cursor", In: "query", Schema: textSchema(1, 0), Description: "next_cursor of the previous page."},
	}
}

// pageSchema is the schema of a limit.
func pageSchema(most int) *huma.Schema {
	low, high := float64(1), float64(most)
	return &huma.Schema{Type: huma.TypeInteger, Minimum: &low, Maximum: &high}
}

// Probes returns the health probes, which both listeners serve.
func Probes() []Operation {
	const tag = "Probes"
	fine := map[int]Answer{http.StatusOK: {"Yes.", wire.Health{}, nil}}
	return []Operation{
		{ID: "livez", Method: http.MethodGet, Path: "/livez", tag: tag,
			summary: "Check that the process runs", answers: fine},
		{
			ID: "readyz", Method: http.MethodGet, Path: "/readyz", tag: tag,
			summary: "Check that the process accepts work", answers: fine,
			Refusals: []problem.Kind{problem.StorageUnavailable, problem.ShuttingDown},
		},
	}
}

// Version returns the operation that reports the version of the program. Both listeners serve it.
func Version() Operation {
	return Operation{
		ID: "version", Method: http.MethodGet, Path: "/version", tag: "Probes",
		summary: "Read the version of the program", Refusals: []problem.Kind{problem.Forbidden},
		answers: map[int]Answer{http.StatusOK: {"The version.", wire.Version{}, nil}},
	}
}

// streamAnswers are those of a stream of the states of a job.
var streamAnswers = map[int]Answer{
	http.StatusOK:        {"The events.", eventStream{data: wire.Job{}}, []string{"X-Accel-Buffering"}},
	http.StatusNoContent: {"The client has already received the event of the final state.", nil, nil},
}
