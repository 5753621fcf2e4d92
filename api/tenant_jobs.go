package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
)

// tenantJobs is where the jobs of a tenant are on the admin listener.
const tenantJobs = "/v1/tenants/{tenant}/jobs"

// tenantJobOperations are the part of the control plane that is about jobs. They do what those of
// the data plane do, for the tenant in the path: the operator has no credential of the tenant's,
// spends none of its reads (api.status_rate), and no limiter guard stands before them.
func (s *Server) tenantJobOperations() []operation {
	const tag = "Jobs of tenants"
	guards := append([]kind{storageUnavailable}, operatorKinds...)
	unknown := append([]kind{unknownJob}, guards...)
	conflicts := append([]kind{stateConflict}, unknown...)
	job := []*huma.Param{tenantPathParam, jobParam}
	list := slices.DeleteFunc(listParams(), func(p *huma.Param) bool { return p == tenantParam })
	operations := []operation{{
		id: "list-tenant-jobs", method: http.MethodGet, path: tenantJobs, tag: tag, summary: "List a tenant's jobs",
		description: listDescription + " The route need not be configured.",
		params:      append([]*huma.Param{tenantPathParam}, list...), answers: map[int]answerDoc{http.StatusOK: {"One page.", wire.JobList{}, nil}},
		refusals: guards, handle: s.listTenantJobs,
	}, {
		id: "find-job", method: http.MethodGet, path: "/v1/jobs/{id}", tag: tag, summary: "Find a job by its id alone",
		description: "Finds the job of any tenant. The answer names the tenant.",
		params:      []*huma.Param{jobParam}, answers: map[int]answerDoc{http.StatusOK: {"The job, done or not.", wire.JobDetail{}, nil}},
		refusals: unknown, handle: s.findJob,
	}, {
		id: "get-tenant-job", method: http.MethodGet, path: tenantJobs + "/{id}", tag: tag, summary: "Read a job and its payload",
		params: job, answers: map[int]answerDoc{http.StatusOK: {"The job, done or not.", wire.JobDetail{}, nil}},
		refusals: unknown, handle: s.getTenantJob,
	}, {
		id: "cancel-tenant-job", method: http.MethodDelete, path: tenantJobs + "/{id}", tag: tag, summary: "Cancel a waiting job of a tenant",
		description: "Cancelling it again is answered in the same way.",
		params:      job, answers: map[int]answerDoc{http.StatusOK: {"The cancelled job.", wire.Job{}, nil}},
		refusals: conflicts, handle: s.ofTenant(s.deleteJob),
	}, {
		id: "replay-tenant-job", method: http.MethodPost, path: tenantJobs + "/{id}/replay", tag: tag, summary: "Bring a dead job of a tenant back",
		description: "It goes through its bucket again, with fresh attempts.",
		params:      job, body: jsonBody(wire.Empty{}, maxSmallBody, true),
		answers: map[int]answerDoc{
			http.StatusAccepted: {"Queued again.", wire.Job{}, append([]string{"Location"}, limitHeaderNames...)},
		},
		refusals: slices.Concat(operatorKinds, replayKinds), handle: s.ofTenant(s.replayJob),
	}}
	if !s.cfg.AdminSubmit {
		return operations
	}
	told := []string{"Location", "Preference-Applied", "Idempotent-Replayed"}
	return append(operations, operation{
		id: "submit-tenant-job", method: http.MethodPost, path: tenantJobs, tag: tag, summary: "Submit a test job for a tenant",
		description: "As POST /v1/jobs on the intake. Only where admin.submit is on, as in sluice dev; elsewhere it is 405.",
		params:      []*huma.Param{tenantPathParam, keyParam, preferParam, traceParam},
		body:        jsonBody(wire.Submission{}, s.cfg.MaxBody, false),
		answers: map[int]answerDoc{
			http.StatusAccepted: {"Stored, and will be delivered.", wire.Job{}, append(told, limitHeaderNames...)},
			http.StatusOK:       {"Done within the preferred wait.", wire.Job{}, told},
		},
		refusals: slices.Concat(operatorKinds, admissionKinds), handle: s.ofTenant(s.submitTenantJob),
	})
}

// ofTenant serves an operation of the data plane for the tenant in the path. Where it tells the
// place of the job, that is the one on the admin listener.
func (s *Server) ofTenant(handle func(*call) (*answer, error)) func(*call) (*answer, error) {
	return func(c *call) (*answer, error) {
		name, err := pathTenant(c)
		if err != nil {
			return nil, err
		}
		c.who = auth.Principal{Tenant: name}
		a, err := handle(c)
		if err != nil {
			return nil, err
		}
		if place, told := strings.CutPrefix(a.header.Get("Location"), "/v1/jobs/"); told {
			a.set("Location", "/v1/tenants/"+url.PathEscape(name)+"/jobs/"+place)
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
	asked, err := listOf(c.r.URL.Query())
	if err != nil {
		return nil, err
	}
	asked.Tenant = name
	return s.page(c.r.Context(), asked, operatorJob)
}

// getTenantJob is GET /v1/tenants/{tenant}/jobs/{id}.
func (s *Server) getTenantJob(c *call) (*answer, error) {
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	id := c.param("id")
	if !plausibleID(id) {
		return nil, queue.ErrNotFound
	}
	return s.jobDetail(c.r.Context(), name, id)
}

// findJob is GET /v1/jobs/{id} on the admin listener.
func (s *Server) findJob(c *call) (*answer, error) {
	id := c.param("id")
	if !plausibleID(id) {
		return nil, noSuchJob
	}
	job, err := s.backend.Find(c.r.Context(), id)
	if errors.Is(err, queue.ErrNotFound) {
		return nil, noSuchJob
	}
	if err != nil {
		return nil, err
	}
	return s.jobDetail(c.r.Context(), job.Tenant, id)
}

var noSuchJob = unknownJob.with("no tenant has a job with this id: it may be past retention")

// jobDetail answers with the job of the tenant and its payload.
func (s *Server) jobDetail(ctx context.Context, name, id string) (*answer, error) {
	// The payload first: a job that ends in between is shown as done, with what it had.
	payload, size, err := s.backend.Payload(ctx, name, id, wire.MaxPayload)
	if err != nil && !errors.Is(err, queue.ErrNotFound) {
		return nil, err
	}
	job, err := s.backend.Job(ctx, name, id)
	if err != nil {
		return nil, err
	}
	out := wire.JobDetail{Job: *operatorJob(job), PayloadBytes: size, PayloadTruncated: size > wire.MaxPayload}
	switch {
	case len(payload) == 0:
	case json.Valid(payload):
		out.Payload = payload
	default: // base64 has nothing that JSON would escape
		out.Payload, out.PayloadEncoding = json.RawMessage(`"`+base64.StdEncoding.EncodeToString(payload)+`"`), "base64"
	}
	return ok(out), nil
}

// submitTenantJob is POST /v1/tenants/{tenant}/jobs. The admin listener outlives the intake for a
// moment at the stop, so it asks for itself.
func (s *Server) submitTenantJob(c *call) (*answer, error) {
	if s.isDraining() {
		return nil, drainingProblem()
	}
	return s.postJob(c)
}
