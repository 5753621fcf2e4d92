package codec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper"
)

// SettingsPatch is a decoded merge patch (RFC 7396) of a tenant's settings.
type SettingsPatch struct {
	settings overridesPatch
	routes   map[string]*overridesPatch // nil: the settings of the route are reset
	noRoutes bool                       // the settings of all routes are reset first
	tier     *string                    // empty: it is reset
	Reason   string                     // for the history; empty if none
	Partial  string                     // path of a rate that lacks a half, which comes from the rate in force; or empty
}

// overridesPatch changes the general settings, or those of one route.
type overridesPatch struct {
	given  []shaper.Setting
	values shaper.Overrides // of those given; not set: it is reset
	rate   rateChange       // merges into the rate, if it has a path
}

// rateChange is a rate as an object in a change. A half that is nil keeps its value.
type rateChange struct {
	path          string
	limit, period *int64
}

// rateOf returns the rate in force for a route, or that of the tenant for "".
type rateOf func(route string) shaper.Rate

// DecodeSettings reads the body of PUT and PATCH /v1/tenants/{tenant}. Bounds that depend on other
// settings are left to the queue, which knows the policies that result. routeRule is empty for a
// configured route.
func DecodeSettings(body []byte, routeRule func(name string) string) (SettingsPatch, error) {
	return patchOf(body, shaper.SettingsOfTenants(), tenantsElsewhere, []string{"tier", "routes"},
		func(p *SettingsPatch, rd *reader, name, path string, value json.RawMessage) {
			switch {
			case name == "routes":
				patchRoutes(p, rd, path, value, routeRule)
			case isNull(value):
				p.tier = new("")
			default:
				p.tier = new(rd.text(path, value, 1, wire.MaxTierBytes))
			}
		})
}

// DecodePoolSettings reads the body of PUT and PATCH /v1/pools/{pool}.
func DecodePoolSettings(body []byte) (SettingsPatch, error) {
	return patchOf(body, shaper.SettingsOfPools(), poolsElsewhere, nil, nil)
}

// The members that no patch has, because they are changed in another place.
var (
	tenantsElsewhere = map[string]string{
		"draining": "is changed by POST /v1/tenants/{tenant}/drain and resume, or sluice tenant drain and resume",
	}
	poolsElsewhere = map[string]string{
		"routes":      "is a setting of the configuration file: pools.NAME.routes",
		"hold":        "is a setting of the configuration file: pools.NAME.hold",
		"max_hold":    "is a setting of the configuration file: pools.NAME.max_hold",
		"max_hold_ms": "is a setting of the configuration file: pools.NAME.max_hold",
	}
)

// patchOf reads a patch of the settings and of the other members, for which it calls other.
// elsewhere has the rule for members that are changed in another place.
func patchOf(body []byte, settings []shaper.Setting, elsewhere map[string]string, others []string,
	other func(p *SettingsPatch, rd *reader, name, path string, value json.RawMessage),
) (SettingsPatch, error) {
	var p SettingsPatch
	value, err := oneValue(body)
	if err != nil {
		return p, err
	}
	var rd reader
	names := slices.Concat(shaper.Names(settings), others, []string{"reason"})
	rd.object("", value, names, func(name, path string, value json.RawMessage) bool {
		switch {
		case name == "reason":
			if !isNull(value) {
				p.Reason = rd.text(path, value, 0, shaper.MaxReason)
			}
		case elsewhere[name] != "":
			rd.wrong(path, value, elsewhere[name])
		case slices.Contains(others, name):
			other(&p, &rd, name, path, value)
		default:
			return p.member(&rd, settings, &p.settings, name, path, value)
		}
		return true
	})
	return p, rd.Err()
}

// patchRoutes reads the settings of single routes.
func patchRoutes(
	p *SettingsPatch, rd *reader, path string, value json.RawMessage, routeRule func(name string) string,
) {
	if isNull(value) {
		p.noRoutes = true
		return
	}
	p.routes = map[string]*overridesPatch{}
	rd.object(path, value, (*wire.Empty)(nil), func(route, path string, value json.RawMessage) bool {
		if _, repeated := p.routes[route]; repeated {
			rd.wrong(path, value, "must not be repeated")
			return true
		}
		if isNull(value) { // also of a route that was removed from the configuration
			p.routes[route] = nil
			return true
		}
		if rule := routeRule(route); rule != "" {
			rd.wrong(path, value, rule)
			return true
		}
		patch, settings := overridesPatch{}, shaper.SettingsOfTenants()
		rd.object(path, value, shaper.Names(settings), func(name, path string, value json.RawMessage) bool {
			return p.member(rd, settings, &patch, name, path, value)
		})
		p.routes[route] = &patch
		return true
	})
}

