package worker

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// pollMost and pollLeast bound the capacity that one poll reserves: the rest is left to other shards during its round
	// trip. Within them a shard asks for twice what it got last.
	pollMost, pollLeast = 250, 16
	// spareLeast is the least that a shard reserves when others wait for capacity, too, or when it is polled for safety only:
	// from a Redis that is far away, many such polls are under way at once.
	spareLeast = 4
	// safetyPoll is the longest time between two polls of a shard, in case a wake-up was lost. The polls of
	// idle shards are spread over the last safetySpread of it. A worker takes over its shards at once: without
	// the spread, their polls would keep coming together, and a busy shard's poll would wait for all of
	// them to return from a Redis that is far away.
	safetyPoll   = 15 * time.Second
	safetySpread = 3 * time.Second
	// leastRest keeps a shard whose next event is overdue, but is not a lease, from being polled without a pause.
	leastRest = 2 * time.Millisecond
	// pollPatience is how long a poll that is not answered keeps its room in the window and its capacity.
	pollPatience = 250 * time.Millisecond
)

// shard is one shard as this worker sees it: the loop that polls it, if the worker owns the shard or helps its owner. There
// is at most one loop at a time, so the consumer is never used twice at once, and jobs are handed on in the order in which
// Redis gave them.
type shard struct {
	n        int
	d        *dispatcher
	consumer consumer
	role     role
	woken    chan struct{} // poll now
	seat     *seat         // to wait for capacity
	clock    *shardClock

	// Of the loop alone.
	probe      *probe
	pause      pauses
	help       help
	unanswered bool // the last poll failed: it may have leased jobs, and must be repeated until it is answered
	brought    int  // jobs of the last poll that was answered
	due        bool // the last poll left jobs that could be leased now
	idle       bool // this is a safety poll: it will hardly bring jobs
}

func newShard(d *dispatcher, n int) *shard {
	s := &shard{n: n, d: d, consumer: d.consumers(d.id, n), probe: d.health.probe(), woken: make(chan struct{}, 1), seat: newSeat(), help: newHelp()}
	s.clock = newShardClock(s)
	return s
}

// role is what this worker is to a shard.
type role struct {
	mu      sync.Mutex
	owned   bool
	helping bool
	running bool // there is a loop
}

func (r *role) now() (owner, helper bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owned, r.helping
}

func (r *role) endHelp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.helping = false
}

// own starts or ends the ownership of the shard. A gained shard is polled at once.
func (s *shard) own(mine bool) {
	s.role.mu.Lock()
	defer s.role.mu.Unlock()
	if s.role.owned == mine {
		return
	}
	s.role.owned = mine
	signal(s.woken)
	if mine {
		s.role.helping = false
		s.start()
	}
}

// lend starts leasing beside the owner; the loop ends it when the owner does not ask any more.
func (s *shard) lend() {
	s.role.mu.Lock()
	defer s.role.mu.Unlock()
	if s.role.owned || s.role.helping {
		return // an owner hears its own call
	}
	s.role.helping = true
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

// poke has the shard polled now, if there is a loop.
func (s *shard) poke() {
	s.role.mu.Lock()
	defer s.role.mu.Unlock()
	if s.role.running {
		signal(s.woken)
	}
}

// run polls, rests until the next poll is due, and so on.
func (s *shard) run() {
	defer s.d.loops.Done()
	timer := time.NewTimer(safetyPoll)
	defer timer.Stop()
	for s.goOn() {
		p := s.poll()
		if s.brought > 0 {
			s.clock.read(p.at)
		}
		s.rest(p, timer)
	}
	if s.d.stop.Err() == nil {
		// The last poll may have planned another, on which the scripts rely before they wake anybody. At the end of the worker its
		// leaving says the same for all shards. Whether it was heard tells nothing of the next poll, for which alone the probe is: another
		// loop may have begun by now, and without one nobody would ever report that Redis is back.
		_ = s.consumer.Resign(s.d.work)
	}
}

// goOn reports whether the loop has anything left to do, and otherwise marks it as ended.
func (s *shard) goOn() bool {
	s.role.mu.Lock()
	defer s.role.mu.Unlock()
	switch {
	case s.unanswered && s.d.work.Err() == nil:
		return true
	case (s.role.owned || s.role.helping) && s.d.stop.Err() == nil:
		return true
	}
	// Under the lock: whoever gains the shard from here on starts a new loop.
	s.role.running, s.role.helping = false, false
	s.due, s.help = false, newHelp()
	s.d.capacity.forget(s.seat)
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
func (s *shard) rest(p plan, timer *time.Timer) {
	s.idle = false
	d := p.at.since(s.d.watch.now())
	if d <= 0 && !p.must {
		return
	}
	var room chan struct{}
	if p.room {
		room = s.seat.room
		s.d.capacity.await(s.seat, s.wants(spareLeast))
	} else {
		s.d.capacity.forget(s.seat) // what is granted now would lie idle
	}
	timer.Reset(d)
	if p.must {
		// The end of the worker does not cut this short either: the poll is still to be answered.
		select {
		case <-timer.C:
		case <-s.d.work.Done():
		}
		return
	}
	select {
	case <-timer.C:
		s.idle = p.idle
	case <-s.woken:
	case <-room:
	case <-s.d.stop.Done():
	}
}

// safety is when an idle shard is polled again.
func safety(now moment) moment { return now.add(safetyPoll - rand.N(safetySpread)) }
