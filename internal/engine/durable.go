package engine

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Durability is what a change waits for before its caller gets an answer. The zero value waits for
// nothing.
type Durability struct {
	Replicas int           // that must have the write, of each master
	Fsync    bool          // in their append-only files, and in that of the master
	Timeout  time.Duration // after which the outcome is unknown
}

// On reports whether changes wait for replicas.
func (d Durability) On() bool { return d.Replicas > 0 }

// leastFsync is the oldest version that has WAITAOF.
var leastFsync = []int{7, 2}

// maxLag is how many seconds ago a replica must have acknowledged something to count as connected.
const maxLag = 2

// durable returns a client whose writes are acknowledged by replicas before they return.
func (d Durability) durable(
	client func(patience) redis.UniversalClient, way *distance,
) redis.UniversalClient {
	p := failFast
	p.wait, p.way = d.Timeout, way
	switch c := client(p).(type) {
	case *redis.ClusterClient:
		c.OnNewNode(func(node *redis.Client) { node.AddHook(waiting{d, node}) })
		return c
	case *redis.Client:
		c.AddHook(waiting{d, c})
		return c
	default:
		return c
	}
}

// waiting appends WAIT to what is sent to one node. It counts the writes of its own connection, so
// it is in the same pipeline. A call that was sent again, or whose idempotency key is known, may
// write nothing, and from Redis 7.2 on WAIT proves nothing then. So a write of ours comes first.
type waiting struct {
	Durability
	node *redis.Client
}

// DialHook implements redis.Hook.
func (waiting) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (w waiting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if writes(cmd) == "" {
			return next(ctx, cmd)
		}
		pipe := w.node.Pipeline()
		_ = pipe.Process(ctx, cmd) // only queues it
		_, _ = pipe.Exec(ctx)      // the error is that of a command, and each has its own
		return cmd.Err()
	}
}

// ProcessPipelineHook implements redis.Hook.
func (w waiting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		i := slices.IndexFunc(cmds, func(cmd redis.Cmder) bool { return writes(cmd) != "" })
		if i < 0 || cmds[0].Name() == "multi" {
			return next(ctx, cmds)
		}
		sent := slices.Clone(cmds)
		fence := redis.NewCmd(ctx, "ping")
		if key := store.FenceOf(writes(cmds[i])); key != "" {
			fence = redis.NewCmd(ctx, "hset", key, "fence", 1)
			if cmds[0].Name() == "asking" { // which holds for one command
				sent = append(sent, redis.NewCmd(ctx, "asking"))
			}
		}
		wait := redis.NewCmd(ctx, w.command()...)
		err := next(ctx, append(sent, fence, wait))
		if fence.Err() == nil && w.enough(wait) {
			return err
		}
		for _, cmd := range cmds {
			if cmd.Err() == nil {
				cmd.SetErr(fmt.Errorf("%w: fewer than %d replicas acknowledged the write within %v",
					store.ErrOutcomeUnknown, w.Replicas, w.Timeout))
			}
		}
		return cmds[i].Err()
	}
}

// command is WAIT or WAITAOF with its arguments.
func (w waiting) command() []any {
	if w.Fsync {
		return []any{"waitaof", 1, w.Replicas, w.Timeout.Milliseconds()}
	}
	return []any{"wait", w.Replicas, w.Timeout.Milliseconds()}
}

// enough reports whether the answer to the command is that of enough servers.
func (w waiting) enough(cmd *redis.Cmd) bool {
	if !w.Fsync {
		replicas, err := cmd.Int()
		return err == nil && replicas >= w.Replicas
	}
	counts, err := cmd.Int64Slice()
	return err == nil && len(counts) == 2 && counts[0] >= 1 && counts[1] >= int64(w.Replicas)
}

// writes returns the first key of a command that may write, "" of any other.
func writes(cmd redis.Cmder) string {
	at := 0
	switch cmd.Name() {
	case "evalsha", "eval": // script, number of keys, keys
		at = 3
	case "hset", "set", "del", "zadd", "zrem", "sadd", "srem":
		at = 1
	}
	if args := cmd.Args(); at > 0 && at < len(args) {
		key, _ := args[at].(string)
		return key
	}
	return ""
}

