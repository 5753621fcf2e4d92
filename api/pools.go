package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// pools reads pools and changes their policies. One that the configuration does not declare is
// queue.ErrNoPool.
type pools interface {
	Pools() []string
	Pool(ctx context.Context, name string) (queue.Pool, error)
	AllPools(ctx context.Context) ([]queue.Pool, error)
	TunePool(ctx context.Context, name string, change queue.Change) (queue.Pool, error)
	PoolHistory(ctx context.Context, name string) ([]queue.HistoryEntry, error)
	PoolFlows(ctx context.Context, name string, limit int) ([]queue.PoolFlow, error)
}

// listPools is GET /v1/pools.
func (s *Server) listPools(c *call) (*answer, error) {
	list := wire.PoolList{Items: []wire.Pool{}}
	pools, err := s.queue.AllPools(c.r.Context())
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		list.Items = append(list.Items, codec.Pool(p))
	}
	return ok(list), nil
}

// getPool is GET /v1/pools/{pool}.
func (s *Server) getPool(c *call) (*answer, error) {
	p, err := s.queue.Pool(c.r.Context(), c.param("pool"))
	if err != nil {
		return nil, err
	}
	return poolAnswer(p), nil
}

// putPool is PUT /v1/pools/{pool}: settings that the body omits lose their overrides.
func (s *Server) putPool(c *call) (*answer, error) {
	patch, err := codec.DecodePoolSettings(c.body)
	if err != nil {
		return nil, err
	}
	if patch.Partial != "" {
		return nil, partialRate(patch.Partial)
	}
	return s.tunePool(c, patch.Reason, func(shaper.Overrides) (shaper.Overrides, error) {
		return patch.Apply(shaper.Overrides{}, func(string) shaper.Rate { return shaper.Rate{} })
	})
}

// patchPool is PATCH /v1/pools/{pool}.
func (s *Server) patchPool(c *call) (*answer, error) {
	patch, err := codec.DecodePoolSettings(c.body)
	if err != nil {
		return nil, err
	}
	var inForce queue.Pool
	if patch.Partial != "" {
		if inForce, err = s.queue.Pool(c.r.Context(), c.param("pool")); err != nil {
			return nil, err
		}
	}
	return s.tunePool(c, patch.Reason, func(o shaper.Overrides) (shaper.Overrides, error) {
		return patch.Apply(o, func(string) shaper.Rate { return inForce.Policy.Rate })
	})
}

// pausePool is POST /v1/pools/{pool}/pause.
func (s *Server) pausePool(c *call) (*answer, error) { return switched(c, s.changePool, pause) }

// resumePool is POST /v1/pools/{pool}/resume. It overrides a pause in the file too.
func (s *Server) resumePool(c *call) (*answer, error) {
	return switched(c, func(c *call, change queue.Change) (*answer, error) {
		change.Resume = true
		return s.changePool(c, change)
	}, resume)
}

// unholdPool is POST /v1/pools/{pool}/unhold. It changes no setting.
func (s *Server) unholdPool(c *call) (*answer, error) {
	body, err := codec.DecodeUnhold(c.body)
	if err != nil {
		return nil, err
	}
	return s.changePool(c, queue.Change{Edit: keep, Reason: body.Reason, EndHolds: true, EndCharge: body.Charge})
}

// tunePool changes the settings of the pool in the path.
func (s *Server) tunePool(c *call, reason string, edit edit) (*answer, error) {
	if err := s.takesRequests(c.r.Context(), c.param("pool"), edit); err != nil {
		return nil, err
	}
	return s.changePool(c, queue.Change{Edit: edit, Reason: reason})
}

// takesRequests refuses a change that lowers the max_cost of a pool below what each request of a
// route costs, as the configuration file is refused: all of them would get 422.
func (s *Server) takesRequests(ctx context.Context, pool string, edit edit) error {
	dearest, cost := "", int64(1)
	for name, route := range s.cfg.Routes {
		if route.Forward != nil && route.Forward.Cost > cost && s.queue.PoolOf(name) == pool {
			dearest, cost = name, route.Forward.Cost
		}
	}
	if dearest == "" {
		return nil
	}
	now, err := s.queue.Pool(ctx, pool)
	if err != nil {
		return err
	}
	then, err := s.queue.TunePool(ctx, pool, queue.Change{Edit: edit, DryRun: true})
	most := then.Policy.MaxCost
	if err != nil || most >= cost || most >= now.Policy.MaxCost {
		return err
	}
	rule := fmt.Sprintf("must be at least %d, the cost of the route %s: every request would be refused", cost, dearest)
	if then.API.MaxCost == nil {
		rule += "; not set, it follows the rate, so set it too"
	}
	return problem.InvalidValue("max_cost", "number", strconv.FormatInt(most, 10), rule)
}

// changePool changes the pool in the path under the condition in If-Match.
func (s *Server) changePool(c *call, change queue.Change) (*answer, error) {
	name := c.param("pool")
	match, err := conditions(c, &change)
	if err != nil {
		return nil, err
	}
	change.IfRevision, err = expected(match, func() (int64, error) {
		p, err := s.queue.Pool(c.r.Context(), name)
		return p.Revision, err
	})
	if err != nil {
		return nil, err
	}
	c.observed(&change)
	p, err := s.queue.TunePool(c.r.Context(), name, change)
	if err != nil {
		return nil, err
	}
	c.settled(change, p.API)
	return poolAnswer(p), nil
}

// poolHistory is GET /v1/pools/{pool}/history.
func (s *Server) poolHistory(c *call) (*answer, error) {
	entries, err := s.queue.PoolHistory(c.r.Context(), c.param("pool"))
	if err != nil {
		return nil, err
	}
	return ok(codec.Changes(entries)), nil
}

// poolFlows is GET /v1/pools/{pool}/flows.
func (s *Server) poolFlows(c *call) (*answer, error) {
	limit, err := codec.PageLimit(c.r.URL.Query(), contract.DefaultPage, wire.MaxPage)
	if err != nil {
		return nil, err
	}
	flows, err := s.queue.PoolFlows(c.r.Context(), c.param("pool"), limit)
	if err != nil {
		return nil, err
	}
	return ok(codec.PoolFlows(flows)), nil
}

func poolAnswer(p queue.Pool) *answer {
	return &answer{status: http.StatusOK, body: codec.Pool(p),
		header: http.Header{"Etag": {codec.ETag(p.Revision)}}}
}
