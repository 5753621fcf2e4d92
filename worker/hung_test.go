package worker

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// hungCall is how long a call to a node of a cluster that does not answer takes until go-redis gives up, if nothing bounds it: 21 to 24 s
// were measured.
const hungCall = 24 * time.Second

// hungConsumer is of a shard whose node does not answer as long as told.
type hungConsumer struct {
	consumer
	hangs *atomic.Bool
}

func (c hungConsumer) Tick(ctx context.Context, o queue.TickOptions) (queue.Tick, error) {
	if c.hangs.Load() {
		sleep(ctx, hungCall)
		return queue.Tick{}, queue.ErrUnavailable
	}
	return c.consumer.Tick(ctx, o)
}

// TestShardsThatHangHoldUpNoOthers: the looks of the others find room in the window, and places for what they lease.
func TestShardsThatHangHoldUpNoOthers(t *testing.T) {
	for _, hung := range []int{1, 32, 48} { // of 64; the window has room for 32 looks at first, and the worker for 16 looks' least places
		t.Run(fmt.Sprint(hung), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const shards, perShard = 64, 200 // twenty seconds' at 10/s
				q := newFakeQueue(shards)
				var hangs atomic.Bool
				cfg := Config{Routes: map[string]Route{"default": {URL: "http://upstream.test/"}}, Logger: slog.New(slog.DiscardHandler)}
				w, err := newWorker(q, func(id string, n int) consumer {
					if n < hung {
						return hungConsumer{q.consumer(id, n), &hangs}
					}
					return q.consumer(id, n)
				}, newTimerWaiter, cfg)
				if err != nil {
					t.Fatal(err)
				}
				w.deliverers["default"] = deliverFunc(func(ctx context.Context, l queue.Lease) queue.Settlement {
					sleep(ctx, 200*time.Millisecond) // 2 of 256 places for each shard
					return succeed(ctx, l)
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- w.Run(ctx) }()
				pass(time.Second)
				hangs.Store(true)
				for n := range shards {
					for k := range perShard {
						q.put(n, fmt.Sprint(n, "-", k), time.Second+time.Duration(k)*100*time.Millisecond)
					}
					q.wakes <- queue.Wake{Shard: n}
				}
				pass(22 * time.Second)
				if n, want := q.events()[shaper.Succeed], (shards-hung)*perShard; n != want {
					t.Errorf("%d of the %d jobs of the other shards have left at their time", n, want)
				}
				hangs.Store(false)
				pass(hungCall)
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if n, out := w.capacity.taken(), w.metrics.load.window.Load().out; n != 0 || out != 0 {
					t.Errorf("%d places are still taken, %d looks are under way", n, out)
				}
			})
		})
	}
}

// lateConsumer is of a shard that answers late as long as told.
type lateConsumer struct {
	consumer
	late *atomic.Bool
}

func (c lateConsumer) Tick(ctx context.Context, o queue.TickOptions) (queue.Tick, error) {
	t, err := c.consumer.Tick(ctx, o)
	if c.late.Load() {
		sleep(ctx, 2*lookPatience)
	}
	return t, err
}

// TestALookThatOutlastsItsPatienceIsSquared: its places are charged when it brings jobs all the same, and the window learns how long it took.
func TestALookThatOutlastsItsPatienceIsSquared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		var late atomic.Bool
		w, err := newWorker(q, func(id string, n int) consumer { return lateConsumer{q.consumer(id, n), &late} }, newTimerWaiter, Config{
			Horizon: time.Second, Logger: slog.New(slog.DiscardHandler), Routes: map[string]Route{"default": {URL: "http://upstream.test/"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.deliverers["default"] = deliverFunc(func(ctx context.Context, l queue.Lease) queue.Settlement {
			sleep(ctx, time.Second)
			return succeed(ctx, l)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		pass(time.Second)
		window := w.metrics.load.window.Load()
		state := func() (out int, size float64) {
			window.mu.Lock()
			defer window.mu.Unlock()
			return window.out, window.size
		}
		_, before := state()
		late.Store(true)
		for k := range lookLeast {
			q.put(0, fmt.Sprint(k), 0)
		}
		q.wakes <- queue.Wake{Shard: 0}
		pass(lookPatience / 2)
		out, _ := state()
		if n := w.capacity.taken(); n != lookLeast || out != 1 {
			t.Errorf("before its patience is over a look holds %d places and %d looks' room", n, out)
		}
		pass(lookPatience)
		var size float64
		out, size = state()
		if n := w.capacity.taken(); n != 0 || out != 0 || size != before {
			t.Errorf("a look that is not answered holds %d places and %d looks' room of %v, of %v before", n, out, size, before)
		}
		late.Store(false)
		pass(lookPatience)
		out, size = state()
		if n := w.capacity.taken(); n != lookLeast || out != 0 || size >= before {
			t.Errorf("late jobs have taken %d places of %d; %d looks hold room of %v, of %v before", n, lookLeast, out, size, before)
		}
		pass(2 * time.Second)
		if n := w.capacity.taken(); n != 0 || q.events()[shaper.Succeed] != lookLeast {
			t.Errorf("%d places are still taken after %v", n, q.events())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
