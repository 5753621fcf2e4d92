package worker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// settlerRig is a settler with its flushers, which notes what is settled and what is given up.
type settlerRig struct {
	*settler
	mu      sync.Mutex
	settled map[string]int
	givenUp []string
}

func startSettler(t *testing.T, q *fakeQueue) (r *settlerRig, stop func()) {
	t.Helper()
	r = &settlerRig{settled: map[string]int{}}
	log := slog.New(slog.DiscardHandler)
	r.settler = newSettler(q, newErrorLog(log, nil), r.note)
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	g.Go(func() { r.run(ctx) })
	return r, func() {
		cancel()
		g.Wait()
	}
}

func (r *settlerRig) note(batch []ending, results []queue.SettleResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range batch {
		if results == nil {
			r.givenUp = append(r.givenUp, e.settlement.ID)
			continue
		}
		r.settled[e.settlement.ID]++
	}
}

func (r *settlerRig) put(id string) {
	r.add(ending{settlement: queue.Settlement{
		LeaseRef: queue.LeaseRef{ID: id, Epoch: 1}, Event: shaper.Succeed,
	}})
}

func TestSettlementGoesAtOnceAndBatchesGrowUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r, stop := startSettler(t, q)
		at := time.Now()
		r.put("alone")
		pass(time.Millisecond)
		if s := q.settlements(); len(s) != 1 || s[0].at.Sub(at) != q.trip/3 {
			t.Errorf("a lone settlement: %+v", s)
		}
		for i := range 2000 {
			r.put(fmt.Sprint(i))
		}
		pass(time.Second)
		stop()
		if len(r.settled) != 2001 {
			t.Errorf("%d settled, want 2001", len(r.settled))
		}
		// Four full batches at best; the first of them may have gone with what was there.
		if n := q.batches - 1; n < 4 || n > 10 {
			t.Errorf("2000 settlements went in %d batches", n)
		}
	})
}

// TestLargeAnswersGoByThemselves: an ending without an answer does not wait for a hundred large
// answers that Redis is slow to store. A batch of large ones has what fits one exchange with Redis.
func TestLargeAnswersGoByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		q.perMB = 700 * time.Millisecond // more than settleWithin
		r, stop := startSettler(t, q)
		for range 100 {
			r.add(ending{settlement: queue.Settlement{Event: shaper.Succeed, Answer: make([]byte, 1e6)}})
		}
		for i := range 20 {
			pass(time.Second)
			r.put(fmt.Sprint("small", i))
			pass(10 * time.Millisecond)
			r.mu.Lock()
			if len(r.settled) < i+1 || r.settled[fmt.Sprint("small", i)] != 1 {
				t.Errorf("small ending %d waits beside large ones", i)
			}
			r.mu.Unlock()
		}
		pass(5 * time.Minute)
		stop()
		if r.settled[""] != 100 {
			t.Errorf("settled: %v", r.settled)
		}
		if q.batches < 50 {
			t.Errorf("100 MB of answers went in %d batches", q.batches)
		}
	})
}

func TestSettlementsAreSentAgainUntilRedisIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		q.away = true
		r, stop := startSettler(t, q)
		for i := range 10 {
			r.put(fmt.Sprint(i))
			pass(10 * time.Second)
		}
		q.set(func() { q.away = false })
		pass(maxPause + time.Second)
		stop()
		for i := range 10 {
			if n := r.settled[fmt.Sprint(i)]; n != 1 {
				t.Errorf("settlement %d was settled %d times", i, n)
			}
		}
		if len(r.givenUp) != 0 {
			t.Errorf("given up: %v", r.givenUp)
		}
	})
}

func TestOneRefusedSettlementDoesNotHoldUpTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		q.away = true
		q.refuse = func(batch []queue.Settlement) bool {
			for _, s := range batch {
				if s.ID == "37" {
					return true
				}
			}
			return false
		}
		r, stop := startSettler(t, q)
		for i := range 100 {
			r.put(fmt.Sprint(i))
		}
		pass(time.Second)
		q.set(func() { q.away = false })
		pass(2 * time.Minute)
		stop()
		if len(r.settled) != 99 {
			t.Errorf("%d settled, want 99", len(r.settled))
		}
		if len(r.givenUp) != 1 || r.givenUp[0] != "37" {
			t.Errorf("given up: %v", r.givenUp)
		}
	})
}

// TestEndingsOfAShardThatIsAwayHoldUpNoOthers: they do not occupy the flushers until it is back.
func TestEndingsOfAShardThatIsAwayHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		q.mute = map[string]int{}
		r, stop := startSettler(t, q)
		defer stop()
		for i := range 10 * flushers {
			id := fmt.Sprint("away", i)
			q.set(func() { q.mute[id] = 1 << 20 })
			r.put(id)
			pass(maxPause)
		}
		r.put("other")
		pass(100 * time.Millisecond)
		r.mu.Lock()
		if r.settled["other"] != 1 || len(r.settled) != 1 {
			t.Errorf("settled beside a shard that is away: %v", r.settled)
		}
		r.mu.Unlock()
		q.set(func() { clear(q.mute) })
		pass(maxPause + time.Second)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.settled) != 10*flushers+1 {
			t.Errorf("%d settled once it is back", len(r.settled))
		}
	})
}

// TestAShardThatDoesNotAnswerKeepsNoOthers: what is answered beside an error has ended, and only
// the rest is sent again.
func TestAShardThatDoesNotAnswerKeepsNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		q.mute = map[string]int{"b": 3, "d": 3}
		r, stop := startSettler(t, q)
		defer stop()
		r.small.ended.mu.Lock() // so that all are in one batch
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			r.small.ended.endings = append(r.small.ended.endings, ending{settlement: queue.Settlement{
				LeaseRef: queue.LeaseRef{ID: id, Epoch: 1}, Event: shaper.Succeed,
			}})
		}
		r.small.ended.mu.Unlock()
		signal(r.small.ended.kick)
		time.Sleep(minPause / 2)
		synctest.Wait()
		r.mu.Lock()
		if n := len(r.settled); n != 3 || r.settled["b"]+r.settled["d"] != 0 {
			t.Errorf("after the first answer: %v", r.settled)
		}
		r.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			if r.settled[id] != 1 {
				t.Errorf("%s has ended %d times", id, r.settled[id])
			}
		}
	})
}
