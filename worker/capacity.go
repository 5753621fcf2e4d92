package worker

import (
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
)

// gatherRoom is how long freed places are gathered while shards wait for them: a poll for a few
// jobs costs as much as one for many.
const gatherRoom = time.Millisecond

// capacity counts the worker's places. Polls reserve them before they lease, at most half of what
// no job holds, because all of it may go to one flow. A place is free again when its job is
// settled, or when the poll did not need it. Shards that find none queue, and while any does, no
// other gets one: a busy shard cannot starve the rest. A queued shard is granted a portion that is
// worth a poll, or after gatherRoom whatever there is.
type capacity struct {
	limit int

	mu        sync.Mutex
	held      int // by jobs
	pledged   int // to polls under way
	shares    shares
	waiting   []*seat // longest waiting first
	gathering bool    // a timer runs that grants what is free
}

func newCapacity(limit int, routes ...string) *capacity {
	return &capacity{limit: limit, shares: newShares(limit, routes)}
}

// seat is where one shard waits for places. The shard alone receives from room.
type seat struct {
	room chan int // of one: the places that were granted to the shard
	want int      // the most that the shard can use
}

func newSeat() *seat { return &seat{room: make(chan int, 1), want: pollMost} }

// reserve returns how many places the shard may use, up to most: those it was granted, or else what
// is free. A shard that gets none keeps its turn, if it waits already. One that knows of many jobs
// gets a portion or nothing.
func (c *capacity) reserve(s *seat, most int, many bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := s.take(); n > 0 {
		return n
	}
	if len(c.waiting) > 0 {
		return 0
	}
	n := min(most, c.unpledged())
	if many && n < min(most, c.portion()) {
		return 0
	}
	c.pledged += n
	return n
}

// unpledged is how many places polls may still reserve. It is called with the lock held.
func (c *capacity) unpledged() int { return max(0, half(c.limit-c.held)-c.pledged) }

// bounds returns the bounds of a poll of the shard that has reserved n places.
func (c *capacity) bounds(shard, n int) []queue.Bound {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shares.bounds(shard, c.held, c.limit-c.held-(c.pledged-n), n)
}

// give gives n reserved places back.
func (c *capacity) give(n int) { c.change(-n, nil, 0) }

// fill ends a reservation of n places with the jobs that the poll brought. They may be more than n:
// a repeated poll brings what an earlier one leased, and a slow one has lost its reservation.
func (c *capacity) fill(n int, jobs []*job) { c.change(-n, jobs, 1) }

// free frees the places of jobs that have ended here.
func (c *capacity) free(jobs ...*job) { c.change(0, jobs, -1) }

func (c *capacity) change(pledged int, jobs []*job, each int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pledged += pledged
	c.held += each * len(jobs)
	for _, j := range jobs {
		c.shares.count(j, each)
	}
	c.serve()
}

// portion is how many places are worth a poll: a quarter of what polls may reserve.
func (c *capacity) portion() int { return min(pollMost, max(1, c.limit/8)) }

// next is what the shard that waits longest is granted: a portion, or all that it can use if that
// is less, so that many shards with few jobs do not wait for one another.
func (c *capacity) next() int { return min(c.portion(), c.waiting[0].want) }

// serve grants free places in portions, and plans the grant of less than one. The lock is held.
func (c *capacity) serve() {
	for len(c.waiting) > 0 && c.unpledged() >= c.next() {
		c.grant(c.next())
	}
	if len(c.waiting) == 0 || c.unpledged() == 0 || c.gathering {
		return
	}
	c.gathering = true
	time.AfterFunc(gatherRoom, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gathering = false
		if n := c.unpledged(); len(c.waiting) > 0 && n > 0 {
			c.grant(min(n, c.waiting[0].want))
		}
		c.serve()
	})
}

// grant gives n places to the shard that waits longest.
func (c *capacity) grant(n int) {
	c.pledged += n
	c.waiting[0].room <- n
	c.waiting = slices.Delete(c.waiting, 0, 1)
}

// await queues the shard, which can use want places, unless it waits or was granted some already.
func (c *capacity) await(s *seat, want int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(s.room) > 0 || slices.Contains(c.waiting, s) {
		return
	}
	s.want = want
	c.waiting = append(c.waiting, s)
	c.serve()
}

// forget ends the wait of a shard; what it was granted goes to the others.
func (c *capacity) forget(s *seat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = slices.DeleteFunc(c.waiting, func(other *seat) bool { return other == s })
	c.pledged -= s.take()
	c.serve()
}

// take empties the seat. It is called with the capacity's lock held.
func (s *seat) take() int {
	select {
	case n := <-s.room:
		return n
	default:
		return 0
	}
}

// taken is how many places are in use. A poll that brings more than it reserved may exceed limit.
func (c *capacity) taken() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held + c.pledged
}

// left reports whether a poll can reserve a place.
func (c *capacity) left() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unpledged() > 0
}

// ofRoute returns how many places the jobs of the route hold.
func (c *capacity) ofRoute(route string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shares.held[route]
}

// signal puts a token into a channel of one, unless there is one already.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
