package engine

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// exchanges counts what goes to Redis through the hook at once.
type exchanges struct {
	takes time.Duration // each exchange

	mu              sync.Mutex
	now, most, sent int // bytes, and exchanges that have ended
}

func (e *exchanges) send(_ context.Context, cmds []redis.Cmder) error {
	bytes := 0
	for _, cmd := range cmds {
		bytes += len(cmd.Args()[1].([]byte))
	}
	e.mu.Lock()
	e.now += bytes
	e.most = max(e.most, e.now)
	e.mu.Unlock()
	time.Sleep(e.takes)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now -= bytes
	e.sent++
	return nil
}

func carrying(bytes int) redis.Cmder {
	return redis.NewCmd(context.Background(), "SET", make([]byte, bytes))
}

// TestBulk: what carries many bytes waits for others of its kind, alone and in a pipeline, more of
// them at once where Redis is far away. What carries little waits for none, and a call whose caller
// has left sends nothing.
func TestBulk(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes time.Duration
		most  int
	}{
		{"near", time.Millisecond, bulkNear},
		{"far", 80 * time.Millisecond, bulkFar},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hook, e := newBulk(patience{}), &exchanges{takes: test.takes}
				pipeline := hook.ProcessPipelineHook(e.send)
				single := hook.ProcessHook(func(ctx context.Context, cmd redis.Cmder) error {
					return e.send(ctx, []redis.Cmder{cmd})
				})
				_ = single(t.Context(), carrying(1)) // so that the way is known
				var all sync.WaitGroup
				for range 50 {
					all.Go(func() { _ = single(t.Context(), carrying(300<<10)) })
					all.Go(func() { _ = pipeline(t.Context(), []redis.Cmder{carrying(60 << 10), carrying(60 << 10)}) })
					all.Go(func() { _ = single(t.Context(), carrying(bulkFar)) })
				}
				synctest.Wait()
				start := time.Now()
				_ = single(t.Context(), carrying(1<<10))
				if took := time.Since(start); took != test.takes {
					t.Errorf("a small exchange took %v", took)
				}
				gone, leave := context.WithTimeout(t.Context(), test.takes/2)
				defer leave()
				left := []redis.Cmder{carrying(bulkFar), carrying(1)}
				if err := pipeline(gone, left); !errors.Is(err, context.DeadlineExceeded) || left[1].Err() == nil {
					t.Errorf("a caller that has left: %v and %v", err, left[1].Err())
				}
				all.Wait()
				if e.sent != 152 || e.most < test.most || e.most > bulkFar+1<<10 {
					t.Errorf("%d exchanges ended, with up to %d bytes at once", e.sent, e.most)
				}
			})
		})
	}
}

// TestBulkOfSmallTexts: a hundred texts that are not large wait for none.
func TestBulkOfSmallTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook, e := newBulk(patience{}), &exchanges{takes: time.Minute}
		send := hook.ProcessPipelineHook(e.send)
		var all sync.WaitGroup
		all.Go(func() { _ = send(t.Context(), []redis.Cmder{carrying(bulkFar)}) })
		synctest.Wait()
		e.mu.Lock()
		e.takes = time.Millisecond
		e.mu.Unlock()
		start, cmds := time.Now(), []redis.Cmder(nil)
		for range 100 {
			cmds = append(cmds, carrying(store.Large*3/2)) // with what is stored beside it
		}
		_ = send(t.Context(), cmds)
		if took := time.Since(start); took != time.Millisecond {
			t.Errorf("a batch of small texts took %v beside a large one", took)
		}
		all.Wait()
		time.Sleep(mostRest)
	})
}

// TestBulkNear: beside a Redis that is near, no more than bulkNear is under way at once.
func TestBulkNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook, e := newBulk(patience{}), &exchanges{takes: time.Millisecond}
		send := hook.ProcessPipelineHook(e.send)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { _ = send(t.Context(), []redis.Cmder{carrying(100 << 10)}) })
		}
		all.Wait()
		if e.sent != 100 || e.most > bulkNear {
			t.Errorf("%d exchanges ended, with up to %d bytes at once", e.sent, e.most)
		}
	})
}

// TestBulkRests: a Redis that is near rests from large exchanges for restFactor times as long as
// they took, and for no longer than mostRest if one was stuck; one that is far does not, nor where
// nothing else goes on.
func TestBulkRests(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{
		time.Millisecond:       restFactor * time.Millisecond,
		8 * time.Millisecond:   restFactor * 8 * time.Millisecond,
		700 * time.Millisecond: mostRest,
		80 * time.Millisecond:  0,
	} {
		for _, beside := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				hook, e := newBulk(patience{}), &exchanges{takes: time.Millisecond}
				if want == 0 {
					e.takes = takes
				}
				send := hook.ProcessPipelineHook(e.send)
				_ = send(t.Context(), []redis.Cmder{carrying(1)}) // so that the way is known
				e.takes = takes
				_ = send(t.Context(), []redis.Cmder{carrying(bulkNear)})
				time.Sleep(mostRest)
				start := time.Now()
				for range 3 {
					if beside {
						go func() {
							time.Sleep(takes / 2)
							_ = send(t.Context(), []redis.Cmder{carrying(1)})
						}()
					}
					_ = send(t.Context(), []redis.Cmder{carrying(bulkNear)})
				}
				want := want
				if !beside {
					want = 0
				}
				if rests := (time.Since(start) - 3*takes) / 2; rests != want {
					t.Errorf("between exchanges that took %v it rested for %v, want %v", takes, rests, want)
				}
				time.Sleep(time.Second)
			})
		}
	}
}

