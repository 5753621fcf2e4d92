package api

import (
	"context"
	"time"

	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// predictTenant is POST /v1/tenants/{tenant}/predict.
func (s *Server) predictTenant(c *call) (*answer, error) {
	patch, err := s.decodeSettings(c.body)
	if err != nil {
		return nil, err
	}
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	ctx := c.client
	now, err := s.queue.Tenant(ctx, name)
	if err != nil {
		return nil, err
	}
	then, err := s.queue.Tune(ctx, name, queue.Change{Edit: patched(patch, now), DryRun: true})
	if err != nil {
		return nil, err
	}
	return s.predict(ctx, func(f figures.Predictor) (any, error) { return f.Tenant(ctx, now, then) })
}

// predictPool is POST /v1/pools/{pool}/predict.
func (s *Server) predictPool(c *call) (*answer, error) {
	patch, err := codec.DecodePoolSettings(c.body)
	if err != nil {
		return nil, err
	}
	ctx, name := c.client, c.param("pool")
	now, err := s.queue.Pool(ctx, name)
	if err != nil {
		return nil, err
	}
	then, err := s.queue.TunePool(ctx, name, queue.Change{DryRun: true,
		Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
			return patch.Apply(o, func(string) shaper.Rate { return now.Policy.Rate })
		}})
	if err != nil {
		return nil, err
	}
	return s.predict(ctx, func(f figures.Predictor) (any, error) { return f.Pool(ctx, now, then) })
}

// predict answers with a prediction. One is computed at a time, because each uses a core, and then
// as long a rest follows: viewers may ask again and again.
func (s *Server) predict(
	ctx context.Context, of func(figures.Predictor) (any, error),
) (*answer, error) {
	select {
	case s.predicting <- struct{}{}:
		began := time.Now()
		defer func() { time.AfterFunc(time.Since(began), func() { <-s.predicting }) }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	out, err := of(figures.Predictor{Queue: s.queue, Arrivals: s.arrivals, Horizon: s.cfg.Horizon})
	if err != nil {
		return nil, err
	}
	return ok(out), nil
}
