package queue

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// lanes has a flusher for each master of a cluster: one that hangs delays no submission to another.
// It has one flusher where Redis is no cluster.
type lanes struct {
	q       *Queue
	cluster *redis.ClusterClient // nil where Redis is none

	mu     sync.RWMutex
	closed bool
	by     map[string]*flusher // by the address of the master, empty where it is not known
}

func newLanes(q *Queue) *lanes {
	l := &lanes{q: q, by: map[string]*flusher{}}
	l.cluster, _ = q.store.Durable.(*redis.ClusterClient)
	l.by[""] = newFlusher(q)
	return l
}

// of returns the flusher of a shard. It may be nil after close. The client finds the right node
// also where the shard has moved since.
func (l *lanes) of(ctx context.Context, shard store.ShardKeys) *flusher {
	addr := ""
	if l.cluster != nil {
		if node, err := l.cluster.MasterForKey(ctx, shard.Clock()); err == nil {
			addr = node.Options().Addr
		}
	}
	l.mu.RLock()
	f, closed := l.by[addr], l.closed
	l.mu.RUnlock()
	if f != nil || closed {
		return f
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[addr] == nil && !l.closed {
		l.by[addr] = newFlusher(l.q)
	}
	return l.by[addr]
}

// close answers all submissions and ends the flushers.
func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock() // the map no longer changes
	for _, f := range l.by {
		close(f.closed)
	}
	for _, f := range l.by {
		f.done.Wait()
	}
}
