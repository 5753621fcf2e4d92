package api

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/shaper"
)

// maxReaders bounds the tenants that a readBudget remembers. It evicts the least recently used one,
// so a flood of invented names does not refill the bucket of a tenant that keeps reading.
const maxReaders = 10_000

// readBudget bounds how often one tenant may read jobs from this process, so that polling cannot
// take Redis away from the rest. It is a token bucket for each tenant, in memory: n processes let
// through n times as much.
type readBudget struct {
	shown shaper.Rate // as configured
	limit rate.Limit
	burst int

	mu      sync.Mutex
	readers *simplelru.LRU[string, *rate.Limiter]
}

// newReadBudget lets each tenant read at the rate, and a second's worth of it, at least one, at
// once.
func newReadBudget(r shaper.Rate) *readBudget {
	readers, _ := simplelru.NewLRU[string, *rate.Limiter](maxReaders, nil) // fails only for sizes below 1
	return &readBudget{shown: r, limit: rate.Limit(r.PerSecond()), burst: max(1, int(r.PerSecond())), readers: readers}
}

// take spends one read of the tenant. Where there is none left it spends nothing and says in how
// long there is.
func (b *readBudget) take(tenant string, now time.Time) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, known := b.readers.Get(tenant)
	if !known {
		l = rate.NewLimiter(b.limit, b.burst)
		b.readers.Add(tenant, l)
	}
	reservation := l.ReserveN(now, 1)
	if wait = reservation.DelayFrom(now); wait > 0 {
		reservation.CancelAt(now)
	}
	return wait
}

// reading is nil, or the 429 for a tenant that reads too often; then the store is not asked.
func (s *Server) reading(tenant string) error {
	if s.reads == nil {
		return nil
	}
	wait := s.reads.take(tenant, time.Now())
	if wait <= 0 {
		return nil
	}
	s.metrics.tooOften.Inc()
	p := rateLimited.with("this process lets the tenant read jobs " + s.reads.shown.String() + "; wait with Prefer: wait=N, or have a callback, instead of polling")
	p.RetryAfterMS = max(1, wholeMillis(wait))
	seconds := retryAfterSeconds(wait)
	p.retry(seconds)
	s.cfg.Headers.readHeaders(p.header, s.reads.shown, int64(s.reads.burst), wait, seconds)
	return p
}
