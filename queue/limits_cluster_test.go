package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/limitertest"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// apart is a shared store in which the rules of one test have a name of their own.
type apart struct {
	limiter.Store
	name string
}

func (a apart) Take(ctx context.Context, r limiter.Rule, key string, cost int64) (limiter.Decision, error) {
	return a.Store.Take(ctx, a.rule(r), key, cost)
}

func (a apart) Clear(ctx context.Context, r limiter.Rule, key string) (bool, error) {
	return a.Store.Clear(ctx, a.rule(r), key)
}

func (a apart) Blocked(ctx context.Context, r limiter.Rule, most int) ([]limiter.Blocked, error) {
	return a.Store.Blocked(ctx, a.rule(r), most)
}

func (a apart) rule(r limiter.Rule) limiter.Rule {
	r.Name = a.name + "." + r.Name
	return r
}

// TestLimitsConformanceOnACluster: the limiters promise on a Redis Cluster what they promise on one
// Redis.
func TestLimitsConformanceOnACluster(t *testing.T) {
	queuetest.Long(t)
	cluster := redistest.StartCluster(t)
	l := open(t, queue.EngineOptions{URL: cluster.URL()}, defaults).Limits()
	var stores atomic.Int64
	t.Run("suite", func(t *testing.T) {
		limitertest.Run(t, func(*testing.T) limiter.Store { return apart{l, fmt.Sprint(stores.Add(1))} })
	})
	for i, slots := range cluster.Slots(t.Context()) {
		if len(slots) < 2 {
			t.Errorf("node %d has keys in the slots %v alone", i+1, slots)
		}
	}
}

// TestLimitsWhileASlotMoves: while the slot of a key goes from node to node, callers of the key get
// no more than the limit, and afterwards all of it. What cannot be decided meanwhile is an error
// that says so; limiters with one key in Redis decide all the time.
func TestLimitsWhileASlotMoves(t *testing.T) {
	queuetest.Long(t)
	cluster := redistest.StartCluster(t)
	l := open(t, queue.EngineOptions{URL: cluster.URL()}, defaults).Limits()
	const key, moves, callers = "key", 4, 16
	for _, a := range limiter.Algorithms() {
		for _, block := range []time.Duration{0, time.Hour} {
			if block > 0 && a != limiter.SlidingLog {
				continue
			}
			t.Run(fmt.Sprint(a, block), func(t *testing.T) {
				// Nothing comes back while the test runs, and the moves leave some of it.
				r := limiter.Rule{
					Name: "test",
					Policy: limiter.Policy{
						Algorithm: a, Rate: shaper.Rate{Limit: 1000, Period: 30 * 24 * time.Hour},
						Block: block,
					},
				}
				before := cluster.Slots(t.Context())
				if _, err := l.Take(t.Context(), r, key, 1); err != nil {
					t.Fatal(err)
				}
				slot := newSlot(before, cluster.Slots(t.Context()))
				var allowed, failed atomic.Int64
				allowed.Add(1)
				crowd := func() {
					var calling sync.WaitGroup
					for range callers {
						calling.Go(func() {
							switch d, err := l.Take(t.Context(), r, key, 1); {
							case err != nil && !errors.Is(err, queue.ErrUnavailable):
								t.Errorf("an error of another kind: %v", err)
							case err != nil:
								failed.Add(1)
							case d.Allowed:
								allowed.Add(1)
							default:
								t.Error("refused below the limit")
							}
						})
					}
					calling.Wait()
				}
				for range moves {
					cluster.Move(t.Context(), slot, crowd)
				}
				if failed.Load() > 0 && a != limiter.SlidingLog {
					t.Errorf("%d were not decided", failed.Load())
				}
				left, err := l.Take(t.Context(), r, key, 0)
				if err != nil {
					t.Fatal(err)
				}
				// What was answered with an error may have been counted; nothing that was allowed
				// may have been forgotten.
				used := left.Limit - left.Remaining
				if used < allowed.Load() || used > allowed.Load()+failed.Load() {
					t.Errorf("%d were allowed and %d not decided, %d are counted", allowed.Load(), failed.Load(), used)
				}
				t.Logf("slot %d moved %d times: %d allowed, %d not decided, %d counted", slot, moves,
					allowed.Load(), failed.Load(), used)
				if last, err := l.Take(t.Context(), r, key, left.Remaining); err != nil || !last.Allowed {
					t.Fatalf("what is left: %+v, %v", last, err)
				}
				if d, err := l.Take(t.Context(), r, key, 1); err != nil || d.Allowed {
					t.Errorf("beyond the limit: %+v, %v", d, err)
				}
				if block == 0 {
					return
				}
				// The list of blocked keys moves with the key.
				cluster.Move(t.Context(), slot, func() {})
				if list, err := l.Blocked(t.Context(), r, 10); err != nil || len(list) != 1 || list[0].Key != key {
					t.Errorf("blocked: %v, %v", list, err)
				}
				if known, err := l.Clear(t.Context(), r, key); err != nil || !known {
					t.Errorf("cleared: %v, %v", known, err)
				}
				if d, err := l.Take(t.Context(), r, key, 1); err != nil || !d.Allowed {
					t.Errorf("after it was cleared: %+v, %v", d, err)
				}
			})
		}
	}
}

// newSlot is the slot that has more keys than before.
func newSlot(before, after [2]map[int]int) int {
	for i := range after {
		for slot, n := range after[i] {
			if n > before[i][slot] {
				return slot
			}
		}
	}
	return -1
}
