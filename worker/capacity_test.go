package worker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
)

// jobsOf makes n jobs of a flow of shard 0.
func jobsOf(tenant, route string, n int) []*job {
	jobs := make([]*job, n)
	for i := range jobs {
		jobs[i] = &job{lease: queue.Lease{
			LeaseRef: queue.LeaseRef{ID: fmt.Sprint(tenant, route, i)}, Tenant: tenant, Route: route,
		}}
	}
	return jobs
}

func TestCapacity(t *testing.T) {
	c := newCapacity(100, "default")
	s := newRequest()
	if n := c.reserve(s, 32, true); n != 32 {
		t.Errorf("reserved %d of 32", n)
	}
	if n := c.reserve(s, 8, false); n != 8 {
		t.Errorf("reserved %d of 8", n)
	}
	if n := c.reserve(s, 64, true); n != 0 {
		t.Errorf("reserved %d for many jobs, 10 are not worth a poll", n)
	}
	if n := c.reserve(s, 64, false); n != 10 {
		t.Errorf("reserved %d, only 10 are left of the half that polls may reserve", n)
	}
	if n := c.reserve(s, 1, false); n != 0 || c.left() {
		t.Errorf("reserved %d beyond the half of what no job holds", n)
	}
	all := jobsOf("acme", "default", 110)
	c.add(50, all)
	if c.left() || c.taken() != 110 {
		t.Errorf("%d slots are taken, want 110", c.taken())
	}
	c.remove(all[:10]...)
	if c.left() {
		t.Error("what was taken beyond the limit is not left when it is freed")
	}
	c.remove(all[10:]...)
	if c.taken() != 0 || c.ofRoute("default") != 0 {
		t.Errorf("%d slots are taken, by route %v", c.taken(), c.ofRoute("default"))
	}
}

func TestCapacityIsGrantedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCapacity(100, "default")
		running := jobsOf("acme", "default", 100)
		c.add(0, running)
		free := func(n int) {
			c.remove(running[:n]...)
			running = running[n:]
		}
		a, b, d := newRequest(), newRequest(), newRequest()
		c.await(a, pollMost, false)
		c.await(a, pollMost, false) // waits once
		c.await(b, pollMost, false)
		c.await(d, pollMost, false)
		free(1)
		if len(a.granted) != 0 {
			t.Fatal("one slot is not worth a poll yet")
		}
		gathered()
		if len(a.granted) != 1 || len(b.granted) != 0 {
			t.Fatal("one slot must go to the one that waits longest, after a while")
		}
		if n := c.reserve(newRequest(), 64, false); n != 0 {
			t.Fatalf("another one got %d slots before its turn", n)
		}
		// The first one goes without a poll: its slot is the next one's.
		c.withdraw(a)
		gathered()
		slots := []int{len(a.granted), len(b.granted), len(d.granted)}
		queuetest.Compare(t, "the slots of the shards, the unused one passed on", slots, []int{0, 1, 0})
		c.await(b, pollMost, false) // has its slot already
		if n := c.reserve(b, 64, true); n != 1 || len(b.granted) != 0 {
			t.Errorf("reserved %d, one was granted", n)
		}
		if n := c.reserve(d, 64, true); n != 0 {
			t.Errorf("reserved %d of a full capacity", n)
		}
		free(40)
		if n := c.reserve(d, 64, true); n != 12 {
			t.Errorf("reserved %d, a portion of 12 was granted to the last one waiting", n)
		}
		c.await(a, pollMost, false)
		gathered()
		if n := c.reserve(a, 64, true); n != 8 || c.left() {
			t.Errorf("reserved %d of the 8 that polls may still reserve", n)
		}
	})
}

// gathered lets the time of gathering go by.
func gathered() {
	time.Sleep(gatherFor)
	synctest.Wait()
}

func TestCapacityIsSharedAmongThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCapacity(200, "default")
		running := jobsOf("acme", "default", 200)
		c.add(0, running)
		seats := []*request{newRequest(), newRequest(), newRequest(), newRequest()}
		for _, s := range seats {
			c.await(s, pollMost, false)
		}
		c.remove(running[:70]...)
		c.remove(running[70:130]...)
		gathered()
		for i, want := range []int{25, 25, 15, 0} {
			if n := c.reserve(seats[i], pollMost, true); n != want {
				t.Errorf("shard %d got %d slots, want %d", i, n, want)
			}
		}
	})
}

// Shards that can use few slots each do not wait for one another while there are enough for all.
func TestCapacityIsGrantedAsRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCapacity(200, "default")
		c.add(0, jobsOf("acme", "default", 120))
		c.reserve(newRequest(), 40, false) // all that polls may reserve
		var seats []*request
		for range 10 {
			s := newRequest()
			c.await(s, spareLeast, false)
			seats = append(seats, s)
		}
		c.give(40)
		for i, s := range seats {
			if len(s.granted) != 1 {
				t.Errorf("shard %d waits although there are 4 slots for each", i)
			}
		}
	})
}

// TestCapacityIsGrantedToSteadyShardsInTurns: steady shards and others take turns, however many of
// either wait, and each kind is served in the order in which they came.
func TestCapacityIsGrantedToSteadyShardsInTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCapacity(2, "default") // of which polls may reserve one
		held := jobsOf("acme", "default", 2)
		c.add(0, held)
		waiting, last := map[bool][]*request{}, false
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			steady := rapid.Bool().Draw(t, "steady")
			if rapid.Bool().Draw(t, "asks") {
				r := newRequest()
				c.await(r, 1, steady)
				waiting[steady] = append(waiting[steady], r)
				continue
			}
			c.remove(held...)
			if len(waiting[true])+len(waiting[false]) > 0 {
				if last = !last; len(waiting[last]) == 0 {
					last = !last
				}
				r := waiting[last][0]
				if waiting[last] = waiting[last][1:]; c.reserve(r, 1, false) != 1 {
					t.Fatalf("the slot is not granted to the first of those whose steady is %v", last)
				}
				c.add(1, held)
			} else {
				c.add(0, held)
			}
		}
	})
}
