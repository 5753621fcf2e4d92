package queue

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// waitsMost bounds the jobs that Waits reads.
const waitsMost = 1000

// Waits returns the sorted waits, from admission to departure, of the most recent jobs of a tenant,
// up to most of each route and about 1,000 in all. It leaves out retried jobs: they waited for
// their retry. Errors: ErrUnavailable.
func (q *Queue) Waits(ctx context.Context, tenant string, most int) ([]time.Duration, error) {
	shards := q.policies.Current().Shards(tenant)
	flows, err := q.flowsOf(ctx, tenant, shards)
	if err != nil {
		return nil, err
	}
	var lists []string
	for i, shard := range shards {
		for _, flow := range flows[i] {
			lists = append(lists, shard.Done(flow))
		}
	}
	most = min(most, max(1, waitsMost/max(1, len(lists))))
	ids, err := store.Pipeline(ctx, q.store.Reads, lists, func(p redis.Pipeliner, list string) *redis.StringSliceCmd {
		return p.LRange(ctx, list, 0, int64(most)-1)
	})
	if err != nil {
		return nil, err
	}
	heads, err := store.Pipeline(ctx, q.store.Reads, slices.Concat(ids...), func(p redis.Pipeliner, id string) *redis.StringCmd {
		shard, _ := q.store.ShardOfID(id)
		return p.GetRange(ctx, shard.Job(id), 0, scripts.HeadLength-1)
	})
	if err != nil {
		return nil, err
	}
	var waits []time.Duration
	for _, head := range heads {
		if wait, ok := scripts.WaitOf([]byte(head)); ok {
			waits = append(waits, wait)
		}
	}
	slices.Sort(waits)
	return waits, nil
}
