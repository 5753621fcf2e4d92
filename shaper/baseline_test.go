package shaper

import (
	"maps"
	"reflect"
	"testing"
	"time"
)

// standing is a baseline with tiers and a route that has a rate of its own.
func standing() Baseline {
	return Baseline{
		Defaults: Policy{Rate: perSecond(10), Burst: 1, Capacity: 1000, Concurrency: 64},
		Routes:   map[string]Overrides{"login": {Rate: new(Rate{Limit: 5, Period: time.Minute})}},
		Tiers: map[string]Overrides{
			"free": {Rate: new(perSecond(1)), Capacity: new(int64(10))},
			"pro":  {Rate: new(perSecond(50)), Routes: map[string]Overrides{"login": {Burst: new(int64(3))}}},
		},
	}
}

func perSecond(limit int64) Rate { return Rate{Limit: limit, Period: time.Second} }

// TestPrecedenceOfSources: for each setting, the source that wins.
func TestPrecedenceOfSources(t *testing.T) {
	fiveAMinute := Rate{Limit: 5, Period: time.Minute}
	login := func(o Overrides) map[string]Overrides { return map[string]Overrides{"login": o} }
	for _, c := range []struct {
		name     string
		says     Statements
		route    string
		rate     Rate
		capacity int64
		sources  map[string]string // of those that differ from default
	}{
		{"nothing is said", Statements{}, "", perSecond(10), 1000, nil},
		{"a route of the defaults", Statements{}, "login", fiveAMinute, 1000, nil},
		{"another route", Statements{}, "orders", perSecond(10), 1000, nil},
		{"a claimed tier", Statements{Claimed: "free"}, "", perSecond(1), 10,
			map[string]string{"rate": "tier:free", "capacity": "tier:free"}},
		{"a claimed tier that there is not", Statements{Claimed: "gold"}, "", perSecond(10), 1000, nil},
		{"the file's tier outranks the claimed one", Statements{
			Claimed: "free", File: Overrides{Tier: new("pro")},
		}, "", perSecond(50), 1000,
			map[string]string{"rate": "tier:pro"}},
		{"the API's outranks both", Statements{
			Claimed: "pro", File: Overrides{Tier: new("pro")}, API: Overrides{Tier: new("free")},
		}, "", perSecond(1), 10,
			map[string]string{"rate": "tier:free", "capacity": "tier:free"}},
		{"out of the tier by the API", Statements{Claimed: "pro", API: Overrides{Tier: new("")}}, "",
			perSecond(10), 1000, nil},
		{"the file's tenant outranks the tier", Statements{File: Overrides{
			Tier: new("free"), Rate: new(perSecond(7)),
		}}, "", perSecond(7), 10,
			map[string]string{"rate": "file", "capacity": "tier:free"}},
		{"the API outranks the file", Statements{
			File: Overrides{Rate: new(perSecond(7)), Capacity: new(int64(8))},
			API:  Overrides{Rate: new(perSecond(9))},
		}, "",
			perSecond(9), 8, map[string]string{"rate": "api", "capacity": "file"}},
		{"a route outranks what the API says in general", Statements{API: Overrides{
			Rate: new(perSecond(9)), Capacity: new(int64(3)),
		}}, "login",
			fiveAMinute, 3, map[string]string{"capacity": "api"}},
		{"the tenant's route outranks that of the defaults",
			Statements{File: Overrides{Routes: login(Overrides{Rate: new(perSecond(2))})}}, "login",
			perSecond(2), 1000, map[string]string{"rate": "file"}},
		{"the API's route outranks the file's", Statements{
			File: Overrides{Routes: login(Overrides{Rate: new(perSecond(2))})},
			API:  Overrides{Routes: login(Overrides{Rate: new(perSecond(3))})},
		}, "login", perSecond(3), 1000, map[string]string{"rate": "api"}},
		{"a tier's route", Statements{Claimed: "pro"}, "login", fiveAMinute, 1000,
			map[string]string{"burst": "tier:pro"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, sources := standing().Resolve(c.says, c.route)
			policies := standing().Policies(c.says)
			for _, class := range []Class{{c.says.Claimed, c.route}, {c.says.Claimed, ""}, {"", c.route}, {}} {
				if of, ok := policies[class]; ok {
					if !reflect.DeepEqual(of, p) {
						t.Errorf("the policy of the class %+v is %+v, resolved %+v", class, of, p)
					}
					break
				}
			}
			if p.Rate != c.rate || p.Capacity != c.capacity {
				t.Errorf("rate %v capacity %d, want %v %d", p.Rate, p.Capacity, c.rate, c.capacity)
			}
			maps.DeleteFunc(sources, func(_, source string) bool { return source == SourceDefault })
			if !maps.Equal(sources, c.sources) {
				t.Errorf("sources %v, want %v", sources, c.sources)
			}
		})
	}
}

