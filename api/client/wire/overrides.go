package wire

import "github.com/7509e464/sluice/shaper"

// OverridesOf converts overrides to the form of the API. The program compares files with them.
func OverridesOf(o shaper.Overrides) Overrides {
	out := Overrides{RouteOverrides: RouteOverridesOf(o), Draining: o.Draining}
	if o.Tier != nil {
		out.Tier = *o.Tier
	}
	for route, ofRoute := range o.Routes {
		if out.Routes == nil {
			out.Routes = map[string]RouteOverrides{}
		}
		out.Routes[route] = RouteOverridesOf(ofRoute)
	}
	return out
}

// RouteOverridesOf converts overrides without those of single routes.
func RouteOverridesOf(o shaper.Overrides) RouteOverrides {
	out := RouteOverrides{
		Burst: o.Burst, Capacity: o.Capacity, CapacityBytes: o.CapacityBytes, Concurrency: o.Concurrency,
		MaxWaitMS: o.MaxWaitMS, Paused: o.Paused, MaxCost: o.MaxCost, Weight: o.Weight,
	}
	if o.Rate != nil {
		out.Rate = new(RateOf(*o.Rate))
	}
	if o.Reserve != nil {
		out.Reserve = new(RateOf(*o.Reserve))
	}
	if o.Rates != nil {
		paces := make([]Pace, len(*o.Rates))
		for i, p := range *o.Rates {
			paces[i] = PaceOf(p.Pace())
		}
		out.Rates = &paces
	}
	return out
}

// PaceOf converts a pace to the form of the API.
func PaceOf(p shaper.Pace) Pace {
	return Pace{Rate: RateOf(p.Rate), Burst: p.Burst, By: p.JSON().By}
}

// Pace is the pace that the form means, unchecked.
func (p Pace) Pace() shaper.Pace {
	return shaper.PaceJSON{Limit: p.Limit, PeriodMS: p.PeriodMS, Burst: p.Burst, By: p.By}.Pace()
}

// PacesOf converts paces to the form of the API; nil for none.
func PacesOf(paces []shaper.Pace) []Pace {
	var out []Pace
	for _, p := range paces {
		out = append(out, PaceOf(p))
	}
	return out
}

// RateOf converts a rate to the form of the API.
func RateOf(r shaper.Rate) Rate { return Rate{Limit: r.Limit, PeriodMS: r.Period.Milliseconds()} }
