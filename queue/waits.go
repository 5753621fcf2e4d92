package queue

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/store"
)

// Waits returns the sorted waits, from admission to departure, of the most recent jobs of a tenant,
// up to most of each route. It leaves out retried jobs: they waited for their retry. Errors:
// ErrUnavailable.
func (q *Queue) Waits(ctx context.Context, tenant string, most int) ([]time.Duration, error) {
	shard := q.store.ShardOf(tenant)
	flows, err := q.store.Fast.SMembers(ctx, shard.Names(EncodeName(tenant))).Result()
	if err != nil || len(flows) == 0 {
		return nil, store.Unavailable(err)
	}
	lists, err := store.Pipeline(ctx, q.store.Fast, flows,
		func(p redis.Pipeliner, flow string) *redis.StringSliceCmd {
			return p.LRange(ctx, shard.Done(flow), 0, int64(most)-1)
		})
	if err != nil {
		return nil, err
	}
	heads, err := store.Pipeline(ctx, q.store.Fast, slices.Concat(lists...),
		func(p redis.Pipeliner, id string) *redis.StringCmd {
			return p.GetRange(ctx, shard.Job(id), 0, lua.HeadLength-1)
		})
	if err != nil {
		return nil, err
	}
	var waits []time.Duration
	for _, head := range heads {
		if wait, ok := lua.WaitOf([]byte(head)); ok {
			waits = append(waits, wait)
		}
	}
	slices.Sort(waits)
	return waits, nil
}
