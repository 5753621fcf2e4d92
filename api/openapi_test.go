package api

import (
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper"
)

func TestDocumentNamesEveryOperation(t *testing.T) {
	b := newBench(t)
	for doc, want := range map[*document][]string{
		&b.intake: {
			"DELETE /v1/forward/{route}/{path}", "DELETE /v1/jobs/{id}", "GET /livez", "GET /readyz",
			"GET /v1/forward/{route}/{path}", "GET /v1/jobs", "GET /v1/jobs/{id}", "GET /v1/jobs/{id}/events",
			"GET /v1/jobs/{id}/response", "HEAD /v1/forward/{route}/{path}", "OPTIONS /v1/forward/{route}/{path}",
			"PATCH /v1/forward/{route}/{path}", "POST /v1/forward/{route}/{path}", "POST /v1/jobs",
			"POST /v1/jobs/batch", "POST /v1/jobs/{id}/replay", "PUT /v1/forward/{route}/{path}",
		},
		&b.admin: {
			"DELETE /v1/guards/{guard}/blocked/{blocked}", "DELETE /v1/operators/{operator}", "DELETE /v1/tenants/{tenant}",
			"DELETE /v1/tenants/{tenant}/jobs/{id}", "DELETE /v1/tenants/{tenant}/keys/{key}", "GET /livez",
			"GET /readyz",
			"GET /v1/audit",
			"GET /v1/guards", "GET /v1/guards/{guard}/blocked", "GET /v1/jobs/{id}", "GET /v1/operators", "GET /v1/self", "GET /v1/sessions", "DELETE /v1/sessions/{session}",
			"GET /v1/pools", "GET /v1/pools/{pool}", "GET /v1/pools/{pool}/flows",
			"GET /v1/pools/{pool}/history", "GET /v1/routes",
			"GET /v1/stats", "GET /v1/stream", "GET /v1/tenants", "GET /v1/tenants/{tenant}",
			"GET /v1/tenants/{tenant}/arrivals", "GET /v1/tenants/{tenant}/history",
			"GET /v1/tenants/{tenant}/jobs", "GET /v1/tenants/{tenant}/jobs/{id}",
			"GET /v1/tenants/{tenant}/jobs/{id}/events", "GET /v1/tenants/{tenant}/keys", "GET /version",
			"PATCH /v1/pools/{pool}", "PATCH /v1/tenants/{tenant}", "POST /v1/operators", "POST /v1/pools/{pool}/pause", "POST /v1/pools/{pool}/predict",
			"POST /v1/pools/{pool}/resume", "POST /v1/pools/{pool}/unhold", "POST /v1/purge", "POST /v1/tenants/{tenant}/drain", "POST /v1/tenants/{tenant}/erase",
			"POST /v1/tenants/{tenant}/jobs/{id}/replay", "POST /v1/tenants/{tenant}/keys",
			"POST /v1/tenants/{tenant}/pause", "POST /v1/tenants/{tenant}/predict",
			"POST /v1/tenants/{tenant}/purge", "POST /v1/tenants/{tenant}/replay",
			"POST /v1/tenants/{tenant}/resume", "POST /v1/tenants/{tenant}/tokens/revoke",
			"POST /v1/tenants/{tenant}/unhold", "PUT /v1/pools/{pool}", "PUT /v1/tenants/{tenant}",
			"POST /v1/tenants/{tenant}/callbacks/secrets", "GET /v1/tenants/{tenant}/callbacks/secrets",
			"DELETE /v1/tenants/{tenant}/callbacks/secrets/{secret}",
			"GET /v1/tenants/{tenant}/callbacks/endpoints", "PUT /v1/tenants/{tenant}/callbacks/endpoints",
		},
	} {
		var got []string
		for path, item := range doc.read().paths {
			for method := range item {
				got = append(got, strings.ToUpper(method)+" "+path)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("documented %v, want %v", got, want)
		}
	}
}

// memberNames are the JSON names of a struct's fields.
func memberNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			names = append(names, memberNames(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func TestSchemasHaveTheFieldsOfTheWire(t *testing.T) {
	b := newBench(t)
	var doc struct {
		OpenAPI    string
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
				Required   []string
			}
		}
	}
	for _, d := range []document{b.intake, b.admin} {
		r := d.do(t, http.MethodGet, "/openapi.json", nil, "")
		if err := json.Unmarshal(r.Body.Bytes(), &doc); err != nil || !strings.HasPrefix(doc.OpenAPI, "3.1") {
			t.Fatalf("version %q, %v", doc.OpenAPI, err)
		}
	}
	for _, v := range []any{
		wire.Job{}, wire.JobDetail{}, wire.Attempt{}, wire.Submission{}, wire.Batch{}, wire.BatchJob{},
		wire.JobResult{}, wire.JobList{}, wire.Problem{}, wire.Tenant{},
		wire.Filter{}, wire.Swept{}, wire.History{}, wire.HistoryEntry{}, shaper.Overrides{},
		wire.KeyRequest{}, wire.Key{}, wire.NewKey{}, wire.KeyList{}, wire.Guard{}, wire.GuardList{},
		wire.BlockedKey{}, wire.BlockedList{},
		wire.Arrival{}, wire.Arrivals{}, wire.Prediction{}, wire.Outlook{},
		wire.Overview{}, wire.StoreState{}, wire.TenantLines{}, wire.TenantLine{}, wire.TenantNow{},
	} {
		typ := reflect.TypeOf(v)
		var got []string
		for name := range doc.Components.Schemas[typ.Name()].Properties {
			got = append(got, name)
		}
		want := memberNames(typ)
		slices.Sort(got)
		slices.Sort(want)
		want = slices.Compact(want) // the outer of two members counts
		if !slices.Equal(got, want) {
			t.Errorf("%s: schema has %v, the type has %v", typ.Name(), got, want)
		}
	}
	if got := doc.Components.Schemas["Submission"].Required; !slices.Equal(got, []string{"type", "payload"}) {
		t.Errorf("a submission requires %v", got)
	}
}

// The bounds in the schema are those that the decoder enforces.
func TestSchemaBoundsAreTheDecoders(t *testing.T) {
	b := newBench(t)
	r := b.intake.do(t, http.MethodGet, "/openapi.json", nil, "")
	var doc struct {
		Components struct {
			Schemas struct {
				Submission struct {
					Properties map[string]struct{ Minimum, Maximum *json.Number }
				}
			}
		}
	}
	if err := json.Unmarshal(r.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"delay_ms", "max_wait_ms", "cost"} {
		p := doc.Components.Schemas.Submission.Properties[field]
		if p.Minimum == nil || p.Maximum == nil {
			t.Fatalf("%s has no bounds", field)
		}
		low, _ := p.Minimum.Int64()
		high, _ := p.Maximum.Float64()
		for value, legal := range map[int64]bool{
			low: true, low - 1: false, int64(high): true, int64(high) + 1: false,
		} {
			body, _ := json.Marshal(map[string]any{"type": "t", "payload": 1, field: value})
			if _, err := codec.DecodeSubmission(body); (err == nil) != legal {
				t.Errorf("%s = %d: %v, the schema says legal=%v", field, value, err, legal)
			}
		}
	}
}

// The same of texts and lists; the schemas count characters, the decoders bytes.
func TestSchemaLengthsAreTheDecoders(t *testing.T) {
	b := newBench(t)
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct {
					MinLength, MaxLength, MinItems, MaxItems int
				}
			}
		}
	}
	read := func(d document) {
		if err := json.Unmarshal(d.do(t, http.MethodGet, "/openapi.json", nil, "").Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
	}
	read(b.intake)
	read(b.admin)
	submission := func(field string, value any) error {
		_, err := codec.DecodeSubmission(must(json.Marshal(map[string]any{"type": "t", "payload": 1, field: value})))
		return err
	}
	filter := func(field string, value any) error {
		_, err := codec.DecodeFilter(must(json.Marshal(map[string]any{field: value})), codec.Purgeable)
		return err
	}
	for _, c := range []struct {
		schema, field string
		decode        func(field string, value any) error
	}{
		{"Submission", "type", submission}, {"Submission", "route", submission},
		{"Submission", "callback_url", submission},
		{"Filter", "ids", filter}, {"Filter", "route", filter}, {"Filter", "error", filter},
	} {
		p := doc.Components.Schemas[c.schema].Properties[c.field]
		low, high := max(p.MinLength, p.MinItems), max(p.MaxLength, p.MaxItems)
		for n, legal := range map[int]bool{low: true, low - 1: false, high: true, high + 1: false} {
			var value any = strings.Repeat("x", n)
			if p.MaxItems > 0 {
				value = slices.Repeat([]string{"x"}, n)
			}
			if err := c.decode(c.field, value); (err == nil) != legal {
				t.Errorf("%s.%s of %d: %v, the schema says legal=%v", c.schema, c.field, n, err, legal)
			}
		}
	}
}