// Replicas returns the number of replicas of the master that has the fewest. One counts that is in
// sync and has acknowledged something in the last two seconds. Errors: store.ErrUnavailable.
func (e *Engine) Replicas(ctx context.Context) (least int, err error) {
	var mu sync.Mutex
	least = -1
	err = store.EachMaster(ctx, e.Fast, func(ctx context.Context, c scripts.Client) error {
		info, err := c.(interface {
			Info(context.Context, ...string) *redis.StringCmd
		}).Info(ctx, "replication").Result()
		if err != nil {
			return fmt.Errorf("read the replicas: %w", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if n := replicasIn(info); least < 0 || n < least {
			least = n
		}
		return nil
	})
	return max(0, least), store.Unavailable(err)
}

// replicasIn counts the replicas that an answer to INFO lists as in sync and not late. Redis itself
// counts once in a second, and refuses writes by that.
func replicasIn(info string) (n int) {
	fields := infoFields(info)
	if text, counted := fields["min_slaves_good_slaves"]; counted {
		n, _ = strconv.Atoi(text)
		return n
	}
	for name, value := range fields {
		number, found := strings.CutPrefix(name, "slave")
		if _, err := strconv.Atoi(number); !found || err != nil {
			continue
		}
		_, late, _ := strings.Cut(value, ",lag=")
		lag, err := strconv.Atoi(late)
		if err == nil && lag >= 0 && lag <= maxLag && strings.Contains(value, ",state=online,") {
			n++
		}
	}
	return n
}

// CheckReplicas returns an error where a master has too few replicas, so that no change could be
// acknowledged. Errors: store.ErrReplicas, store.ErrUnavailable.
func (e *Engine) CheckReplicas(ctx context.Context) error {
	if !e.Durability.On() {
		return nil
	}
	n, err := e.Replicas(ctx)
	if err == nil && n < e.Durability.Replicas {
		err = fmt.Errorf("%w: a master has %d in sync, redis.durability.replicas is %d: connect the others "+
			"(REPLICAOF), or lower the setting", store.ErrReplicas, n, e.Durability.Replicas)
	}
	return err
}

// checkDurable returns which settings of Redis are missing for the durability, and reports
// where that cannot be read.
func (e *Engine) checkDurable(ctx context.Context, o Options) (problems []string, err error) {
	var mu sync.Mutex
	want := e.Durability.Replicas
	add := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(problems, text) {
			problems = append(problems, text)
		}
	}
	if e.Durability.Fsync && slices.Compare(numbersOf(e.Version), leastFsync) < 0 {
		add("redis.durability.fsync needs WAITAOF, which version %s lacks: use %d.%d or newer, or set "+
			"redis.durability.fsync to false", e.Version, leastFsync[0], leastFsync[1])
	}
	err = store.EachMaster(ctx, e.Patient, func(ctx context.Context, c scripts.Client) error {
		settings, err := c.(interface {
			ConfigGet(context.Context, string) *redis.MapStringStringCmd
		}).ConfigGet(ctx, "min-replicas-*").Result()
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			o.Logger.Warn("the settings of redis cannot be read (CONFIG GET): make sure that each of its servers has "+
				"them, so that a master without its replicas refuses writes",
				"min-replicas-to-write", want, "min-replicas-max-lag", maxLag, "error", err)
			return nil
		}
		if n, err := strconv.Atoi(settings["min-replicas-to-write"]); err == nil && n < want {
			add("min-replicas-to-write is %d, so a master that has lost its replicas accepts writes that are "+
				"lost: set min-replicas-to-write %d on each server", n, want)
		}
		if n, err := strconv.Atoi(settings["min-replicas-max-lag"]); err == nil && (n == 0 || n > maxLag) {
			add("min-replicas-max-lag is %d, so a master that has lost its replicas notices late: set "+
				"min-replicas-max-lag %d on each server", n, maxLag)
		}
		return nil
	})
	return problems, err
}

// numbersOf returns the first two numbers of a version; one that is none is 0.
func numbersOf(version string) []int {
	found := []int{0, 0}
	_, _ = fmt.Sscanf(version, "%d.%d", &found[0], &found[1])
	return found
}
