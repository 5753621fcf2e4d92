package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
)

// StoreHealth is how the store is.
type StoreHealth struct {
	Engine     EngineKind
	Version    string        // of Redis, as found at the start; empty in process
	Ping       time.Duration // how long it took to answer
	UsedMemory int64         // bytes, over all nodes; 0 unknown
	MaxMemory  int64         // bytes, over all nodes; 0 no bound
	Differing  int           // processes whose files state other policies than those in force
}

// StoreHealth reads how Redis is; engine and version also with an error. Errors: ErrUnavailable.
func (q *Queue) StoreHealth(ctx context.Context) (StoreHealth, error) {
	h := StoreHealth{Engine: q.engine.kind, Version: q.engine.version, Differing: q.Agreement().Differing}
	start := time.Now()
	if err := q.engine.fast.Ping(ctx).Err(); err != nil {
		return h, unavailable(err)
	}
	h.Ping = time.Since(start)
	nodes, err := q.engine.memory(ctx)
	for _, n := range nodes {
		h.UsedMemory += n.used
		h.MaxMemory += n.most
	}
	return h, err
}

// nodeMemory is what one Redis reports of its memory, in bytes.
type nodeMemory struct {
	used    int64
	counted int64 // of what is used, the part that maxmemory bounds
	most    int64 // maxmemory; 0 is no bound
	machine int64 // of the machine; 0 is unknown
	written bool  // the last write to the append-only file succeeded
}

// reserve is the percentage of maxmemory that is left to retries, results and callbacks.
const reserve = 15

// intakeMost is how much memory may be in use while jobs are admitted; 0 is no bound.
func (n nodeMemory) intakeMost() int64 {
	if n.most > 0 {
		return n.most / 100 * (100 - reserve)
	}
	return n.machine / 2
}

// fullness orders nodes by the used part of their memory. Nodes without a bound come first.
func (n nodeMemory) fullness() float64 {
	if n.most > 0 {
		return float64(n.used) / float64(n.most)
	}
	return float64(n.used) / (1 << 62)
}

// memory reads INFO of Redis, or of each master of a cluster; nothing of the embedded engine.
func (e *Engine) memory(ctx context.Context) (nodes []nodeMemory, err error) {
	if e.kind == EngineEmbedded {
		return nil, nil
	}
	var mu sync.Mutex
	err = eachMaster(ctx, e.fast, func(ctx context.Context, c lua.Client) error {
		var memory, persistence *redis.StringCmd // Redis 6.2 takes one section at a time
		if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			memory, persistence = p.Info(ctx, "memory"), p.Info(ctx, "persistence")
			return nil
		}); err != nil {
			return fmt.Errorf("ask for the memory: %w", err)
		}
		fields := infoFields(memory.Val() + "\n" + persistence.Val())
		number := func(name string) int64 {
			n, _ := strconv.ParseInt(fields[name], 10, 64) // absent: 0
			return n
		}
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, nodeMemory{
			used: number("used_memory"), counted: number("used_memory") - number("mem_not_counted_for_evict"),
			most: number("maxmemory"), machine: number("total_system_memory"),
			written: fields["aof_enabled"] == "1" && fields["aof_last_write_status"] == "ok",
		})
		return nil
	})
	return nodes, unavailable(err)
}

// infoFields are the fields of an answer to INFO.
func infoFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}
