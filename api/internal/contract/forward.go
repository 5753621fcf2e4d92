package contract

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// ForwardPath is the path of forwarded requests. The name of the route follows, and then the path
// below the upstream's base URL.
const ForwardPath = "/v1/forward/"

// ForwardEndpoint names forwarded requests, of any method, for guards.
const ForwardEndpoint = "forward"

// anyBytes documents a body that is no JSON of ours.
type anyBytes struct{}

const anyFormat = "*/*"

var (
	routePathParam   = pathParam("route", "Name of a configured route that forwards, percent-encoded.")
	forwardPathParam = pathParam("path", "Path below the upstream's base URL. It may have slashes, and "+
		"be empty. It is passed on as it is encoded.")
	preferAnswerParam = &huma.Param{
		Name: "Prefer", In: "header", Schema: textSchema(0, 0), Example: "wait=120",
		Description: "wait=N: wait for the answer, at most N seconds. N above 300 counts as 300. " +
			"respond-async: answer 202 at once.",
	}
	forwardKeyParam = &huma.Param{
		Name: keyParam.Name, In: "header", Schema: keyParam.Schema,
		Description: "Repeating the request with the key sends it only once, and gets the answer to the " +
			"first. Method, path, query and body must be the same. The key is passed on.",
	}
	credentialParam = &huma.Param{
		Name: "Sluice-Api-Key", In: "header", Schema: textSchema(1, 0),
		Description: "API key or token of the tenant, beside an Authorization that belongs to the upstream.",
	}
	estimateParam = &huma.Param{
		Name: "Sluice-Cost-Estimate", In: "header",
		Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: new(1.0), Maximum: new(float64(shaper.MaxCost))},
		Description: "About what the request will cost. It counts where it is higher than the cost of the route, until " +
			"the answer reports the actual cost.",
	}
	progressParam = &huma.Param{
		Name: "Sluice-Progress", In: "header", Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"102", "sse"}},
		Description: "102: while the request waits, informational answers 102 have Sluice-Position and Sluice-Eta-Ms. " +
			"sse: where the request accepts text/event-stream, the answer is 200 at once and begins with comments that have " +
			"both; another answer than events then comes as an event.",
	}
	maxWaitParam = &huma.Param{
		Name: "Sluice-Max-Wait-Ms", In: "header",
		Schema:      &huma.Schema{Type: huma.TypeInteger, Minimum: new(1.0), Maximum: new(float64(wire.MaxMillis))},
		Description: "Answer 503 at once if the request cannot leave within this time, and do not send it later.",
	}
)

// answerKinds are the kinds of problem instead of the answer of an upstream.
var answerKinds = []problem.Kind{problem.JobGone, problem.NoAnswer, problem.LateAnswer, problem.HopelessWait}

// upstreamAnswer documents the answer of an upstream; headers are further ones.
func upstreamAnswer(headers ...string) Answer {
	return Answer{
		"The answer of the upstream as it was, with any status, also one that is listed here. An answer with " +
			"Sluice-Waited-Ms is the upstream's.", anyBytes{},
		append([]string{"Sluice-Job", "Sluice-Waited-Ms", "Sluice-Truncated"}, headers...),
	}
}

// Forward returns the operations of forwarded requests, one for each of the usual methods. They are
// documentation: OpenAPI cannot say that any method is possible, nor that a parameter of a path has
// slashes. maxBody is the largest body, in bytes.
func Forward(maxBody int64) []Operation {
	headers := append([]string{"Location", "Sluice-Job", "Preference-Applied", "Idempotent-Replayed"}, limitHeaderNames...)
	var all []Operation
	for _, m := range []struct {
		method, name string
		body         bool
	}{
		{http.MethodGet, "get", false}, {http.MethodHead, "head", false}, {http.MethodPost, "post", true},
		{http.MethodPut, "put", true}, {http.MethodPatch, "patch", true}, {http.MethodDelete, "delete", true},
		{http.MethodOptions, "options", false},
	} {
		op := Operation{
			ID: "forward-" + m.name, Endpoint: ForwardEndpoint, Scope: queue.ScopeForward, Method: m.method, Path: ForwardPath + "{route}/{path}",
			tag: "Forward", summary: "Forward a " + m.method + " request",
			description: "The request waits in the tenant's queue, is sent to the upstream of the route, and its " +
				"client gets the upstream's answer. Any other method can be forwarded, too. The query and all " +
				"headers but Sluice's own are the upstream's.",
			Params: []*huma.Param{
				routePathParam, forwardPathParam, tenantParam, credentialParam, forwardKeyParam, preferAnswerParam,
				maxWaitParam, estimateParam, progressParam, traceParam,
			},
			answers: map[int]Answer{
				anyStatus: upstreamAnswer(),
				http.StatusAccepted: {
					"The wait that the client prefers is over, or was not wanted. Location has the path of the answer.",
					wire.Job{}, headers,
				},
			},
			Refusals: append([]problem.Kind{
				problem.UnknownRoute, problem.NotForwarded, problem.KeyReused, problem.QueueFull, problem.QueueBytesFull,
				problem.NeverFits, problem.TooCostly, problem.StoreFull, problem.TenantDraining, problem.HopelessWait, problem.AnswerPending,
				problem.Forbidden, problem.StorageUnavailable, problem.ShuttingDown,
			}, answerKinds...),
		}
		if m.body {
			op.anyBody = maxBody
		}
		all = append(all, op)
	}
	return all
}
