package worker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
)

// TestLeasesOfAShardThatIsAwayKeepNoOthersFromBeingExtended: what is answered beside an error
// counts.
func TestLeasesOfAShardThatIsAwayKeepNoOthersFromBeingExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		q.deaf = map[string]bool{"away": true}
		lost := queue.LeaseRef{ID: "lost", Epoch: 1}
		q.lose = map[queue.LeaseRef]bool{lost: true}
		w := &Worker{broker: q, watch: stopwatch{start: time.Now()}, cfg: Config{Lease: time.Minute}}
		jobs := map[string]*job{}
		var all []*job
		for _, id := range []string{"away", "here", "lost"} {
			j := &job{lease: queue.Lease{LeaseRef: queue.LeaseRef{ID: id, Epoch: 1}}}
			jobs[id], all = j, append(all, j)
		}
		if err := w.extend(t.Context(), all); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("a call that was answered in part: %v", err)
		}
		if jobs["here"].deadline.Load() == 0 || jobs["away"].deadline.Load() != 0 ||
			jobs["lost"].deadline.Load() != 0 {
			t.Errorf("deadlines: here %d, away %d, lost %d", jobs["here"].deadline.Load(),
				jobs["away"].deadline.Load(), jobs["lost"].deadline.Load())
		}
		if !jobs["lost"].lost.Load() || jobs["away"].lost.Load() {
			t.Errorf("lost %v, away %v", jobs["lost"].lost.Load(), jobs["away"].lost.Load())
		}
	})
}

// TestLeasesOfEndedJobsAreExtended: while Redis does not answer a settlement, the job's lease goes
// on, so that nobody delivers it again.
func TestLeasesOfEndedJobsAreExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		q.mute = map[string]int{"slow": 1 << 20}
		r := startRig(t, q, Config{Lease: 3 * time.Second}, succeed)
		q.put(0, "slow", 0)
		q.wakes <- queue.Wake{Shard: 0}
		pass(30 * time.Second)
		q.set(func() {
			if n := q.extended[queue.LeaseRef{ID: "slow", Epoch: 1}]; n < 10 {
				t.Errorf("in 30 s a lease of 3 s was extended %d times", n)
			}
			q.mute = nil
		})
		pass(maxPause + time.Second)
		if n := r.capacity.taken(); n != 0 {
			t.Errorf("%d slots are still taken", n)
		}
		r.end(t)
	})
}
