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

// checkRights refuses a master whose user may not run a command that Sluice needs, or that lacks
// one. It is asked in a transaction that is never carried out, for it has a call without arguments.
func (e *Engine) checkRights(ctx context.Context) error {
	all := strings.FieldsFunc(needed, func(r rune) bool { return r == '|' || r == '\n' })
	if e.Durability.Fsync {
		all = append(all, "waitaof 0 0 0")
	} else if e.Durability.On() {
		all = append(all, "wait 0 0")
	}
	var mu sync.Mutex
	denied, unknown := map[string]bool{}, map[string]bool{}
	err := store.EachMaster(ctx, e.Patient, func(ctx context.Context, c scripts.Client) error {
		node := c.(*redis.Client)
		answers, err := asked(ctx, node, nil)
		if last := answers["exec"]; err == nil && last != nil && strings.Contains(last.Error(), "EXECABORT") &&
			!strings.Contains(last.Error(), noPermission) && answers["multi"] == nil { // else the calls would be made
			answers, err = asked(ctx, node, all)
		}
		mu.Lock()
		defer mu.Unlock()
		for call, err := range answers {
			switch name, text := nameOf(call), fmt.Sprint(err); {
			case strings.Contains(text, noPermission) && strings.Contains(text, "channel"):
				denied["the channels sluice:*"] = true
			case strings.Contains(text, noPermission) && strings.Contains(text, " key"):
				denied["the keys sluice:*"] = true
			case strings.Contains(text, noPermission): // EXECABORT has a reason
				denied[name] = true
			case strings.Contains(text, "unknown command") && !newer[name]:
				unknown[name] = true
			}
		}
		return err
	})
	switch { // both are mistakes that Advise knows
	case err != nil:
		return err
	case len(denied) > 0:
		return fmt.Errorf("%s for %s", noPermission, strings.Join(slices.Sorted(maps.Keys(denied)), ", "))
	case len(unknown) > 0:
		return fmt.Errorf("unknown command %s", strings.Join(slices.Sorted(maps.Keys(unknown)), ", "))
	}
	return nil
}

// noPermission begins the error of a command that the user may not run.
const noPermission = "NOPERM"

// newer are commands that old versions of Redis lack. Other commands replace them there; without
// WAITAOF, checkDurable refuses the setting that needs it.
var newer = map[string]bool{"spublish": true, "ssubscribe": true, "sunsubscribe": true, "waitaof": true}

// nameOf is the command of a call, such as get or script|load.
func nameOf(call string) string {
	words := strings.Fields(call)
	if words[0] == "script" {
		return words[0] + "|" + words[1]
	}
	return words[0]
}

// asked returns the errors of the calls and of those around them, which make the transaction fail.
func asked(ctx context.Context, c *redis.Client, calls []string) (answers map[string]error, err error) {
	all := slices.Concat([]string{"watch K", "multi", "exists"}, calls, []string{"exec"})
	pipe := c.Pipeline() // on one connection
	for _, call := range all {
		args := []any{}
		for _, word := range strings.Fields(call) {
			if word == "K" {
				word = "sluice:rights" // never written
			}
			args = append(args, word)
		}
		pipe.Do(ctx, args...)
	}
	sent, _ := pipe.Exec(ctx)
	answers = map[string]error{}
	for i, cmd := range sent {
		if answers[all[i]] = cmd.Err(); store.FaultOf(cmd.Err()) == store.FaultTransport {
			return nil, cmd.Err()
		}
	}
	return answers, nil
}
