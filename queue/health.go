package queue

import (
	"context"
	"time"
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

// StoreHealth asks Redis how it is. Engine and version are told with an error, too. Errors: ErrUnavailable.
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
