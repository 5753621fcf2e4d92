package wire

import "github.com/7509e464/sluice/shaper"

// PaceOf converts a pace to the form of the API.
func PaceOf(p shaper.Pace) Pace {
	return Pace{Rate: RateOf(p.Rate), Burst: p.Burst, By: p.JSON().By}
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
