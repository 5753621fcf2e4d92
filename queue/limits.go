package queue

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Limits stores the keys of limiters, for all processes. It is a limiter.Store. Each decision is
// one script on the shard of the key's hash, by the clock of Redis. A retry after a lost answer is
// not counted twice, unless more than 32 other requests of the key were allowed in between. Every
// error wraps ErrUnavailable or is the context's. Only the list of blocked keys holds the text of
// keys.
type Limits struct{ store *store.Store }

var _ limiter.Store = Limits{}

// Limits returns the limiters whose keys are in the queue's store.
func (q *Queue) Limits() Limits { return Limits{q.store} }

// Take implements limiter.Store.
func (s Limits) Take(ctx context.Context, r limiter.Rule, key string, cost int64) (limiter.Decision, error) {
	if err := r.Policy.Validate(); err != nil {
		return limiter.Decision{}, err
	}
	k := s.keysOf(r, key)
	call := scripts.LimitCall{
		State: k.state, Log: k.log, Blocks: k.blocked, Tag: newTag(), Policy: r.Policy, Cost: cost, Name: key,
	}
	values, err := s.store.Run(ctx, call.Call())
	if err != nil {
		return limiter.Decision{}, store.Unavailable(err)
	}
	d, _, err := call.Decode(values)
	return d, store.Unavailable(err)
}

// Clear implements limiter.Store.
func (s Limits) Clear(ctx context.Context, r limiter.Rule, key string) (bool, error) {
	k := s.keysOf(r, key)
	var gone *redis.IntCmd
	if _, err := s.store.Fast.TxPipelined(ctx, func(p redis.Pipeliner) error {
		gone = p.Del(ctx, slices.DeleteFunc([]string{k.state, k.log}, func(key string) bool {
			return key == ""
		})...)
		if k.blocked != "" {
			p.ZRem(ctx, k.blocked, key)
		}
		return nil
	}); err != nil {
		return false, store.Unavailable(err)
	}
	return gone.Val() > 0, nil
}

// Blocked implements limiter.Store.
func (s Limits) Blocked(ctx context.Context, r limiter.Rule, most int) ([]limiter.Blocked, error) {
	if most < 1 {
		return nil, nil
	}
	server, err := s.store.Reads.Time(ctx).Result()
	if err != nil {
		return nil, store.Unavailable(err)
	}
	now := shaper.InstantOf(server)
	index := store.ShortHash(ruleParts(r)...)
	ahead := &redis.ZRangeBy{Min: "(" + strconv.FormatInt(int64(now), 10), Max: "+inf", Count: int64(most)}
	blocked, err := store.Pipeline(ctx, s.store.Reads, s.store.Shards(),
		func(p redis.Pipeliner, shard store.ShardKeys) *redis.ZSliceCmd {
			return p.ZRangeByScoreWithScores(ctx, shard.Blocked(index), ahead)
		})
	if err != nil {
		return nil, err
	}
	var list []limiter.Blocked
	for _, z := range slices.Concat(blocked...) {
		name, _ := z.Member.(string)
		list = append(list, limiter.Blocked{Key: name, Left: shaper.Instant(z.Score).Sub(now)})
	}
	slices.SortFunc(list, func(a, b limiter.Blocked) int {
		return cmp.Or(cmp.Compare(a.Left, b.Left), cmp.Compare(a.Key, b.Key))
	})
	return list[:min(len(list), most)], nil
}

// limitKeys are the Redis keys of one key of a rule; empty where the rule uses none.
type limitKeys struct{ state, log, blocked string }

func (s Limits) keysOf(r limiter.Rule, key string) limitKeys {
	parts := ruleParts(r)
	hash := store.ShortHash(append(parts, key)...)
	shard := s.store.ShardOf(hash)
	k := limitKeys{state: shard.Limit(hash)}
	if r.Policy.Algorithm == limiter.SlidingLog {
		k.log = shard.LimitLog(hash)
	}
	if r.Policy.Block > 0 {
		k.blocked = shard.Blocked(store.ShortHash(parts...))
	}
	return k
}

// ruleParts identify a rule.
func ruleParts(r limiter.Rule) []string {
	p := r.Policy
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{
		r.Name, string(p.Algorithm), number(p.Rate.Limit), number(p.Rate.Period.Milliseconds()), number(p.Limit()),
		number(p.Block.Milliseconds()),
	}
}

// newTag identifies a request among those of its key, with a chance of 2⁻⁴⁸ for a collision.
func newTag() string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6])
}
