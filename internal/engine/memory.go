package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Memory is what one Redis reports of its memory, in bytes.
type Memory struct {
	Used    int64 // used_memory
	Counted int64 // the part of Used that maxmemory bounds
	Max     int64 // maxmemory; 0 is no bound
	Written bool  // the last write to the append-only file succeeded

	machine int64 // of the machine; 0 is unknown
}

// reserve is the percentage of maxmemory that is left to retries, results and callbacks.
const reserve = 15

// IntakeMax returns the bytes in use up to which jobs are admitted; 0 is no bound.
func (m Memory) IntakeMax() int64 {
	if m.Max > 0 {
		return m.Max / 100 * (100 - reserve)
	}
	return m.machine / 2
}

// Fullness returns the used part of the memory, to compare nodes. Nodes without a bound have the
// lowest value.
func (m Memory) Fullness() float64 {
	if m.Max > 0 {
		return float64(m.Used) / float64(m.Max)
	}
	return float64(m.Used) / (1 << 62)
}

// Memory reads INFO of Redis, or of each master of a cluster. It returns no node for the embedded
// engine. Errors: store.ErrUnavailable.
func (e *Engine) Memory(ctx context.Context) (nodes []Memory, err error) {
	if e.Version == "" {
		return nil, nil
	}
	var mu sync.Mutex
	err = store.EachMaster(ctx, e.Fast, func(ctx context.Context, c scripts.Client) error {
		var memory, persistence *redis.StringCmd // Redis 6.2 takes one section at a time
		if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			memory, persistence = p.Info(ctx, "memory"), p.Info(ctx, "persistence")
			return nil
		}); err != nil {
			return fmt.Errorf("read the memory: %w", err)
		}
		fields := infoFields(memory.Val() + "\n" + persistence.Val())
		number := func(name string) int64 {
			n, _ := strconv.ParseInt(fields[name], 10, 64) // absent: 0
			return n
		}
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, Memory{
			Used: number("used_memory"), Counted: number("used_memory") - number("mem_not_counted_for_evict"),
			Max: number("maxmemory"), machine: number("total_system_memory"),
			Written: fields["aof_enabled"] == "1" && fields["aof_last_write_status"] == "ok",
		})
		return nil
	})
	return nodes, store.Unavailable(err)
}

// infoFields parses an answer to INFO.
func infoFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}
