package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/wire"
)

// operation is one method of one path: what the OpenAPI document says of it, which is also what is
// enforced, and its handler.
type operation struct {
	id, method, path string
	tag              string
	summary          string
	description      string
	params           []*huma.Param // every query parameter that is taken
	body             *body
	answers          map[int]answerDoc // on success
	refusals         []kind            // further problems that it may answer with; see kinds
	identifies       bool              // the caller must be somebody: call.who
	security         []map[string][]string
	handle           func(*call) (*answer, error)
}

// body is the request body that an operation reads.
type body struct {
	of       any          // a value of its type
	narrower *huma.Schema // what else must hold here, of a type that other operations take more of
	formats  []string
	optional bool
	limit    int64
}

// answerDoc documents one successful status; of is a value of the body's type, nil for none, or an
// eventStream.
type answerDoc struct {
	text    string
	of      any
	headers []string // names, described in headerDocs
}

// call is one request to one operation.
type call struct {
	op      string // id of the operation
	r       *http.Request
	body    []byte // the whole of it, if the operation reads one
	param   func(name string) string
	who     auth.Principal // of operations that identify
	counted bool           // in Server.requests
	taken   func()         // says that the body is needed no longer, of an operation that goes on for long
}

// answer is a success: a status, a body to be written as JSON (nil: none), and headers. A stream
// writes what follows the headers itself, for as long as it likes.
type answer struct {
	status int
	body   any
	header http.Header
	stream func(w http.ResponseWriter)
}

func ok(body any) *answer { return &answer{status: http.StatusOK, body: body} }

// set adds a header, by its canonical name.
func (a *answer) set(name, value string) *answer {
	if a.header == nil {
		a.header = http.Header{}
	}
	a.header[name] = []string{value}
	return a
}

// mount documents the operation and serves it. intake operations that bring new work are refused
// while draining.
func (s *Server) mount(api huma.API, op operation, intake bool) {
	doc := op.document(api.OpenAPI().Components.Schemas)
	if !intake && s.cfg.AdminToken != "" && !slices.Contains(openPaths, op.path) {
		doc.Security = []map[string][]string{{tokenScheme: {}}}
	}
	if op.security != nil {
		doc.Security = op.security
	}
	api.OpenAPI().AddOperation(doc)
	known := map[string]bool{}
	for _, p := range op.params {
		known[p.Name] = p.In == "query"
	}
	refuseWhenDraining := intake && op.method == http.MethodPost
	api.Adapter().Handle(doc, func(ctx huma.Context) {
		r, w := humachi.Unwrap(ctx)
		c := &call{op: op.id, r: r, param: ctx.Param}
		out, err := s.run(op, w, c, known, refuseWhenDraining)
		if c.counted { // to the end of the answer, which may be a stream
			defer s.requests.give(owner{tenant: c.who.Tenant}, 1)
		}
		if err != nil {
			if p := s.fail(w, r, err); op.identifies {
				s.metrics.refusal(p)
			}
			return
		}
		if intake {
			s.troubles.worked()
		}
		out.write(w)
	})
}

// run checks what every operation checks, reads the body and calls the handler.
func (s *Server) run(op operation, w http.ResponseWriter, c *call, known map[string]bool, refuseWhenDraining bool) (*answer, error) {
	if refuseWhenDraining && s.isDraining() {
		return nil, drainingProblem()
	}
	if op.identifies {
		err := s.guard(c.r, op.id, nil)
		if err != nil {
			return nil, err
		}
		if c.who, err = s.identify(c.r); err != nil {
			return nil, err
		}
		if full := s.requests.take(owner{tenant: c.who.Tenant}, 1); full != unbound {
			return nil, rateLimited.with(full.blame("requests under way")).retry(retryAfterSeconds(time.Second))
		}
		c.counted = true
		if err = s.guard(c.r, op.id, &c.who); err != nil {
			return nil, err
		}
	}
	if err := checkQuery(c.r, known); err != nil {
		return nil, err
	}
	if op.body == nil {
		if err := noBody(w, c.r); err != nil {
			return nil, err
		}
		return op.handle(c)
	}
	content, done, err := op.body.read(w, c.r, s.bodies, func() owner { return owner{c.who.Tenant, s.addressOf(c.r)} })
	defer done()
	if err != nil {
		return nil, err
	}
	c.body, c.taken = content, func() { c.body = nil; done() }
	return op.handle(c)
}

// drainingProblem is the answer to new work while the process stops.
func drainingProblem() *problem {
	return shuttingDown.with("send the same request again; another instance will take it").retry(retryAfterSeconds(time.Second))
}

func checkQuery(r *http.Request, known map[string]bool) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("query", "string", "must be pairs of name=value, percent-encoded and joined by &")
	}
	var rd reader
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch {
		case !known[name]:
			rd.errs = append(rd.errs, wire.FieldError{Field: join("query", name), Kind: "string", Rule: "is not a known parameter"})
		case len(query[name]) > 1:
			rd.errs = append(rd.errs, wire.FieldError{Field: join("query", name), Kind: "array", Rule: "must not be repeated"})
		}
		if len(rd.errs) == maxFieldErrors {
			break
		}
	}
	return rd.err()
}

