package worker

import (
	"context"
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
	// pollPatience is how long a poll that is not answered counts in the window and keeps
	// its capacity.
	pollPatience = 250 * time.Millisecond
)

// shard polls one shard, if the worker owns it or helps its owner. It has one goroutine, so the
// consumer is never used twice at once, and jobs are handed on in the order in which Redis gave
// them.
type shard struct {
	n              int
	d              *dispatcher
	consumer       consumer
	owned, helping atomic.Bool
	woken          chan struct{} // a token has the shard polled now
	slots          *request      // to wait for capacity
	clock          shardClock

	// Of run alone.
	pause      pauses
	help       help
	unanswered bool // the last poll failed: it may have leased jobs, and must be repeated until it is answered
	brought    int  // jobs of the last poll that was answered
	leased     streak
	due        bool // the last poll left jobs that could be leased now
	idle       bool // this is a safety poll: it will hardly bring jobs
}

// A shard is steady whose polls have brought jobs for steadyFor, with gaps of at most steadyGap.
const steadyFor, steadyGap = time.Second, 500 * time.Millisecond

// streak is since when, and until when, the polls of a shard have brought jobs.
type streak struct{ since, last moment }

// note has a poll bring jobs.
func (s *streak) note(now moment) {
	if now.since(s.last) > steadyGap {
		s.since = now
	}
	s.last = now
}

// steady reports whether jobs leave all the time.
func (s *streak) steady(now moment) bool {
	return now.since(s.last) <= steadyGap && now.since(s.since) >= steadyFor
}

func newShard(d *dispatcher, n int) *shard {
	return &shard{
		n: n, d: d, consumer: d.consumers(d.id, n), woken: make(chan struct{}, 1), slots: newRequest(),
		clock: shardClock{readAt: longAgo}, leased: streak{longAgo, longAgo},
	}
}

// own starts or ends the ownership of the shard. A gained shard is polled at once.
func (s *shard) own(mine bool) {
	if s.owned.Swap(mine) != mine {
		s.helping.Store(false)
		signal(s.woken)
	}
}

// lend starts leasing beside the owner; a poll ends it when the owner's help flag is down.
func (s *shard) lend() {
	if !s.owned.Load() && !s.helping.Swap(true) { // an owner hears its own call
		signal(s.woken)
	}
}

// leases reports whether polls of the shard may lease jobs.
func (s *shard) leases() bool {
	return (s.owned.Load() || s.helping.Load()) && !s.d.stopping.Load()
}

// run polls and rests while the shard leases, and waits otherwise. It returns once the worker is
// stopping and every poll is answered, at the latest when ctx ends.
func (s *shard) run(ctx context.Context) {
	for {
		polled := false
		for s.leases() || s.unanswered && ctx.Err() == nil {
			polled = true
			p := s.poll(ctx)
			if s.brought > 0 {
				s.read(ctx, p.at)
			}
			s.rest(ctx, p)
		}
		s.due, s.help = false, newHelp()
		s.d.capacity.withdraw(s.slots)
		if s.d.stopping.Load() {
			return // the end of the worker revokes the polls that all its shards have announced
		}
		if polled {
			// The scripts wake nobody before the next poll that the last one has announced. An
			// error is not reported: no later call would report that Redis is back.
			_ = s.consumer.Resign(ctx)
		}
		<-s.woken
	}
}

// plan is when to poll next.
type plan struct {
	at    moment
	slots bool // or as soon as there is capacity
	idle  bool // a safety poll: no job is known
	must  bool // not earlier, whatever happens: Redis does not answer
}

// wants returns how much capacity to reserve: twice what the last poll brought, but at least least.
func (s *shard) wants(least int) int {
	if s.idle {
		least = spareLeast
	}
	return min(pollMost, max(least, 2*s.brought))
}

// rest waits until the plan's moment, or for a wake-up or capacity.
func (s *shard) rest(ctx context.Context, p plan) {
	s.idle = false
	d := p.at.since(s.d.watch.now())
	if d <= 0 && !p.must {
		return
	}
	woken, granted, ended := s.woken, s.slots.granted, ctx.Done()
	if p.must {
		woken = nil
	}
	if p.slots {
		s.d.capacity.await(s.slots, s.wants(spareLeast), s.leased.steady(s.d.watch.now()))
	} else {
		s.d.capacity.withdraw(s.slots) // what is granted now would not be used
		granted = nil
	}
	select {
	case <-time.After(d):
		s.idle = p.idle
	case <-woken:
	case n := <-granted:
		granted <- n // for the poll
	case <-ended:
	}
}
