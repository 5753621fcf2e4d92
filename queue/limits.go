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

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Limits is the limiter.Store that all processes at this Redis share. Each decision is one script
// on the shard of the key's hash, by the clock of Redis. A retry after a lost answer is not counted
// twice, unless more than 32 other requests of the key were allowed in between. Every error wraps
// ErrUnavailable or is the context's. Only the list of blocked keys holds the text of keys.
type Limits struct{ q *Queue }

var _ limiter.Store = Limits{}

// Limits returns the store of the limiters' keys.
func (q *Queue) Limits() Limits { return Limits{q} }

// Take implements limiter.Store.
func (l Limits) Take(ctx context.Context, r limiter.Rule, key string, cost int64) (limiter.Decision, error) {
	if err := r.Policy.Validate(); err != nil {
		return limiter.Decision{}, err
	}
	k := l.keysOf(r, key)
	call := lua.LimitCall{State: k.state, Log: k.log, Blocks: k.blocked, Tag: newTag(), Policy: r.Policy, Cost: cost, Name: key}
	values, err := l.q.run(ctx, call.Call())
	if err != nil {
		return limiter.Decision{}, err
	}
	d, _, err := call.Decode(values)
	return d, unavailable(err)
}

// Clear implements limiter.Store.
func (l Limits) Clear(ctx context.Context, r limiter.Rule, key string) (bool, error) {
	k := l.keysOf(r, key)
	var gone *redis.IntCmd
	if _, err := l.q.engine.fast.TxPipelined(ctx, func(p redis.Pipeliner) error {
		gone = p.Del(ctx, slices.DeleteFunc([]string{k.state, k.log}, func(key string) bool { return key == "" })...)
		if k.blocked != "" {
			p.ZRem(ctx, k.blocked, key)
		}
		return nil
	}); err != nil {
		return false, unavailable(err)
	}
	return gone.Val() > 0, nil
}

// Blocked implements limiter.Store.
func (l Limits) Blocked(ctx context.Context, r limiter.Rule, most int) ([]limiter.Blocked, error) {
	if most < 1 {
		return nil, nil
	}
	server, err := l.q.engine.fast.Time(ctx).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	now := shaper.InstantOf(server)
	index := shortHash(ruleParts(r)...)
	ahead := &redis.ZRangeBy{Min: "(" + strconv.FormatInt(int64(now), 10), Max: "+inf", Count: int64(most)}
	blocked, err := pipeline(ctx, l.q.engine.fast, l.q.keys.shards, func(p redis.Pipeliner, shard ShardKeys) *redis.ZSliceCmd {
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
	slices.SortFunc(list, func(a, b limiter.Blocked) int { return cmp.Or(cmp.Compare(a.Left, b.Left), cmp.Compare(a.Key, b.Key)) })
	return list[:min(len(list), most)], nil
}

// limitKeys are the Redis keys of one key of a rule; empty where the rule uses none.
type limitKeys struct{ state, log, blocked string }

func (l Limits) keysOf(r limiter.Rule, key string) limitKeys {
	parts := ruleParts(r)
	hash := shortHash(append(parts, key)...)
	shard := l.q.keys.ShardOf(hash)
	k := limitKeys{state: shard.Limit(hash)}
	if r.Policy.Algorithm == limiter.SlidingLog {
		k.log = shard.LimitLog(hash)
	}
	if r.Policy.Block > 0 {
		k.blocked = shard.Blocked(shortHash(parts...))
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
