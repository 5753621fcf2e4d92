package contract

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// DescribeSettings documents the settings of tenants and pools, from the table of settings: in a
// change a rate may be text, and null resets a setting. Call it once everything is mounted.
func DescribeSettings(api huma.API) {
	schemas := api.OpenAPI().Components.Schemas
	for _, v := range []any{wire.Settings{}, wire.PoolSettings{}, wire.RateChange{}, wire.Rate{}, wire.Pace{}} {
		schemaOf(schemas, v)
	}
	d := settingsDoc{schemas}
	ofRoute, ofPool := d.changes(shaper.SettingsOfTenants(), false), d.changes(shaper.SettingsOfPools(), true)
	ofTenant := d.changes(shaper.SettingsOfTenants(), false)
	reason := &huma.Schema{Type: huma.TypeString, MaxLength: new(shaper.MaxReason),
		Description: "Stored with the change, at most 255 bytes."}
	ofTenant["reason"], ofPool["reason"] = orNull(reason), orNull(reason)
	ofTenant["tier"] = orNull(&huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(wire.MaxTierBytes),
		Description: "One of the tiers of the configuration."})
	ofTenant["routes"] = orNull(&huma.Schema{Type: huma.TypeObject, AdditionalProperties: orNull(d.ref("RouteSettings")),
		Description: "Settings of single routes, by name. They override the general settings."})
	stated, statedOfRoute := d.stated(shaper.Settings()), d.stated(shaper.SettingsOfTenants())
	stated["tier"] = &huma.Schema{Type: huma.TypeString}
	stated["routes"] = &huma.Schema{Type: huma.TypeObject, AdditionalProperties: d.ref("RouteOverrides")}
	for name, properties := range map[string]map[string]*huma.Schema{
		"Settings": ofTenant, "RouteSettings": ofRoute, "PoolSettings": ofPool,
		"Overrides": stated, "RouteOverrides": statedOfRoute,
	} {
		schemas.Map()[name] = &huma.Schema{Type: huma.TypeObject, Properties: properties, AdditionalProperties: false}
	}
}

// settingsDoc makes schemas of settings.
type settingsDoc struct{ schemas huma.Registry }

func (settingsDoc) ref(name string) *huma.Schema {
	return &huma.Schema{Ref: "#/components/schemas/" + name}
}

// changes returns the members of a change of the settings, by name.
func (d settingsDoc) changes(settings []shaper.Setting, ofPool bool) map[string]*huma.Schema {
	text := &huma.Schema{
		Type: huma.TypeString, Pattern: "^[1-9][0-9]*/([1-9][0-9]*)?(ms|s|m|h|d)$", Examples: []any{"10/s", "5/24h"},
	}
	members := d.stated(settings)
	for _, s := range settings {
		m := members[s.Name]
		m.Description = s.Doc
		if ofPool {
			m.Description = s.PoolDoc
		}
		switch s.Kind {
		case shaper.KindNumber, shaper.KindDuration:
			m.Minimum = new(float64(s.Low))
			if s.High > 0 {
				m.Maximum = new(float64(s.High))
			}
		case shaper.KindRate:
			if s.Name == "rate" { // its halves merge
				m.Ref = d.ref("RateChange").Ref
			}
			members[s.Name] = &huma.Schema{Description: m.Description, AnyOf: []*huma.Schema{m, text}}
		case shaper.KindRates:
			m.MaxItems = new(shaper.MaxRates)
			m.Items = &huma.Schema{AnyOf: []*huma.Schema{m.Items, {
				Type: huma.TypeObject, Properties: map[string]*huma.Schema{
					"rate": text, "burst": {Type: huma.TypeInteger, Minimum: new(1.0)},
					"by": {Type: huma.TypeString, Enum: []any{shaper.ByCost, shaper.ByJobs}},
				}, Required: []string{"rate"}, AdditionalProperties: false,
			}}}
		}
		members[s.Name] = orNull(members[s.Name])
	}
	return members
}

// stated returns the members of settings that are set, by name.
func (d settingsDoc) stated(settings []shaper.Setting) map[string]*huma.Schema {
	members := map[string]*huma.Schema{}
	for _, s := range settings {
		switch s.Kind {
		case shaper.KindRate:
			members[s.Name] = d.ref("Rate")
		case shaper.KindRates:
			members[s.Name] = &huma.Schema{Type: huma.TypeArray, Items: d.ref("Pace")}
		case shaper.KindSwitch:
			members[s.Name] = &huma.Schema{Type: huma.TypeBoolean}
		default:
			members[s.Name] = &huma.Schema{Type: huma.TypeInteger, Format: "int64"}
		}
	}
	return members
}

// orNull allows null, too.
func orNull(s *huma.Schema) *huma.Schema {
	return &huma.Schema{Description: s.Description, AnyOf: []*huma.Schema{s, {Type: "null"}}}
}
