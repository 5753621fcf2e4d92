// Package contract declares every operation of the HTTP API as data: its parameters, bodies,
// answers and problems. The OpenAPI documents are made from it, and package api enforces it.
// Package api and its internal packages import it.
package contract

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/shaper"
)

// PageFiles is the page at /docs. It reads /openapi.json and nothing from other hosts.
//
//go:embed page
var PageFiles embed.FS

const (
	// JSONFormat is the media type of most bodies.
	JSONFormat  = "application/json"
	patchFormat = "application/merge-patch+json"
	pageCSP     = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
		"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// New returns an empty OpenAPI document over the router. Only mounted operations are served.
func New(router chi.Router, title, version string) huma.API {
	cfg := huma.DefaultConfig(title, cmp.Or(version, "unversioned"))
	cfg.CreateHooks = nil // would add $schema members to the bodies
	cfg.OpenAPIPath, cfg.DocsPath, cfg.SchemasPath = "", "", ""
	cfg.Info.Description = "Requests to other paths or with other methods are also answered with a problem. " +
		describeKinds(http.StatusNotFound, RouterKinds) + ". " +
		describeKinds(http.StatusMethodNotAllowed, RouterKinds) + "."
	api := humachi.New(router, cfg)
	schemas := api.OpenAPI().Components.Schemas
	schemas.RegisterTypeAlias(reflect.TypeFor[shaper.Rate](), reflect.TypeFor[Rate]())
	schemas.RegisterTypeAlias(reflect.TypeFor[shaper.PaceJSON](), reflect.TypeFor[Pace]())
	return api
}

// Serve serves /openapi.json and /docs. Call it once everything is mounted.
func Serve(router chi.Router, api huma.API) error {
	// Marshalled at the first request, to keep the start fast. The operations are fixed, so tests
	// find a failure.
	written := sync.OnceValue(func() []byte {
		document, err := json.Marshal(api.OpenAPI())
		if err != nil {
			panic(fmt.Errorf("api: OpenAPI document: %w", err))
		}
		return document
	})
	router.Get("/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		document := written()
		w.Header().Set("Content-Type", "application/openapi+json")
		deadline.ForAnswer(w, len(document))
		_, _ = w.Write(document)
	})
	for path, file := range map[string]struct{ name, format string }{
		"/docs":          {"docs.html", "text/html; charset=utf-8"},
		"/docs/docs.js":  {"docs.js", "text/javascript; charset=utf-8"},
		"/docs/docs.css": {"docs.css", "text/css; charset=utf-8"},
	} {
		content, err := fs.ReadFile(PageFiles, "page/"+file.name)
		if err != nil {
			return err
		}
		router.Get(path, func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Content-Type", file.format)
			h.Set("Content-Security-Policy", pageCSP)
			h.Set("Referrer-Policy", "no-referrer")
			deadline.ForAnswer(w, len(content))
			_, _ = w.Write(content)
		})
	}
	return nil
}

// headerDocs describes the headers of answers once for all operations.
var headerDocs = map[string]*huma.Param{
	"Location": header("string", "Path of the job."),
	"Idempotent-Replayed": header("string",
		"\"true\" if the idempotency key was known; the job is that of the first submission."),
	"Preference-Applied": header("string", "The wait that was granted, such as wait=30."),
	"RateLimit-Policy": header("string",
		"The queue's capacity and its drain rate: \"queue\";q=1000, \"drain\";q=10;w=1. If a guard refused "+
			"the request, its limit: \"guests\";q=20;w=60."),
	"RateLimit": header("string", "Free slots, and seconds until the next slot frees: \"queue\";r=983;t=1. "+
		"If a guard refused the request: \"guests\";r=0;t=42."),
	"X-RateLimit-Limit":     header("integer", "Capacity of the queue."),
	"X-RateLimit-Remaining": header("integer", "Free slots of the queue."),
	"X-RateLimit-Retry-After": header("integer",
		"Seconds until a retry can succeed; 0 while there are free slots."),
	"ETag":              header("string", "The revision of the settings, quoted."),
	"Retry-After":       header("integer", "Seconds until the client should retry."),
	"Allow":             header("string", "The methods that are allowed."),
	"X-Accel-Buffering": header("string", "no: asks proxies to forward events without buffering."),
	"WWW-Authenticate":  header("string", "How to authenticate."),
	"Sluice-Job":        header("string", "ID of the job of the forwarded request."),
	"Sluice-Waited-Ms":  header("integer", "Milliseconds from admission to the last departure."),
	"Sluice-Truncated":  header("string", "\"true\" if the body has only the first bytes of the upstream's."),
}

