package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/shaper"
)

const twoRoutes = `
routes: { orders: { url: "http://127.0.0.1:9000/" }, refunds: { url: "http://127.0.0.1:9000/" } }
`

func TestPools(t *testing.T) {
	got := mustLoad(t, config.Sources{File: write(t, twoRoutes+`
pools:
  erp: { rate: 200/s, rates: [ { rate: 100000/h, burst: 5 } ], capacity: 50000, concurrency: 100, routes: [orders, refunds] }
tenants:
  acme: { weight: 8, reserve: 5/s }
`)}).Tenants
	want := map[string]shaper.PoolSettings{"erp": {Routes: []string{"orders", "refunds"},
		Overrides: shaper.Overrides{
			Rate: &shaper.Rate{Limit: 200, Period: time.Second}, Rates: &[]shaper.PaceJSON{{Limit: 100000,
				PeriodMS: 3_600_000, Burst: 5}},
			Capacity: new(int64(50000)), Concurrency: new(int64(100)),
		}}}
	if diff := cmp.Diff(want, got.Pools); diff != "" {
		t.Error(diff)
	}
	if acme := got.Named["acme"]; *acme.Weight != 8 || acme.Reserve.Limit != 5 {
		t.Errorf("%+v", acme)
	}
}

// The rate of a route is a pool of that route alone.
func TestRouteRateIsAPool(t *testing.T) {
	const routes = `routes: { orders: { url: "http://127.0.0.1:9000/", rate: 50/s }, mail: { url: "http://127.0.0.1:9000/" } }` + "\n"
	got := mustLoad(t, config.Sources{File: write(t, routes+"pools: { post: { rate: 9/s, routes: [mail] } }\n")})
	fifty := shaper.Rate{Limit: 50, Period: time.Second}
	want := shaper.PoolSettings{Routes: []string{"orders"}, Overrides: shaper.Overrides{Rate: &fifty}}
	if diff := cmp.Diff(want, got.Tenants.Pools["orders"]); diff != "" || len(got.Tenants.Pools) != 2 {
		t.Errorf("%d pools; %s", len(got.Tenants.Pools), diff)
	}
	for text, want := range map[string]string{
		"pools: { orders: { rate: 9/s, routes: [mail] } }":      "routes.orders.rate: 50/s: must not be set beside the pool orders",
		"pools: { all: { rate: 9/s, routes: [mail, orders] } }": "routes.orders.rate: 50/s: must not be set: the route is in the pool all",
		"tenants: { a: { rate: 60/s, reserve: 51/s } }":         "routes.orders.rate: 50/s: must be at least the reserves of the named tenants in the pool, together 51/s",
	} {
		_, err := config.Load(config.Sources{File: write(t, routes+text+"\n")})
		if ps := problems(t, err); len(ps) != 1 || !strings.HasPrefix(ps[0].String(), want) {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
	_, err := config.Load(config.Sources{File: write(t, "routes: { a: { url: \"http://127.0.0.1:9000/\", rate: fast } }\n")})
	if ps := problems(t, err); len(ps) != 1 || ps[0].Field != "routes.a.rate" {
		t.Error(err)
	}
}

// The tenants of a tier and those without one are not in the file: how many of them a pool can give
// their reserves follows from what the named ones leave. A rate by jobs bounds no cost.
func TestPoolReserves(t *testing.T) {
	got := mustLoad(t, config.Sources{File: write(t, twoRoutes+`
pools:
  erp: { rate: 100/s, rates: [ { rate: 2/s, by: jobs } ], routes: [orders, refunds] }
tiers: { gold: { reserve: 10/s }, plain: {} }
tenants:
  defaults: { rate: 100/s }
  acme: { tier: gold }
  shop: { routes: { orders: { reserve: 31/s } } }
`)}).Pools()
	want := []config.PoolReserves{{Name: "erp", Routes: []string{"orders", "refunds"},
		Strictest: shaper.Rate{Limit: 100, Period: time.Second},
		MaxCost:   1000, Reserved: 51,
		Others: map[string]config.OtherReserves{"gold": {Each: 20, Most: 2}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCheckListsPools(t *testing.T) {
	got := inForce(t, config.Sources{File: write(t,
		twoRoutes+"pools: { erp: { rate: 200/s, routes: [orders, refunds] } }\n")})
	for key, want := range map[string][2]string{
		"pools.erp.rate": {"200/s", "file"}, "pools.erp.routes": {"orders, refunds", "file"},
		"pools.erp.burst": {"1", "default"}, "pools.erp.paused": {"false", "default"},
	} {
		if s := got[key]; s.Value != want[0] || s.From != want[1] {
			t.Errorf("%s: %+v, want %v", key, s, want)
		}
	}
}

// TestCostOfForwardedRequests: a request costs at most what its pool takes.
func TestCostOfForwardedRequests(t *testing.T) {
	const text = "routes: { model: { forward: \"http://model.example\", cost: 1000 } }\n" +
		"pools: { llm: { rate: 9000/m, max_cost: %d, routes: [model] } }\n"
	mustLoad(t, config.Sources{File: write(t, fmt.Sprintf(text, 1000))})
	_, err := config.Load(config.Sources{File: write(t, fmt.Sprintf(text, 999))})
	if ps := problems(t, err); len(ps) != 1 || ps[0].Field != "routes.model.cost" || ps[0].Value != "1000" ||
		!strings.HasPrefix(ps[0].Rule, "must be at most the max_cost of its pool, which is 999") {
		t.Error(ps)
	}
}

func TestPoolProblems(t *testing.T) {
	for text, want := range map[string]string{
		"pools: { a/b: { rate: 1/s, routes: [orders] } }":                                                                        `pools."a/b": the name: must be 1 to 64`,
		"pools: { erp: 5/s }":                                                                                                    "pools.erp: a text: must be a section",
		"pools: { erp: { routes: [orders] } }":                                                                                   "pools.erp.rate: nothing: must be set, such as 10/s",
		"pools: { erp: { rate: 1/s } }":                                                                                          "pools.erp.routes: none: must name at least one route",
		"pools: { erp: { rate: 1/s, routes: orders } }":                                                                          "pools.erp.routes: a text: must be a list of names of routes",
		"pools: { erp: { rate: 1/s, routes: [mail] } }":                                                                          `pools.erp.routes[0]: "mail": must be one of the routes: orders, refunds`,
		"pools: { erp: { rate: 1/s, routes: [orders], weight: 2 } }":                                                             "pools.erp.weight: unknown key",
		"pools: { a: { rate: 1/s, routes: [orders] }, b: { rate: 1/s, routes: [orders] } }":                                      `pools.b.routes: "orders": must be in one pool: it is in a, too`,
		"pools: { erp: { rate: 9/s, routes: [orders] } }\ntenants: { a: { reserve: 5/s }, b: { reserve: 300/m } }":               "pools.erp.rate: 9/s: must be at least the reserves of the named tenants in the pool, together 10/s",
		"pools: { erp: { rate: 100/s, rates: [ { rate: 8/s } ], routes: [orders, refunds] } }\ntenants: { a: { reserve: 5/s } }": "pools.erp.rate: 8/s: must be at least the reserves of the named tenants",
		"tenants: { a: { reserve: 11/s } }":                                                                                      "tenants.a.reserve: 11/s: must be at most the rate, 10/s",
		"tenants: { a: { weight: 1001 } }":                                                                                       "tenants.a.weight: 1001: must be a whole number from",
	} {
		_, err := config.Load(config.Sources{File: write(t, twoRoutes+text+"\n")})
		ps := problems(t, err)
		if !slices.ContainsFunc(ps,
			func(p shaper.Problem) bool {
				return strings.HasPrefix(p.Field+": "+p.Value+": "+p.Rule,
					want)
			}) {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
	for _, text := range []string{
		"pools: { erp: { rate: 10/s, routes: [orders] } }\ntenants: { a: { reserve: 5/s }, b: { reserve: 300/m } }",
		"pools: { erp: { rate: 5/s, routes: [orders] } }\ntenants: { a: { reserve: 5/s }, b: { routes: { refunds: { reserve: 9/s } } } }",
	} {
		mustLoad(t, config.Sources{File: write(t, twoRoutes+text+"\n")})
	}
}

// TestPoolWeights: guests are a class of weight 1 in pools unless their tier says otherwise, and so
// is any other tier that has a weight.
func TestPoolWeights(t *testing.T) {
	const guests = "auth: { mode: [keys, guest] }\n"
	for text, want := range map[string]map[string]int64{
		"":     nil,
		guests: {"guests": 1},
		guests + "tiers: { guests: { rate: 1/s }, free: {} }":                                    {"guests": 1},
		guests + "tiers: { guests: { pool_weight: 3 }, trial: { pool_weight: 2 } }":              {"guests": 3, "trial": 2},
		guests + "tiers: { guests: { pool_weight: 0 } }":                                         {},
		"auth: { mode: guest, guest: { tier: free } }\ntiers: { free: {}, gold: { weight: 4 } }": {"free": 1},
		"auth: { mode: keys, guest: { tier: free } }\ntiers: { free: {} }":                       nil,
	} {
		c := mustLoad(t, config.Sources{File: write(t, twoRoutes+text+"\n")})
		if diff := cmp.Diff(want, c.Tenants.Weights, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
		if diff := cmp.Diff(want, c.Tenants.Baseline().PoolWeights, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: in the policies: %s", text, diff)
		}
		if strings.Contains(text, guests) && c.Auth.Guest.Tier != config.GuestTier {
			t.Errorf("%s: the tier of guests is %q", text, c.Auth.Guest.Tier)
		}
	}
}
