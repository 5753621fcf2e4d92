package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// StoreLimits bound what all tenants together may keep. Zero is no bound.
//
// The sums are over all shards, which no script sees at once: they are read when admissions come and the last reading is older than
// storeReading, and what this process admits meanwhile is added. So processes together may pass a bound by what they admit in that time.
type StoreLimits struct {
	Bytes   int64 // of the payloads of waiting jobs
	Tenants int64 // live ones: with jobs, or active in the last ten minutes
}

// storeReading is how long the sums over all shards are taken to hold.
const storeReading = time.Second

// store knows how much is kept, as far as limits ask for it.
type store struct {
	limits StoreLimits
	read   func(context.Context) (Totals, error)

	reading sync.Mutex // held by the one that reads
	at      atomic.Int64
	bytes   atomic.Int64
	tenants atomic.Int64
	begun   time.Time
}

func newStore(limits StoreLimits, read func(context.Context) (Totals, error)) *store {
	s := &store{limits: limits, read: read, begun: time.Now()}
	s.at.Store(int64(-storeReading))
	return s
}

// closed reports what there is no room for. When Redis does not answer, the last reading holds: the admission itself will tell.
func (s *store) closed(ctx context.Context) (noBytes, noTenants bool) {
	if s.limits == (StoreLimits{}) {
		return false, false
	}
	if now := int64(time.Since(s.begun)); now-s.at.Load() >= int64(storeReading) && s.reading.TryLock() {
		before := s.bytes.Load()
		if t, err := s.read(ctx); err == nil {
			s.bytes.Add(t.Bytes - before) // what was admitted during the reading is counted twice until the next one
			s.tenants.Store(t.Tenants)
		}
		s.at.Store(now)
		s.reading.Unlock()
	}
	noBytes = s.limits.Bytes > 0 && s.bytes.Load() >= s.limits.Bytes
	noTenants = s.limits.Tenants > 0 && s.tenants.Load() >= s.limits.Tenants
	return noBytes, noTenants
}

// admitted notes payload bytes that came in since the last reading.
func (s *store) admitted(bytes int) { s.bytes.Add(int64(bytes)) }

// Totals sums over all shards.
func (q *Queue) Totals(ctx context.Context) (Totals, error) {
	var t Totals
	clocks, tenants := make([]*redis.SliceCmd, q.keys.Len()), make([]*redis.IntCmd, q.keys.Len())
	if _, err := q.engine.fast.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range clocks {
			shard := q.keys.Shard(i)
			clocks[i] = p.HMGet(ctx, shard.Clock(), "depth", "bytes", "running", "admitted", "rejected", "departed")
			tenants[i] = p.ZCard(ctx, shard.Tenants())
		}
		return nil
	}); err != nil {
		return t, unavailable(err)
	}
	for i, cmd := range clocks {
		var figures struct {
			Depth    int64 `redis:"depth"`
			Bytes    int64 `redis:"bytes"`
			Running  int64 `redis:"running"`
			Admitted int64 `redis:"admitted"`
			Rejected int64 `redis:"rejected"`
			Departed int64 `redis:"departed"`
		}
		if err := cmd.Scan(&figures); err != nil {
			return t, unavailable(err)
		}
		t.Depth += figures.Depth
		t.Bytes += figures.Bytes
		t.Running += figures.Running
		t.Admitted += figures.Admitted
		t.Rejected += figures.Rejected
		t.Departed += figures.Departed
		t.Tenants += tenants[i].Val()
	}
	return t, nil
}
