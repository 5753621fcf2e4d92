package worker

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/queue"
)

// poll lets a flow take what a poll for it may lease, as lua/tick.lua applies the bounds; most
// bounds one poll.
func poll(c *capacity, shard int, tenant, route string, most int) []*job {
	n := c.reserve(newRequest(), most, false)
	lease, holds := n, 0
	bounds := c.bounds(shard, n)
	for _, b := range bounds {
		if b.Route == route && b.Tenant == tenant {
			holds = b.Slots
		}
	}
	for _, b := range bounds {
		if b.Route == route && b.Tenant == "" {
			lease = min(lease, share(b.Slots, holds))
		}
	}
	jobs := jobsOf(tenant, route, lease)
	for _, j := range jobs {
		j.shard = shard
	}
	c.add(n, jobs)
	return jobs
}

// TestHangingFlowsLeaveAShare: flows whose jobs never end take all they may, and one that wakes up
// then finds slots at once.
func TestHangingFlowsLeaveAShare(t *testing.T) {
	routes := []string{"well"}
	for r := range 49 {
		routes = append(routes, fmt.Sprint("sick-", r))
	}
	for _, tt := range []struct {
		name                                string
		slots, routes, tenants, take, least int
	}{
		{"one of two routes, job by job", 256, 2, 24, 1, 64},
		{"one of two routes, in large polls", 256, 2, 24, pollMost, 64},
		{"49 of 50 routes, job by job", 256, 50, 24, 1, 3},
		{"49 of 50 routes, in large polls", 256, 50, 24, pollMost, 3},
		{"49 of 50 routes of one tenant each", 256, 50, 1, 1, 3},
		{"one flow of a single route", 256, 1, 1, pollMost, 40},
		{"24 flows of a single route", 256, 1, 24, 1, 2},
		{"a single slot", 1, 1, 0, 1, 1},
		{"two slots and two routes", 2, 2, 1, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCapacity(tt.slots, routes[:tt.routes]...)
			sick := routes[max(0, min(1, tt.routes-1)):tt.routes]
			for taken := -1; taken < c.taken(); {
				taken = c.taken()
				for _, route := range sick {
					for k := range tt.tenants {
						poll(c, k, fmt.Sprint("hanging-", k), route, tt.take)
					}
				}
			}
			got := 0
			for range 10 {
				got += len(poll(c, 99, "waking", "well", pollLeast))
			}
			if got < tt.least {
				t.Errorf("beside %d slots that hang, one that wakes up got %d, want at least %d",
					c.taken()-got, got, tt.least)
			}
		})
	}
}

// TestNoBoundsWhereNothingIsCongested: an ordinary poll carries no bounds.
func TestNoBoundsWhereNothingIsCongested(t *testing.T) {
	c := newCapacity(256, "default", "other", "third")
	c.add(0, jobsOf("acme", "default", 40))
	n := c.reserve(newRequest(), pollLeast, false)
	if b := c.bounds(0, n); n != pollLeast || b != nil {
		t.Errorf("a poll for %d jobs has the bounds %v", n, b)
	}
}

// TestBoundsNameWhatTheyConcern: only the routes and the shard's flows that a poll could take too
// much of.
func TestBoundsNameWhatTheyConcern(t *testing.T) {
	c := newCapacity(100, "sick", "well")
	greedy := jobsOf("acme", "sick", 40)
	other := jobsOf("zoe", "sick", 2)
	for _, j := range other {
		j.shard = 1
	}
	c.add(0, append(greedy, other...))
	c.add(0, jobsOf("acme", "well", 1))
	n := c.reserve(newRequest(), 8, false)
	got := fmt.Sprint(c.bounds(0, n))
	want := fmt.Sprint([]queue.Bound{{Route: "sick", Slots: 8}, {Tenant: "acme", Route: "sick", Slots: 40}})
	if got != want {
		t.Errorf("the bounds are %v, want %v", got, want)
	}
}

// TestCrowdOfShards: many shards poll at once for a job or two each. Though together they have
// reserved half of the free slots, each poll may use what the route may still take.
func TestCrowdOfShards(t *testing.T) {
	c := newCapacity(256, "default", "a", "b", "c", "d", "e", "f")
	c.add(0, jobsOf("acme", "default", 30))
	polls := 0
	for ; c.left(); polls++ {
		n := c.reserve(newRequest(), pollLeast, false)
		for _, b := range c.bounds(polls, n) {
			if b.Route == "default" && b.Tenant == "" && b.Slots < pollLeast {
				t.Errorf("poll %d gets %d slots of %d that are free", polls, b.Slots, 256-30)
			}
		}
	}
	if polls < 7 {
		t.Errorf("%d polls reserve half of the slots", polls)
	}
}

