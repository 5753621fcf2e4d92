package queue

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/internal/policies"
	"github.com/7509e464/sluice/internal/repair"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
)

// Bounds of one settling or extending call.
const (
	settleMost  = 500     // items
	settleBytes = 1 << 20 // of their results, so that large answers do not hold Redis for long
)

// Broker is the workers' side of the queue: it leases jobs, ends leases, and passes wake-ups and
// completions on. Get it from Queue.Broker.
type Broker struct {
	store     *store.Store
	box       *sealed.Box
	missing   keyLog
	repairer  *repair.Repairer
	policies  *policies.Keeper
	retention scripts.Retention
	headroom  *headroom
	horizon   time.Duration
	silence   time.Duration                  // see listener
	setAside  func(script string, items int) // counts damaged items
	unopened  func()                         // counts jobs that could not be decrypted
	log       *slog.Logger

	housekeeping *rate.Limiter // see housekeepingEvery

	relays   sync.Map             // id of a job → its *Relay
	parts    tenantParts          // of relays
	ahead    atomic.Int64         // bytes of relays that the store does not have yet
	leaving  sync.Map             // id of a job → func() that ends its request, because its client has left
	announce func(channel string) // wakes who watches the channel in this process

	// See restore.go.
	memories  []memory      // by shard
	pause     time.Duration // of a shard after a failover
	running   context.Context
	stop      context.CancelFunc // ends running
	restoring sync.WaitGroup
	rewritten sync.Map // replication ids of masters that were asked, see rewriteFiles
}

// Shards returns the number of shards.
func (b *Broker) Shards() int { return b.store.Len() }

// OneNode reports whether all shards are on one node of Redis and so have its clock. A shard that
// saw the clock set back is ahead of the others.
func (b *Broker) OneNode() bool { return !b.store.Cluster() }

// timed makes a call and notes when. The caller sets the instant of the clock.
func (b *Broker) timed(ctx context.Context, c scripts.Client, call scripts.Call) (values []any, r Reading, err error) {
	r.Sent = time.Now()
	reply := b.store.Exec(ctx, c, []scripts.Call{call})[0]
	r.Received = time.Now()
	return reply.Values, r, store.Unavailable(reply.Err)
}

// group holds the indices of at most settleMost items of one shard, and why their call failed.
type group struct {
	shard     store.ShardKeys
	retention time.Duration // of forwarded requests; 0 for other jobs
	items     []int
	bytes     int // of their results
	err       error
}

// errorOf returns the error of a call with these failed groups. It prefers ErrUnavailable, which
// permits the caller to send the items of the failed groups again.
func errorOf(failed []group) (err error) {
	for _, f := range failed {
		if err == nil || errors.Is(f.err, ErrUnavailable) {
			err = f.err
		}
	}
	return err
}

// perShard sends n items in calls of one shard each, and returns the groups whose call failed. It
// skips ids that no shard has. call returns a group's call and the function that decodes its
// answer. The items of a group that fails at damaged data are sent once more, each by itself, so
// that one damaged item does not fail the others.
func (b *Broker) perShard(
	ctx context.Context, n int, kind func(int) (id string, retention time.Duration, bytes int),
	call func(group) (scripts.Call, func([]any) error),
) (failed []group) {
	var groups []group
	type open struct {
		shard     int
		retention time.Duration
	}
	opened := map[open]int{} // → a group that is not full
	for i := range n {
		id, retention, bytes := kind(i)
		shard, ok := b.store.ShardOfID(id)
		if !ok {
			continue
		}
		o := open{shard.Index, retention}
		at, found := opened[o]
		if !found || len(groups[at].items) == settleMost || groups[at].bytes > 0 && groups[at].bytes+bytes > settleBytes {
			at = len(groups)
			opened[o] = at
			groups = append(groups, group{shard: shard, retention: retention})
		}
		groups[at].items = append(groups[at].items, i)
		groups[at].bytes += bytes
	}
	for len(groups) > 0 {
		sent := exchange(groups)
		calls, decode := make([]scripts.Call, len(sent)), make([]func([]any) error, len(sent))
		for n, g := range sent {
			calls[n], decode[n] = call(g)
		}
		var apart []group
		for n, r := range b.store.Exec(ctx, keepsAnswers{b.store.Patient}, calls) {
			g, err := sent[n], r.Err
			if err == nil {
				err = decode[n](r.Values)
			}
			switch g.err = store.Unavailable(err); {
			case err == nil:
			case errors.Is(g.err, ErrScript) && len(g.items) > 1:
				for _, i := range g.items {
					apart = append(apart, group{shard: g.shard, retention: g.retention, items: []int{i}})
				}
			default:
				failed = append(failed, g)
			}
		}
		groups = append(groups[len(sent):], apart...)
	}
	return failed
}

// exchange returns the first groups, which go to Redis together: others wait until it has taken
// settleBytes.
func exchange(groups []group) []group {
	n, bytes := 0, 0
	for n < len(groups) && (n == 0 || bytes+groups[n].bytes <= settleBytes) {
		bytes += groups[n].bytes
		n++
	}
	return groups[:n:n]
}

// keepsAnswers is a client whose pipelines keep the answers that arrived before their context
// ended. If it ends while go-redis waits before it retries at one node of a cluster, go-redis
// replaces the answers of all other nodes by that error.
type keepsAnswers struct{ redis.UniversalClient }

func (c keepsAnswers) Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	cmds, err := c.UniversalClient.Pipelined(ctx, fn)
	if ctx.Err() == nil {
		return cmds, err
	}
	for _, cmd := range cmds {
		if c, ok := cmd.(*redis.Cmd); ok && c.Val() != nil && errors.Is(c.Err(), ctx.Err()) {
			c.SetErr(nil)
		}
	}
	return cmds, err
}
