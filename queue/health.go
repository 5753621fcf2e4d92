package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// StoreHealth is how the store is.
type StoreHealth struct {
	Engine     EngineKind
	Version    string        // of Redis, as found at the start; empty in process
	Ping       time.Duration // how long it took to answer
	UsedMemory int64         // bytes, over all nodes; 0 unknown
	MaxMemory  int64         // bytes, over all nodes; 0 no bound
}

// StoreHealth asks Redis how it is. Engine and version are told with an error, too. Errors: ErrUnavailable.
func (q *Queue) StoreHealth(ctx context.Context) (StoreHealth, error) {
	h := StoreHealth{Engine: q.engine.kind, Version: q.engine.version}
	start := time.Now()
	if err := q.engine.fast.Ping(ctx).Err(); err != nil {
		return h, unavailable(err)
	}
	h.Ping = time.Since(start)
	if h.Engine == EngineEmbedded {
		return h, nil // its memory is ours
	}
	var used, most atomic.Int64
	ask := func(ctx context.Context, c redis.Cmdable) error {
		text, err := c.Info(ctx, "memory").Result()
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			n, _ := strconv.ParseInt(value, 10, 64) // not a number: another line
			switch name {
			case "used_memory":
				used.Add(n)
			case "maxmemory":
				most.Add(n)
			}
		}
		return err
	}
	var err error
	if cluster, many := q.engine.fast.(*redis.ClusterClient); many {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return ask(ctx, c) })
	} else {
		err = ask(ctx, q.engine.fast)
	}
	if err != nil {
		return h, unavailable(fmt.Errorf("ask for the memory: %w", err))
	}
	h.UsedMemory, h.MaxMemory = used.Load(), most.Load()
	return h, nil
}
