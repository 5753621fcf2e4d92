package shaper

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sources of a setting, the strongest first.
const (
	SourceAPI     = "api"        // a change at run time
	SourceFile    = "file"       // the tenant in the configuration file
	SourceTier    = "tier:"      // and the name of the tier
	SourceDefault = "default"    // the defaults
	SourceClaim   = "credential" // of the tier alone
)

// Baseline holds the settings of tenants without settings of their own: the defaults, and the tiers
// that a tenant may have.
type Baseline struct {
	Defaults Policy
	Routes   map[string]Overrides    // defaults of a route's flows
	Tiers    map[string]Overrides    // laid over the defaults, by name
	Pools    map[string]PoolSettings `json:",omitempty"` // by name
	// PoolWeights are the weights of tiers whose tenants are a class: all tenants that claim the
	// tier count in a pool as one flow of that weight. A tenant with settings of its own is in no
	// class.
	PoolWeights map[string]int64 `json:",omitempty"`
}

// PoolSettings declare a pool in the configuration file: the routes whose flows share it, and its
// rate, further rates, burst, capacities, concurrency and pause.
type PoolSettings struct {
	Routes    []string
	Overrides Overrides
	HoldPool  bool          `json:",omitempty"` // see Policy
	MaxHold   time.Duration `json:",omitempty"` // 0: DefaultMaxHold
}

// PoolOf returns the name of the pool that a route is in, empty for none.
func (b Baseline) PoolOf(route string) string {
	for name, pool := range b.Pools {
		if slices.Contains(pool.Routes, route) {
			return name
		}
	}
	return ""
}

// PoolDefaults is what a pool has without settings: no bound but a rate, which every pool states.
func PoolDefaults() Policy { return Policy{Burst: 1, Capacity: MaxCapacity, MaxHold: DefaultMaxHold} }

// ResolvePool is the policy of a pool with these API overrides, and the source of each setting.
func (b Baseline) ResolvePool(name string, api Overrides) (Policy, map[string]string) {
	p, sources := PoolDefaults(), map[string]string{}
	p.HoldPool, p.MaxHold = b.Pools[name].HoldPool, cmp.Or(b.Pools[name].MaxHold, DefaultMaxHold)
	for _, setting := range Names(SettingsOfPools()) {
		sources[setting] = SourceDefault
	}
	for _, layer := range []struct {
		source string
		says   Overrides
	}{{SourceFile, b.Pools[name].Overrides}, {SourceAPI, api}} {
		p = layer.says.Over(p)
		for _, setting := range layer.says.Set() {
			sources[setting] = layer.source
		}
	}
	return p, sources
}

// ResolvePoolCost is ResolvePool with the default of max_cost, where it is not set.
func (b Baseline) ResolvePoolCost(name string, api Overrides) (Policy, map[string]string) {
	p, sources := b.ResolvePool(name, api)
	p.MaxCost = p.PoolCost()
	return p, sources
}

// ValidatePool returns every setting of the pool that is out of bounds or that no pool has. The
// result is of type Problems.
func (b Baseline) ValidatePool(name string, api Overrides) error {
	var ps Problems
	has := Names(SettingsOfPools())
	for _, says := range []Overrides{b.Pools[name].Overrides, api} {
		for _, setting := range says.Set() {
			ps.Check(slices.Contains(has, setting), setting, "set", "must be absent: a pool has "+strings.Join(has, ", "))
		}
		ps.Check(says.Tier == nil, "tier", "set", "must be absent: tenants have tiers")
		ps.Check(len(says.Routes) == 0, "routes", "set", "must be absent: the configuration file lists the routes of a pool")
	}
	p, _ := b.ResolvePool(name, api)
	problems, _ := p.Validate().(Problems)
	return append(ps, problems...).Err()
}

// PoolResumed returns the API overrides of a pool without "not paused" where nothing pauses it.
func (b Baseline) PoolResumed(name string, api Overrides) Overrides {
	return resumed(api, func(without Overrides) bool {
		p, _ := b.ResolvePool(name, without)
		return p.Paused
	})
}

// resumed drops "not paused" from overrides unless paused finds that they would pause without it.
func resumed(o Overrides, paused func(without Overrides) bool) Overrides {
	without := o
	if without.Paused = nil; o.Paused != nil && !*o.Paused && !paused(without) {
		return without
	}
	return o
}

// ValidatePools returns what is wrong with the pools of a configuration file: their settings, and
// routes in two pools. The result is of type Problems.
func (b Baseline) ValidatePools() error {
	var ps Problems
	ps.Check(len(b.Pools) <= MaxPools, "pools", len(b.Pools), fmt.Sprintf("must be at most %d", MaxPools))
	in := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(b.Pools)) {
		path := "pools." + name
		ps.Check(name != "" && len(name) <= 64, path, strconv.Quote(name), "must have a name of 1 to 64 bytes")
		problems, _ := b.ValidatePool(name, Overrides{}).(Problems)
		ps = append(ps, problems.Under(path)...)
		hold := b.Pools[name].MaxHold
		ps.Check(hold >= 0 && hold <= time.Hour && hold%time.Millisecond == 0, path+".max_hold", hold,
			"must be in whole milliseconds, at most 1h")
		ps.Check(len(b.Pools[name].Routes) > 0, path+".routes", "none", "must name at least one route")
		for _, route := range b.Pools[name].Routes {
			other, taken := in[route]
			ps.Check(!taken, path+".routes", strconv.Quote(route), fmt.Sprintf("must be in one pool: it is in %s, too", other))
			in[route] = name
		}
	}
	return ps.Err()
}

// Statements are the settings of one tenant by source. The zero value has none.
type Statements struct {
	Claimed string // tier that the tenant's credential claims, empty for none
	File    Overrides
	API     Overrides
}

