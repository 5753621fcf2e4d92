package worker

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pollMost and pollLeast bound the capacity that one poll reserves; the rest is left to other
	// shards. Within them a shard reserves twice what it got last.
	pollMost, pollLeast = 250, 16
	// spareLeast is the least where others wait for capacity, or for a safety poll: many of those
	// may be under way at once to a Redis that is far away.
	spareLeast = 4
	// safetyPoll is the longest time between two polls of a shard, in case a wake-up was lost. The
	// polls of idle shards are spread over the last safetySpread of it: a busy shard's poll would
	// wait for them.
	safetyPoll   = 15 * time.Second
	safetySpread = 3 * time.Second
	// leastRest is the pause where the next event is overdue, but is not a lease.
	leastRest = 2 * time.Millisecond
	// pollPatience is how long a poll that is not answered keeps its room in the window and its
	// capacity.
	pollPatience = 250 * time.Millisecond
)

// shard is the loop that polls one shard, if the worker owns the shard or helps its owner. There is
// at most one loop at a time, so the consumer is never used twice at once, and jobs are handed on
// in the order in which Redis gave them.
type shard struct {
	n        int
	d        *dispatcher
	consumer consumer
	role     role
	woken    chan struct{} // a token has the shard polled now, if there is a loop
	slots    *request      // to wait for capacity
	clock    *shardClock

	// Of the loop alone.
	pause      pauses
	help       help
	unanswered bool // the last poll failed: it may have leased jobs, and must be repeated until it is answered
	brought    int  // jobs of the last poll that was answered
	due        bool // the last poll left jobs that could be leased now
	idle       bool // this is a safety poll: it will hardly bring jobs
}

func newShard(d *dispatcher, n int) *shard {
	s := &shard{n: n, d: d, consumer: d.consumers(d.id, n), woken: make(chan struct{}, 1), slots: newRequest(), help: newHelp()}
	s.clock = &shardClock{shard: s, readAt: longAgo}
	return s
}

// role is what this worker is to a shard.
type role struct {
	owned, helping atomic.Bool
	mu             sync.Mutex // of what starts and ends the loop
	running        bool
}

// own starts or ends the ownership of the shard. A gained shard is polled at once.
func (s *shard) own(mine bool) {
	s.role.mu.Lock()
	defer s.role.mu.Unlock()
	if s.role.owned.Swap(mine) == mine {
		return
	}
	signal(s.woken)
	if mine {
		s.role.helping.Store(false)
		s.start()
	}
}

// lend starts leasing beside the owner; the loop ends it when the owner's help flag is down.
func (s *shard) lend() {
	s.role.mu.Lock()
	defer s.role.mu.Unlock()
	if s.role.owned.Load() || s.role.helping.Swap(true) {
		return // an owner hears its own call
	}
	signal(s.woken)
	s.start()
}

// start is called with the role's lock held.
func (s *shard) start() {
	if s.role.running || s.d.stop.Err() != nil {
		return
	}
	s.role.running = true
	s.d.loops.Add(1)
	go s.run()
}

// run polls, rests until the next poll is due, and so on.
func (s *shard) run() {
	defer s.d.loops.Done()
	for s.goOn() {
		p := s.poll()
		if s.brought > 0 {
			s.clock.read(p.at)
		}
		s.rest(p)
	}
	if s.d.stop.Err() == nil {
		// The scripts wake nobody before the next poll that the last one has announced; the end of
		// the worker revokes it for all shards. An error is not reported: no later call would
		// report that Redis is back.
		_ = s.consumer.Resign(s.d.work)
	}
}

// goOn reports whether the loop has anything left to do, and otherwise ends it.
func (s *shard) goOn() bool {
	s.role.mu.Lock()
	defer s.role.mu.Unlock()
	leases := s.role.owned.Load() || s.role.helping.Load()
	if s.unanswered && s.d.work.Err() == nil || leases && s.d.stop.Err() == nil {
		return true
	}
	// Under the lock: whoever gains the shard from here on starts a new loop.
	s.role.running = false
	s.role.helping.Store(false)
	s.due, s.help = false, newHelp()
	s.d.capacity.withdraw(s.slots)
	return false
}

// plan is when to poll next.
type plan struct {
	at   moment
	room bool // or as soon as there is capacity
	idle bool // or as soon as there are jobs: none is known
	must bool // not earlier, whatever happens: Redis is away
}

// wants returns how much capacity to reserve: twice what the last poll brought, but at least least.
func (s *shard) wants(least int) int {
	if s.idle {
		least = spareLeast
	}
	return min(pollMost, max(least, 2*s.brought))
}

// rest waits until the plan's moment, or for a wake-up, for capacity or the end.
func (s *shard) rest(p plan) {
	s.idle = false
	d := p.at.since(s.d.watch.now())
	if d <= 0 && !p.must {
		return
	}
	var room chan int
	woken, stop := s.woken, s.d.stop.Done()
	if p.must {
		// The end of the worker does not cut this short either: the poll is still to be answered.
		woken, stop = nil, s.d.work.Done()
	}
	if p.room {
		room = s.slots.granted
		s.d.capacity.await(s.slots, s.wants(spareLeast))
	} else {
		s.d.capacity.withdraw(s.slots) // what is granted now would lie idle
	}
	select {
	case <-time.After(d):
		s.idle = p.idle
	case <-woken:
	case n := <-room:
		room <- n // for the poll
	case <-stop:
	}
}
