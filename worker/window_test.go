package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWindowBoundsThePolls: no more polls are under way than the window has room for, first come, first served. Who
// gives up takes no room, and neither does a poll that is not answered.
func TestWindowBoundsThePolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow()
		for range nearPolls - 2 {
			if _, err := w.enter(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.polls.Store(0)
		enter := func(ctx context.Context) *underWay {
			u, err := w.enter(ctx)
			if err != nil {
				return nil
			}
			return u
		}
		first := enter(t.Context())
		hangs := enter(t.Context())
		hangs.reserve(7, func(reserved int) {
			if reserved != 7 {
				t.Errorf("%d places are given back, want 7", reserved)
			}
		})
		entered := make(chan int, 2)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { enter(ctx); entered <- 0 }()
		synctest.Wait()
		go func() { enter(t.Context()); entered <- 1 }()
		synctest.Wait()
		if len(entered) > 0 || w.polls.Load() != 2 {
			t.Fatalf("%d polls are under way, and the window is full with two", w.polls.Load())
		}
		cancel()
		if n := <-entered; n != 0 {
			t.Error("a poll began before there was room")
		}
		if n := first.end(); n != 0 {
			t.Errorf("a poll that has reserved nothing ends with %d places", n)
		}
		if n := <-entered; n != 1 {
			t.Error("the poll that waits longest does not begin")
		}
		begun := time.Now()
		if enter(t.Context()); time.Since(begun) != pollPatience {
			t.Errorf("a poll waited %v for one that hangs", time.Since(begun))
		}
		if n := hangs.end(); n != 0 || w.polls.Load() != 2 {
			t.Errorf("a poll that was given up holds %d places; %d polls are under way", n, w.polls.Load())
		}
	})
}

// TestWindowOfAFarRedis: more polls may be under way once the shortest way to Redis is long for a minute.
func TestWindowOfAFarRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow()
		for _, way := range []struct {
			took time.Duration
			far  bool
		}{{0, false}, {time.Millisecond, false}, {160 * time.Millisecond, false}, {160 * time.Millisecond, true}, {time.Millisecond, false}} {
			if way.took > 0 {
				w.observe(way.took)
			}
			if w.far() != way.far {
				t.Errorf("after %v: far is %v", way.took, w.far())
			}
			time.Sleep(wayKept + time.Second)
		}
		w = newWindow()
		w.observe(160 * time.Millisecond)
		for range farPolls {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := w.enter(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
	})
}