var limitHeaderNames = []string{
	"RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Retry-After",
}

func header(kind, text string) *huma.Param {
	return &huma.Param{Description: text, Schema: &huma.Schema{Type: kind}}
}

// problemHeaders are the headers that problems of the status may carry.
func problemHeaders(status int) map[string]*huma.Param {
	var names []string
	switch status {
	case http.StatusTooManyRequests:
		names = append([]string{"Retry-After"}, limitHeaderNames...)
	case http.StatusServiceUnavailable:
		names = []string{"Retry-After"}
	case http.StatusGone, http.StatusBadGateway, http.StatusGatewayTimeout:
		names = []string{"Sluice-Job"}
	case http.StatusUnauthorized:
		names = []string{"WWW-Authenticate"}
	}
	out := map[string]*huma.Param{}
	for _, n := range names {
		out[n] = headerDocs[n]
	}
	return out
}

// describeKinds lists the kinds of problem that have the status.
func describeKinds(status int, of []problem.Kind) string {
	var lines []string
	for _, k := range problem.Kinds {
		if k.Status == status && slices.Contains(of, k) {
			lines = append(lines, problem.URN+k.Name+": "+k.Title)
		}
	}
	return strings.Join(lines, ". ")
}

// Parameters that several operations share.
var (
	tenantParam = &huma.Param{Name: codec.TenantHeader, In: "header", Schema: textSchema(1, 255),
		Description: "The tenant, 1 to 255 bytes without control characters; \"default\" if absent. With " +
			"authentication it must be the credential's tenant or absent."}
	keyParam = &huma.Param{Name: codec.KeyHeader, In: "header", Schema: textSchema(1, 257),
		Description: "Identifies the submission, so that repeating it submits no second job: at most 255 " +
			"bytes without control characters. A value that starts with a double quote is a structured " +
			"string, any other value is taken as raw bytes."}
	preferParam = &huma.Param{Name: "Prefer", In: "header", Schema: textSchema(0, 0), Example: "wait=10",
		Description: "wait=N: answer when the job is done, after at most N seconds. N above 30 counts as 30."}
	traceParam = &huma.Param{Name: "traceparent", In: "header", Schema: textSchema(0, 0),
		Example:     "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Description: "Trace context (W3C) that the deliveries of the jobs continue; ignored if invalid."}
	lastEventParam = &huma.Param{Name: "Last-Event-ID", In: "header", Schema: textSchema(0, 0),
		Description: "ID of the last event received. If that was the job's end, the answer is 204."}
	ifMatchParam = &huma.Param{Name: "If-Match", In: "header", Schema: textSchema(0, 0), Example: `"7"`,
		Description: "Change the settings only if they have one of these revisions."}
	dryRunParam = &huma.Param{Name: "dry_run", In: "query", Schema: &huma.Schema{Type: "boolean"},
		Description: "Check the change without applying it. The answer shows the result."}
	createParam = &huma.Param{Name: "create", In: "query", Schema: &huma.Schema{Type: "boolean", Default: true},
		Description: "false: answer 404 unknown-tenant if the tenant has no settings and no recent jobs, " +
			"for example because the name is misspelt."}
	createAskedParam = &huma.Param{Name: "create", In: "query", Schema: &huma.Schema{Type: "boolean", Default: false},
		Description: "true: create the tenant if it has no settings and no recent jobs. Otherwise the answer " +
			"is 404 unknown-tenant, because the name may be misspelt."}
	jobParam          = pathParam("id", "ID of the job.")
	tenantPathParam   = pathParam("tenant", "Name of the tenant, percent-encoded.")
	keyPathParam      = pathParam("key", "ID of the API key.")
	secretPathParam   = pathParam("secret", "ID of the secret.")
	sessionPathParam  = pathParam("session", "ID of the session.")
	operatorPathParam = pathParam("operator", "ID of the operator.")
	poolPathParam     = pathParam("pool", "Name of the pool.")
	guardPathParam    = pathParam("guard", "Name of the guard.")
	blockPathParam    = pathParam("blocked", "The key as listed, percent-encoded.")
)

func pathParam(name, text string) *huma.Param {
	return &huma.Param{Name: name, In: "path", Required: true, Description: text, Schema: textSchema(1, 0)}
}

// textSchema is a string of least to most characters; 0 is no bound.
func textSchema(least, most int) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	if least > 0 {
		s.MinLength = &least
	}
	if most > 0 {
		s.MaxLength = &most
	}
	return s
}
