package callback

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/shaper"
)

// hungNode does not answer commands with a key of some prefix until their context ends, and counts
// the scripts among them.
type hungNode struct {
	prefix  atomic.Pointer[string]
	scripts atomic.Int64
}

func (h *hungNode) command(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
	at := 1
	if cmd.Name() == "evalsha" {
		at = 3
	}
	prefix := h.prefix.Load()
	if prefix == nil || len(cmd.Args()) <= at {
		return next(ctx, cmd)
	}
	if key, _ := cmd.Args()[at].(string); !strings.HasPrefix(key, *prefix) {
		return next(ctx, cmd)
	}
	if cmd.Name() == "evalsha" {
		h.scripts.Add(1)
	}
	// go-redis would give up by itself after its timeouts.
	limited, cancel := context.WithTimeout(ctx, 12*time.Second)
	defer cancel()
	<-limited.Done()
	cmd.SetErr(limited.Err())
	return limited.Err()
}

// TestStateOfServersDelaysLittle: where the keys with what asynq shows of its servers hang,
// callbacks are delivered.
func TestStateOfServersDelaysLittle(t *testing.T) {
	inBubble(t, func(b *bench) {
		var node hungNode
		b.redis.AddHook(onCommand(node.command))
		b.answers(200)
		s := b.service(Config{})
		stop := b.run(s)
		node.prefix.Store(new("asynq:servers"))
		for i := range 60 {
			b.handOver(s, completion(shaper.Dead, int64(i)))
			b.pass(2 * time.Second)
			if n := len(b.got()); n != i+1 {
				t.Fatalf("%d of %d callbacks were delivered in time", n, i+1)
			}
		}
		if took := stop(); took > 3*time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

// TestHungQueueGetsFewScripts: a queue that hangs is not sent scripts that would take tasks once it
// goes on.
func TestHungQueueGetsFewScripts(t *testing.T) {
	inBubble(t, func(b *bench) {
		var node hungNode
		b.redis.AddHook(onCommand(node.command))
		b.answers(200)
		s := b.service(Config{})
		stop := b.run(s)
		b.handOver(s, completion(shaper.Dead, 1))
		b.pass(time.Minute)
		node.prefix.Store(new("asynq:{" + Queue + "}:"))
		b.pass(5 * time.Minute)
		// Each part of asynq's server may have sent one.
		if n := node.scripts.Load(); n == 0 || n > 4 {
			t.Errorf("%d scripts were sent to a queue that hangs", n)
		}
		node.prefix.Store(nil)
		b.handOver(s, completion(shaper.Dead, 2))
		b.pass(5 * time.Second)
		if n := len(b.got()); n != 2 {
			t.Errorf("%d requests", n)
		}
		node.prefix.Store(new("asynq:{" + Queue + "}:"))
		if took := stop(); took > 10*time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}
