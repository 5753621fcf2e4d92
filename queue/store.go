package queue

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// StoreLimits bound what all tenants together may keep. Zero is no bound.
//
// With FlowShare, intake closes while Redis uses more memory than its maximum less a reserve. Each
// flow may store a multiple of what is free now: one greedy flow leaves capacity to the others, and
// several leave less to each other. A flow beyond its share is refused alone.
//
// An admission reads the sums over all shards if the last reading is older than storeReading, and
// adds what this process admits. Several processes may pass a bound by what they admit in that
// time.
type StoreLimits struct {
	Bytes     int64 // of jobs that are waiting, leased or dead, with what Redis keeps beside them
	Tenants   int64 // live ones: with jobs, or active in the last ten minutes
	FlowShare int64 // percent of the store that a flow may have stored while the others have nothing; 100: all of it
}

// storeReading is how long the sums over all shards are cached.
const storeReading = time.Second

// store caches how much may still be stored.
type store struct {
	limits StoreLimits
	read   func(context.Context) (Totals, error)
	memory func(context.Context) ([]nodeMemory, error)

	reading sync.Mutex // held while the sums are read
	at      atomic.Int64
	free    atomic.Int64 // bytes that may still be stored; unbounded where nothing bounds them
	tenants atomic.Int64
	begun   time.Time
}

const unbounded = 1 << 60

func newStore(
	limits StoreLimits, read func(context.Context) (Totals, error),
	memory func(context.Context) ([]nodeMemory, error),
) *store {
	s := &store{limits: limits, read: read, memory: memory, begun: time.Now()}
	s.at.Store(int64(-storeReading))
	s.free.Store(unbounded)
	return s
}

// room is the free capacity of the store.
type room struct {
	noBytes, noTenants bool
	share              int64 // bytes that a flow may have stored; 0 is no bound
}

// room returns the free capacity, by the last reading where Redis does not answer.
func (s *store) room(ctx context.Context) (r room) {
	if s.limits == (StoreLimits{}) {
		return r
	}
	if now := int64(time.Since(s.begun)); now-s.at.Load() >= int64(storeReading) && s.reading.TryLock() {
		before := s.free.Load()
		if free, tenants, err := s.measure(ctx); err == nil {
			s.free.Add(free - before) // what was admitted during the reading is counted twice until the next one
			s.tenants.Store(tenants)
		}
		s.at.Store(now)
		s.reading.Unlock()
	}
	free := s.free.Load()
	r.noBytes = free <= 0
	r.noTenants = s.limits.Tenants > 0 && s.tenants.Load() >= s.limits.Tenants
	if share := s.limits.FlowShare; share > 0 && share < 100 && free > 0 && free < unbounded/2 {
		r.share = max(1, int64(float64(free)*float64(share)/float64(100-share)))
	}
	return r
}

// measure reads how many bytes may still be stored: of a cluster, on its fullest master.
func (s *store) measure(ctx context.Context) (free, tenants int64, err error) {
	var nodes []nodeMemory
	var failed error
	var both sync.WaitGroup
	if s.limits.FlowShare > 0 {
		both.Go(func() { nodes, failed = s.memory(ctx) })
	}
	t, err := s.read(ctx)
	both.Wait()
	free = unbounded
	if s.limits.Bytes > 0 {
		free = s.limits.Bytes - t.Stored
	}
	for _, n := range nodes {
		if most := n.intakeMost(); most > 0 {
			free = min(free, most-n.counted)
		}
	}
	return free, t.Tenants, errors.Join(err, failed)
}

// admitted notes bytes that came in since the last reading.
func (s *store) admitted(bytes int64) { s.free.Add(-bytes) }

// Totals sums over all shards.
func (q *Queue) Totals(ctx context.Context) (Totals, error) {
	s, err := readShards(ctx, q.engine.fast, q.keys, ShardKeys.Tenants)
	s.Tenants = s.size
	return s.Totals, err
}

// shardSums are sums over all shards, without the tenants.
type shardSums struct {
	Totals
	lapsed, dead int64
	size         int64          // of the sorted sets
	off          shaper.Instant // of the shard that is ahead the most
}

// readShards reads the clocks of the shards, and the sizes of one of their sorted sets.
func readShards(
	ctx context.Context, c redis.UniversalClient, keys Keyspace, set func(ShardKeys) string,
) (s shardSums, err error) {
	sizes := make([]*redis.IntCmd, 0, keys.Len())
	clocks, err := pipeline(ctx, c, keys.shards, func(p redis.Pipeliner, shard ShardKeys) *redis.SliceCmd {
		sizes = append(sizes, p.ZCard(ctx, set(shard)))
		return p.HMGet(ctx, shard.Clock(), lua.ClockNumbers, "lapsed", "dead")
	})
	if err != nil {
		return s, err
	}
	for i, fields := range clocks {
		numbers, _ := fields[0].(string) // nil of a shard that nobody has used yet
		clock, err := lua.ParseClock(numbers)
		if err != nil {
			return s, unavailable(err)
		}
		s.off = max(s.off, clock.Off)
		s.Depth += clock.Depth
		s.Running += clock.Running
		s.Bytes += clock.Bytes
		s.Stored += clock.Stored
		s.Admitted += clock.Admitted
		s.Rejected += clock.Rejected
		s.Departed += clock.Departed
		for k, sum := range []*int64{&s.lapsed, &s.dead} {
			text, _ := fields[1+k].(string)
			n, err := strconv.ParseInt(cmp.Or(text, "0"), 10, 64)
			if err != nil {
				return s, unavailable(err)
			}
			*sum += n
		}
		s.size += sizes[i].Val()
	}
	return s, nil
}
