package worker

import (
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
)

// gatherFor is how long freed slots are gathered while shards wait for them: a poll for a few jobs
// costs as much as one for many.
const gatherFor = time.Millisecond

// capacity holds the jobs in this worker, each in a slot, from the poll that brought it until it is
// settled. Polls reserve slots before they lease, at most half of the free ones, because all of
// them may go to one flow. Shards that find none queue, and while any does, no other gets one: a
// busy shard cannot starve the rest. A queued shard is granted a portion that is worth a poll, or
// after gatherFor whatever is free.
type capacity struct {
	limit int

	mu        sync.Mutex
	jobs      map[*job]struct{}
	reserved  int // by polls under way
	shares    shares
	waiting   []*request // longest waiting first
	steady    bool       // the last grant was to a steady one
	gathering bool       // a timer runs that grants what is free
}

func newCapacity(limit int, routes ...string) *capacity {
	return &capacity{limit: limit, jobs: map[*job]struct{}{}, shares: newShares(limit, routes)}
}

// request is the request of one shard for slots. The shard alone receives from granted.
type request struct {
	granted chan int // of one: slots that the shard has reserved by waiting
	want    int      // the most that the shard can use
	steady  bool     // whether jobs leave the shard all the time; see streak
}

func newRequest() *request { return &request{granted: make(chan int, 1), want: pollMost} }

// reserve returns how many slots the shard may use, up to most: those it was granted, or else what
// is free. A shard that gets none keeps its turn, if it waits already. With many set, it gets a
// portion or nothing.
func (c *capacity) reserve(r *request, most int, many bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := r.take(); n > 0 {
		return n
	}
	if len(c.waiting) > 0 {
		return 0
	}
	n := min(most, c.reservable())
	if many && n < min(most, c.portion()) {
		return 0
	}
	c.reserved += n
	return n
}

// reservable is how many slots polls may still reserve. The lock is held.
func (c *capacity) reservable() int { return max(0, half(c.limit-len(c.jobs))-c.reserved) }

// bounds returns the bounds of a poll of the shard that has reserved n slots, none without slots.
func (c *capacity) bounds(shard, n int) []queue.Bound {
	if n == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shares.bounds(shard, len(c.jobs), c.limit-len(c.jobs), n)
}

// add ends a reservation of n slots with the jobs that the poll brought. They may be more than n: a
// repeated poll brings what an earlier one leased, and a slow one has lost its reservation.
func (c *capacity) add(n int, jobs []*job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved -= n
	for _, j := range jobs {
		c.jobs[j] = struct{}{}
		c.shares.count(j, 1)
	}
	c.serve()
}

// give gives n reserved slots back.
func (c *capacity) give(n int) { c.add(n, nil) }

// remove frees the slots of jobs that have ended here.
func (c *capacity) remove(jobs ...*job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range jobs {
		delete(c.jobs, j)
		c.shares.count(j, -1)
	}
	c.serve()
}

// count returns how many jobs have ended, and only wait to be settled, or how many have not.
func (c *capacity) count(ended bool) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for j := range c.jobs {
		if j.ended.Load() == ended {
			n++
		}
	}
	return n
}

// endingBefore lists the jobs whose lease ends before m. Those that only wait to be settled are
// among them: Redis may be slow, and they would be delivered again.
func (c *capacity) endingBefore(m moment) (jobs []*job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for j := range c.jobs {
		if !j.lost.Load() && moment(j.deadline.Load()) < m {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// portion is how many slots are worth a poll: a quarter of what polls may reserve.
func (c *capacity) portion() int { return min(pollMost, max(1, c.limit/8)) }

// first is the place of the shard that is served next: of the one that waits longest. Steady ones
// and others take turns, so that a steady one does not wait for hundreds of others.
func (c *capacity) first() int {
	return max(0, slices.IndexFunc(c.waiting, func(r *request) bool { return r.steady != c.steady }))
}

// next is what the first shard is granted: a portion, or all that it can use if that is less, so
// that many shards with few jobs do not wait for one another.
func (c *capacity) next() int { return min(c.portion(), c.waiting[c.first()].want) }

// serve grants free slots in portions, and plans the grant of less than one. The lock is held.
func (c *capacity) serve() {
	for len(c.waiting) > 0 && c.reservable() >= c.next() {
		c.grant(c.next())
	}
	if len(c.waiting) == 0 || c.reservable() == 0 || c.gathering {
		return
	}
	c.gathering = true
	time.AfterFunc(gatherFor, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gathering = false
		if n := c.reservable(); len(c.waiting) > 0 && n > 0 {
			c.grant(min(n, c.waiting[c.first()].want))
		}
		c.serve()
	})
}

// grant gives n slots to the first shard.
func (c *capacity) grant(n int) {
	i := c.first()
	r := c.waiting[i]
	c.waiting = slices.Delete(c.waiting, i, i+1)
	c.reserved, c.steady = c.reserved+n, r.steady
	r.granted <- n
}

// await queues the shard, which can use want slots, unless it waits or was granted slots already.
func (c *capacity) await(r *request, want int, steady bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(r.granted) > 0 || slices.Contains(c.waiting, r) {
		return
	}
	r.want, r.steady = want, steady
	c.waiting = append(c.waiting, r)
	c.serve()
}

// withdraw ends the wait of a shard. What it was granted goes to the others.
func (c *capacity) withdraw(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = slices.DeleteFunc(c.waiting, func(other *request) bool { return other == r })
	c.reserved -= r.take()
	c.serve()
}

// take empties the request. The capacity's lock is held.
func (r *request) take() int {
	select {
	case n := <-r.granted:
		return n
	default:
		return 0
	}
}

// taken returns how many slots are in use. A poll that brings more than it reserved may exceed
// limit.
func (c *capacity) taken() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.jobs) + c.reserved
}

// left reports whether a poll can reserve a slot.
func (c *capacity) left() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reservable() > 0
}

// ofRoute returns how many slots the jobs of the route take.
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