// Apply returns the overrides with the patch applied. inForce returns the rate in force of a route,
// or of the tenant for "". The error is a *problem.Problem that names the setting.
func (p SettingsPatch) Apply(o shaper.Overrides, inForce rateOf) (shaper.Overrides, error) {
	if err := p.settings.apply(&o, inForce("")); err != nil {
		return o, err
	}
	if p.tier != nil {
		if o.Tier = p.tier; *p.tier == "" {
			o.Tier = nil
		}
	}
	routes := maps.Clone(o.Routes)
	if p.noRoutes || routes == nil {
		routes = map[string]shaper.Overrides{}
	}
	for route, patch := range p.routes {
		changed := routes[route]
		if patch == nil {
			changed = shaper.Overrides{}
		} else if err := patch.apply(&changed, inForce(route)); err != nil {
			return o, err
		}
		if routes[route] = changed; changed.Empty() {
			delete(routes, route)
		}
	}
	if o.Routes = routes; len(routes) == 0 {
		o.Routes = nil
	}
	return o, nil
}

func (p overridesPatch) apply(o *shaper.Overrides, inForce shaper.Rate) error {
	if o.Rate != nil {
		inForce = *o.Rate
	}
	for _, s := range p.given {
		s.Copy(o, p.values)
	}
	if p.rate.path == "" {
		return nil
	}
	r, err := shaper.RateOf(deref(p.rate.limit, inForce.Limit), deref(p.rate.period, inForce.Period.Milliseconds()))
	if err != nil {
		return problem.Invalid(p.rate.path, "object", err.Error())
	}
	o.Rate = &r
	return nil
}

func deref(n *int64, absent int64) int64 {
	if n == nil {
		return absent
	}
	return *n
}

// member reads one of the settings into the patch; it reports whether there is such a setting.
func (p *SettingsPatch) member(
	rd *reader, settings []shaper.Setting, to *overridesPatch, name, path string, value json.RawMessage,
) bool {
	at := slices.IndexFunc(settings, func(s shaper.Setting) bool { return s.Name == name })
	if at < 0 {
		return false
	}
	s := settings[at]
	to.given = append(to.given, s)
	if isNull(value) {
		return true
	}
	switch field := s.Of(&to.values).(type) {
	case **int64:
		*field = new(rd.whole(path, value, s.Low, cmp.Or(s.High, maxInt)))
	case **bool:
		*field = new(rd.truth(path, value))
	case **[]shaper.PaceJSON:
		*field = new(readPaces(rd, path, value))
	case **[]string:
		*field = new(readTypes(rd, path, value))
	case **shaper.Rate:
		if name == "rate" && kindOf(value) == "object" {
			limit, period, ok := rd.rateMembers(path, value)
			to.rate = rateChange{path, limit, period}
			if ok && (limit == nil || period == nil) {
				p.Partial = cmp.Or(p.Partial, path)
			}
			break
		}
		*field = new(rd.wholeRate(path, value))
	}
	return true
}

const (
	maxInt     = 1<<53 - 1 // what every JSON reader and the scripts hold exactly
	maxPerTime = shaper.MaxPerSecond * wire.MaxMillis / 1000
)

// rateRule is the validation rule of a rate. Its text form is that of the configuration file.
const rateRule = "must be an object with limit and period_ms, or a text such as 10/s or 5/24h"

// rateText reads a rate in text form; ok is false if it is noted as wrong.
func (rd *reader) rateText(path string, value json.RawMessage) (r shaper.Rate, ok bool) {
	before := len(rd.Fields)
	text := rd.text(path, value, 0, wire.MaxTypeBytes)
	if len(rd.Fields) > before {
		return r, false
	}
	r, err := shaper.ParseRate(text)
	if err != nil {
		rd.wrongValue(path, value, err.Error())
	}
	return r, err == nil
}

