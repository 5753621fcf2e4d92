package worker

import (
	"slices"
	"sync"
	"time"
)

// gatherRoom is how long places that have come free are gathered while shards wait for them: a look for a few jobs costs as much as one for
// many.
const gatherRoom = time.Millisecond

// capacity counts the worker's places. They are reserved before a look, so that all the looks under way together cannot lease
// more than there is room for, and given back when the job is settled or was not there. Shards that find no place queue for
// the next ones; while any does, no other gets one, so a busy shard cannot starve the rest. Such a shard is granted places in portions that
// are worth a look, or after gatherRoom whatever there is.
type capacity struct {
	limit int

	mu        sync.Mutex
	used      int
	waiting   []*seat // longest waiting first
	gathering bool    // a timer runs that grants what is free
}

// seat is where one shard waits for places.
type seat struct {
	room  chan struct{} // holds a token once places were granted
	grant int           // taken on the shard's behalf; guarded by the capacity's lock
}

func newSeat() *seat { return &seat{room: make(chan struct{}, 1)} }

// reserve returns how many places the shard may use, up to most: those it was granted, or else what is free. A shard that gets
// none keeps its turn, if it waits already. One that knows of many jobs is given a portion or nothing.
func (c *capacity) reserve(s *seat, most int, many bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := s.take(); n > 0 {
		return n
	}
	if len(c.waiting) > 0 {
		return 0
	}
	n := max(0, min(most, c.limit-c.used))
	if many && n < min(most, c.portion()) {
		return 0
	}
	c.used += n
	return n
}

// charge takes n places whether they are free or not: a repeated look may bring more than was reserved for it this time.
func (c *capacity) charge(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used += n
}

// give gives n places back, and grants them to the shards that wait.
func (c *capacity) give(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used -= n
	c.serve()
}

// portion is how many places are worth a look.
func (c *capacity) portion() int { return min(lookMost, max(1, c.limit/4)) }

// serve grants free places in portions, and sees to it that what is less than one is granted soon. It is called with the lock held.
func (c *capacity) serve() {
	for len(c.waiting) > 0 && c.limit-c.used >= c.portion() {
		c.grant(c.portion())
	}
	if len(c.waiting) > 0 && c.used < c.limit && !c.gathering {
		c.gathering = true
		time.AfterFunc(gatherRoom, c.serveRest)
	}
}

func (c *capacity) serveRest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gathering = false
	if free := c.limit - c.used; len(c.waiting) > 0 && free > 0 {
		c.grant(min(free, lookMost))
	}
	c.serve()
}

// grant gives n places to the shard that waits longest.
func (c *capacity) grant(n int) {
	s := c.waiting[0]
	s.grant = n
	c.used += n
	c.waiting = slices.Delete(c.waiting, 0, 1)
	signal(s.room)
}

// await queues the shard, unless it waits or was granted places already; its room is signalled when it gets some, which may
// be at once.
func (c *capacity) await(s *seat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.grant > 0 || slices.Contains(c.waiting, s) {
		return
	}
	c.waiting = append(c.waiting, s)
	c.serve()
}

// forget ends the wait of a shard; what it was granted goes to the others.
func (c *capacity) forget(s *seat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, s); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	c.used -= s.take()
	c.serve()
}

// take empties the seat. It is called with the capacity's lock held.
func (s *seat) take() int {
	n := s.grant
	s.grant = 0
	select {
	case <-s.room:
	default:
	}
	return n
}

// taken is how many places are in use; more than limit after a charge.
func (c *capacity) taken() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// free reports whether there is a place left.
func (c *capacity) free() bool { return c.taken() < c.limit }

// signal puts a token into a channel of one, unless there is one already.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