// Tier returns the tier of the tenant and its source; both are empty for none.
func (s Statements) Tier() (name, source string) {
	switch {
	case s.API.Tier != nil:
		return *s.API.Tier, SourceAPI
	case s.File.Tier != nil:
		return *s.File.Tier, SourceFile
	case s.Claimed != "":
		return s.Claimed, SourceClaim
	}
	return "", SourceDefault
}

// Resolve returns the policy of a tenant's flow with the route, and the source of each of its
// settings. The empty route is any route without settings of its own.
//
// Settings of a route outrank those of all routes. Within each, the API outranks the tenant in the
// file, which outranks its tier, which outranks the defaults. Paused alone adds up: a flow is
// paused when its tenant is or when its route is.
func (b Baseline) Resolve(s Statements, route string) (Policy, map[string]string) {
	tier, _ := s.Tier()
	layers := []struct {
		source    string
		overrides Overrides
	}{{SourceTier + tier, b.Tiers[tier]}, {SourceFile, s.File}, {SourceAPI, s.API}}
	p, sources := b.Defaults, map[string]string{}
	for _, name := range Names(settings) {
		sources[name] = SourceDefault
	}
	lay := func(source string, overrides Overrides) {
		p = overrides.Over(p)
		for _, name := range overrides.Set() {
			sources[name] = source
		}
	}
	for _, l := range layers {
		lay(l.source, l.overrides)
	}
	if route != "" {
		paused, by := p.Paused, sources["paused"]
		lay(SourceDefault, b.Routes[route])
		for _, l := range layers {
			lay(l.source, l.overrides.Routes[route])
		}
		if paused {
			p.Paused, sources["paused"] = true, by
		}
	}
	if weight := b.PoolWeights[tier]; weight > 0 && s.File.Empty() && s.API.Empty() {
		p.ClassWeight, p.Reserve = weight, Rate{}
		sources["reserve"] = SourceTier + tier
	}
	return p, sources
}

// Resumed returns the API overrides of a tenant and of its routes without "not paused" where no
// other source pauses. What an operator has paused and resumed follows the configuration file
// again.
func (b Baseline) Resumed(s Statements) Overrides {
	api := resumed(s.API, func(without Overrides) bool {
		p, _ := b.Resolve(Statements{s.Claimed, s.File, without}, "")
		return p.Paused
	})
	api.Routes = maps.Clone(api.Routes)
	for route, o := range api.Routes {
		o = resumed(o, func(without Overrides) bool {
			rest := Statements{s.Claimed, s.File, Overrides{Tier: api.Tier, Paused: new(false),
				Routes: map[string]Overrides{route: without}}}
			p, _ := b.Resolve(rest, route)
			return p.Paused
		})
		if api.Routes[route] = o; o.Empty() {
			delete(api.Routes, route)
		}
	}
	return api
}

// Class names flows of a tenant that obey the same policy. The empty tier is none or an
// unknown one, the empty route any route without settings of its own.
type Class struct{ Tier, Route string }

// Policies returns the policies of all flows that a tenant may have, for every tier that its
// credential may claim. A flow that claims the tier T and has the route R obeys the first of these
// classes that is in the map: T and R, T alone, R alone, neither.
func (b Baseline) Policies(s Statements) map[Class]Policy {
	tiers := []string{""}
	s.Claimed = ""
	if _, source := s.Tier(); source == SourceDefault {
		tiers = append(tiers, slices.Collect(maps.Keys(b.Tiers))...)
	}
	policies := map[Class]Policy{}
	for _, s.Claimed = range tiers {
		for _, route := range append(b.classRoutes(s), "") {
			policies[Class{s.Claimed, route}], _ = b.Resolve(s, route)
		}
	}
	return policies
}

// classRoutes returns the routes whose flows obey other policies than those of any route: with
// settings of their own, or in a pool.
func (b Baseline) classRoutes(s Statements) []string {
	routes := b.Mentioned(s)
	for _, pool := range b.Pools {
		routes = append(routes, pool.Routes...)
	}
	slices.Sort(routes)
	return slices.Compact(routes)
}

// Mentioned returns the sorted names of the routes with settings of their own.
func (b Baseline) Mentioned(s Statements) []string {
	tier, _ := s.Tier()
	routes := map[string]bool{}
	sources := []map[string]Overrides{b.Routes, b.Tiers[tier].Routes, s.File.Routes, s.API.Routes}
	for _, source := range sources {
		for name := range source {
			routes[name] = true
		}
	}
	return slices.Sorted(maps.Keys(routes))
}

// Validate returns every setting of the resulting policies that is out of bounds, and a tier that
// does not exist. The result is of type Problems. A claimed tier may be unknown: it counts as none.
func (b Baseline) Validate(s Statements) error {
	var ps Problems
	if tier, source := s.Tier(); tier != "" && source != SourceClaim {
		if _, known := b.Tiers[tier]; !known {
			rule := "must be a tier of the configuration file, which has none"
			if len(b.Tiers) > 0 {
				rule = OneOf("", tier, slices.Sorted(maps.Keys(b.Tiers)))
			}
			ps = append(ps, Problem{"tier", fmt.Sprintf("%q", tier), rule})
		}
	}
	general := problemsIn(b, s, "")
	ps = append(ps, general...)
	for _, route := range b.Mentioned(s) {
		for _, p := range problemsIn(b, s, route) {
			if !slices.Contains(general, p) {
				ps = append(ps, Problems{p}.Under("routes."+route)...)
			}
		}
	}
	return ps.Err()
}

func problemsIn(b Baseline, s Statements, route string) Problems {
	p, _ := b.Resolve(s, route)
	problems, _ := p.Validate().(Problems)
	return problems
}
