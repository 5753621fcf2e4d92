package worker

import "github.com/7509e464/sluice/queue"

// shares bounds the capacity that jobs of a route and of a flow may take (bulkheads), so that an
// upstream that hangs leaves capacity to the others.
//
// Half of the capacity is guaranteed: each route has an equal part, at least one, which no other
// may take. The other half is a pool. A route may borrow at most as much as it leaves in the pool,
// and a flow may hold at most three times as much as it leaves to its route. These are dynamic
// thresholds (Choudhury and Hahne, 1998): with n greedy borrowers, each gets an equal part and the
// last part stays free. So a route or flow that wakes up finds capacity at once, even if no
// delivery of the others ends before its timeout. Of what is guaranteed to a route, one flow takes
// at most three quarters. Else its loans on other routes would leave nothing to the other flows of
// this one.
//
// A worker with a single route guarantees nothing.
type shares struct {
	routes    []string       // that are configured
	guarantee int            // slots of each of them
	held      map[string]int // by route, configured or not
	flows     map[flow]int
}

type flow struct {
	shard         int
	route, tenant string
}

func newShares(slots int, routes []string) shares {
	s := shares{routes: routes, held: map[string]int{}, flows: map[flow]int{}}
	if n := 2 * len(routes); n > 2 {
		s.guarantee = (slots + n - 1) / n
	}
	for _, route := range routes {
		s.held[route] = 0
	}
	return s
}

// count adds n to the slots that the job's route and flow hold; n is 1 or −1.
func (s *shares) count(j *job, n int) {
	f := flow{j.shard, j.lease.Route, j.lease.Tenant}
	s.held[f.route] += n
	if s.flows[f] += n; s.flows[f] == 0 {
		delete(s.flows, f)
	}
}

// bounds returns the bounds of a poll of the shard that may lease most jobs: only of routes that it
// could take beyond their share. held and free are the worker's. There are at most as many bounds
// as routes and slots together.
//
// What other polls have reserved counts as free: most of it comes back. If it counted as taken, a
// crowd of shards with a job or two each would leave a route nothing in a worker whose slots are
// free. In return, polls under way at once may take more than a route's share, even of what is
// guaranteed to others, but never more than half of what is free.
func (s *shares) bounds(shard, held, free, most int) (bounds []queue.Bound) {
	flows, greediest := map[string][]queue.Bound{}, map[string]int{} // of all shards
	for f, n := range s.flows {
		greediest[f.route] = max(greediest[f.route], n)
		if f.shard == shard {
			flows[f.route] = append(flows[f.route], queue.Bound{Tenant: f.tenant, Route: f.route, Slots: n})
		}
	}
	pool := free
	for _, route := range s.routes {
		pool -= s.own(route, greediest[route])
	}
	if pool >= 3*held+4*most {
		return nil // even a flow that held everything could take most
	}
	for route := range s.held {
		n := s.available(route, greediest[route], free, pool)
		if share(n, greediest[route]) >= most {
			continue
		}
		bounds = append(bounds, queue.Bound{Route: route, Slots: n})
		if n > 0 { // else none of its flows may take a slot, whatever it holds
			bounds = append(bounds, flows[route]...)
		}
	}
	return bounds
}

// own returns how many of the slots that are guaranteed to the route are left. greediest is what
// the flow of it holds that has most.
func (s *shares) own(route string, greediest int) int {
	borrowed := max(0, greediest-(s.guarantee-s.guarantee/4))
	return max(0, s.guarantee-(s.held[route]-borrowed))
}

// available returns how many slots the route may take: the rest of its own, and half of the pool
// beyond what it has borrowed.
func (s *shares) available(route string, greediest, free, pool int) int {
	if s.guarantee == 0 {
		return max(0, free)
	}
	own := s.own(route, greediest)
	borrowed := s.held[route] - (s.guarantee - own)
	return min(max(0, free), own+half(pool-borrowed))
}

// share returns how many of its route's available slots a flow may take, as lua/tick.lua does.
func share(available, holds int) int {
	return min(available, (max(0, 3*available-holds)+3)/4)
}

// half returns the half of n, rounded up; 0 for a negative n.
func half(n int) int { return (max(0, n) + 1) / 2 }
