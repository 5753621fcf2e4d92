package callback

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// An event is delivered once, although it is handed over again. Each end of a job is an event.
func TestHandedOverTwice(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(200)
		s := b.service(Config{})
		s.server.TaskCheckInterval = 20 * time.Second // fewer commands in these hours
		defer b.run(s)()
		b.handOver(s, completion(shaper.Dead, 1), completion(shaper.Dead, 1))
		b.pass(time.Minute)
		b.handOver(s, completion(shaper.Dead, 1))
		b.pass(50 * time.Minute)
		b.handOver(s, completion(shaper.Dead, 1), completion(shaper.Dead, 2), completion(shaper.Cancelled, 2))
		b.pass(time.Minute)
		var ids []string
		for _, c := range b.got() {
			ids = append(ids, c.header.Get("webhook-id"))
		}
		slices.Sort(ids)
		want := []string{"06ah2job:1:dead", "06ah2job:2:cancelled", "06ah2job:2:dead"}
		if !slices.Equal(ids, want) || counts(s) != [4]float64{3, 0, 0, 3} {
			t.Errorf("requests %v, counted %v", ids, counts(s))
		}
		b.pass(70 * time.Minute)
		info, err := b.inspector.GetQueueInfo(Queue)
		if err != nil {
			t.Fatal(err)
		}
		queuetest.Compare(t, "tasks that are left", info.Size, 0)
		queuetest.Compare(t, "completed tasks that are kept", info.Completed, 0)
	})
}

// commands counts what is sent to Redis.
type commands struct{ n atomic.Int64 }

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { c.n.Add(1); return next(ctx, cmd) }
}

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

func TestWithoutCallbacksThereIsNoServer(t *testing.T) {
	inBubble(t, func(b *bench) {
		var sent commands
		b.redis.AddHook(&sent)
		s := b.service(Config{})
		stop := b.run(s)
		b.pass(time.Hour)
		if n := sent.n.Load(); n < 96 || n > 164 {
			t.Errorf("%d commands in an hour", n)
		}
		if servers, err := b.inspector.Servers(); err != nil || len(servers) != 0 {
			t.Errorf("servers %+v, %v", servers, err)
		}
		if took := stop(); took != 0 {
			t.Errorf("the stop took %v", took)
		}
	})
}

// full is a Redis that refuses scripts while it is set, as one without memory does, and counts
// them.
type full struct {
	set     atomic.Bool
	refused atomic.Int64
}

func (f *full) command(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
	if cmd.Name() != "evalsha" || !f.set.Load() {
		return next(ctx, cmd)
	}
	f.refused.Add(1)
	err := errors.New("OOM command not allowed when used memory > 'maxmemory'.")
	cmd.SetErr(err)
	return err
}

func TestFullRedisIsRetriedSlowly(t *testing.T) {
	inBubble(t, func(b *bench) {
		var f full
		b.redis.AddHook(onCommand(f.command))
		b.answers(200)
		s := b.service(Config{})
		stop := b.run(s)
		b.handOver(s, completion(shaper.Dead, 1))
		b.pass(3 * time.Second)
		f.set.Store(true)
		if err := s.HandOver(t.Context(), completion(shaper.Dead, 2)); err == nil {
			t.Error("a full Redis took a callback")
		}
		b.pass(time.Minute)
		if n := f.refused.Load(); n < 60 || n > 250 {
			t.Errorf("%d scripts in a minute", n)
		}
		f.set.Store(false)
		b.handOver(s, completion(shaper.Dead, 2))
		b.pass(3 * time.Second)
		if n := len(b.got()); n != 2 {
			t.Errorf("%d requests", n)
		}
		f.set.Store(true)
		if took := stop(); took > 2*time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

// A job that still runs, or whose body is not JSON, is not handed over.
func TestHandOverRefusesWhatHasNotEnded(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.service(Config{})
		if err := s.HandOver(t.Context(), completion(shaper.Leased, 1)); err == nil {
			t.Error("a job that runs is handed over")
		}
		s.cfg.Job = func(queue.Job) ([]byte, error) { return []byte("{"), nil }
		if err := s.HandOver(t.Context(), completion(shaper.Dead, 1)); err == nil {
			t.Error("half a body is handed over")
		}
		if queues, err := b.inspector.Queues(); err != nil || len(queues) != 0 {
			t.Errorf("queues %v, %v", queues, err)
		}
	})
}
