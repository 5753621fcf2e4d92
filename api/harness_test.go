package api

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.uber.org/goleak"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a server over a fake queue. Every answer that a test gets through it is held against the
// OpenAPI document.
type bench struct {
	t             testing.TB
	queue         *fakeQueue
	s             *Server
	intake, admin document
}

// document is a handler with what it serves as /openapi.json, read at the first need.
type document struct {
	handler http.Handler
	read    func() *description
}

type description struct {
	paths    map[string]map[string]any
	compiler *jsonschema.Compiler
}

func newBench(t testing.TB, change ...func(*Config)) *bench {
	t.Helper()
	cfg := Config{
		Routes:  map[string]RouteInfo{"default": {MaxAttempts: 5}, "other": {MaxAttempts: 1}},
		Version: VersionInfo{Version: "1.2.3", Commit: "abc", Go: "go1.26"},
		Logger:  slog.New(slog.DiscardHandler),
	}
	registry := prometheus.NewRegistry()
	cfg.Registerer, cfg.Gatherer = registry, registry
	for _, f := range change {
		f(&cfg)
	}
	b := &bench{t: t, queue: newFake()}
	var err error
	if b.s, err = newServer(b.queue.ports(), cfg); err != nil {
		t.Fatal(err)
	}
	b.intake, b.admin = readDocument(t, b.s.Intake()), readDocument(t, b.s.Admin())
	if len(change) == 0 { // all such servers serve the same, and to write it takes long
		plain.Do(func() { plainIntake, plainAdmin = b.intake.read, b.admin.read })
		b.intake.read, b.admin.read = plainIntake, plainAdmin
	}
	return b
}

// plainIntake and plainAdmin read the documents of a server with the settings of newBench.
var (
	plain                   sync.Once
	plainIntake, plainAdmin func() *description
)

// descriptions are those that tests have read, by their text: most servers serve the same, and to
// compile its schemas takes longer than most tests.
var descriptions = map[string]*description{}

// compiling guards descriptions and their compilers.
var compiling sync.Mutex

func readDocument(t testing.TB, h http.Handler) document {
	return document{h, sync.OnceValue(func() *description { return describe(t, h) })}
}

func describe(t testing.TB, h http.Handler) *description {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/openapi.json", nil))
	compiling.Lock()
	defer compiling.Unlock()
	text := w.Body.String()
	if d, known := descriptions[text]; known {
		return d
	}
	raw, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("openapi.json: %v: %s", err, text)
	}
	d := &description{compiler: jsonschema.NewCompiler(), paths: map[string]map[string]any{}}
	if err := d.compiler.AddResource("openapi.json", raw); err != nil {
		t.Fatal(err)
	}
	for path, item := range raw.(map[string]any)["paths"].(map[string]any) {
		d.paths[path] = item.(map[string]any)
	}
	descriptions[text] = d
	return d
}

// reply is an answer, read.
type reply struct {
	*httptest.ResponseRecorder
	problem wire.Problem
	job     wire.Job
}

type headers map[string]string

// do sends a request to the handler of the document and checks the answer against it.
func (d document) do(t testing.TB, method, target string, h headers, body string) reply {
	t.Helper()
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, "http://localhost"+target, rd)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range h {
		switch {
		case k == "Host":
			r.Host = v
		case v == "":
			r.Header.Del(k)
		default:
			r.Header[http.CanonicalHeaderKey(k)] = []string{v}
		}
	}
	out := d.send(t, r)
	// A batch is answered although jobs of it are malformed.
	if out.Code < 300 && body != "" && !strings.Contains(out.Body.String(), problem.URN) {
		d.checkTaken(t, r, body)
	}
	return out
}

// checkTaken holds a body that was taken against its documented schema.
func (d document) checkTaken(t testing.TB, r *http.Request, body string) {
	t.Helper()
	path, _ := d.operation(r)
	format, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.schema(t, r.Method, path, "requestBody", format).Validate(value); err != nil {
		t.Errorf("%s %s: taken, but not as documented: %v\n%s", r.Method, path, err, body)
	}
}

// schema is the schema of a body; where is the way to it below the operation.
func (d document) schema(t testing.TB, method, path, where, format string) *jsonschema.Schema {
	t.Helper()
	escape := strings.NewReplacer("~", "~0", "/", "~1").Replace
	at := "openapi.json#/paths/" + url.PathEscape(escape(path)) + "/" + strings.ToLower(method) + "/" + where + "/content/" + escape(format) + "/schema"
	compiler := d.read().compiler
	compiling.Lock() // streams check their events side by side
	defer compiling.Unlock()
	schema, err := compiler.Compile(at)
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	return schema
}

func (d document) send(t testing.TB, r *http.Request) reply {
	t.Helper()
	out := reply{ResponseRecorder: httptest.NewRecorder()}
	d.handler.ServeHTTP(out, r)
	d.check(t, r, out)
	if out.Code >= 400 {
		_ = json.Unmarshal(out.Body.Bytes(), &out.problem)
	} else {
		_ = json.Unmarshal(out.Body.Bytes(), &out.job)
	}
	return out
}

