package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// A check may have a pool of one route, which tenants share by their weights.
const poolName, poolRoute = "together", "pooled"

// poolTarget ends the target of such a check.
const poolTarget = "; a pool keeps its rate, and shares it by weight"

// poolTurns is a round of turns in the pool: each tenant as often as its weight.
var poolTurns = []string{"weight4", "weight2", "weight4", "weight1", "weight4", "weight2", "weight4"}

var poolTenants = []string{"weight1", "weight2", "weight4"}

func poolWeight(tenant string) (weight int) {
	for _, t := range poolTurns {
		if t == tenant {
			weight++
		}
	}
	return weight
}

// withPool adds the tenants and the route of the pool, if there is one.
func (s settings) withPool() settings {
	if s.pool == "" {
		return s
	}
	s.routes[poolRoute] = retries + ", cost_from: header"
	for _, name := range poolTenants {
		s.tenants[name] = tenant{rate: s.pool, weight: poolWeight(name)}.over(s.defaults)
	}
	return s
}

// poolRate is the rate of the pool.
func (s settings) poolRate() shaper.Rate {
	r, err := shaper.ParseRate(s.pool)
	if err != nil {
		panic(err) // written in this program
	}
	return r
}

// stockPool gives the tenants of the pool a backlog that lasts for the window, each in proportion
// to its weight. The result is when it began to leave.
func (w *world) stockPool(ctx context.Context) (instant, error) {
	jobs := int(w.scale.window / interval(w.settings.poolRate()))
	if err := w.switchPool(ctx, "pause"); err != nil {
		return 0, err
	}
	if err := w.submit(ctx, load{
		name: poolName, jobs: jobs, route: poolRoute, insist: true,
		tenants: func(i int) string { return poolTurns[i%len(poolTurns)] },
	}); err != nil {
		return 0, err
	}
	from := w.ledger.now()
	return from, w.switchPool(ctx, "resume")
}

func (w *world) switchPool(ctx context.Context, verb string) error {
	path := "/v1/pools/" + poolName + "/" + verb
	code, answer, err := w.call(ctx, http.MethodPost, w.living("api")[0].admin, path, nil, nil)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s: %d %.200s", path, code, answer)
	}
	return err
}

// poolStamps is the stamps of the pool: those of all jobs of its route.
func (w *world) poolStamps(jobs []wire.Job) (stamps []instant) {
	for _, j := range jobs {
		if j.Route == poolRoute && !j.Started.IsZero() {
			stamps = append(stamps, w.ledger.instantOf(j.Started))
		}
	}
	return stamps
}

// pool checks that the stamps of the pool keep its rate, as those of its flows do, and that its
// tenants shared it by weight from then on: until one of them had but a tenth of its jobs left.
func (e ended) pool(w *world, f *findings, from instant) {
	worst := tau(w.settings.poolRate(), w.poolStamps(e.jobs))
	for _, name := range poolTenants {
		worst = max(worst, tau(w.settings.rate(name), w.stampsOf(e.jobs, name)))
	}
	f.atMost("pool: stamps τ*", us(worst), 1, "µs")
	came := map[string][]instant{}
	for _, d := range e.deliveries {
		if d.Route == poolRoute && d.At >= from {
			came[d.Tenant] = append(came[d.Tenant], d.At)
		}
	}
	until := instant(math.MaxInt64)
	for _, name := range poolTenants {
		slices.Sort(came[name])
		if n := len(came[name]); n > 0 {
			until = min(until, came[name][n*9/10])
		}
	}
	total, got := 0.0, map[string]float64{}
	for _, name := range poolTenants {
		for _, at := range came[name] {
			if at < until {
				total++
				got[name]++
			}
		}
	}
	off := 0.0
	for _, name := range poolTenants {
		off = max(off, math.Abs(got[name]/total-float64(poolWeight(name))/float64(len(poolTurns))))
	}
	f.atLeast("pool: deliveries", total, float64(3*len(poolTurns)), "")
	f.atMost("pool: a share is off by", 100*off, 2+100/total, "%")
}
