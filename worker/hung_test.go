package worker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// hungCall is how long a call to a node of a cluster that does not answer takes until go-redis
// gives up, if nothing bounds it: 21 to 24 s were measured.
const hungCall = 24 * time.Second

// hungConsumer belongs to a shard whose node does not answer while hangs is set.
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

// TestShardsThatHangHoldUpNoOthers: the polls of the others find room in the window, and capacity
// for what they lease.
func TestShardsThatHangHoldUpNoOthers(t *testing.T) {
	for _, hung := range []int{1, 32, 48} { // of 64; the worker has capacity for 16 polls of the least size
		t.Run(fmt.Sprint(hung), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const shards, perShard = 64, 200 // twenty seconds' at 10/s
				q := newFakeQueue(shards)
				var hangs atomic.Bool
				cfg := Config{
					Routes: map[string]Route{"default": {URL: "http://upstream.test/"}},
					Logger: slog.New(slog.DiscardHandler),
				}
				w, err := newWorker(q, func(id string, n int) consumer {
					if n < hung {
						return hungConsumer{q.consumer(id, n), &hangs}
					}
					return q.consumer(id, n)
				}, newTimerWaiter, cfg)
				if err != nil {
					t.Fatal(err)
				}
				w.deliverers["default"] = deliverFunc(func(ctx context.Context, l *queue.Lease) queue.Settlement {
					sleep(ctx, 200*time.Millisecond) // 2 of 256 slots for each shard
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
				if n, out := w.capacity.taken(), w.window.polls.Load(); n != 0 || out != 0 {
					t.Errorf("%d slots are still taken, %d polls are under way", n, out)
				}
			})
		})
	}
}

// lateConsumer belongs to a shard that answers late while late is set.
type lateConsumer struct {
	consumer
	late *atomic.Bool
}

func (c lateConsumer) Tick(ctx context.Context, o queue.TickOptions) (queue.Tick, error) {
	t, err := c.consumer.Tick(ctx, o)
	if c.late.Load() {
		sleep(ctx, 2*pollPatience)
	}
	return t, err
}

