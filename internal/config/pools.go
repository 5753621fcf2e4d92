package config

import (
	"maps"
	"math"
	"slices"

	"github.com/7509e464/sluice/shaper"
)

// PoolReserves is a pool with the reserves that its flows may claim. Reserves and rates are in
// costs a second.
type PoolReserves struct {
	Name      string
	Routes    []string
	Strictest shaper.Rate // of its rates by cost
	MaxCost   int64       // of a job
	Reserved  float64     // sum over the flows of the named tenants
	// Others are the reserves of tenants that are not named: those of each tier, and under the
	// empty name those of the defaults. A tier without reserves is absent.
	Others map[string]OtherReserves
}

// OtherReserves are the reserves of each tenant of a tier that is not named.
type OtherReserves struct {
	Each float64 // sum over the flows of one tenant
	Most int64   // such tenants whose reserves fit beside those of the named ones
}

// Pools returns the pools by name. The rate may be less than what all flows reserve: the tenants of
// a tier are not counted in the file.
func (c Config) Pools() []PoolReserves {
	b := c.Tenants.Baseline()
	var pools []PoolReserves
	for _, name := range slices.Sorted(maps.Keys(b.Pools)) {
		policy, _ := b.ResolvePool(name, shaper.Overrides{})
		p := PoolReserves{Name: name, Routes: b.Pools[name].Routes, Strictest: policy.CostRate(),
			MaxCost: policy.PoolCost(),
			Others:  map[string]OtherReserves{}}
		for _, o := range c.Tenants.Named {
			p.Reserved += reservedIn(b, p.Routes, shaper.Statements{File: o})
		}
		for _, tier := range append(slices.Collect(maps.Keys(b.Tiers)), "") {
			if each := reservedIn(b, p.Routes, shaper.Statements{Claimed: tier}); each > 0 {
				left := p.Strictest.PerSecond()*(1+1e-9) - p.Reserved
				p.Others[tier] = OtherReserves{each, int64(max(0, math.Floor(left/each)))}
			}
		}
		pools = append(pools, p)
	}
	return pools
}

// reservedIn is the sum of the reserves of a tenant's flows on the routes.
func reservedIn(b shaper.Baseline, routes []string, s shaper.Statements) float64 {
	sum := 0.0
	for _, route := range routes {
		if p, _ := b.Resolve(s, route); p.Reserve != (shaper.Rate{}) {
			sum += p.Reserve.PerSecond()
		}
	}
	return sum
}