// check holds one answer against the document: the status is documented, and so is the kind of a
// problem, and the body fits the schema.
func (d document) check(t testing.TB, r *http.Request, got reply) {
	t.Helper()
	body := got.Body.Bytes()
	if got.Code >= 400 && r.Method != http.MethodHead {
		var p wire.Problem
		if err := json.Unmarshal(body, &p); err != nil || p.Status != got.Code || p.Title == "" ||
			!strings.HasPrefix(p.Type, problem.URN) || got.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %d is no problem: %s", r.Method, r.URL, got.Code, body)
		}
	}
	path, op := d.operation(r)
	if op == nil {
		return
	}
	if got.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%s %s: may be cached", r.Method, r.URL)
	}
	response, documented := op["responses"].(map[string]any)[strconv.Itoa(got.Code)].(map[string]any)
	if !documented {
		t.Errorf("%s %s: status %d is not documented: %s", r.Method, path, got.Code, body)
		return
	}
	if got.Code >= 400 {
		var p wire.Problem
		if err := json.Unmarshal(body, &p); err != nil || !names(response, p.Type) {
			t.Errorf("%s %s: problem %q is not documented under %d: %v", r.Method, path, p.Type, got.Code,
				response["description"])
		}
	}
	content, _ := response["content"].(map[string]any)
	if len(body) == 0 {
		if content != nil {
			t.Errorf("%s %s: %d without the documented body", r.Method, path, got.Code)
		}
		return
	}
	format := got.Header().Get("Content-Type")
	if content[format] == nil {
		t.Errorf("%s %s: %d has undocumented format %q", r.Method, path, got.Code, format)
		return
	}
	schema := d.schema(t, r.Method, path, "responses/"+strconv.Itoa(got.Code), format)
	if format == contract.StreamFormat {
		body = must(json.Marshal(readEvents(t, string(body))))
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		t.Errorf("%s %s: not JSON: %s", r.Method, path, body)
		return
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%s %s: %d does not fit its schema: %v\n%s", r.Method, path, got.Code, err, body)
	}
	for name := range got.Header() {
		switch name {
		case "Content-Type", "Content-Length", "Cache-Control", "X-Content-Type-Options", "Connection":
			continue
		}
		documentedHeaders, _ := response["headers"].(map[string]any)
		found := false
		for h := range documentedHeaders {
			found = found || strings.EqualFold(h, name)
		}
		if !found {
			t.Errorf("%s %s: %d: header %s is not documented", r.Method, path, got.Code, name)
		}
	}
}

// names reports whether the documented response names the type of problem.
func names(response map[string]any, problemType string) bool {
	description, _ := response["description"].(string)
	return problemType != "" && strings.Contains(". "+description, ". "+problemType+": ")
}

// event is one server-sent event, read as an EventSource does.
type event struct {
	ID    string          `json:"id,omitempty"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
}

func (e event) job(t testing.TB) (job wire.Job) {
	t.Helper()
	if err := json.Unmarshal(e.Data, &job); err != nil {
		t.Fatalf("%v: %s", err, e.Data)
	}
	return job
}

// readEvents reads a stream that has ended.
func readEvents(t testing.TB, text string) []event {
	t.Helper()
	events := []event{}
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		var e event
		for line := range strings.SplitSeq(block, "\n") {
			switch field, value, _ := strings.Cut(line, ": "); field {
			case "id":
				e.ID = value
			case "event":
				e.Event = value
			case "data":
				e.Data = json.RawMessage(value)
			case "", "retry": // a comment, or no part of an event
			default:
				t.Errorf("line %q in a stream", line)
			}
		}
		if e.Event != "" {
			events = append(events, e)
		}
	}
	return events
}

// operation finds the documented operation of the request; nil where there is none.
func (d document) operation(r *http.Request) (string, map[string]any) {
	segments := strings.Split(r.URL.EscapedPath(), "/")
	best, bestItem := "", map[string]any(nil)
	for path, item := range d.read().paths {
		pattern := strings.Split(path, "/")
		fits := len(pattern) == len(segments)
		for i := 0; fits && i < len(pattern); i++ {
			fits = pattern[i] == segments[i] || (strings.HasPrefix(pattern[i], "{") && segments[i] != "")
		}
		op, has := item[strings.ToLower(r.Method)].(map[string]any)
		if fits && has && (best == "" || strings.Count(path, "{") < strings.Count(best, "{")) {
			best, bestItem = path, op
		}
	}
	return best, bestItem
}

// submit posts a job that must be taken.
func (b *bench) submit(body string, h headers) reply {
	b.t.Helper()
	r := b.intake.do(b.t, http.MethodPost, "/v1/jobs", h, body)
	if r.Code/100 != 2 {
		b.t.Fatalf("submit: %d %s", r.Code, r.Body)
	}
	return r
}

// want checks the status and the last part of the problem's type.
func (r reply) want(t testing.TB, status int, kind string) {
	t.Helper()
	if r.Code != status || (kind != "" && r.problem.Type != problem.URN+kind) {
		t.Errorf("%d %s, want %d %s: %s", r.Code, r.problem.Type, status, kind, r.Body)
	}
}
