package callback

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/hibiken/asynq"
	"golang.org/x/time/rate"
)

// asynq keeps the last 10,000 tasks in the archive of a queue, of all tenants together. So that
// one of them cannot push out what the others have there, each process puts a tenth of that in a
// day there for one tenant, and for all guests together, once half of it is full. It deletes the
// others.
const (
	archiveHalf    = 5000
	archivePart    = 1000
	archiveTenants = mostReceivers
)

// archive counts the callbacks of each tenant that a shared archive has taken.
type archive struct {
	mu      sync.Mutex
	tenants *simplelru.LRU[string, *rate.Limiter]
}

func newArchive() *archive {
	tenants, _ := simplelru.NewLRU[string, *rate.Limiter](archiveTenants, nil) // fails only for sizes below 1
	return &archive{tenants: tenants}
}

// archives reports whether asynq's archive is to keep a callback that is given up.
func (s *Service) archives(ctx context.Context, tenant string) bool {
	name, _ := asynq.GetQueueName(ctx)
	n, err := s.cfg.Redis.ZCard(ctx, (&asynqQueue{name: name}).key("archived")).Result()
	return err != nil || n < archiveHalf || s.archive.takes(tenant, time.Now())
}

// takes reports whether a shared archive takes one more callback of a tenant.
func (a *archive) takes(tenant string, now time.Time) bool {
	tenant = party(tenant)
	a.mu.Lock()
	defer a.mu.Unlock()
	l, known := a.tenants.Get(tenant)
	if !known {
		l = rate.NewLimiter(rate.Every(24*time.Hour/archivePart), archivePart)
		a.tenants.Add(tenant, l)
	}
	return l.AllowN(now, 1)
}
