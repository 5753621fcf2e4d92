package worker

import (
	"slices"

	"github.com/7509e464/sluice/queue"
)

// shares bounds the capacity that jobs of a route and of a flow may take (bulkheads), so that an
// upstream that hangs leaves capacity to the others.
//
// Half of the capacity is guaranteed: each route has an equal part, at least one, which no other
// may take. The other half is a pool. A route may borrow at most as much as it leaves in the pool,
// and a flow may hold at most three times as much as it leaves to its route. These are dynamic
// thresholds (Choudhury and Hahne, 1998): with n greedy borrowers, each gets an equal part and the
// last part stays free. So a route or flow that wakes up finds capacity at once, even if no
// delivery of the others ends before its timeout.
//
// A worker with a single route guarantees nothing.
type shares struct {
	routes    []string
	guarantee int                           // places of each route
	held      map[string]int                // by route
	flows     map[shardRoute]map[string]int // by tenant, too
}

type shardRoute struct {
	shard int
	route string
}

func newShares(places int, routes []string) shares {
	s := shares{routes: routes, held: map[string]int{}, flows: map[shardRoute]map[string]int{}}
	if n := 2 * len(routes); n > 2 {
		s.guarantee = (places + n - 1) / n
	}
	return s
}

// count adds n places to those that the job's route and flow hold; n is 1 or −1.
func (s *shares) count(j *job, n int) {
	at := shardRoute{j.shard, j.lease.Route}
	if s.flows[at] == nil {
		s.flows[at] = map[string]int{}
	}
	add(s.held, at.route, n)
	add(s.flows[at], j.lease.Tenant, n)
	if len(s.flows[at]) == 0 {
		delete(s.flows, at)
	}
}

func add(counts map[string]int, name string, n int) {
	if counts[name] += n; counts[name] == 0 {
		delete(counts, name)
	}
}

// bounds returns the bounds of a poll of the shard that may lease most jobs: only of routes that it
// could take beyond their share. held and free are the worker's. There are at most as many bounds
// as routes and places together.
func (s *shares) bounds(shard, held, free, most int) (bounds []queue.Bound) {
	pool := free
	for _, route := range s.routes {
		pool -= s.own(route)
	}
	if pool >= 3*held+4*most {
		return nil // even a flow that held everything could take most
	}
	routes := slices.Clone(s.routes)
	for route := range s.held {
		if !slices.Contains(routes, route) {
			routes = append(routes, route) // of jobs whose route is no longer configured
		}
	}
	for _, route := range routes {
		room := s.room(route, free, pool)
		tenants := s.flows[shardRoute{shard, route}]
		greediest := 0
		for _, n := range tenants {
			greediest = max(greediest, n)
		}
		if share(room, greediest) >= most {
			continue
		}
		bounds = append(bounds, queue.Bound{Route: route, Places: room})
		for tenant, n := range tenants {
			bounds = append(bounds, queue.Bound{Tenant: tenant, Route: route, Places: n})
		}
	}
	return bounds
}

// own is what is left of the places that are guaranteed to the route.
func (s *shares) own(route string) int { return max(0, s.guarantee-s.held[route]) }

// room is how many places the route may take: what is left of its own, and half of the pool beyond
// what it has borrowed.
func (s *shares) room(route string, free, pool int) int {
	if len(s.routes) == 1 {
		return max(0, free)
	}
	own, borrowed := s.own(route), max(0, s.held[route]-s.guarantee)
	return min(max(0, free), own+half(pool-borrowed))
}

// share is how many places a flow may take of the room of its route, as lua/tick.lua computes it.
func share(room, holds int) int { return min(room, (max(0, 3*room-holds)+3)/4) }

// half is the half of n, rounded up; 0 of a negative n.
func half(n int) int { return (max(0, n) + 1) / 2 }
