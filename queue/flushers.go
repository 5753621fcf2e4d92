package queue

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// flushers has a flusher for each master of a cluster: one that hangs delays no submission to
// another. It has one flusher where Redis is no cluster.
type flushers struct {
	q       *Queue
	cluster *redis.ClusterClient // nil where Redis is none

	mu     sync.RWMutex
	closed bool
	by     map[string]*flusher // by the address of the master, empty where it is not known
}

func newFlushers(q *Queue) *flushers {
	fs := &flushers{q: q, by: map[string]*flusher{}}
	fs.cluster, _ = q.store.Durable.(*redis.ClusterClient)
	fs.by[""] = newFlusher(q)
	return fs
}

// of returns the flusher of a shard. It may be nil after close. The client finds the right node
// also where the shard has moved since.
func (fs *flushers) of(ctx context.Context, shard store.ShardKeys) *flusher {
	addr := ""
	if fs.cluster != nil {
		if node, err := fs.cluster.MasterForKey(ctx, shard.Clock()); err == nil {
			addr = node.Options().Addr
		}
	}
	fs.mu.RLock()
	f, closed := fs.by[addr], fs.closed
	fs.mu.RUnlock()
	if f != nil || closed {
		return f
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.by[addr] == nil && !fs.closed {
		fs.by[addr] = newFlusher(fs.q)
	}
	return fs.by[addr]
}

// close answers all submissions and ends the flushers.
func (fs *flushers) close() {
	fs.mu.Lock()
	fs.closed = true
	fs.mu.Unlock() // the map no longer changes
	for _, f := range fs.by {
		close(f.closed)
	}
	for _, f := range fs.by {
		f.done.Wait()
	}
}
