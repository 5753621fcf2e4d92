package api

import (
	"context"
	"errors"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/api/internal/request"
	"github.com/7509e464/sluice/api/internal/towire"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
)

// listJobs is GET /v1/jobs.
func (s *Server) listJobs(c *call) (*answer, error) {
	asked, err := request.List(c.r.URL.Query())
	if err != nil {
		return nil, err
	}
	if _, known := s.cfg.Routes[asked.Route]; asked.Route != "" && !known {
		return nil, problem.UnknownRouteAt("query.route")
	}
	if err := s.reading(c.who.Tenant); err != nil {
		return nil, err
	}
	asked.Tenant = c.who.Tenant
	return s.page(c.r.Context(), asked, towire.Job)
}

// page answers with the page of a list, whose jobs show makes.
func (s *Server) page(ctx context.Context, asked queue.List, show func(queue.Job) *wire.Job) (*answer, error) {
	page, err := s.backend.List(ctx, asked)
	if errors.Is(err, queue.ErrCursor) {
		return nil, request.BadCursor()
	}
	if err != nil {
		return nil, err
	}
	out := wire.JobList{Items: make([]wire.Job, len(page.Jobs)), NextCursor: page.Next}
	for i, job := range page.Jobs {
		out.Items[i] = *show(job)
	}
	return ok(out), nil
}
