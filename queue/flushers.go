package queue

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// flushers has a flusher of each kind for each master of a cluster, because what is sent together
// waits as long as the slowest of it. A master that hangs delays no submission to another. Where
// Redis is no cluster there is one of each kind.
type flushers struct {
	q       *Queue
	cluster *redis.ClusterClient // nil where Redis is none

	mu     sync.RWMutex
	closed bool
	by     map[way]*flusher
}

// way is what the submissions of one flusher have in common.
type way struct {
	master string // its address, empty where it is not known
	kind   kind
}

// kind is how long Redis, or the way to it, is busy with a submission.
type kind int

const (
	single   kind = iota // of one job
	few                  // jobs in a batch: at most fewMost
	many                 // jobs in a batch
	middling             // texts of store.Large bytes
	large                // texts of store.Large bytes that have largeFrom together
)

// largeFrom is four times store.Large: texts of a middling size wait for none of the largest.
const largeFrom = 4 * store.Large

// kindOf returns the kind of a batch of submissions.
func kindOf(batch []Submission) kind {
	bytes := 0
	for i := range batch {
		if n := batch[i].texts(); n >= store.Large {
			bytes += n
		}
	}
	switch {
	case bytes >= largeFrom:
		return large
	case bytes > 0:
		return middling
	case len(batch) > fewMost:
		return many
	case len(batch) > 1:
		return few
	}
	return single
}

func newFlushers(q *Queue) *flushers {
	fs := &flushers{q: q, by: map[way]*flusher{}}
	fs.cluster, _ = q.store.Durable.(*redis.ClusterClient)
	fs.by[way{}] = newFlusher(q, single)
	return fs
}

// of returns the flusher of submissions to a shard. It may be nil after close. The client finds the
// right node also where the shard has moved since.
func (fs *flushers) of(ctx context.Context, shard store.ShardKeys, kind kind) *flusher {
	to := way{kind: kind}
	if fs.cluster != nil {
		if node, err := fs.cluster.MasterForKey(ctx, shard.Clock()); err == nil {
			to.master = node.Options().Addr
		}
	}
	fs.mu.RLock()
	f, closed := fs.by[to], fs.closed
	fs.mu.RUnlock()
	if f != nil || closed {
		return f
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.by[to] == nil && !fs.closed {
		fs.by[to] = newFlusher(fs.q, kind)
	}
	return fs.by[to]
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
