package queue_test

import (
	"context"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// sent counts the scripts that a queue sends, by name.
type sent struct {
	mu sync.Mutex
	by map[string]int
}

func (s *sent) note(cmds ...redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range cmds {
		for _, script := range scripts.Commands.All() {
			if cmd.Name() == "evalsha" && cmd.Args()[1] == script.SHA() {
				s.by[script.Name]++
			}
		}
	}
}

func (s *sent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note(cmd)
		return next(ctx, cmd)
	}
}

func (s *sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.note(cmds...)
		return next(ctx, cmds)
	}
}

// TestScriptsOfPools: a shard with pools is sent the scripts that have pools, and any other shard
// those without them, so that no call is made twice. A shard that gets a pool changes over.
func TestScriptsOfPools(t *testing.T) {
	s := &sent{by: map[string]int{}}
	q := open(t, lent(t), func(o *queue.Options) { o.Shards = 1 }, s)
	consumer := q.Broker().Consumer("w", 0)
	pools := map[string]shaper.PoolSettings{"all": {Routes: []string{"default"}}}
	for _, has := range []bool{false, true} {
		if has {
			baseline := shaper.Baseline{Defaults: perSecond(1000), Pools: pools}
			if err := q.SetPolicies(t.Context(), baseline, nil); err != nil {
				t.Fatalf("SetPolicies: %v", err)
			}
		}
		s.mu.Lock()
		clear(s.by)
		s.mu.Unlock()
		admit(t, q)
		leases := leaseAll(t, consumer)
		if len(leases) != 1 {
			t.Fatalf("%d jobs are leased, want 1", len(leases))
		}
		done := []queue.Settlement{{LeaseRef: leases[0].LeaseRef, Event: shaper.Succeed}}
		if results, err := q.Broker().Settle(t.Context(), done); err != nil || results[0] != queue.Settled {
			t.Fatalf("Settle: %v, %v", results, err)
		}
		for _, one := range []*scripts.Script{scripts.Commands.Admit, scripts.Commands.Tick, scripts.Commands.Settle} {
			right, wrong := one.For(has).Name, one.For(!has).Name
			if s.by[right] == 0 || s.by[wrong] > 0 {
				t.Errorf("pools %v: %s is sent %d times, %s %d times", has, right, s.by[right], wrong, s.by[wrong])
			}
		}
	}
}
