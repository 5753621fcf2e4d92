package lua

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/7509e464/sluice/shaper"
)

// EncodePolicy writes every setting of a policy in the form that policy_of in lib/policy.lua reads, for example
// "l10:1000000 b1 r c1000 y0 k64 w0 p0 d0".
func EncodePolicy(p shaper.Policy) string {
	return strings.Join([]string{
		encodeRate(p.Rate), fmt.Sprintf("b%d", p.Burst), encodePaces(p.Rates), fmt.Sprintf("c%d", p.Capacity), fmt.Sprintf("y%d", p.CapacityBytes),
		fmt.Sprintf("k%d", p.Concurrency), fmt.Sprintf("w%d", p.MaxWait.Milliseconds()), encodeFlag('p', p.Paused),
		encodeFlag('d', p.Draining),
	}, " ")
}

// EncodeBaseline writes the settings that hold for tenants without overrides, in the form that policy_of in lib/policy.lua reads: a
// line of the defaults as in EncodePolicy, then a line for each route and tier of which something is said.
func EncodeBaseline(b shaper.Baseline) string {
	lines := append([]string{EncodePolicy(b.Defaults)}, routeLines("/", b.Routes)...)
	for _, name := range slices.Sorted(maps.Keys(b.Tiers)) {
		tier := b.Tiers[name]
		lines = append(lines, "@"+name+" "+encodeOverrides(tier))
		lines = append(lines, routeLines("@"+name+"/", tier.Routes)...)
	}
	return strings.Join(lines, "\n")
}

// EncodeStatements writes what the sources say of a tenant, the later outranking the earlier: a line of what they say in general, and
// one for each route of which they say something.
func EncodeStatements(sources ...shaper.Overrides) string {
	general := make([]string, 0, len(sources))
	routes := map[string]string{}
	for _, o := range sources {
		if text := encodeOverrides(o); text != "" {
			general = append(general, text)
		}
		for name, says := range o.Routes {
			routes[name] = strings.TrimSpace(routes[name] + " " + encodeRoute(says))
		}
	}
	lines := []string{strings.Join(general, " ")}
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		lines = append(lines, "/"+name+" "+routes[name])
	}
	return strings.Join(lines, "\n")
}

func routeLines(heading string, routes map[string]shaper.Overrides) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		lines = append(lines, heading+name+" "+encodeRoute(routes[name]))
	}
	return lines
}

// encodeRoute is encodeOverrides for what is said of a route, whose pause adds to that of the tenant.
func encodeRoute(o shaper.Overrides) string {
	paused := o.Paused
	o.Paused = nil
	text := encodeOverrides(o)
	if paused != nil {
		text = strings.TrimSpace(text + " " + encodeFlag('q', *paused))
	}
	return text
}

// encodeOverrides writes only the settings that are set.
func encodeOverrides(o shaper.Overrides) string {
	p := o.Over(shaper.Policy{})
	var parts []string
	if o.Rate != nil {
		parts = append(parts, encodeRate(p.Rate))
	}
	if o.Burst != nil {
		parts = append(parts, fmt.Sprintf("b%d", p.Burst))
	}
	if o.Rates != nil {
		parts = append(parts, encodePaces(p.Rates))
	}
	if o.Capacity != nil {
		parts = append(parts, fmt.Sprintf("c%d", p.Capacity))
	}
	if o.CapacityBytes != nil {
		parts = append(parts, fmt.Sprintf("y%d", p.CapacityBytes))
	}
	if o.Concurrency != nil {
		parts = append(parts, fmt.Sprintf("k%d", p.Concurrency))
	}
	if o.MaxWaitMS != nil {
		parts = append(parts, fmt.Sprintf("w%d", p.MaxWait.Milliseconds()))
	}
	if o.Paused != nil {
		parts = append(parts, encodeFlag('p', p.Paused))
	}
	if o.Draining != nil {
		parts = append(parts, encodeFlag('d', p.Draining))
	}
	if o.Tier != nil {
		parts = append(parts, "t"+*o.Tier)
	}
	return strings.Join(parts, " ")
}

func encodeRate(r shaper.Rate) string {
	return fmt.Sprintf("l%d:%d", r.Limit, r.Period.Microseconds())
}

func encodePaces(paces []shaper.Pace) string {
	parts := make([]string, len(paces))
	for i, p := range paces {
		parts[i] = fmt.Sprintf("%d:%d:%d", p.Rate.Limit, p.Rate.Period.Microseconds(), p.Burst)
	}
	return "r" + strings.Join(parts, ",")
}

func encodeFlag(name byte, on bool) string {
	if on {
		return string(name) + "1"
	}
	return string(name) + "0"
}
