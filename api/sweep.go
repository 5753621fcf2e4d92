package api

import (
	"context"

	"github.com/7509e464/sluice/api/internal/decode"
	"github.com/7509e464/sluice/api/internal/towire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// purgeTenant is POST /v1/tenants/{tenant}/purge.
func (s *Server) purgeTenant(c *call) (*answer, error) {
	swept, err := s.sweep(c, decode.Purgeable, s.backend.Purge)
	if err != nil {
		return nil, err
	}
	return ok(towire.Swept(swept)), nil
}

// replayTenant is POST /v1/tenants/{tenant}/replay. A full queue is no error here: some jobs were
// queued before.
func (s *Server) replayTenant(c *call) (*answer, error) {
	swept, err := s.sweep(c, decode.Replayable,
		func(ctx context.Context, tenant string, f queue.Filter) (queue.Swept, error) {
			return s.backend.ReplayAll(ctx, tenant, f, s.attempts)
		})
	s.metrics.admitted(string(shaper.Admitted), swept.Count) // also those before an error
	if err != nil {
		return nil, err
	}
	if swept.Refusal != nil {
		s.metrics.admission(string(swept.Refusal.Outcome))
	}
	return ok(towire.Swept(swept)), nil
}

// sweep reads tenant and filter and calls do with them.
func (s *Server) sweep(
	c *call, states []queue.ListState, do func(context.Context, string, queue.Filter) (queue.Swept, error),
) (queue.Swept, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return queue.Swept{}, err
	}
	f, err := decode.Filter(c.body, states)
	if err != nil {
		return queue.Swept{}, err
	}
	if err := s.mustKnow(c.r.Context(), tenant); err != nil {
		return queue.Swept{}, err
	}
	if err := s.mustHave(c.r.Context(), tenant, "route", f.Route); err != nil {
		return queue.Swept{}, err
	}
	return do(c.client, tenant, f)
}

// tenantHistory is GET /v1/tenants/{tenant}/history.
func (s *Server) tenantHistory(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	entries, err := s.backend.History(c.r.Context(), tenant)
	if err != nil {
		return nil, err
	}
	return ok(towire.Changes(entries)), nil
}
