package figures

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/scrape"
)

// poolGauges describe the pools, which are few: every one has gauges.
type poolGauges struct {
	depth, running, rate, effective, departed, waiting, reserves, owed, limitedBy *prometheus.Desc
}

func newPoolGauges(m *scrape.Metrics) poolGauges {
	one := func(name, help string, labels ...string) *prometheus.Desc {
		return m.Desc("pool_"+name, help, append([]string{"pool"}, labels...)...)
	}
	return poolGauges{
		depth:   one("depth", "Jobs scheduled, queued and retrying, by pool."),
		running: one("running", "Jobs leased by a worker, by pool."),
		rate: one("rate_per_second",
			"Departures per second that the settings of the pool allow: the strictest of its rates."),
		effective: one("effective_rate_per_second",
			"Departures per second that the pool has now: below its rate for a while after a hold, 0 while paused."),
		departed: one("departed_total", "Departures, by pool."),
		waiting:  one("waiting_flows", "Flows with a job that waits for a stamp, or that repay what they owe, by pool."),
		reserves: one("reserve_ratio",
			"Reserves of the flows that wait in the pool, divided by its rate; above 1 each flow gets less than its reserve."),
		owed: one("owed",
			"What the flows and tiers of the pool owe together: what their jobs cost above the estimates, until it is repaid."),
		limitedBy: one("limited_by",
			"1 for the cause that keeps the pool's next job from leaving now, 0 for the other causes.", "by"),
	}
}

// fetch reads the pools. It leaves out those that cannot be read.
func (g poolGauges) fetch(ctx context.Context, store Store) (out []prometheus.Metric) {
	for _, name := range store.Pools() {
		p, err := store.Pool(ctx, name)
		if err != nil {
			continue
		}
		rate := p.Policy.Strictest()
		out = append(out, gauge(g.depth, float64(p.Depth), name), gauge(g.running, float64(p.Running),
			name), gauge(g.rate, rate, name),
			gauge(g.effective, p.EffectiveRate, name), gauge(g.waiting, float64(p.Waiting), name),
			gauge(g.owed, float64(p.Owed), name),
			gauge(g.reserves, p.Reserves/p.Policy.CostRate().PerSecond(), name),
			prometheus.MustNewConstMetric(g.departed, prometheus.CounterValue, float64(p.Departed), name))
		out = append(out, limitedBy(g.limitedBy, name, p.LimitedBy)...)
	}
	return out
}
