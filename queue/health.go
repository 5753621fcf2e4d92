package queue

import (
	"context"
	"time"

	"github.com/7509e464/sluice/internal/store"
)

// StoreHealth describes Redis.
type StoreHealth struct {
	Engine     EngineKind
	Version    string        // of Redis, as found at the start; empty in process
	Ping       time.Duration // time until it answered
	UsedMemory int64         // bytes, over all nodes; 0 unknown
	MaxMemory  int64         // bytes, over all nodes; 0 no bound
	Differing  int           // processes whose files have other policies than those in force
	Abandoned  bool          // no live process has the file in force
}

// StoreHealth describes Redis. With an error it has the engine and the version. Errors:
// ErrUnavailable.
func (q *Queue) StoreHealth(ctx context.Context) (StoreHealth, error) {
	agreement := q.Agreement()
	h := StoreHealth{Engine: q.engine.kind, Version: q.engine.conn.Version, Differing: agreement.Differing,
		Abandoned: agreement.Abandoned}
	start := time.Now()
	if err := q.store.Fast.Ping(ctx).Err(); err != nil {
		return h, store.Unavailable(err)
	}
	h.Ping = time.Since(start)
	nodes, err := q.engine.conn.Memory(ctx)
	for _, n := range nodes {
		h.UsedMemory += n.Used
		h.MaxMemory += n.Max
	}
	return h, err
}
