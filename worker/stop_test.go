package worker

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestStop: what leaves within a handover leaves on its instant, what leaves later is given back,
// and what runs ends.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{Lease: 3 * time.Second, Horizon: 200 * time.Millisecond},
			func(ctx context.Context, _ *queue.Lease) queue.Settlement {
				sleep(ctx, 8*time.Second)
				if ctx.Err() != nil {
					t.Error("the delivery was cut off within the grace")
				}
				return queue.Settlement{Event: shaper.Succeed}
			})
		pass(time.Second)
		q.put(0, "running", 0)
		q.put(0, "next", 40*time.Millisecond)
		q.put(0, "held", 100*time.Millisecond)
		q.put(0, "queued", time.Minute)
		q.wakes <- queue.Wake{Shard: 0}
		pass(5 * time.Millisecond)
		at := time.Now()
		r.stop()
		<-r.stopped
		synctest.Wait()
		want := map[string]shaper.Event{"held": shaper.Release, "running": shaper.Succeed, "next": shaper.Succeed}
		if len(q.settled) != 3 {
			t.Fatalf("settled %+v", q.settled)
		}
		for _, s := range q.settled {
			if want[s.ID] != s.Event {
				t.Errorf("%s settled as %s, want %s", s.ID, s.Event, want[s.ID])
			}
		}
		if d := q.settled[0].at.Sub(at); d > time.Millisecond {
			t.Errorf("released %v after the stop", d)
		}
		if len(q.left) != 1 || q.left[0].Sub(at) > 5*time.Millisecond {
			t.Errorf("signed off at %v, stop at %v", q.left, at)
		}
		if d := time.Since(at); d < 7*time.Second || d > 9*time.Second {
			t.Errorf("the stop took %v, the delivery 8 s", d)
		}
		if n := q.extended[queue.LeaseRef{ID: "running", Epoch: 1}]; n < 3 {
			t.Errorf("the lease was extended %d times during the grace", n)
		}
		r.end(t)
	})
}

// TestStopSignsOffOrNot: with a Redis that does not answer, the stop does not wait for the grace to
// say that the worker leaves.
func TestStopSignsOffOrNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{}, succeed)
		pass(time.Second)
		q.set(func() { q.trip = time.Hour })
		at := time.Now()
		r.stop()
		<-r.stopped
		if d := time.Since(at); d > leaveWithin+time.Second {
			t.Errorf("the stop took %v", d)
		}
		r.end(t)
	})
}

// TestStopBesideAHungNode: the shards of the nodes that answer have new owners at once.
func TestStopBesideAHungNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(4)
		q.cluster = true
		r := startRig(t, q, Config{Grace: 10 * time.Second}, succeed)
		pass(time.Second)
		q.set(func() { q.shards[2].hangs = true })
		q.wakes <- queue.Wake{Shard: 2}
		pass(time.Second)
		at := time.Now()
		r.end(t)
		if len(q.left) != 1 || q.left[0].Sub(at) > pollPatience+5*time.Millisecond {
			t.Errorf("signed off at %v, stop at %v", q.left, at)
		}
	})
}

// TestStopCutsOffAfterTheGrace: what is cut off spends no attempt.
func TestStopCutsOffAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{Grace: 2 * time.Second},
			func(ctx context.Context, l *queue.Lease) queue.Settlement {
				<-ctx.Done()
				return Retry{MaxAttempts: 5, MinBackoff: time.Second, MaxBackoff: time.Hour}.again(l, "cut off", 0)
			})
		pass(time.Second)
		q.put(0, "hangs", 0)
		q.wakes <- queue.Wake{Shard: 0}
		pass(time.Second)
		at := time.Now()
		r.end(t)
		if d := time.Since(at); d < 2*time.Second || d > 2*time.Second+settleTail {
			t.Errorf("the stop took %v", d)
		}
		if n := q.events()[shaper.LeaseExpired]; n != 1 || len(q.settled) != 1 {
			t.Errorf("settled %+v, want a lapse", q.settled)
		}
	})
}

func TestStopGivesUpWhenRedisStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(4)
		r := startRig(t, q, Config{Grace: 2 * time.Second}, succeed)
		pass(time.Second)
		q.set(func() { q.away = true })
		pass(time.Minute)
		at := time.Now()
		r.end(t)
		if d := time.Since(at); d > 2*time.Second+settleTail {
			t.Errorf("the stop took %v", d)
		}
	})
}

func TestRunIsForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, newFakeQueue(1), Config{}, succeed)
		pass(time.Second)
		if err := r.Run(t.Context()); err == nil {
			t.Error("a second Run was accepted")
		}
		r.end(t)
	})
}

// TestStartStopStress runs on real threads with the system's waiter.
func TestStartStopStress(t *testing.T) {
	for i := range 30 {
		q := newFakeQueue(8)
		w, err := newWorker(q, q.consumer, newWaiter, Config{
			Routes: map[string]Route{"default": {URL: "http://upstream.test/"}}, Logger: slog.New(slog.DiscardHandler),
			// On a busy machine jobs leave late, and the fake does not bring back what is released.
			Horizon: 5 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		delivered := make(chan struct{}, 64)
		w.deliverers["default"] = deliverFunc(func(context.Context, *queue.Lease) queue.Settlement {
			delivered <- struct{}{}
			return queue.Settlement{Event: shaper.Succeed}
		})
		for n := range 64 {
			q.put(n%8, fmt.Sprint(n), time.Duration(n/8)*time.Millisecond)
		}
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		for range i % 3 * 32 {
			<-delivered
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := w.capacity.taken(); n != 0 {
			t.Fatalf("run %d: %d slots are still taken", i, n)
		}
	}
}
