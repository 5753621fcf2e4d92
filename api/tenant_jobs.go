package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/queue"
)

// ofTenant serves an operation of the data plane for the tenant in the path. It sets Location to
// the path of the job on the admin listener.
func (s *Server) ofTenant(handle handler) handler {
	return func(c *call) (*answer, error) {
		name, err := pathTenant(c)
		if err != nil {
			return nil, err
		}
		c.who, c.operator = auth.Principal{Tenant: name, Vouched: true}, true
		a, err := handle(c)
		if err != nil {
			return nil, err
		}
		if id, found := strings.CutPrefix(a.header.Get("Location"), "/v1/jobs/"); found {
			a.set("Location", "/v1/tenants/"+url.PathEscape(name)+"/jobs/"+id)
		}
		return a, nil
	}
}

// listTenantJobs is GET /v1/tenants/{tenant}/jobs.
func (s *Server) listTenantJobs(c *call) (*answer, error) {
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	asked, err := codec.ReadList(c.r.URL.Query())
	if err != nil {
		return nil, err
	}
	asked.Tenant = name
	// Else viewers could find out by many requests what they are not shown.
	if asked.Error != "" || asked.IdempotencyKey != "" || codec.IsForwardedType(asked.Type) {
		if err := allowRole(c.r, operators.Operator); err != nil {
			return nil, err
		}
	}
	if err := s.mustHave(c.r.Context(), name, "query.route", asked.Route); err != nil {
		return nil, err
	}
	return s.page(c, asked, codec.OperatorJob)
}

// getTenantJob is GET /v1/tenants/{tenant}/jobs/{id}.
func (s *Server) getTenantJob(c *call) (*answer, error) {
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	id := c.param("id")
	if !codec.IsID(id) {
		return nil, queue.ErrNotFound
	}
	prefer := codec.Prefer(c.r.Header)
	if prefer.Wait > 0 {
		if err := s.followAsOperator(c, name, id, prefer.Wait); err != nil {
			return nil, err
		}
	}
	a, err := s.jobDetail(c, name, id)
	if err == nil && prefer.Given {
		a.set("Preference-Applied", prefer.Applied())
	}
	return a, err
}

// followAsOperator waits like follow, until the credential of the operator is no longer accepted.
func (s *Server) followAsOperator(c *call, tenant, id string, wait time.Duration) error {
	ctx, end := context.WithCancelCause(c.client)
	var checks sync.WaitGroup
	defer checks.Wait()
	defer end(nil)
	checks.Go(func() {
		tick := time.NewTicker(streamCheck)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if !s.stillOperator(c.r) {
					end(unknownToken())
					return
				}
			}
		}
	})
	_, err := s.follow(ctx, tenant, id, wait)
	if refused, is := errors.AsType[*problem.Problem](context.Cause(ctx)); is {
		return refused
	}
	return err
}

// findJob is GET /v1/jobs/{id} on the admin listener.
func (s *Server) findJob(c *call) (*answer, error) {
	id := c.param("id")
	if !codec.IsID(id) {
		return nil, noSuchJob
	}
	job, err := s.queue.Find(c.r.Context(), id)
	if errors.Is(err, queue.ErrNotFound) {
		return nil, noSuchJob
	}
	if err != nil {
		return nil, err
	}
	return s.jobDetail(c, job.Tenant, id)
}

var noSuchJob = problem.UnknownJob.With("no tenant has a job with this id: it may be past retention")

// jobDetail answers with the job of the tenant and its payload. The body of a forwarded request is
// in the answer only where the operator requests it: it may have passwords.
func (s *Server) jobDetail(c *call, name, id string) (*answer, error) {
	ctx := c.r.Context()
	withBody := c.r.URL.Query().Get("request_body")
	if withBody != "" && withBody != "true" && withBody != "false" {
		return nil, problem.InvalidValue("query.request_body", "string", withBody, "must be true or false")
	}
	// The payload first: a job that ends in between is shown as done, with what it had.
	payload, err := s.queue.Payload(ctx, name, id, wire.MaxPayload)
	if err != nil && !errors.Is(err, queue.ErrNotFound) {
		return nil, err
	}
	job, err := s.queue.Job(ctx, name, id)
	if err != nil {
		return nil, err
	}
	out := wire.JobDetail{
		Job: *codec.OperatorJob(job), PayloadBytes: payload.Size, PayloadTruncated: payload.Size > wire.MaxPayload,
		Request: requestOf(job, payload.Bytes),
	}
	out.Headers = codec.JobHeaders(payload.Headers)
	if out.Request != nil && withBody != "true" {
		out.Request.Body, out.Request.BodyEncoding = "", ""
	}
	switch {
	case len(payload.Bytes) == 0 || out.Request != nil || s.cfg.Routes[job.Route].Forward != nil:
	case json.Valid(payload.Bytes):
		out.Payload = payload.Bytes
	default: // base64 has nothing that JSON would escape
		out.Payload = json.RawMessage(`"` + base64.StdEncoding.EncodeToString(payload.Bytes) + `"`)
		out.PayloadEncoding = "base64"
	}
	s.saw(c, name, out)
	return ok(out), nil
}

// submitTenantJob is POST /v1/tenants/{tenant}/jobs. It checks for draining itself, because the
// admin listener closes after the intake.
func (s *Server) submitTenantJob(c *call) (*answer, error) {
	if s.isDraining() {
		return nil, drainingProblem()
	}
	return s.postJob(c)
}

// requestOf returns the forwarded request of a job, nil for a job with a payload. It does not read
// the settings of the route, which may have changed since.
func requestOf(job queue.Job, payload []byte) *wire.Request {
	m, err := httpmsg.DecodeRequest(payload)
	if err != nil {
		return nil
	}
	path, _, _ := strings.Cut(m.Target, "?")
	whole := typeOf(m.Method, path)
	if job.Type != whole && job.Type != codec.ShortType(whole) { // the latter in records of old versions
		return nil
	}
	return codec.Forwarded(m)
}