// TestSlotsOfALatePollAreCharged: a poll that answers after its timeout is charged with the slots
// of its jobs.
func TestSlotsOfALatePollAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		var late atomic.Bool
		w, err := newWorker(q, func(id string, n int) consumer {
			return lateConsumer{q.consumer(id, n), &late}
		}, newTimerWaiter, Config{
			Horizon: time.Second, Logger: slog.New(slog.DiscardHandler),
			Routes: map[string]Route{"default": {URL: "http://upstream.test/"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.deliverers["default"] = deliverFunc(func(ctx context.Context, l *queue.Lease) queue.Settlement {
			sleep(ctx, time.Second)
			return succeed(ctx, l)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		pass(time.Second)
		polls := &w.window.polls
		late.Store(true)
		for k := range pollLeast {
			q.put(0, fmt.Sprint(k), 0)
		}
		q.wakes <- queue.Wake{Shard: 0}
		pass(pollPatience / 2)
		if n, under := w.capacity.taken(), polls.Load(); n != pollLeast || under != 1 {
			t.Errorf("before its patience is over a poll holds %d slots; %d polls are under way", n, under)
		}
		pass(pollPatience)
		if n, under := w.capacity.taken(), polls.Load(); n != 0 || under != 0 {
			t.Errorf("a poll that is not answered holds %d slots; %d polls are under way", n, under)
		}
		late.Store(false)
		pass(pollPatience)
		if n, under := w.capacity.taken(), polls.Load(); n != pollLeast || under != 0 {
			t.Errorf("late jobs have taken %d slots of %d; %d polls are under way", n, pollLeast, under)
		}
		pass(2 * time.Second)
		if n := w.capacity.taken(); n != 0 || q.events()[shaper.Succeed] != pollLeast {
			t.Errorf("%d slots are still taken after %v", n, q.events())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// hungNode is a queue with a node that hangs. Calls to that node take until their context ends, or
// hungCall; calls to other nodes take effect at once. Jobs whose ids begin with "hung" are on it.
type hungNode struct {
	*fakeQueue
	thawed  atomic.Bool
	ends    map[string]time.Time // when leases end that can be extended
	late    map[string]bool      // those that were extended too late
	settled map[string]time.Time
}

func (q *hungNode) hangs(id string) bool { return strings.HasPrefix(id, "hung") && !q.thawed.Load() }

func (q *hungNode) Extend(
	ctx context.Context, refs []queue.LeaseRef, lease time.Duration,
) ([]queue.LeaseRef, error) {
	unanswered := &queue.Unanswered{Err: queue.ErrUnavailable}
	q.set(func() {
		for _, r := range refs {
			if q.hangs(r.ID) {
				unanswered.Leases = append(unanswered.Leases, r)
				continue
			}
			if time.Now().After(q.ends[r.ID]) {
				q.late[r.ID] = true
			}
			q.ends[r.ID] = time.Now().Add(lease)
		}
	})
	if len(unanswered.Leases) > 0 {
		sleep(ctx, hungCall)
		return nil, unanswered
	}
	return nil, nil
}

func (q *hungNode) Settle(
	ctx context.Context, batch []queue.Settlement,
) (results []queue.SettleResult, err error) {
	results = make([]queue.SettleResult, len(batch))
	q.set(func() {
		for i, s := range batch {
			if q.hangs(s.ID) {
				err = queue.ErrUnavailable
				continue
			}
			results[i] = queue.Repeated
			if q.settled[s.ID].IsZero() {
				results[i], q.settled[s.ID] = queue.Settled, time.Now()
			}
		}
	})
	if err != nil {
		sleep(ctx, hungCall)
	}
	return results, err
}

// TestLeasesAreExtendedWhileANodeHangs: those of the shards that answer in time, however many jobs
// the worker has.
func TestLeasesAreExtendedWhileANodeHangs(t *testing.T) {
	for _, n := range []int{256, 1000, 4000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lease = 30 * time.Second
				q := &hungNode{fakeQueue: newFakeQueue(1), ends: map[string]time.Time{}, late: map[string]bool{}}
				var log bytes.Buffer
				h := &Worker{
					broker: q, capacity: newCapacity(n), watch: stopwatch{start: time.Now()}, cfg: Config{Lease: lease},
					errors: newErrorLog(slog.New(slog.NewTextHandler(&log, nil)), nil),
				}
				for i := range n {
					id := fmt.Sprint(i)
					if i%64 == 0 { // one shard of 64
						id = "hung" + id
					}
					j := &job{lease: queue.Lease{LeaseRef: queue.LeaseRef{ID: id, Epoch: 1}}}
					left := lease - time.Duration(i)*lease/3/time.Duration(n) // as they are at any time: 20 to 30 s
					j.deadline.Store(int64(h.watch.now().add(left)))
					q.ends[id] = time.Now().Add(left)
					h.capacity.add(0, []*job{j})
				}
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { h.keepLeases(ctx) })
				pass(2 * time.Minute)
				q.thawed.Store(true)
				pass(time.Minute)
				cancel()
				running.Wait()
				over := 0
				for _, end := range q.ends {
					if time.Now().After(end) {
						over++
					}
				}
				hung := (n + 63) / 64
				// Those on the node that hung came too late for the fake: it forgives that.
				if len(q.late) != hung || over > 0 {
					t.Errorf("%d of %d leases were extended too late, %d of them on the node that hung; "+
						"%d are over", len(q.late), n, hung, over)
				}
				for _, line := range []string{"redis is away", "redis is back"} {
					if n := strings.Count(log.String(), line); n != 1 {
						t.Errorf("%q was logged %d times for one outage:\n%s", line, n, &log)
					}
				}
			})
		})
	}
}

// TestEndingsAreSettledWhileANodeHangs: those of the shards that answer soon, though deliveries for
// the others keep ending; and those once their node is back.
func TestEndingsAreSettledWhileANodeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &hungNode{fakeQueue: newFakeQueue(1), settled: map[string]time.Time{}}
		log := slog.New(slog.DiscardHandler)
		ended := map[string]int{}
		var mu sync.Mutex
		s := newSettler(q, newErrorLog(log, nil), func(batch []ending, _ []queue.SettleResult) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range batch {
				ended[e.settlement.ID]++
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.run(ctx) })
		put := func(id string) {
			s.add(ending{settlement: queue.Settlement{
				LeaseRef: queue.LeaseRef{ID: id, Epoch: 1}, Event: shaper.Succeed,
			}})
		}
		added := map[string]time.Time{}
		for i := range 600 { // a minute
			if i%10 == 5 && i < 300 {
				put(fmt.Sprint("hung", i))
				pass(5 * time.Millisecond)
			}
			id := fmt.Sprint(i)
			added[id] = time.Now()
			put(id)
			pass(100 * time.Millisecond)
		}
		for id, at := range added {
			if d := q.settled[id].Sub(at); d < 0 || d > settleWithin {
				t.Errorf("ending %s was settled after %v", id, d)
			}
			if ended[id] != 1 {
				t.Errorf("ending %s has come to its end %d times", id, ended[id])
			}
		}
		if n := len(ended) - len(added); n != 0 {
			t.Errorf("%d endings have come to their end on a node that hangs", n)
		}
		q.thawed.Store(true)
		pass(2 * hungCall)
		if n := len(ended); n != 630 || len(q.settled) != n {
			t.Errorf("%d of 630 endings have come to their end, %d are settled", n, len(q.settled))
		}
		cancel()
		running.Wait()
	})
}
