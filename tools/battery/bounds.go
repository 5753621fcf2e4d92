package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"
)

// bounds are the checks of invariant 1.
func bounds() []check {
	return []check{
		{
			id: "B1", what: "the bound, by porcupine: histories of concurrent clients per tenant",
			target: "every history linearizable, max depth at admission = capacity, false 429 = 0",
			quick:  scale{jobs: 20, tenants: 8, rounds: 16},
			full:   scale{jobs: 40, tenants: 8, rounds: 60, limit: 5 * time.Minute},
			run:    bounded,
		},
	}
}

// clientsPerTenant is how many clients call at once on behalf of one tenant.
const clientsPerTenant = 5

// plan is what the clients of one tenant will do, drawn before they start.
type plan struct {
	tenant   string
	capacity int
	clients  [][]ask
	delayed  []bool // by job
}

// drawPlan draws a plan of n calls for each client.
func drawPlan(rng *rand.Rand, tenant string, capacity, n int) plan {
	p := plan{tenant: tenant, capacity: capacity, clients: make([][]ask, clientsPerTenant)}
	fresh := func(n int, delayed bool) (jobs []int) {
		for range n {
			jobs = append(jobs, len(p.delayed))
			p.delayed = append(p.delayed, delayed)
		}
		return jobs
	}
	for i := range n {
		for c := range p.clients {
			var known []int // that this client has submitted before, or another one is about to
			for _, a := range p.clients[c] {
				known = append(known, a.jobs...)
			}
			if c > 0 {
				known = append(known, p.clients[c-1][i].jobs...)
			}
			a := ask{verb: submit}
			switch dice := rng.IntN(100); {
			case dice < 8 && len(known) > 0:
				job := known[len(known)-1]
				a.jobs, a.delayed = []int{job}, p.delayed[job]
			case dice < 16:
				a.jobs, a.atomic = fresh(2+rng.IntN(3), false), rng.IntN(2) == 0
			case dice < 30 && len(known) > 0:
				a.verb, a.jobs = cancel, []int{known[rng.IntN(len(known))]}
			case dice < 42 && len(known) > 0:
				a.verb, a.jobs = poll, []int{known[rng.IntN(len(known))]}
			case dice < 49:
				a.verb = stat
			case dice < 53 && c == 0:
				a.verb, a.capacity = resize, 1+rng.IntN(2*capacity)
			default:
				a.delayed = rng.IntN(12) == 0
				a.jobs = fresh(1, a.delayed)
			}
			p.clients[c] = append(p.clients[c], a)
		}
	}
	return p
}

// bounded lets clients make histories on tenants of their own. When all jobs have left, porcupine
// checks the histories.
func bounded(ctx context.Context, w *world, f *findings) error {
	var plans []plan
	s := settings{tenants: map[string]tenant{}}
	for i := range w.scale.rounds * w.scale.tenants {
		p := drawPlan(w.rng, "tenant"+strconv.Itoa(i), 1+w.rng.IntN(12), w.scale.jobs)
		s.tenants[p.tenant] = tenant{rate: []string{"50/s", "200/s", "500/s"}[w.rng.IntN(3)], capacity: p.capacity}
		plans = append(plans, p)
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	var players []*player
	for round := range slices.Chunk(plans, w.scale.tenants) {
		w.say("histories %d to %d of %d", len(players)+1, len(players)+len(round), len(plans))
		var wg sync.WaitGroup
		for _, p := range round {
			y := &player{w: w, plan: p, ids: make([]string, len(p.delayed))}
			players = append(players, y)
			seed := w.rng.Uint64()
			wg.Go(func() { y.play(ctx, seed) })
		}
		wg.Wait()
	}
	if err := w.drain(ctx); err != nil {
		return err
	}
	b := &boundResults{arrived: map[string]instant{}}
	for _, d := range w.ledger.delivered(0) {
		if _, again := b.arrived[d.Job]; !again {
			b.arrived[d.Job] = d.At
		}
	}
	for _, y := range players {
		y.do(ctx, 0, ask{verb: stat}) // all is over
		if err := b.take(ctx, y); err != nil {
			return err
		}
	}
	if err := b.check(ctx, w); err != nil {
		return err
	}
	b.find(f, w)
	return nil
}
