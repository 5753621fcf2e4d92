package budget

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/shaper"
)

// maxReaders bounds the tenants that a Reads remembers. It evicts the least recently used one,
// so a flood of invented names does not refill the bucket of a tenant that keeps reading.
const maxReaders = 10_000

// Reads bounds how often one tenant may read jobs from this process, so that polling cannot
// take Redis away from the rest. It is a token bucket for each tenant, in memory: n processes let
// through n times as much.
type Reads struct {
	Shown shaper.Rate // as configured
	limit rate.Limit
	Burst int

	mu      sync.Mutex
	readers *simplelru.LRU[string, *rate.Limiter]
}

// NewReads lets each tenant read at the rate, and a second's worth of it, at least one, at
// once.
func NewReads(r shaper.Rate) *Reads {
	readers, _ := simplelru.NewLRU[string, *rate.Limiter](maxReaders, nil) // fails only for sizes below 1
	return &Reads{Shown: r, limit: rate.Limit(r.PerSecond()), Burst: max(1, int(r.PerSecond())), readers: readers}
}

// Take spends one read of the tenant. Where there is none left it spends nothing and says in how
// long there is.
func (b *Reads) Take(tenant string, now time.Time) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, known := b.readers.Get(tenant)
	if !known {
		l = rate.NewLimiter(b.limit, b.Burst)
		b.readers.Add(tenant, l)
	}
	reservation := l.ReserveN(now, 1)
	if wait = reservation.DelayFrom(now); wait > 0 {
		reservation.CancelAt(now)
	}
	return wait
}
