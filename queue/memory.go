package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
)

// nodeMemory is what one Redis reports of its memory, in bytes.
type nodeMemory struct {
	used    int64
	counted int64 // of what is used, the part that maxmemory bounds
	most    int64 // maxmemory; 0 is no bound
	machine int64 // of the machine; 0 is unknown
	written bool  // the last write to the append-only file succeeded
}

// reserve is the part of maxmemory, in percent, that only draining uses: retries, results and callbacks need room while intake is closed.
const reserve = 15

// intakeMost is how many bytes may be used for jobs to be taken in; 0 is no bound.
func (n nodeMemory) intakeMost() int64 {
	if n.most > 0 {
		return n.most / 100 * (100 - reserve)
	}
	return n.machine / 2
}

// fullness orders nodes by the part of their memory that is used. Nodes without a bound come first.
func (n nodeMemory) fullness() float64 {
	if n.most > 0 {
		return float64(n.used) / float64(n.most)
	}
	return float64(n.used) / (1 << 62)
}

// memory reads INFO of the Redis, or of each master of a cluster. The embedded engine reports none.
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
			used: number("used_memory"), counted: number("used_memory") - number("mem_not_counted_for_evict"), most: number("maxmemory"),
			machine: number("total_system_memory"), written: fields["aof_enabled"] == "1" && fields["aof_last_write_status"] == "ok",
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
