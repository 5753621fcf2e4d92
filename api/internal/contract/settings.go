package contract

import (
	"maps"
	"reflect"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// Rate describes a number of departures per period.
type Rate struct {
	Limit    int64 `json:"limit" minimum:"1"`
	PeriodMS int64 `json:"period_ms" minimum:"1" maximum:"31622400000"`
}

// Pace describes a further rate with its own burst.
type Pace struct {
	Rate
	Burst int64  `json:"burst,omitempty" minimum:"1" doc:"1 if absent."`
	By    string `json:"by,omitempty" enum:"cost,jobs" doc:"What the rate counts: the costs of jobs, or jobs whatever they cost. cost if absent."`
}

// DescribeSettings documents the settings of tenants and pools, from the table of settings: in a
// change a rate may be text, and null resets a setting. Call it once everything is mounted.
func DescribeSettings(api huma.API) {
	schemas := api.OpenAPI().Components.Schemas
	for _, v := range []any{wire.Settings{}, wire.PoolSettings{}, wire.RateChange{}, Rate{}, Pace{}} {
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
	for _, v := range []any{wire.Tenant{}, wire.TenantNow{}} {
		d.inForce(v, shaper.SettingsOfTenants(), false)
	}
	d.inForce(wire.Flow{}, shaper.SettingsOfTenants(), false, "tier", "routes", "draining")
	for _, v := range []any{wire.Pool{}, wire.PoolNow{}} {
		d.inForce(v, shaper.SettingsOfPools(), true, "tier", "draining")
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

// inForce documents the settings in force in the schema of v, which has none of the others.
func (d settingsDoc) inForce(v any, settings []shaper.Setting, ofPool bool, others ...string) {
	s := d.schemas.Map()[reflect.TypeOf(v).Name()]
	for _, name := range append(others, shaper.Names(shaper.SettingsOfTenants())...) {
		delete(s.Properties, name)
	}
	maps.Copy(s.Properties, d.stated(settings))
	for _, setting := range settings {
		m := s.Properties[setting.Name]
		m.Description = setting.Doc
		if ofPool {
			m.Description = setting.PoolDoc
		}
		if setting.Default != "" {
			s.Required = append(s.Required, setting.Name)
		}
	}
	slices.Sort(s.Required)
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
		case shaper.KindTypes:
			members[s.Name] = &huma.Schema{Type: huma.TypeArray, MaxItems: new(shaper.MaxTypes),
				Items: &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(wire.MaxTypeBytes)}}
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