// TestPausesAddUp: a flow is paused when its tenant is or when its route is.
func TestPausesAddUp(t *testing.T) {
	on, off := new(true), new(false)
	login := func(o Overrides) map[string]Overrides { return map[string]Overrides{"login": o} }
	for _, c := range []struct {
		name   string
		says   Statements
		paused bool
		source string
	}{
		{"neither", Statements{}, false, "default"},
		{"the tenant", Statements{API: Overrides{Paused: on}}, true, "api"},
		{"the route", Statements{File: Overrides{Routes: login(Overrides{Paused: on})}}, true, "file"},
		{"the tenant, though the route is not", Statements{
			File: Overrides{Paused: on}, API: Overrides{Routes: login(Overrides{Paused: off})},
		}, true, "file"},
		{"the route, though the tenant is resumed", Statements{API: Overrides{
			Paused: off, Routes: login(Overrides{Paused: on}),
		}}, true, "api"},
		{"the route is resumed", Statements{
			File: Overrides{Routes: login(Overrides{Paused: on})},
			API:  Overrides{Routes: login(Overrides{Paused: off})},
		}, false, "api"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, sources := standing().Resolve(c.says, "login")
			if p.Paused != c.paused || sources["paused"] != c.source {
				t.Errorf("paused %v by %s, want %v by %s", p.Paused, sources["paused"], c.paused, c.source)
			}
		})
	}
}

// TestDeniedRoutes: what is said of a route outranks what is said of all, so that a list of what is
// allowed can be made for tenants and tiers. The table is who may use the route chat.
func TestDeniedRoutes(t *testing.T) {
	denied := func(of bool, routes ...bool) Overrides {
		o := Overrides{Denied: &of}
		if len(routes) > 0 {
			o.Routes = map[string]Overrides{"chat": {Denied: &routes[0]}}
		}
		return o
	}
	b := Baseline{Defaults: DefaultPolicy(), Tiers: map[string]Overrides{"free": denied(false, true), "pro": denied(false)}}
	b.Defaults.Denied = true
	for name, c := range map[string]struct {
		says   Statements
		denied bool
		source string
	}{
		"a tenant without a tier":    {Statements{}, true, "default"},
		"a tier that denies it":      {Statements{Claimed: "free"}, true, "tier:free"},
		"a tier that allows all":     {Statements{Claimed: "pro"}, false, "tier:pro"},
		"an allowed tenant of free":  {Statements{Claimed: "free", File: denied(false)}, true, "tier:free"},
		"an allowed route of free":   {Statements{Claimed: "free", API: denied(true, false)}, false, "api"},
		"a denied tenant of pro":     {Statements{Claimed: "pro", API: denied(true)}, true, "api"},
		"a denied route of a tenant": {Statements{Claimed: "pro", File: denied(false, true)}, true, "file"},
	} {
		p, sources := b.Resolve(c.says, "chat")
		if p.Denied != c.denied || sources["denied"] != c.source {
			t.Errorf("%s: %v by %s, want %v by %s", name, p.Denied, sources["denied"], c.denied, c.source)
		}
	}
}

func TestStatementsAreChecked(t *testing.T) {
	tooMuch := Overrides{Capacity: new(int64(-1))}
	for _, c := range []struct {
		name     string
		baseline Baseline
		says     Statements
		want     string
	}{
		{"all is well", standing(), Statements{Claimed: "pro", File: Overrides{Tier: new("free")}}, ""},
		{"a claimed tier may be unknown", standing(), Statements{Claimed: "gold"}, ""},
		{"no tier", standing(), Statements{API: Overrides{Tier: new("")}}, ""},
		{"a tier that there is not", standing(), Statements{API: Overrides{Tier: new("gold")}},
			`tier: "gold": must be one of free, pro`},
		{"a tier where there is none", Baseline{Defaults: DefaultPolicy()},
			Statements{File: Overrides{Tier: new("gold")}},
			`tier: "gold": must be a tier of the configuration file, which has none`},
		{"a route", standing(), Statements{API: Overrides{Routes: map[string]Overrides{"login": tooMuch}}},
			"routes.login.capacity: -1: must be a whole number from 0 to 1000000000"},
		{"said once, though each route has it", standing(), Statements{API: tooMuch},
			"capacity: -1: must be a whole number from 0 to 1000000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := c.baseline.Validate(c.says); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
