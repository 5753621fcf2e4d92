package budget

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/shaper"
)

// maxReaders bounds the tenants in a Reads. It evicts the least recently used one,
// so a flood of invented names does not refill the bucket of a tenant that reads.
const maxReaders = 10_000

// Reads bounds the rate at which one tenant reads jobs through this process, so that its polling
// does not slow Redis down for others. It is a token bucket per tenant, in memory: n processes
// allow n times the rate.
type Reads struct {
	Shown shaper.Rate // the rate as configured
	Burst int         // reads that are possible at once after an idle period
	limit rate.Limit

	mu      sync.Mutex
	readers *simplelru.LRU[string, *rate.Limiter]
}

// NewReads returns a bound that allows each tenant the rate. Its burst is the reads of one second,
// at least 1.
func NewReads(r shaper.Rate) *Reads {
	readers, _ := simplelru.NewLRU[string, *rate.Limiter](maxReaders, nil) // fails only for sizes below 1
	return &Reads{
		Shown: r, limit: rate.Limit(r.PerSecond()), Burst: max(1, int(r.PerSecond())), readers: readers,
	}
}

// Take spends one read of the tenant. If none is left, it spends nothing and returns the time until
// the next one.
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
