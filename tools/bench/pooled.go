package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// poolRun is the processor time that Redis takes for a job of one of many tenants, in µs.
type poolRun struct {
	Admit       float64 `json:"admit_us"` // without a pool
	Drain       float64 `json:"tick_settle_us"`
	PooledAdmit float64 `json:"pool_admit_us"`
	PooledDrain float64 `json:"pool_tick_settle_us"`
}

func (r poolRun) ratio() float64 { return (r.PooledAdmit + r.PooledDrain) / (r.Admit + r.Drain) }

// measurePool fills and drains the queues of many tenants, in turns without a pool and in one. A
// poll leases one job of each tenant, with and without the pool: without it, because of its rate.
func measurePool(ctx context.Context, b *bench) ([]float64, error) {
	var runs []poolRun
	var ratios []float64
	lines := []string{fmt.Sprintf("%-8s %10s %12s %15s %17s %8s   Redis µs a job", "pool", "admit", "tick+settle",
		"in a pool admit", "tick+settle", "ratio")}
	for n := range b.runs {
		var r poolRun
		var err error
		if r.Admit, r.Drain, err = drainPool(ctx, b, nil); err != nil {
			return nil, err
		}
		fast := shaper.Rate{Limit: shaper.MaxPerSecond, Period: time.Second}
		pools := map[string]shaper.PoolSettings{"all": {Routes: []string{route}, Overrides: shaper.Overrides{Rate: &fast}}}
		if r.PooledAdmit, r.PooledDrain, err = drainPool(ctx, b, pools); err != nil {
			return nil, err
		}
		b.progress("P13: run %d of %d: %.2f", n+1, b.runs, r.ratio())
		runs, ratios = append(runs, r), append(ratios, r.ratio())
		lines = append(lines, fmt.Sprintf("run %-4d %10.1f %12.1f %15.1f %17.1f %8.2f", n+1, r.Admit, r.Drain,
			r.PooledAdmit, r.PooledDrain, r.ratio()))
	}
	b.detail("P13", lines, runs)
	return ratios, nil
}

// drainPool is the processor time of a job in Redis: of its admission, and of its lease and end.
func drainPool(
	ctx context.Context, b *bench, pools map[string]shaper.PoolSettings,
) (admit, drain float64, err error) {
	const jobs = 5 // of each tenant
	s, err := open(ctx, func(o *queue.Options) {
		if o.Pools = pools; pools == nil {
			o.Defaults.Rate = shaper.Rate{Limit: 10, Period: time.Second}
		}
	})
	if err != nil {
		return 0, 0, err
	}
	defer s.close()
	used := func(from float64) float64 { return (micros(s.server.cpu()) - from) / (jobs * manyTenants) }
	start := micros(s.server.cpu())
	name := func(i int) string { return "pool-" + strconv.Itoa(i) }
	if err := s.fillMany(ctx, manyTenants, jobs, name, 0, func(string) {}); err != nil {
		return 0, 0, err
	}
	admit, start = used(start), micros(s.server.cpu())
	handled := newCounter(jobs * manyTenants)
	cfg := worker.Config{
		Routes: map[string]worker.Route{route: {Handler: true}}, Handler: handled,
		Concurrency: drainConcurrency, Logger: slog.New(slog.DiscardHandler),
	}
	_, err = s.whileWorking(ctx, cfg, func() (float64, error) {
		what := fmt.Sprintf("%d tenants, %d pools", manyTenants, len(pools))
		return handled.measured(ctx, b, what, s.server, jobs*manyTenants)
	})
	return admit, used(start), err
}
