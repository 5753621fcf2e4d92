package tenants

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
	"github.com/7509e464/sluice/shaper"
)

// stance is the value of a setting and its source.
type stance struct {
	Value  any    `json:"value"` // as in the API
	Source string `json:"source"`
	text   string
}

// settingChange is a setting whose value or source changes with the API overrides.
type settingChange struct {
	Setting string `json:"setting"` // such as "rate" or "routes.login.rate"
	From    stance `json:"from"`
	To      stance `json:"to"`
}

// String omits the source of the new value if it is the API, which is the usual one.
func (c settingChange) String() string {
	to := c.To.text
	if c.To.Source != shaper.SourceAPI {
		to += " (" + c.To.Source + ")"
	}
	return fmt.Sprintf("%s %s (%s) → %s", strings.Replace(c.Setting, "max_wait_ms", "max_wait", 1),
		c.From.text, c.From.Source, to)
}

// changesBetween returns the settings that differ between a tenant before and after a change. It
// omits changes that a route inherits from the tenant.
func changesBetween(before, after wire.Tenant) []settingChange {
	was, willBe := overridesByName(before.Overrides), overridesByName(after.Overrides)
	var changes []settingChange
	list := func(prefix string, from, to []namedStance, inherited []namedStance, heir []namedStance) {
		for i, f := range from {
			name := prefix + f.name
			differs := f.text != to[i].text
			if inherited != nil && f.text == inherited[i].text && to[i].text == heir[i].text {
				differs = false
			}
			if differs || was[name] != willBe[name] {
				changes = append(changes, settingChange{name, f.stance, to[i].stance})
			}
		}
	}
	list("", []namedStance{tierStance(before)}, []namedStance{tierStance(after)}, nil, nil)
	from, to := stances(before.Policy), stances(after.Policy)
	list("", from, to, nil, nil)
	for _, route := range routesOf(before, after) {
		list("routes."+route+".", stances(flowPolicy(before, route)), stances(flowPolicy(after, route)),
			from, to)
	}
	return changes
}

// routesOf returns the routes with settings of their own.
func routesOf(tenants ...wire.Tenant) []string {
	routes := map[string]bool{}
	for _, t := range tenants {
		for route := range t.Routes {
			routes[route] = true
		}
	}
	return slices.Sorted(maps.Keys(routes))
}

// flowPolicy returns the policy of a route; without settings of its own it is the tenant's.
func flowPolicy(t wire.Tenant, route string) wire.Policy {
	if f, own := t.Routes[route]; own {
		return f.Policy
	}
	return t.Policy
}

type namedStance struct {
	name string
	stance
}

func tierStance(t wire.Tenant) namedStance {
	var value any
	if t.Tier != "" {
		value = t.Tier
	}
	return namedStance{"tier", stance{value, cmp.Or(t.Sources["tier"], shaper.SourceDefault),
		cmp.Or(t.Tier, "none")}}
}

// stances returns the settings of a policy in the order of printTenant.
func stances(p wire.Policy) []namedStance {
	of := func(name string, value any, text string) namedStance {
		return namedStance{name, stance{value, p.Sources[name], text}}
	}
	number := func(name string, n int64) namedStance { return of(name, n, strconv.FormatInt(n, 10)) }
	rates := p.Rates
	if rates == nil {
		rates = []wire.Pace{}
	}
	var reserve any
	if p.Reserve != nil {
		reserve = *p.Reserve
	}
	return []namedStance{
		of("rate", p.Rate, console.RateText(p.Rate)), number("burst", p.Burst), of("rates", rates,
			cmp.Or(console.RatesText(rates), "none")),
		number("capacity", p.Capacity), number("capacity_bytes", p.CapacityBytes), number("concurrency",
			p.Concurrency),
		of("max_wait_ms", p.MaxWaitMS, (time.Duration(p.MaxWaitMS) * time.Millisecond).String()), of("paused",
			p.Paused, strconv.FormatBool(p.Paused)), of("max_cost", p.MaxCost, costText(p.MaxCost)), number("weight", p.Weight),
		of("reserve", reserve, cmp.Or(rateText(p.Reserve), "none")),
	}
}

// costText is the max cost of a job; 0 is no bound.
func costText(n int64) string {
	if n == 0 {
		return "none"
	}
	return strconv.FormatInt(n, 10)
}

// overridesByName returns the set overrides by the name of the setting, without a drain.
func overridesByName(o *wire.Overrides) map[string]string {
	set := map[string]string{}
	if o == nil {
		return set
	}
	note := func(texts []overrideText) {
		for _, t := range texts {
			if t.value != "" {
				set[t.name] = t.value
			}
		}
	}
	note(overrideTexts(*o))
	delete(set, "draining")
	for route, own := range o.Routes {
		note(routeTexts("routes."+route+".", own))
	}
	return set
}

// settingsOf returns the body of a PUT that sets the overrides.
func settingsOf(o *wire.Overrides) wire.Settings {
	out := wire.Settings{RouteSettings: routeSettingsOf(o.RouteOverrides)}
	if o.Tier != "" {
		out.Tier = &o.Tier
	}
	for route, own := range o.Routes {
		if out.Routes == nil {
			out.Routes = map[string]*wire.RouteSettings{}
		}
		out.Routes[route] = new(routeSettingsOf(own))
	}
	return out
}

func routeSettingsOf(o wire.RouteOverrides) wire.RouteSettings {
	out := wire.RouteSettings{
		Rates: o.Rates, Burst: o.Burst, Capacity: o.Capacity, CapacityBytes: o.CapacityBytes,
		Concurrency: o.Concurrency, MaxWaitMS: o.MaxWaitMS, Paused: o.Paused,
		MaxCost: o.MaxCost, Weight: o.Weight, Reserve: o.Reserve,
	}
	if o.Rate != nil {
		out.Rate = &wire.RateChange{Limit: o.Rate.Limit, PeriodMS: o.Rate.PeriodMS}
	}
	return out
}
