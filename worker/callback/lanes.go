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

// Queue is the asynq queue that the callbacks are in, for asynq's own tools. In a Redis Cluster it
// is one of several: see Queues.
const Queue = "sluice-callbacks"

// clusterQueues are the queues in a cluster. The slot of queue i is in the i-th of as many equal
// ranges, like those of the shards. So nearly all shards have their queue on their own node. A
// process sends two commands a second to each queue that was ever used.
var clusterQueues = []string{
	Queue + "-10", Queue + "-2", Queue + "-11", Queue + "-3",
	Queue, Queue + "-4", Queue + "-13", Queue + "-1",
}

// Queues returns the asynq queues that the callbacks in this Redis are in. One that never had a
// callback does not exist.
func Queues(client redis.UniversalClient) []string {
	if _, cluster := client.(*redis.ClusterClient); cluster {
		return slices.Clone(clusterQueues)
	}
	return []string{Queue}
}

// lane is a queue with an asynq server of its own: one server polls its queues in turn, so a queue
// on a node that hangs would delay all others.
type lane struct {
	queue string
	// used is set when it has, or had, a task that this process knows of; listed, when asynq's set
	// of queues has it for certain.
	used, listed atomic.Bool
}

func lanesOf(client redis.UniversalClient) (lanes []*lane) {
	for _, name := range Queues(client) {
		lanes = append(lanes, &lane{queue: name})
	}
	return lanes
}

// laneOf returns the lane of a completion: that of its shard. So a tenant outside of pools has one.
func (s *Service) laneOf(c queue.Completion) *lane {
	return s.lanes[c.Shard*len(s.lanes)/max(c.Shards, 1)]
}

// queuesKey is asynq's set of queues. All of them share it, so in a cluster its node may hang while
// those of the queues do not.
const queuesKey = "asynq:queues"

// unlisted is the client of asynq's client. It leaves the set of queues to list, because asynq
// enqueues nothing while the set does not answer.
type unlisted struct{ redis.UniversalClient }

// SAdd implements redis.UniversalClient.
func (unlisted) SAdd(context.Context, string, ...any) *redis.IntCmd {
	return redis.NewIntResult(0, nil)
}

// list adds the lane to asynq's set of queues, so that other processes find it. Without an answer
// it tries again at the next call: meanwhile this process serves the lane, if it runs.
func (s *Service) list(ctx context.Context, l *lane) error {
	if l.listed.Load() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, stateCall)
	defer cancel()
	err := s.cfg.Redis.SAdd(limited, queuesKey, l.queue).Err()
	l.listed.Store(err == nil)
	if s.started.Load() {
		return nil
	}
	return err
}

const (
	// listEvery is how often a process polls for lanes that only others have used.
	listEvery = time.Minute
	// listCall bounds the poll.
	listCall = time.Second
)

// serve starts an asynq server for each lane when there is, or was, a callback in it, until ctx
// ends. It returns the servers.
func (s *Service) serve(ctx context.Context) (servers []*asynq.Server, err error) {
	start := func(l *lane) error {
		cfg := s.server
		cfg.Queues = map[string]int{l.queue: 1}
		server := asynq.NewServerFromRedisClient(calm{s.cfg.Redis, &atomic.Bool{}}, cfg)
		if err := server.Start(asynq.HandlerFunc(s.deliver)); err != nil {
			return fmt.Errorf("callback: %w", err)
		}
		servers = append(servers, server)
		return nil
	}
	for next := time.Duration(0); len(servers) < len(s.lanes); {
		select {
		case l := <-s.wake:
			err = start(l)
		case <-time.After(next):
			next = listEvery*3/4 + rand.N(listEvery/2)
			for _, l := range s.listedLanes(ctx) {
				if err == nil && !l.used.Swap(true) {
					err = start(l)
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

// listedLanes returns the lanes whose queue exists. It is one command. A queue exists from its
// first task on. It may be empty: asynq's server must also remove the tasks that it keeps after
// their delivery. asynq's inspector has no context and would wait longer.
func (s *Service) listedLanes(ctx context.Context) (lanes []*lane) {
	limited, cancel := context.WithTimeout(ctx, listCall)
	defer cancel()
	queues, err := s.cfg.Redis.SMembers(limited, queuesKey).Result()
	if err != nil && ctx.Err() == nil {
		s.log.Warn("the queues of callbacks cannot be listed", "error", err)
	}
	for _, l := range s.lanes {
		if slices.Contains(queues, l.queue) {
			lanes = append(lanes, l)
		}
	}
	return lanes
}