// The same of ids, of states, and of rates, which only a PATCH may give by halves.
func TestSchemasRefuseWhatIsRefused(t *testing.T) {
	const tenant = "/v1/tenants/{tenant}"
	b := newBench(t)
	for _, c := range []struct {
		method, path, body string
		legal              bool
	}{
		{"POST", tenant + "/purge", `{}`, false}, {"POST", tenant + "/replay", `{}`, false}, {"POST", tenant + "/purge", `{"all":true}`, true}, {"POST", tenant + "/purge", `{"all":false}`, false},
		{"POST", tenant + "/purge", `{"state":"queued"}`, true}, {"POST", tenant + "/purge", `{"state":"leased"}`, false},
		{"POST", tenant + "/replay", `{"state":"dead","route":"other"}`, true}, {"POST", tenant + "/replay", `{"state":"queued"}`, false}, {"POST", tenant + "/replay", `{"states":"dead"}`, false},
		{"POST", tenant + "/purge", `{"ids":["0a9z"]}`, true}, {"POST", tenant + "/purge", `{"ids":["` + strings.Repeat("z", 64) + `"]}`, true},
		{"POST", tenant + "/purge", `{"ids":["A"]}`, false}, {"POST", tenant + "/purge", `{"ids":[""]}`, false}, {"POST", tenant + "/replay", `{"ids":["` + strings.Repeat("z", 65) + `"]}`, false},
		{"PUT", tenant, `{"rate":{"limit":1,"period_ms":1000},"routes":{"other":{"rate":{"limit":1,"period_ms":1000}}}}`, true}, {"PUT", tenant, `{"rate":null,"routes":{"other":null},"burst":1}`, true},
		{"PUT", tenant, `{"rate":"10/s","rates":[{"rate":"1000/24h","burst":100},{"rate":"5/s","by":"jobs"},{"limit":1,"period_ms":1000,"by":"cost"}],"routes":{"other":{"rate":"5/m"}}}`, true}, {"PATCH", tenant, `{"rate":"10/s"}`, true},
		{"PATCH", tenant, `{"rate":"10/w"}`, false}, {"PATCH", tenant, `{"rates":[{"burst":1}]}`, false}, {"PATCH", tenant, `{"rates":[{"rate":"1/s","by":"job"}]}`, false}, {"PATCH", tenant, `{"rates":[{"rate":"1/s","limit":1}]}`, false},
		{"PUT", tenant, `{"routes":null}`, true}, {"PUT", tenant, `{"routes":{"other":{"rate":null}}}`, true},
		{"PUT", tenant, `{"rate":{"limit":1}}`, false}, {"PUT", tenant, `{"rate":{"period_ms":1}}`, false},
		{"PUT", tenant, `{"routes":{"other":{"rate":{"limit":1}}}}`, false},
		{"PUT", tenant, `{"rat":1}`, false},
		{"PATCH", tenant, `{"rate":{"limit":1}}`, true},
		{"PATCH", tenant, `{"routes":{"other":{"rate":{"period_ms":1}}}}`, true},
	} {
		b.admin.do(t, "PATCH", "/v1/tenants/a", nil, `{}`) // or there would be no such tenant
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.admin.schema(t, c.method, c.path, "requestBody", contract.JSONFormat).
			Validate(value); (err == nil) != c.legal {
			t.Errorf("%s %s %s: legal=%v, the schema says %v", c.method, c.path, c.body, c.legal, err)
		}
		status := http.StatusOK
		if !c.legal {
			status = http.StatusUnprocessableEntity
		}
		b.admin.do(t, c.method, strings.Replace(c.path, "{tenant}", "a", 1), nil, c.body).want(t, status, "")
	}
}