// TestBulkAfterAFailover: a client that was near counts as far once its exchanges have taken long
// for two windows.
func TestBulkAfterAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook, e := newBulk(patience{}), &exchanges{takes: time.Millisecond}
		send := hook.ProcessPipelineHook(e.send)
		for _, test := range []struct {
			takes time.Duration
			near  bool
		}{{time.Millisecond, true}, {80 * time.Millisecond, false}, {time.Millisecond, true}} {
			e.takes = test.takes
			for end := time.Now().Add(2*bulkWindow + time.Second); time.Now().Before(end); {
				_ = send(t.Context(), []redis.Cmder{carrying(1)})
			}
			if hook.way.near() != test.near {
				t.Errorf("after exchanges of %v it is near: %v", test.takes, !test.near)
			}
		}
	})
}

// TestBulkOfHeavyScripts: scripts that take long wait for others of their weight, however few bytes
// they have, and not for lighter ones.
func TestBulkOfHeavyScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook, e := newBulk(patience{}), &exchanges{takes: time.Millisecond}
		send := hook.ProcessPipelineHook(e.send)
		var all sync.WaitGroup
		for range 5 {
			for weight, bytes := range map[store.Weight]int{store.Heavy: 1000, store.Medium: 100, store.Light: 1} {
				all.Go(func() {
					script := redis.NewCmd(t.Context(), "EVALSHA", make([]byte, bytes))
					_ = send(store.Weigh(t.Context(), weight), []redis.Cmder{script})
				})
			}
		}
		all.Wait()
		if e.most != 1205 {
			t.Errorf("not one heavy, two medium and all light ones at once, but %d bytes", e.most)
		}
		time.Sleep(mostRest)
	})
}

// TestBulkOfReplicas: exchanges that wait for replicas do so beside each other, and Redis does not
// rest after them.
func TestBulkOfReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook, e := newBulk(patience{wait: time.Second}), &exchanges{takes: time.Millisecond}
		send := hook.ProcessPipelineHook(e.send)
		start := time.Now()
		var all sync.WaitGroup
		for range 2 * bulkWaiting {
			all.Go(func() {
				_ = send(t.Context(), []redis.Cmder{carrying(1)})
				_ = send(store.Weigh(t.Context(), store.Heavy), []redis.Cmder{carrying(1000)})
			})
		}
		all.Wait()
		if took := time.Since(start); took != 3*e.takes || e.most < bulkWaiting*1000 {
			t.Errorf("they took %v, with %d bytes at once", took, e.most)
		}
	})
}

// TestBulkOfParts: what is sent as a part of an exchange does not wait for it, as the greeting of a
// new connection, or what waits for replicas.
func TestBulkOfParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook, e := newBulk(patience{}), &exchanges{takes: time.Millisecond}
		inner := hook.ProcessPipelineHook(e.send)
		outer := hook.ProcessHook(func(ctx context.Context, cmd redis.Cmder) error {
			return inner(ctx, []redis.Cmder{cmd})
		})
		var all sync.WaitGroup
		for _, weight := range []store.Weight{store.Light, store.Medium, store.Heavy} {
			for range 3 {
				all.Go(func() {
					if err := outer(store.Weigh(t.Context(), weight), carrying(300<<10)); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		time.Sleep(mostRest)
	})
}

// TestBulkOfASilentRedis: what waits for others is answered soon once Redis answers nothing, and
// not while it answers slowly.
func TestBulkOfASilentRedis(t *testing.T) {
	for _, answer := range []error{nil, redis.Nil, os.ErrDeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			hook := newBulk(patience{})
			send := hook.ProcessHook(func(context.Context, redis.Cmder) error {
				time.Sleep(time.Second)
				return answer
			})
			var all sync.WaitGroup
			var silent atomic.Int64
			start := time.Now()
			for range 20 {
				all.Go(func() {
					if errors.Is(send(t.Context(), carrying(bulkNear)), errSilent) {
						silent.Add(1)
					}
				})
			}
			all.Wait()
			if took := time.Since(start); answer == os.ErrDeadlineExceeded {
				if took > bulkPatience+time.Second || silent.Load() < 15 {
					t.Errorf("a silent Redis: %d of 20 gave up, the last after %v", silent.Load(), took)
				}
			} else if silent.Load() > 0 {
				t.Errorf("a slow Redis that answers %v: %d of 20 gave up", answer, silent.Load())
			}
			time.Sleep(mostRest)
		})
	}
}
