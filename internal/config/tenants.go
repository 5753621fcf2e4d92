package config

import (
	"maps"
	"slices"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// LoadTenants reads a file with the section tenants of a configuration file alone. It returns the
// overrides by name of the tenant. given is the flag of the path, for the problems. The error is of
// type shaper.Problems and contains all problems.
//
// The tiers, routes and defaults are unknown here, so only values that are always wrong are
// refused.
func LoadTenants(given, path string) (map[string]shaper.Overrides, error) {
	content, err := readFile(path)
	if err != nil {
		return nil, shaper.Problems{{Field: given, Value: path, Rule: err.Error()}}
	}
	return loadTenants(given, path, content)
}

// loadTenants is LoadTenants with the file read.
func loadTenants(given, path string, content []byte) (map[string]shaper.Overrides, error) {
	r := &reader{given: given, path: path, anyRoute: true}
	values := r.yaml(content)
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if key != "tenants" {
			r.problem(quoteName(key), "not read here",
				"must not be in this file, which has tenants alone: it belongs to the configuration file of the server")
		}
	}
	raw, present := values["tenants"]
	named, isSection := raw.(map[string]any)
	switch {
	case !present:
		r.problem("tenants", "nothing", "must name tenants, such as acme: { rate: 200/s }; {} names none")
	case !isSection:
		r.problem("tenants", kindOf(raw), "must be a section; {} names none")
	}
	tenants := map[string]shaper.Overrides{}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if o, ok := r.namedTenant(name, named[name]); ok {
			tenants[name] = o
		}
	}
	return tenants, r.problems.Err()
}

func (r *reader) namedTenant(name string, raw any) (o shaper.Overrides, ok bool) {
	path := "tenants." + quoteName(name)
	section, isSection := raw.(map[string]any)
	switch {
	case name == "defaults":
		r.problem(path, "not read here",
			"must not be in this file: the defaults belong to the configuration file of the server")
		return o, false
	case !isName(name):
		r.problem(path, "the name", "must be 1 to 255 bytes without control characters")
		return o, false
	case !isSection && raw != nil:
		r.problem(path, kindOf(raw), "must be a section")
		return o, false
	}
	o = r.overrides(path, section, map[string]Route{}, "tier")
	if o.Tier != nil && !isRoute(*o.Tier) {
		r.problem(path+".tier", show(*o.Tier), "must be the name of a tier")
	}
	r.inItself(path, o)
	for _, route := range slices.Sorted(maps.Keys(o.Routes)) {
		r.inItself(path+".routes."+route, o.Routes[route])
	}
	return o, true
}

// inItself reports settings that no other setting could make legal: it lays them over the most
// patient policy.
func (r *reader) inItself(path string, o shaper.Overrides) {
	patient := shaper.DefaultPolicy()
	patient.Rate = shaper.Rate{Limit: 1000, Period: time.Millisecond}
	r.problems = append(r.problems, problemsOf(o.Over(patient).Validate()).Under(path)...)
}
