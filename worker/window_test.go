package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWindowBoundsThePolls: no more polls are under way than the window has room for, first come,
// first served. Who gives up takes no room, and leaving twice gives back no more than once.
func TestWindowBoundsThePolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow()
		for range nearPolls - 2 {
			if _, err := w.enter(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
		w.polls.Store(0)
		enter := func(ctx context.Context) (leave func()) {
			leave, _ = w.enter(ctx, true)
			return leave
		}
		first, second := enter(t.Context()), enter(t.Context())
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
		first()
		first()
		if n := <-entered; n != 1 {
			t.Error("the poll that waits longest does not begin")
		}
		if w.polls.Load() != 2 {
			t.Errorf("%d polls are under way, want 2", w.polls.Load())
		}
		second()
		if leave := enter(t.Context()); leave == nil || w.polls.Load() != 2 {
			t.Errorf("%d polls are under way, want 2", w.polls.Load())
		}
	})
}

// TestWindowOfAFarRedis: more polls may be under way once the shortest way to Redis is long for a
// minute.
func TestWindowOfAFarRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow()
		for _, way := range []struct {
			took time.Duration
			far  bool
		}{
			{0, false}, {time.Millisecond, false}, {160 * time.Millisecond, false},
			{160 * time.Millisecond, true}, {time.Millisecond, false},
		} {
			if way.took > 0 {
				w.observe(way.took)
			}
			if w.far() != way.far {
				t.Errorf("after %v: far is %v", way.took, w.far())
			}
			time.Sleep(wayAge + time.Second)
		}
		w = newWindow()
		w.observe(160 * time.Millisecond)
		for range farPolls {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := w.enter(ctx, false); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
	})
}

// TestWindowOfRestedShards: shards that are not steady leave room to those that are, near Redis.
func TestWindowOfRestedShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow()
		enter := func(steady bool, n int) (entered int) {
			for range n {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				leave, err := w.enter(ctx, steady)
				if cancel(); err == nil {
					entered++
					t.Cleanup(leave)
				}
			}
			return entered
		}
		rested, steady := enter(false, nearPolls), enter(true, nearPolls)
		if rested != restedPolls || steady != nearPolls-restedPolls {
			t.Errorf("%d polls of rested shards and %d of steady ones are under way at once", rested, steady)
		}
	})
}

// TestStreak: a shard is steady while its polls bring jobs again and again, not after some at once.
func TestStreak(t *testing.T) {
	s, at := streak{longAgo, longAgo}, moment(0)
	follow := func(n int, gap time.Duration) bool {
		for range n {
			s.note(at)
			at = at.add(gap)
		}
		return s.steady(at)
	}
	for _, c := range []struct {
		polls int
		gap   time.Duration
		want  bool
	}{
		{1, 0, false}, {100, time.Millisecond, false}, {100, 10 * time.Millisecond, true},
		{1, steadyGap + 1, false}, {4, 300 * time.Millisecond, true}, {10, steadyGap + 1, false},
	} {
		if got := follow(c.polls, c.gap); got != c.want {
			t.Errorf("after %d polls %v apart: steady is %v", c.polls, c.gap, got)
		}
	}
}
