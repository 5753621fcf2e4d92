package config_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/shaper"
)

// A file of tenants is read as overrides. A name may be a number, and a tenant may have no
// settings.
func TestTenantsAlone(t *testing.T) {
	got, err := config.LoadTenants("--file", write(t, `
tenants:
  acme: { rate: 200/s, capacity: 5000, tier: pro, rates: [ { rate: 1000/24h, burst: 1000 } ] }
  shop.example: { paused: true, max_wait: 250ms, concurrency: 0, routes: { login: { rate: 5/m, rates: [] }, orders: {} } }
  12: { burst: 6000000000 }
  nothing:
`))
	n := func(v int64) *int64 { return &v }
	want := map[string]shaper.Overrides{
		"acme": {Rate: &shaper.Rate{Limit: 200, Period: time.Second}, Capacity: n(5000), Tier: new("pro"),
			Rates: &[]shaper.PaceJSON{{Limit: 1000, PeriodMS: 86400000, Burst: 1000}}},
		"shop.example": {Paused: new(true), MaxWaitMS: n(250), Concurrency: n(0),
			Routes: map[string]shaper.Overrides{
				"login": {Rate: &shaper.Rate{Limit: 5, Period: time.Minute}, Rates: &[]shaper.PaceJSON{}},
			}},
		"12":      {Burst: n(6_000_000_000)}, // legal beside a rate that is quick enough
		"nothing": {},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if got, err := config.LoadTenants("--file", write(t, "tenants: {}")); len(got) != 0 || err != nil {
		t.Errorf("no tenants are read as %v, %v", got, err)
	}
}

// Names are read as written, also where YAML has another reading: as a number, a time, null or an
// alias.
func TestNamesAreTakenAsWritten(t *testing.T) {
	const names = "0042: {}\n  34: {}\n  1e3: {}\n  0x10: {}\n  1_000: {}\n  1.10: {}\n  2024-01-01: {}\n" +
		"  ~: {}\n  True: {}\n  !!int 007: {}\n  \"0o7\": {}\n  acme: { routes: { 010: { rate: 5/m } } }\n"
	want := []string{
		"0042", "007", "0o7", "0x10", "1.10", "1_000", "1e3", "2024-01-01", "34", "True", "acme", "~",
	}
	slices.Sort(want)
	got, err := config.LoadTenants("--file", write(t, "tenants:\n  "+names))
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if len(got["acme"].Routes) != 1 || got["acme"].Routes["010"].Rate == nil {
		t.Errorf("acme is %+v, want a rate of the route 010 alone", got["acme"])
	}
	c := mustLoad(t, config.Sources{File: write(t, strings.Replace(route, "routes: {", "routes: { 010: { "+
		"url: \"http://127.0.0.1:9000/\" },", 1)+"\ntenants:\n  "+names)})
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(c.Tenants.Named))); diff != "" ||
		c.Routes["010"].URL == "" {
		t.Errorf("%v\n%s", c.Routes, diff)
	}

	got, err = config.LoadTenants("--file",
		write(t, "tenants:\n  a: { burst: &n 10 }\n  *n : { burst: 3 }\n  b: &b { burst: 4 }\n"+
			"  &m 20: { <<: *b, burst: *m }\n  c: { <<: *b }\n"))
	n := func(v int64) shaper.Overrides { return shaper.Overrides{Burst: &v} }
	if diff := cmp.Diff(map[string]shaper.Overrides{"a": n(10), "10": n(3), "b": n(4), "20": n(20),
		"c": n(4)}, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// The wanted lines are the whole of what is reported.
func TestProblemsOfTenantsAlone(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		want       []string
	}{
		{"nothing at all", "", []string{"tenants: nothing: must name tenants"}},
		{"no section", "tenants: 5", []string{"tenants: a number: must be a section"}},
		{"an empty section", "tenants:", []string{"tenants: nothing: must be a section; {} names none"}},
		{"no mapping", "- a", []string{"--file: the file: must be YAML, a mapping of sections"}},
		{"no YAML", "tenants: {", []string{"--file: the file: must be YAML: "}},
		{"two documents", "tenants: {}\n---\ntenants: {}",
			[]string{"--file: the file: has more than one YAML document: must be one document"}},
		{"a name twice", "tenants:\n  0042: {}\n  34: {}\n  0042: {}",
			[]string{"--file: the file: must be YAML: line 4: the key \"0042\" is there already, at line 2"}},
		{"the configuration of a server",
			"redis: { url: \"redis://:pw@x\" }\ntenants: { defaults: { rate: 5/s }, acme: {} }\nroutes:\n" +
				"tiers: {}", []string{
				"redis: not read here: must not be in this file", "routes: not read here", "tiers: not read here",
				"tenants.defaults: not read here: must not be in this file",
			}},
		{"every problem at once", "tenants: { a: { rate: fast, capacity: -1, burst: 0 }, b: 7, c: { rat: " +
			"5/s }, d: { tier: \"\" }, e: { tier: 5 }, \"x\\ty\": {} }", []string{
			`tenants.a.rate: "fast"`, "tenants.a.burst: 0", "tenants.a.capacity: -1",
			"tenants.b: a number: must be a section", "tenants.c.rat: unknown key",
			`tenants.d.tier: ""`, "tenants.e.tier: a number: must be the name of a tier", `tenants."x\ty": the name`,
		}},
		{"routes", "tenants: { a: { routes: { login: { rate: 5, tier: pro }, \"a/b\": {}, ok: { capacity: " +
			"-1, max_wait: 1us } } }, b: { routes: 5 } }", []string{
			`tenants.a.routes."a/b": the name`, "tenants.a.routes.login.tier: unknown key",
			"tenants.a.routes.login.rate: 5",
			"tenants.a.routes.ok.max_wait: 1µs: must be in whole milliseconds",
			"tenants.a.routes.ok.capacity: -1", "tenants.b.routes: a number: must be a section",
		}},
		{"a drain is none of a file's", "tenants: { a: { draining: true } }",
			[]string{"tenants.a.draining: unknown key"}},
		{"a burst that takes too long",
			"tenants: { a: { rate: 1/366d, burst: 300 }, b: { rates: [ { rate: 1/d, burst: 0 } ] } }",
			[]string{
				"tenants.a.burst: 300: burst × period",
				"tenants.b.rates[0].burst: 0: must be a whole number of at least 1",
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, c.yaml)
			_, err := config.LoadTenants("--file", path)
			got := problems(t, err)
			if len(got) != len(c.want) {
				t.Errorf("%d problems, want %d: %v", len(got), len(c.want), err)
			}
			for i := range min(len(got), len(c.want)) {
				if said := strings.ReplaceAll(got[i].String(), path, "the file"); !strings.HasPrefix(said, c.want[i]) {
					t.Errorf("%s\nwant %s", got[i], c.want[i])
				}
			}
			if err != nil && strings.Contains(err.Error(), "pw") {
				t.Errorf("a secret: %v", err)
			}
		})
	}
	_, err := config.LoadTenants("--file", t.TempDir()+"/none.yaml")
	if ps := problems(t, err); len(ps) != 1 || !strings.Contains(ps[0].Rule, "cannot be read: no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
}
