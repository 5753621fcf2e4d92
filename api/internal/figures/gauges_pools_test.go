package figures

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestGaugesOfPools(t *testing.T) {
	per := func(limit int64) *shaper.Rate { return &shaper.Rate{Limit: limit, Period: time.Second} }
	baseline := shaper.Baseline{Pools: map[string]shaper.PoolSettings{
		"erp":  {Overrides: shaper.Overrides{Rate: per(50), Rates: &[]shaper.PaceJSON{{Limit: 20, PeriodMS: 1000}}}},
		"mail": {Overrides: shaper.Overrides{Rate: per(10), Paused: new(true)}},
	}}
	store := &fixed{pools: map[string]queue.Pool{}}
	for name, limitedBy := range map[string]string{"erp": "idle", "mail": "paused"} {
		p := queue.Pool{Running: 3, Departed: 7, Waiting: 2, Reserves: 25, Owed: 40, LimitedBy: limitedBy}
		p.Policy, _ = baseline.ResolvePoolCost(name, shaper.Overrides{})
		store.pools[name] = p
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(newGauges(store, newTally(store), newShown(nil, 0))); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"sluice_pool_rate_per_second erp": 20, "sluice_pool_reserve_ratio erp": 1.25,
		"sluice_pool_reserve_ratio mail": 2.5, "sluice_pool_running erp": 3,
		"sluice_pool_departed_total mail": 7, "sluice_pool_waiting_flows erp": 2,
		"sluice_pool_depth erp": 0, "sluice_pool_owed erp": 40, "sluice_pool_effective_rate_per_second mail": 0,
		"sluice_pool_limited_by idle erp": 1, "sluice_pool_limited_by paused mail": 1,
		"sluice_pool_limited_by pool mail": 0,
	} {
		if value, is := got[name]; !is || value != want {
			t.Errorf("%s is %v (%v), want %v", name, value, is, want)
		}
	}
}