// Before the program has a Server, it answers every path but /livez in its place.
func TestEveryOperationMayBeStarting(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminSubmit = true })
	for _, d := range []document{b.intake, b.admin} {
		for path, item := range d.read().paths {
			for method, op := range item {
				answer, _ := op.(map[string]any)["responses"].(map[string]any)["503"].(map[string]any)
				said, _ := answer["description"].(string)
				if strings.Contains(said, "urn:sluice:problem:starting: Starting") == (path == "/livez") {
					t.Errorf("%s %s: 503 is documented as %q", method, path, said)
				}
			}
		}
	}
}

// What some operations answer with is not said of the others. That each documents all of its own is
// for document.check to see.
func TestOperationsDocumentTheirKinds(t *testing.T) {
	const submit, batch, test = "POST /v1/jobs", "POST /v1/jobs/batch", "POST /v1/tenants/{tenant}/jobs"
	b := newGuarded(t, []auth.Mode{auth.Keys, auth.JWT}, func(c *Config) { c.AdminSubmit = true })
	by := map[string][]string{} // the operations that document a kind
	said := map[string][]string{}
	for _, d := range []document{b.intake, b.admin} {
		for path, item := range d.read().paths {
			for method, op := range item {
				name := strings.ToUpper(method) + " " + path
				for status, response := range op.(map[string]any)["responses"].(map[string]any) {
					for _, k := range problem.Kinds {
						// Probes are on both.
						if !names(response.(map[string]any), problem.URN+k.Name) ||
							slices.Contains(by[k.Name], name) {
							continue
						}
						by[k.Name], said[name] = append(by[k.Name], name), append(said[name], k.Name)
						if strconv.Itoa(k.Status) != status {
							t.Errorf("%s: %s is documented under %s", name, k.Name, status)
						}
					}
				}
			}
		}
		text := d.do(t, http.MethodGet, "/openapi.json", nil, "").Body.String()
		for _, k := range contract.RouterKinds {
			if !strings.Contains(text, problem.URN+k.Name+": "+k.Title) {
				t.Errorf("the document does not name %s", k.Name)
			}
		}
	}
	for _, k := range problem.Kinds {
		outside := slices.Contains(contract.RouterKinds, k) || k == problem.ClientLeft // which nobody reads
		if (len(by[k.Name]) > 0) == outside {
			t.Errorf("%s is documented by the operations %v", k.Name, by[k.Name])
		}
	}
	for kind, want := range map[string][]string{
		"deadline-unreachable": {submit, batch, test}, "idempotency-key-reused": {submit, batch, test},
		"store-full":    {submit, batch, test},
		"too-many-keys": {"POST /v1/tenants/{tenant}/keys"},
		"unknown-key":   {"DELETE /v1/tenants/{tenant}/keys/{key}"},

		"too-many-callback-secrets": {"POST /v1/tenants/{tenant}/callbacks/secrets"},
		"unknown-callback-secret":   {"DELETE /v1/tenants/{tenant}/callbacks/secrets/{secret}"},
		"too-many-streams": {"GET /v1/jobs/{id}/events", "GET /v1/stream", "GET /v1/tenants/{tenant}/arrivals",
			"GET /v1/tenants/{tenant}/jobs/{id}/events"},
	} {
		slices.Sort(want)
		by[kind] = slices.DeleteFunc(by[kind], func(name string) bool { return strings.Contains(name, contract.ForwardPath) })
		slices.Sort(by[kind])
		if !slices.Equal(by[kind], want) {
			t.Errorf("%s is documented by %v, want %v", kind, by[kind], want)
		}
	}
	for name, want := range map[string][]string{
		"GET /livez": {"internal", "invalid-request", "too-large", "unreadable-body"},
		"GET /v1/jobs/{id}/response": {
			"forbidden", "internal", "invalid-request", "issuer-unavailable", "job-gone", "overloaded", "rate-limited",
			"starting", "stored-data-damaged", "tenant-mismatch", "too-large", "unauthorized", "unavailable", "unknown-job",
			"unreadable-body", "upstream-no-answer", "upstream-timeout", "wait-hopeless",
		},
		"DELETE /v1/forward/{route}/{path}": {
			"answer-pending", "draining", "forbidden", "idempotency-key-reused", "internal", "invalid-request",
			"issuer-unavailable", "job-gone", "never-fits",
			"not-forwarded", "outcome-unknown", "overloaded", "queue-bytes-full", "queue-full", "rate-limited",
			"shutting-down", "starting",
			"store-full", "stored-data-damaged", "tenant-mismatch", "too-costly", "too-large", "unauthorized",
			"unavailable", "unknown-route", "unreadable-body", "upstream-no-answer", "upstream-timeout", "wait-hopeless",
		},
		"GET /version": {"forbidden", "internal", "invalid-request", "overloaded", "starting", "too-large", "unreadable-body"},
		"POST /v1/tenants/{tenant}/pause": {
			"forbidden", "internal", "invalid-request", "malformed-json", "outcome-unknown", "overloaded", "rate-limited",
			"revision-mismatch", "starting", "stored-data-damaged", "too-large", "unauthorized",
			"unavailable",
			"unknown-tenant", "unreadable-body", "unsupported-media-type",
		},
	} {
		slices.Sort(said[name])
		if !slices.Equal(said[name], want) {
			t.Errorf("%s documents %v, want %v", name, said[name], want)
		}
	}
}