// TestHangingRoutesLeaveSlots: whatever polls are under way at once, one or two routes whose jobs
// never end leave to another one at least half of what is guaranteed to it.
func TestHangingRoutesLeaveSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"well"}
		for i := range rapid.IntRange(1, 2).Draw(t, "sick routes") {
			names = append(names, fmt.Sprint("sick-", i))
		}
		c := newCapacity(rapid.IntRange(2*len(names), 400).Draw(t, "slots"), names...)
		var underWay []func()
		for range 400 {
			if len(underWay) > 0 && (rapid.IntRange(0, 2).Draw(t, "answered") == 0 || !c.left()) {
				underWay[0]()
				underWay = underWay[1:]
				continue
			}
			n, lease := c.reserve(newRequest(), pollLeast, false), 0
			route, tenant := rapid.SampledFrom(names[1:]).Draw(t, "route"), drawFlow(t, len(underWay))
			if lease = n; n > 0 {
				lease = mayTake(c.bounds(0, n), tenant, route, n)
			}
			underWay = append(underWay, func() { c.add(n, jobsOf(tenant, route, lease)) })
		}
		for _, answered := range underWay {
			answered()
		}
		if free, least := c.limit-c.taken(), c.shares.guarantee/2-1; free < least {
			t.Errorf("%d of %d slots are left to a route with a guarantee of %d", free, c.limit, c.shares.guarantee)
		}
	})
}

// TestOneTenantLeavesSlotsOfEachRoute: whatever polls are under way at once, a tenant whose jobs
// never end, on any of the routes, leaves a slot of each route to the other tenants there.
func TestOneTenantLeavesSlotsOfEachRoute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var names []string
		for i := range rapid.IntRange(2, 12).Draw(t, "routes") {
			names = append(names, fmt.Sprint("route-", i))
		}
		sick := names[:rapid.IntRange(1, len(names)).Draw(t, "sick routes")]
		c := newCapacity(rapid.IntRange(16*len(names), 600).Draw(t, "slots"), names...)
		var underWay []func()
		for range 600 {
			if len(underWay) > 0 && (rapid.IntRange(0, 2).Draw(t, "answered") == 0 || !c.left()) {
				underWay[0]()
				underWay = underWay[1:]
				continue
			}
			n, lease := c.reserve(newRequest(), pollLeast, false), 0
			route := rapid.SampledFrom(sick).Draw(t, "route")
			if lease = n; n > 0 {
				lease = mayTake(c.bounds(0, n), "acme", route, n)
			}
			underWay = append(underWay, func() { c.add(n, jobsOf("acme", route, lease)) })
		}
		for _, answered := range underWay {
			answered()
		}
		for _, route := range names {
			n := c.reserve(newRequest(), 1, false)
			if n == 0 || mayTake(c.bounds(0, n), "other", route, n) == 0 {
				t.Fatalf("nothing is left to another tenant of %s: %d of %d slots are taken, %v by route", route, c.taken()-n, c.limit,
					c.shares.held)
			}
			c.give(n)
		}
	})
}

// drawFlow draws the tenant of a poll's jobs: one that takes all that it may, or one of many.
func drawFlow(t *rapid.T, i int) string {
	if rapid.Bool().Draw(t, "of the greedy one") {
		return "acme"
	}
	return fmt.Sprint("crowd-", i, "-", rapid.IntRange(0, 1000).Draw(t, "one of many"))
}

// mayTake is how many slots a flow may take at a poll with these bounds, which has reserved n.
func mayTake(bounds []queue.Bound, tenant, route string, n int) int {
	available, holds := n, 0
	bounded := false
	for _, b := range bounds {
		switch {
		case b.Route != route:
		case b.Tenant == "":
			available, bounded = b.Slots, true
		case b.Tenant == tenant:
			holds = b.Slots
		}
	}
	if !bounded {
		return n
	}
	return min(n, share(available, holds))
}

// TestOneRouteNeverTakesAll: whatever polls are under way at once and in whatever order they bring
// jobs of one route that never end, a fifth of the slots stays free.
func TestOneRouteNeverTakesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(10, 400).Draw(t, "slots")
		c := newCapacity(slots, "sick", "well")
		type reservation struct {
			n, lease int
			tenant   string
		}
		var underWay []reservation
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(underWay) > 0 && rapid.Bool().Draw(t, "answered") {
				r := underWay[0]
				underWay = underWay[1:]
				c.add(r.n, jobsOf(r.tenant, "sick", r.lease))
				continue
			}
			n := c.reserve(newRequest(), rapid.IntRange(1, pollMost).Draw(t, "most"), false)
			tenant := drawFlow(t, len(underWay))
			underWay = append(underWay, reservation{n, mayTake(c.bounds(0, n), tenant, "sick", n), tenant})
		}
		for _, r := range underWay {
			c.add(r.n, jobsOf(r.tenant, "sick", r.lease))
		}
		if free := slots - c.taken(); free < slots/5 {
			t.Errorf("%d of %d slots are left", free, slots)
		}
	})
}
