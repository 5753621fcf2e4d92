package api

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/shaper"
)

// maxReaders bounds the tenants that a readBudget remembers in each of its two halves.
const maxReaders = 10_000

// readBudget bounds how often one tenant may read jobs from this process, so that polling cannot take Redis away from the rest. It is a
// token bucket for each tenant, in memory: n processes let through n times as much.
//
// A bucket that has not been asked for as long as it takes to fill is full, and to forget it changes nothing. Therefore there are two
// generations: who reads is in the young one, and when its time is over, or when a flood of names has filled it, it becomes
// the old one, and what was the old one is forgotten. Who reads all the time is never forgotten, however many names are made up meanwhile.
type readBudget struct {
	shown shaper.Rate // as configured
	limit rate.Limit
	burst int
	life  time.Duration // in which any bucket fills

	mu         sync.Mutex
	young, old map[string]*rate.Limiter
	since      time.Time // when young was begun
}

// newReadBudget lets each tenant read at the rate, and a second's worth of it, at least one, at once.
func newReadBudget(r shaper.Rate) *readBudget {
	b := &readBudget{shown: r, limit: rate.Limit(r.PerSecond()), burst: max(1, int(r.PerSecond())), young: map[string]*rate.Limiter{}}
	b.life = max(time.Second, time.Duration(float64(b.burst)/r.PerSecond()*float64(time.Second)))
	return b
}

// take spends one read of the tenant. Where there is none left it spends nothing and says in how long there is.
func (b *readBudget) take(tenant string, now time.Time) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.since) > b.life || len(b.young) >= maxReaders {
		b.old, b.young, b.since = b.young, map[string]*rate.Limiter{}, now
	}
	l := b.young[tenant]
	if l == nil {
		if l = b.old[tenant]; l == nil {
			l = rate.NewLimiter(b.limit, b.burst)
		}
		b.young[tenant] = l
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
