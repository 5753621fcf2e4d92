package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// needed is one call of each command that docs/redis.md lists under Rights, but for those of the
// transaction and BGREWRITEAOF, which is not urgent. K is a key. Some are used so seldom that their
// lack would show after days.
const needed = `
ping|info|time|type K|scan 0|unwatch|script load K|script exists K|eval K 0|evalsha K 0
publish K K|subscribe K|spublish K K|ssubscribe K|sunsubscribe K
exists K|del K|expire K 1|expireat K 1|pexpire K 1|persist K|rename K K
get K|set K 1|setex K 1 1|mget K|mset K 1|getrange K 0 0|setrange K 0 1|strlen K|incr K
hget K 1|hset K 1 1|hdel K 1|hmget K 1|hgetall K|hexists K 1|hincrby K 1 1|hkeys K|hlen K|hsetnx K 1 1
lpush K 1|rpush K 1|rpoplpush K K|lrange K 0 0|lrem K 0 1|ltrim K 0 0|llen K
sadd K 1|srem K 1|sismember K 1|smembers K|scard K|sscan K 0|srandmember K
zadd K 1 1|zrem K 1|zcard K|zcount K 0 0|zrank K 1|zscore K 1|zmscore K 1|zscan K 0|zrange K 0 0
zrevrange K 0 0|zrangebyscore K 0 0|zrevrangebyscore K 0 0|zremrangebyscore K 0 0
xadd K * 1 1|xread STREAMS K 0|xrevrange K + -`

// checkRights refuses a master whose user may not run a command that Sluice needs. It is asked in a
// transaction that is never carried out, for it has a call without arguments.
func (e *Engine) checkRights(ctx context.Context) error {
	all := strings.FieldsFunc(needed, func(r rune) bool { return r == '|' || r == '\n' })
	var mu sync.Mutex
	denied := map[string]bool{}
	err := store.EachMaster(ctx, e.Patient, func(ctx context.Context, c scripts.Client) error {
		node := c.(*redis.Client)
		found, err := deniedBy(ctx, node, nil)
		if err == nil && len(found) == 0 { // else the calls would be made
			found, err = deniedBy(ctx, node, all)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, name := range found {
			denied[name] = true
		}
		return err
	})
	if err != nil || len(denied) == 0 {
		return err
	}
	names := slices.Sorted(maps.Keys(denied))
	return fmt.Errorf("NOPERM for %s", strings.Join(names, ", ")) // one of the mistakes
}

// deniedBy returns the commands of the transaction and among the calls that the user of the client
// may not run.
func deniedBy(ctx context.Context, c *redis.Client, calls []string) (denied []string, err error) {
	pipe := c.Pipeline() // on one connection
	for _, call := range slices.Concat([]string{"watch K", "multi", "exists"}, calls, []string{"exec"}) {
		args := []any{}
		for _, word := range strings.Fields(call) {
			if word == "K" {
				word = "sluice:rights" // never written
			}
			args = append(args, word)
		}
		pipe.Do(ctx, args...)
	}
	sent, _ := pipe.Exec(ctx) // fails: EXECABORT
	for _, cmd := range sent {
		switch err := cmd.Err(); {
		case err == nil:
		case store.FaultOf(err) == store.FaultTransport:
			return nil, err
		case strings.Contains(err.Error(), "NOPERM"): // EXECABORT has a reason
			denied = append(denied, cmd.Name())
		}
	}
	return denied, nil
}