// rateMembers reads the object form of a rate; ok is false if it is noted as wrong.
func (rd *reader) rateMembers(path string, value json.RawMessage) (limit, period *int64, ok bool) {
	before := len(rd.Fields)
	rd.object(path, value, (*wire.RateChange)(nil), func(name, path string, value json.RawMessage) bool {
		switch name {
		case "limit":
			limit = new(rd.whole(path, value, 1, maxPerTime))
		case "period_ms":
			period = new(rd.whole(path, value, 1, wire.MaxMillis))
		default:
			return false
		}
		return true
	})
	return limit, period, len(rd.Fields) == before
}

// wholeRate reads a rate as text, or as an object with both members.
func (rd *reader) wholeRate(path string, value json.RawMessage) (r shaper.Rate) {
	switch kindOf(value) {
	case "string":
		r, _ = rd.rateText(path, value)
	case "object":
		limit, period, ok := rd.rateMembers(path, value)
		switch {
		case !ok:
		case limit == nil || period == nil:
			rd.wrong(path, value, rateRule)
		default:
			var err error
			if r, err = shaper.RateOf(*limit, *period); err != nil {
				rd.wrongValue(path, value, err.Error())
			}
		}
	default:
		rd.wrong(path, value, rateRule)
	}
	return r
}

// paceFields are the members of a further rate, whose rate may be a text.
type paceFields struct {
	shaper.PaceJSON
	Rate string `json:"rate"`
}

// readTypes reads the types of jobs, which a patch replaces as a whole.
func readTypes(rd *reader, path string, value json.RawMessage) []string {
	types := []string{}
	n := rd.array(path, value, func(_ int, path string, value json.RawMessage) {
		name := rd.text(path, value, 1, wire.MaxTypeBytes)
		if name != "" && slices.Contains(types, name) {
			rd.wrongValue(path, value, "must not be repeated")
		}
		types = append(types, name)
	})
	if n > shaper.MaxTypes {
		rd.wrong(path, value, fmt.Sprintf("must have at most %d elements", shaper.MaxTypes))
	}
	return types
}

// readPaces reads the further rates, which a patch replaces as a whole.
func readPaces(rd *reader, path string, value json.RawMessage) []shaper.PaceJSON {
	paces := []shaper.PaceJSON{}
	n := rd.array(path, value, func(_ int, path string, value json.RawMessage) {
		pace := shaper.PaceJSON{Burst: 1}
		before := len(rd.Fields)
		var text *shaper.Rate
		rd.object(path, value, (*paceFields)(nil), func(name, path string, value json.RawMessage) bool {
			switch name {
			case "rate":
				if r, ok := rd.rateText(path, value); ok {
					text = &r
				}
			case "limit":
				pace.Limit = rd.whole(path, value, 1, maxPerTime)
			case "period_ms":
				pace.PeriodMS = rd.whole(path, value, 1, wire.MaxMillis)
			case "burst":
				pace.Burst = rd.whole(path, value, 1, maxInt)
			case "by":
				switch by := rd.text(path, value, 1, wire.MaxTypeBytes); by {
				case "": // noted as wrong
				case shaper.ByCost: // as without it
				case shaper.ByJobs:
					pace.By = by
				default:
					rd.wrongValue(path, value, "must be cost or jobs")
				}
			default:
				return false
			}
			return true
		})
		if len(rd.Fields) > before {
			return
		}
		switch {
		case text == nil && (pace.Limit == 0 || pace.PeriodMS == 0):
			rd.wrong(path, value, "must have rate, or limit and period_ms")
			return
		case text == nil:
		case pace.Limit != 0 || pace.PeriodMS != 0:
			rd.wrong(path, value, "must have rate, or limit and period_ms, not both")
			return
		default:
			pace.Limit, pace.PeriodMS = text.Limit, text.Period.Milliseconds()
		}
		if _, err := shaper.RateOf(pace.Limit, pace.PeriodMS); err != nil {
			rd.wrongValue(path, value, err.Error())
		}
		if len(paces) < shaper.MaxRates {
			paces = append(paces, pace)
		}
	})
	if n > shaper.MaxRates {
		rd.wrong(path, value, fmt.Sprintf("must have at most %d elements", shaper.MaxRates))
	}
	return paces
}
