package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/queue"
)

// call is one request to one operation.
type call struct {
	op    string      // id of the operation
	scope queue.Scope // that the principal needs
	// r has a context that does not end when the client leaves, or only closes its side of the
	// connection: what it asked for goes on, and its outcome is known. client does end then, and
	// bounds waits, streams and long work.
	r      *http.Request
	client context.Context
	body   []byte // the whole of it, if the operation reads one
	raw    bool   // body is the payload of a job
	param  func(name string) string
	who    auth.Principal // of operations that identify
	// operator is true for operations of the data plane on the admin listener.
	operator bool
	charged  bool // in the reads of the tenant
	counted  bool // in Server.requests, by owner
	owner    budget.Owner
	taken    func() // releases the body of a long operation
	recorded recorded
}

func newCall(op string, scope queue.Scope, r *http.Request) *call {
	client := r.Context()
	return &call{op: op, scope: scope, r: r.WithContext(context.WithoutCancel(client)), client: client, taken: func() {}}
}

// answer is a success: a status, a body to be written as JSON (nil: none), and headers. A stream
// writes what follows the headers itself.
type answer struct {
	status int
	body   any
	header http.Header
	stream func(w http.ResponseWriter)
	raw    func(w http.ResponseWriter) // writes all of the answer; the other fields are unset
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

// document adds the operation to the OpenAPI document.
func (s *Server) document(api huma.API, op contract.Operation, intake bool) *huma.Operation {
	doc := op.Document(api.OpenAPI().Components.Schemas)
	if !intake && s.cfg.AdminToken != "" && !slices.Contains(openPaths, op.Path) {
		doc.Security = []map[string][]string{{tokenScheme: {}}}
	}
	if op.Security != nil {
		doc.Security = op.Security
	}
	api.OpenAPI().AddOperation(doc)
	return doc
}

// mount documents the operation and serves it. intake operations that bring new work are refused
// while draining.
func (s *Server) mount(api huma.API, op contract.Operation, handle handler, intake bool) {
	doc := s.document(api, op, intake)
	known := map[string]bool{}
	for _, p := range op.Params {
		known[p.Name] = p.In == "query"
	}
	refuseWhenDraining := intake && op.Method == http.MethodPost
	api.Adapter().Handle(doc, func(ctx huma.Context) {
		r, w := humachi.Unwrap(ctx)
		c := newCall(op.ID, op.Scope, r)
		c.param = ctx.Param
		out, err := s.recordedRun(op, handle, w, c, known, intake, refuseWhenDraining)
		if c.counted { // to the end of the answer, which may be a stream
			defer s.requests.Give(c.owner, 1)
		}
		if err != nil {
			if p := s.fail(w, r, op.Advised(err)); op.Identifies {
				s.metrics.refusal(p)
			}
			return
		}
		if intake {
			s.errors.worked()
		}
		if !intake {
			out.body = shown(r, out.body)
		}
		if err := out.write(w, s, c); err != nil {
			s.fail(w, r, err)
		}
	})
}

// recordedRun is run, and puts the call into the audit before it is answered. What ends with a
// panic may have changed something, too.
func (s *Server) recordedRun(
	op contract.Operation, handle handler, w http.ResponseWriter, c *call, known map[string]bool,
	intake, refuseWhenDraining bool,
) (out *answer, err error) {
	err = problem.InternalFault.With("panic")
	defer func() { s.record(op, c, out, err) }()
	return s.run(op, handle, w, c, known, intake, refuseWhenDraining)
}

// run checks what every operation checks, reads the body and calls the handler.
func (s *Server) run(
	op contract.Operation, handle handler, w http.ResponseWriter, c *call, known map[string]bool,
	intake, refuseWhenDraining bool,
) (*answer, error) {
	if !intake {
		if err := allow(c.r, op); err != nil {
			return nil, err
		}
	}
	if refuseWhenDraining && s.isDraining() {
		return nil, drainingProblem()
	}
	if op.Identifies {
		if err := s.enter(c); err != nil {
			return nil, err
		}
	}
	if err := codec.CheckQuery(c.r, known); err != nil {
		return nil, err
	}
	if op.Identifies && strings.Contains(op.Path, "{id}") {
		if err := s.permitJob(c); err != nil {
			return nil, err
		}
	}
	if op.Body == nil {
		if err := budget.IgnoreBody(w, c.r); err != nil {
			return nil, err
		}
		return handle(c)
	}
	content, done, err := s.read(op, w, c)
	defer done()
	if err != nil {
		return nil, err
	}
	c.body, c.taken = content, func() { c.body = nil; done() }
	return handle(c)
}

// read reads the body of a request: in the format of the operation, or raw.
func (s *Server) read(op contract.Operation, w http.ResponseWriter, c *call) ([]byte, func(), error) {
	owner := func() budget.Owner {
		return budget.Owner{Tenant: c.who.Tenant, Address: s.addressOf(c.r)}
	}
	if c.raw = op.Body.Raw && codec.IsRaw(c.r); !c.raw {
		content, done, err := s.bodies.Read(w, c.r, op.Body.Spec, owner)
		if p, is := errors.AsType[*problem.Problem](err); is && op.Body.Raw && p.Status == http.StatusUnsupportedMediaType {
			p.Detail += ", or the query must have type: then the body is the payload"
		}
		return content, done, err
	}
	if dashboard.CrossOrigin(c.r) { // only JSON makes a browser ask first
		return nil, func() {}, problem.Forbidden.With("a page of another origin must not send raw bodies")
	}
	return s.bodies.ReadAny(w, c.r, op.Body.Limit, owner)
}

// enter finds the principal of a request, and counts it. The caller must return c.counted requests.
func (s *Server) enter(c *call) error {
	// The address has a share, too: one connection of HTTP/2 carries many requests. Those of
	// strangers wait for guards and look-ups.
	if err := s.count(c, budget.Owner{Address: s.addressOf(c.r)}); err != nil {
		return err
	}
	err := s.guard(c.r, c.op, nil)
	if err != nil {
		return err
	}
	if c.who, err = s.identify(c.r); err != nil {
		return err
	}
	if err := c.who.Require(c.scope); err != nil {
		return s.forbidden(err)
	}
	if err := s.count(c, budget.Owner{Tenant: c.who.Tenant, Address: c.owner.Address}); err != nil {
		return err
	}
	return s.guard(c.r, c.op, &c.who)
}

// count counts a running request as the owner's, and no longer as that of the owner before.
func (s *Server) count(c *call, owner budget.Owner) error {
	if c.counted {
		s.requests.Give(c.owner, 1)
	}
	c.owner, c.counted = owner, false
	if full := s.requests.Take(owner, 1); full != budget.Unbound {
		return problem.RateLimited.With(full.Text("concurrent requests")).RetryIn(time.Second)
	}
	c.counted = true
	return nil
}

// drainingProblem is the answer to new work while the process stops.
func drainingProblem() *problem.Problem {
	return problem.ShuttingDown.With("send the same request again; another instance will serve it").
		RetryIn(time.Second)
}

// fail answers with the error's problem, which it returns, and logs the cause, which the client
// does not see.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) *problem.Problem {
	p := problem.Of(err)
	if p.Status >= http.StatusInternalServerError && p.Cause != nil && r.Context().Err() == nil {
		s.errors.fault(p)
	}
	p.Write(w, r)
	return p
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Values of headers that many answers share. They never change: net/http copies what it sends.
var (
	notStored = []string{"no-store"}
	inJSON    = []string{contract.JSONFormat}
	noSniff   = []string{"nosniff"}
)

// countedBody is the length from which an answer sets Content-Length itself: net/http does it for
// shorter ones.
const countedBody = 2048

// write sends the answer in one piece. The error is that of a body for which there is no memory;
// then nothing was sent.
func (a *answer) write(w http.ResponseWriter, s *Server, c *call) error {
	if a.raw != nil {
		a.raw(w)
		return nil
	}
	if a.body == nil {
		a.begin(w)
		if a.stream != nil {
			a.stream(w)
		}
		return nil
	}
	buf := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= 64<<10 { // large buffers are rare and not kept
			buf.Reset()
			buffers.Put(buf)
		}
	}()
	if job, ok := a.body.(*wire.Job); !ok || !codec.EncodeWaiting(buf, job) {
		if err := codec.Encode(buf, a.body); err != nil {
			panic(err) // wire types always encode; answered as an internal fault
		}
	}
	if buf.Len() > budget.FreeBody {
		out, err := s.answers.Begin(s.ownerOf(c), buf.Len(), buf.Len())
		if err != nil {
			return err
		}
		defer out.End()
		out.To(w)
	}
	h := w.Header()
	h["Content-Type"] = inJSON
	if buf.Len() >= countedBody {
		h["Content-Length"] = []string{strconv.Itoa(buf.Len())}
	}
	deadline.ForAnswer(w, buf.Len())
	a.begin(w)
	_, _ = w.Write(buf.Bytes()) // the client may be gone
	return nil
}

// begin sends the status and the headers.
func (a *answer) begin(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h["Cache-Control"] = notStored
	w.WriteHeader(a.status)
}