// fail answers with the error's problem, which it returns, and notes for the log what the client is
// not told.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) *problem {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError && p.cause != nil && r.Context().Err() == nil {
		s.troubles.fault(p)
	}
	p.write(w)
	return p
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Values of headers that many answers share. Nobody changes them: net/http copies what it sends.
var (
	notStored = []string{"no-store"}
	inJSON    = []string{jsonFormat}
	noSniff   = []string{"nosniff"}
)

// countedBody is from how many bytes on an answer tells its own length: net/http counts those that
// are shorter.
const countedBody = 2048

// write sends the answer in one piece.
func (a *answer) write(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h["Cache-Control"] = notStored
	if a.body == nil {
		w.WriteHeader(a.status)
		if a.stream != nil {
			a.stream(w)
		}
		return
	}
	buf := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= 64<<10 { // a rare large answer is not worth keeping
			buf.Reset()
			buffers.Put(buf)
		}
	}()
	if job, ok := a.body.(*wire.Job); !ok || !encodeWaiting(buf, job) {
		if err := encodeJSON(buf, a.body); err != nil {
			panic(err) // wire types always encode; answered as an internal fault
		}
	}
	h["Content-Type"] = inJSON
	if buf.Len() >= countedBody {
		h["Content-Length"] = []string{strconv.Itoa(buf.Len())}
	}
	hurry(w, buf.Len())
	w.WriteHeader(a.status)
	_, _ = w.Write(buf.Bytes()) // a client that is gone cannot be told so
}

// hurry bounds the time to take an answer of so many bytes, from now on; each bodyStep is worth
// another second.
func hurry(w http.ResponseWriter, size int) {
	within(w, answerTimeout+time.Duration(size/bodyStep)*time.Second)
}

// within ends the time to write d from now. What has no deadlines, as in tests, needs none.
func within(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// hurried is a handler whose answers, which begin at once, are bounded in the same way.
func hurried(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hurry(w, 0)
		next.ServeHTTP(w, r)
	})
}

// encodeJSON writes v with a newline after it, and characters that mean something in HTML as they
// are.
func encodeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// document is the operation in OpenAPI's words.
func (op operation) document(schemas huma.Registry) *huma.Operation {
	doc := &huma.Operation{
		OperationID: op.id, Method: op.method, Path: op.path, Tags: []string{op.tag}, Summary: op.summary,
		Description: op.description, Parameters: op.params, Responses: map[string]*huma.Response{},
	}
	if op.body != nil {
		doc.RequestBody = &huma.RequestBody{Required: !op.body.optional, Content: map[string]*huma.MediaType{}}
		for _, f := range op.body.formats {
			schema := schemaOf(schemas, op.body.of)
			if op.body.narrower != nil {
				schema = &huma.Schema{AllOf: []*huma.Schema{schema, op.body.narrower}}
			}
			doc.RequestBody.Content[f] = &huma.MediaType{Schema: schema}
		}
		doc.MaxBodyBytes = op.body.limit
	}
	for status, a := range op.answers {
		r := &huma.Response{Description: a.text, Headers: map[string]*huma.Param{}}
		switch of := a.of.(type) {
		case nil:
		case streamDoc:
			r.Content = map[string]*huma.MediaType{streamFormat: {Schema: of.schema(schemas)}}
		default:
			r.Content = map[string]*huma.MediaType{jsonFormat: {Schema: schemaOf(schemas, of)}}
		}
		for _, name := range a.headers {
			r.Headers[name] = headerDocs[name]
		}
		doc.Responses[strconv.Itoa(status)] = r
	}
	all := op.kinds()
	for _, k := range all {
		doc.Responses[strconv.Itoa(k.status)] = &huma.Response{ // the same again for each kind of the status
			Description: describeKinds(k.status, all),
			Headers:     problemHeaders(k.status),
			Content: map[string]*huma.MediaType{
				"application/problem+json": {Schema: schemaOf(schemas, wire.Problem{})},
			},
		}
	}
	return doc
}

// kinds are those of all problems that the operation may answer with. Where no body and no query
// belong, both are looked at all the same.
func (op operation) kinds() []kind {
	all := append([]kind{unreadableBody, tooLarge, invalidRequest, internalFault}, op.refusals...)
	if slices.Contains(op.refusals, storageUnavailable) {
		all = append(all, storedDamaged)
	}
	if op.body != nil {
		all = append(all, malformedJSON, unsupportedMedia)
	}
	switch op.id {
	case "livez": // which the program answers from its start
	case "readyz":
		all = append(all, starting)
	default:
		all = append(all, starting, overloaded)
	}
	return all
}

func schemaOf(schemas huma.Registry, v any) *huma.Schema {
	return schemas.Schema(reflect.TypeOf(v), true, "")
}
