package queue

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

// nodeMemory is what one Redis reports of its memory, in bytes.
type nodeMemory struct {
	used    int64
	counted int64 // of what is used, the part that maxmemory bounds
	most    int64 // maxmemory; 0 is no bound
	machine int64 // of the machine; 0 is unknown
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

// memoryOf reads the answer to INFO memory.
func memoryOf(fields map[string]string) nodeMemory {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64) // absent: 0
		return n
	}
	used := number("used_memory")
	return nodeMemory{
		used: used, counted: used - number("mem_not_counted_for_evict"), most: number("maxmemory"), machine: number("total_system_memory"),
	}
}

// memory asks each Redis, of a cluster each master, for its memory. The embedded engine has none to report.
func (e *Engine) memory(ctx context.Context) (nodes []nodeMemory, err error) {
	var mu sync.Mutex
	ask := func(ctx context.Context, c *redis.Client) error {
		text, err := c.Info(ctx, "memory").Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, memoryOf(infoFields(text)))
		return nil
	}
	switch c := e.fast.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, ask)
	case *redis.Client:
		if e.kind != EngineEmbedded {
			err = ask(ctx, c)
		}
	}
	if err != nil {
		return nil, unavailable(fmt.Errorf("ask for the memory: %w", err))
	}
	return nodes, nil
}
