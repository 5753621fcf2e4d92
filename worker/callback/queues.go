package callback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue"
)

// Queue is the asynq queue that the callbacks are in, and SlowQueue that of receivers that do not
// keep up, for asynq's own tools. In a Redis Cluster they are two of several: see Queues.
//
// asynq takes tasks in the order in which they came. So in one queue, hundreds of tasks that a
// hanging receiver has no slot for would be taken, and put back, before each of another's.
const (
	Queue     = "sluice-callbacks"
	SlowQueue = Queue + "-slow"
)

// clusterQueues and clusterSlow are the queues in a cluster. The slot of queue i is in the i-th of
// as many equal ranges, like those of the shards. So nearly all shards have their queues on their
// own node. A process sends two commands a second to each queue that was ever used.
var (
	clusterQueues = []string{
		Queue + "-10", Queue + "-2", Queue + "-11", Queue + "-3",
		Queue, Queue + "-4", Queue + "-13", Queue + "-1",
	}
	clusterSlow = []string{
		SlowQueue + "-1", SlowQueue + "-12", SlowQueue + "-4", SlowQueue + "-13",
		SlowQueue + "-3", SlowQueue, SlowQueue + "-2", SlowQueue + "-11",
	}
)

// Queues returns the asynq queues that the callbacks in this Redis are in, those of slow receivers
// last. One that never had a callback does not exist.
func Queues(client redis.UniversalClient) []string {
	if _, cluster := client.(*redis.ClusterClient); cluster {
		return slices.Concat(clusterQueues, clusterSlow)
	}
	return []string{Queue, SlowQueue}
}

// asynqQueue is a queue with an asynq server of its own: one server polls its queues in turn, so
// one on a node that hangs would delay all others.
type asynqQueue struct {
	name   string
	used   atomic.Bool // it has, or had, a task that this process knows of
	listed atomic.Bool // asynq's set of queues has it
}

// key returns one of asynq's keys of the queue.
func (q *asynqQueue) key(name string) string { return "asynq:{" + q.name + "}:" + name }

func queuesOf(client redis.UniversalClient) (queues []*asynqQueue) {
	for _, name := range Queues(client) {
		queues = append(queues, &asynqQueue{name: name})
	}
	return queues
}

// ofShard returns the queues of a completion's shard, the second one for slow receivers. So a
// tenant outside of pools has one of each.
func (s *Service) ofShard(c queue.Completion) (usual, slow *asynqQueue) {
	half := len(s.queues) / 2
	i := c.Shard * half / max(c.Shards, 1)
	return s.queues[i], s.queues[half+i]
}

// queueOf returns the queue for a task. One that is in the other queue stays there: it was handed
// over before, and its receiver has become slow since, or is no longer.
func (s *Service) queueOf(ctx context.Context, c queue.Completion, id string) (*asynqQueue, error) {
	q, other := s.ofShard(c)
	if t, err := parse(c.CallbackURL); err == nil && s.slots.slow(t.receiver(), c.Job.Tenant) {
		q, other = other, q
	}
	if !other.used.Load() {
		return q, nil
	}
	switch n, err := s.cfg.Redis.Exists(ctx, other.key("t:"+id)).Result(); {
	case err != nil:
		return nil, err
	case n > 0:
		return other, nil
	}
	return q, nil
}

// unlisted is the client of asynq's client. It leaves asynq's set of queues to list: asynq enqueues
// nothing while the set does not answer.
type unlisted struct{ redis.UniversalClient }

// SAdd implements redis.UniversalClient.
func (unlisted) SAdd(context.Context, string, ...any) *redis.IntCmd {
	return redis.NewIntResult(0, nil)
}

// list adds the queue to asynq's set of queues, by which asynq's tools find it. The set is on one
// node of a cluster, which may hang while that of the queue does not. Without an answer the next
// hand-over tries again.
func (s *Service) list(ctx context.Context, q *asynqQueue) {
	if q.listed.Load() {
		return
	}
	limited, cancel := context.WithTimeout(ctx, stateCall)
	defer cancel()
	q.listed.Store(s.cfg.Redis.SAdd(limited, "asynq:queues", q.name).Err() == nil)
}

const (
	// lookEvery is how often a process polls for queues that only others have used.
	lookEvery = time.Minute
	// lookCall bounds the poll.
	lookCall = time.Second
)

// serve starts an asynq server for each queue when there is a task in it, until ctx ends. It
// returns the servers.
func (s *Service) serve(ctx context.Context) (servers []*asynq.Server, err error) {
	start := func(q *asynqQueue) error {
		cfg := s.server
		cfg.Queues = map[string]int{q.name: 1}
		server := asynq.NewServerFromRedisClient(calm{s.cfg.Redis, &atomic.Bool{}}, cfg)
		if err := server.Start(asynq.HandlerFunc(s.deliver)); err != nil {
			return fmt.Errorf("callback: %w", err)
		}
		servers = append(servers, server)
		return nil
	}
	for next := time.Duration(0); len(servers) < len(s.queues); {
		select {
		case q := <-s.wake:
			err = start(q)
		case <-time.After(next):
			next = lookEvery*3/4 + rand.N(lookEvery/2)
			for _, q := range s.queuesInUse(ctx) {
				if err == nil && !q.used.Swap(true) {
					err = start(q)
				}
			}
		case <-ctx.Done():
			return servers, nil
		}
		if err != nil {
			return servers, err
		}
	}
	<-ctx.Done()
	return servers, nil
}

// queuesInUse returns the queues with tasks, also with delivered ones, which asynq's server must
// remove. It is one command for each queue. Queues on a node that does not answer are left out.
func (s *Service) queuesInUse(ctx context.Context) (queues []*asynqQueue) {
	limited, cancel := context.WithTimeout(ctx, lookCall)
	defer cancel()
	counts := make([]*redis.IntCmd, len(s.queues))
	_, err := s.cfg.Redis.Pipelined(limited, func(p redis.Pipeliner) error {
		for i, q := range s.queues {
			counts[i] = p.Exists(limited, q.key("pending"), q.key("active"), q.key("retry"), q.key("completed"))
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("the queues of callbacks cannot be read", "error", err)
	}
	for i, q := range s.queues {
		if counts[i].Val() > 0 {
			queues = append(queues, q)
		}
	}
	return queues
}
