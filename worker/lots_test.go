package worker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
)

// TestLotsEnterInOrder: whatever the ways to Redis and back take, and though some lots are another worker's and some looks bring none or hang.
func TestLotsEnterInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLots()
		var redis, in sync.Mutex
		var given int64
		var entered []int64
		way := func() { time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) }
		var loops sync.WaitGroup
		for loop := range 2 {
			loops.Go(func() {
				for range 500 {
					l.ask(loop)
					way()
					var lot int64
					redis.Lock()
					if rand.IntN(10) == 0 {
						given++ // of another worker
					}
					if rand.IntN(10) > 0 {
						given++
						lot = given
					}
					redis.Unlock()
					way()
					l.answer(loop, lot)
					l.enter(loop)
					if lot > 0 {
						in.Lock()
						entered = append(entered, lot)
						in.Unlock()
					}
					l.leave(loop)
					if rand.IntN(10) == 0 {
						time.Sleep(5 * time.Millisecond)
					}
				}
			})
		}
		loops.Wait()
		if len(entered) < 800 || !slices.IsSorted(entered) {
			t.Errorf("%d lots, in order: %v", len(entered), slices.IsSorted(entered))
		}
	})
}

// TestAHangingLookKeepsNoLotOut: the other loop's lots wait for it no longer than a look may hang.
func TestAHangingLookKeepsNoLotOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLots()
		l.ask(0)
		l.ask(1)
		l.answer(1, 7)
		go func() {
			time.Sleep(lookPatience)
			l.answer(0, 0) // as yield does
		}()
		begun := time.Now()
		l.enter(1)
		if d := time.Since(begun); d != lookPatience {
			t.Errorf("the lot waited %v", d)
		}
		l.leave(1)
		l.answer(0, 6)
		l.enter(0) // late, but there is nothing to wait for any more
	})
}

// TestLotsWaitForNoLaterLook: where lots between two are another worker's, a lot waits for the look that was under way when it came, not for the next
// one of the same loop, which can only bring a later one.
func TestLotsWaitForNoLaterLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLots()
		enter := func(loop int) chan struct{} {
			in := make(chan struct{})
			go func() {
				l.enter(loop)
				l.leave(loop)
				close(in)
			}()
			synctest.Wait()
			return in
		}
		closed := func(in chan struct{}) bool {
			select {
			case <-in:
				return true
			default:
				return false
			}
		}
		l.ask(0)
		l.ask(1)
		l.answer(1, 9)
		later := enter(1)
		if closed(later) {
			t.Error("a lot did not wait for the look that may bring an earlier one")
		}
		l.answer(0, 7)
		if !closed(enter(0)) {
			t.Error("the earlier lot waits")
		}
		l.ask(0)
		synctest.Wait()
		if !closed(later) {
			t.Error("a lot waits for a look that began after it came")
		}
		l.answer(0, 3) // Redis has forgotten how many there were
		if !closed(enter(0)) {
			t.Error("a lot waits while no other look is under way")
		}
		l.ask(0)
		l.ask(1)
		l.answer(1, 4)
		if !closed(enter(1)) {
			t.Error("a lot waits though none can be missing between the last and it")
		}
		l.answer(0, 0)
	})
}

// TestFullLooksOverlap: while looks are full and those of no other shard are, a second one waits in Redis. When the first look of many shards is
// answered, those of the others are still under way.
func TestFullLooksOverlap(t *testing.T) {
	for _, tt := range []struct {
		name   string
		shards int // with jobs
		jobs   int // of each
		places int
		least  int // looks of second loops
		most   int
	}{{"one shard", 1, 5000, 4000, 8, 100}, {"few jobs", 1, lookLeast - 1, 4000, 0, 0}, {"few places", 1, 2000, 40, 0, 2000}, {"many shards", 8, 2000, 4000, 0, 24}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFakeQueue(8)
				q.trip = 3 * time.Millisecond
				r := startRig(t, q, Config{Concurrency: tt.places}, succeed)
				pass(time.Second)
				for n := range tt.shards {
					for i := range tt.jobs {
						q.put(n, fmt.Sprintf("%d-%05d", n, i), 0)
					}
				}
				for n := range tt.shards {
					q.wakes <- queue.Wake{Shard: n}
				}
				pass(10 * time.Second)
				if n := len(q.settlements()); n != tt.shards*tt.jobs {
					t.Errorf("%d jobs have ended, want %d", n, tt.shards*tt.jobs)
				}
				seconds := 0
				for _, tick := range q.ticks {
					if tick.o.Helper {
						seconds++
					}
				}
				if seconds < tt.least || seconds > tt.most {
					t.Errorf("%d of %d looks were of second loops, want %d to %d", seconds, len(q.ticks), tt.least, tt.most)
				}
				q.looks()
				pass(14 * time.Second)
				if looks := q.looks(); looks[0] > 1 {
					t.Errorf("%d looks at a shard in which nothing is left", looks[0])
				}
				if n := len(r.capacity.waiting); n != 0 {
					t.Errorf("%d loops wait for places though nothing is left", n)
				}
				r.end(t)
			})
		})
	}
}
