package config

import (
	"errors"
	"testing"

	"github.com/7509e464/sluice/shaper"
)

// A file of tenants is read as valid overrides, or refused with problems that each have a field, a
// value and a rule.
func FuzzLoadTenants(f *testing.F) {
	for _, seed := range []string{
		"tenants: { acme: { rate: 200/s, burst: 5, tier: pro, routes: { login: { rate: 5/m } } } }",
		"tenants: {}", "", "a: 1", "tenants: { defaults: {} }",
		"tenants: { a: { rates: [ { rate: 1000/24h, burst: 1000 } ], max_wait: 5s, paused: true } }",
		"tenants: { a: { tier: \"\" } }", "tenants: [", "---\n---\n",
		"tenants: { ? [a] : 1 }", "tenants: { a: { routes: { ? {} : {} } } }", "tenants: &x { a: *x }",
		"tenants: { a: { max_wait: 9223372036854775807ns } }",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		tenants, err := loadTenants("--file", "tenants.yaml", content)
		var problems shaper.Problems
		if err != nil && !errors.As(err, &problems) {
			t.Fatalf("%T: %v", err, err)
		}
		for _, p := range problems {
			for part, text := range map[string]string{"field": p.Field, "value": p.Value, "rule": p.Rule} {
				if text == "" {
					t.Errorf("a problem has no %s: %+v", part, p)
				}
			}
		}
		if err != nil {
			return
		}
		for name, o := range tenants {
			if !isName(name) {
				t.Errorf("%q is read as the name of a tenant", name)
			}
			if o.Draining != nil {
				t.Errorf("%q is draining, which a file cannot set", name)
			}
			if o.Tier != nil && *o.Tier == "" {
				t.Errorf("%q has an empty tier", name)
			}
			for route, says := range o.Routes {
				if !isRoute(route) {
					t.Errorf("%q: %q is read as the name of a route", name, route)
				}
				if says.Tier != nil || says.Routes != nil {
					t.Errorf("%q: the route %s has what only a tenant has: %+v", name, route, says)
				}
				if says.Empty() {
					t.Errorf("%q: the route %s has no settings and is kept", name, route)
				}
			}
		}
	})
}
