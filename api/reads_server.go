package api

import (
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/api/internal/ratelimit"
)

// reading is nil, or the 429 for a tenant that reads too often; then the store is not asked.
func (s *Server) reading(tenant string) error {
	if s.reads == nil {
		return nil
	}
	wait := s.reads.Take(tenant, time.Now())
	if wait <= 0 {
		return nil
	}
	s.metrics.tooOften.Inc()
	p := problem.RateLimited.With("this process lets the tenant read jobs " + s.reads.Shown.String() + "; wait with Prefer: wait=N, or have a callback, instead of polling")
	p.RetryAfterMS = max(1, ratelimit.Millis(wait))
	seconds := ratelimit.RetryAfter(wait)
	p.Retry(seconds)
	s.cfg.Headers.Limiter(p.Header, ratelimit.Limit{
		Name: "status", Rate: s.reads.Shown, Limit: int64(s.reads.Burst), Next: wait, RetryAfter: seconds,
	})
	return p
}