// The answer of an upstream has any status and any format, and its own headers.
func TestAnswersOfUpstreamsAreDocumented(t *testing.T) {
	b := newBench(t)
	for path, methods := range b.intake.read().paths {
		forwards := strings.HasPrefix(path, contract.ForwardPath)
		if !forwards && !strings.HasSuffix(path, "/response") {
			continue
		}
		for method, op := range methods {
			responses := op.(map[string]any)["responses"].(map[string]any)
			answer, _ := responses["default"].(map[string]any)
			content, _ := answer["content"].(map[string]any)
			headers, _ := answer["headers"].(map[string]any)
			if content["*/*"] == nil || headers["Sluice-Waited-Ms"] == nil || responses["202"] == nil || responses["200"] != nil {
				t.Errorf("%s %s: %v", method, path, responses)
			}
			_, takes := op.(map[string]any)["requestBody"]
			if want := forwards && slices.Contains([]string{"post", "put", "patch", "delete"}, method); takes != want {
				t.Errorf("%s %s: takes a body is %v", method, path, takes)
			}
		}
	}
}

// Probes have neither body nor query, and refuse them as everything does.
func TestProbesAnswerWhatTheyDocument(t *testing.T) {
	b := newBench(t)
	for _, d := range []document{b.intake, b.admin} {
		for _, path := range []string{"/livez", "/readyz"} {
			d.do(t, http.MethodGet, path+"?x=1", nil, "").want(t, http.StatusUnprocessableEntity, "invalid-request")
			d.do(t, http.MethodGet, path, nil, strings.Repeat("x", contract.MaxSmallBody+1)).want(t,
				http.StatusRequestEntityTooLarge, "too-large")
			r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, iotest.ErrReader(io.ErrUnexpectedEOF))
			d.send(t, r).want(t, http.StatusBadRequest, "unreadable-body")
		}
	}
}

func TestDocsPageNeedsNothingFromElsewhere(t *testing.T) {
	b := newBench(t)
	for _, d := range []document{b.intake, b.admin} {
		for path, format := range map[string]string{
			"/docs": "text/html", "/docs/docs.js": "text/javascript", "/docs/docs.css": "text/css",
		} {
			r := d.do(t, http.MethodGet, path, nil, "")
			if r.Code != http.StatusOK || !strings.HasPrefix(r.Header().Get("Content-Type"), format) {
				t.Errorf("%s: %d %s", path, r.Code, r.Header().Get("Content-Type"))
			}
			csp := r.Header().Get("Content-Security-Policy")
			if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
				t.Errorf("%s: policy %q", path, csp)
			}
		}
	}
	err := fs.WalkDir(contract.PageFiles, "page", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(contract.PageFiles, path)
		for _, foreign := range []string{"http://", "https://", "innerHTML", "style=", "onclick"} {
			if strings.Contains(string(text), foreign) {
				t.Errorf("%s contains %q", path, foreign)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
