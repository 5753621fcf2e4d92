package policies

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/client/wire"
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
	was, willBe := declared(before.Overrides), declared(after.Overrides)
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

// stances returns the settings of a policy in the order of the table.
func stances(p wire.Policy) (all []namedStance) {
	o := p.Overrides
	if o.Rates == nil {
		o.Rates = &[]shaper.PaceJSON{}
	}
	if o.Types == nil {
		o.Types = &[]string{}
	}
	for _, s := range shaper.SettingsOfTenants() {
		all = append(all, namedStance{s.Name, stance{s.Of(&o), p.Sources[s.Name], cmp.Or(s.Text(o), s.Unset())}})
	}
	return all
}

// declared returns the texts of the overrides by the name of the setting, without a drain, which
// files cannot have.
func declared(o *shaper.Overrides) map[string]string {
	if o == nil {
		return nil
	}
	texts := overrideTexts(*o)
	delete(texts, "draining")
	return texts
}
