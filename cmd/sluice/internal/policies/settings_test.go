package policies

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// Every setting of the table has a flag, unless it has commands of its own, and --reset takes it.
func TestFlagsOfTheTable(t *testing.T) {
	values := map[shaper.Kind]string{shaper.KindRate: "7/s", shaper.KindRates: "7/s,9/h by jobs",
		shaper.KindNumber: "7", shaper.KindDuration: "7s", shaper.KindSwitch: "false", shaper.KindTypes: "a7,b"}
	for subject, of := range map[string][]shaper.Setting{
		"a tenant": shaper.SettingsOfTenants(), "a pool": shaper.SettingsOfPools(),
	} {
		parse := func(args ...string) (map[string]any, error) {
			var grammar struct{ kong.Plugins }
			grammar.Plugins = settingFlags(of, func(s shaper.Setting) string { return s.Help }, "tier")
			parser, err := kong.New(&grammar)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parser.Parse(args); err != nil {
				return nil, err
			}
			return settingPatch(grammar.Plugins, subject)
		}
		if patch, err := parse("--rates=none"); err != nil || len(patch["rates"].([]shaper.PaceJSON)) != 0 {
			t.Errorf("no further rates of %s: %v, %v", subject, patch, err)
		}
		if patch, err := parse("--types=all"); subject == "a tenant" && (err != nil || len(patch["types"].([]string)) != 0) {
			t.Errorf("all types: %v, %v", patch, err)
		}
		for _, wrong := range []string{"none", "a,all", "all,all"} {
			if patch, err := parse("--types=" + wrong); err == nil {
				t.Errorf("types %s of %s: %v", wrong, subject, patch)
			}
		}
		for _, s := range shaper.Settings() {
			has := slices.ContainsFunc(of, func(has shaper.Setting) bool { return has.Name == s.Name })
			flag := "--" + strings.ReplaceAll(s.Key(), "_", "-") + "=" + values[s.Kind]
			if patch, err := parse(flag); has && !s.NoFlag && (err != nil || patch[s.Name] == nil) {
				t.Errorf("%s of %s: %v, %v", flag, subject, patch, err)
			} else if !has && err == nil {
				t.Errorf("%s of %s is taken", flag, subject)
			}
			for _, name := range []string{s.Key(), s.Name, strings.ReplaceAll(s.Key(), "_", "-")} {
				patch, err := parse("--reset=" + name)
				if value, given := patch[s.Name]; (err == nil) != has || given != has || value != nil {
					t.Errorf("reset %s of %s: %v, %v", name, subject, patch, err)
				}
			}
		}
	}
}

// Every setting of a policy has a row, unless it is rare and has its default.
func TestRowsOfTheTable(t *testing.T) {
	values, sources, labels := map[string]any{}, map[string]string{}, []string{}
	for _, s := range shaper.SettingsOfTenants() {
		values[s.Name] = map[shaper.Kind]any{shaper.KindRate: map[string]int{"limit": 7, "period_ms": 1000},
			shaper.KindRates:  []map[string]int{{"limit": 7, "period_ms": 1000}},
			shaper.KindNumber: 7, shaper.KindDuration: 7, shaper.KindSwitch: true, shaper.KindTypes: []string{"a7"}}[s.Kind]
		sources[s.Name] = "from " + s.Name
		labels = append(labels, s.Label())
	}
	policy := func(values map[string]any) (p wire.Policy) {
		values["sources"] = sources
		text, err := json.Marshal(values)
		if err := errors.Join(err, json.Unmarshal(text, &p)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	rows := settingRows(policy(values), shaper.SettingsOfTenants())
	for i, s := range shaper.SettingsOfTenants() {
		if i >= len(rows) || rows[i][0] != labels[i] || !strings.Contains(rows[i][1], "7") && rows[i][1] != "true" ||
			rows[i][2] != "from "+s.Name {
			t.Fatalf("rows %v, want those of %v", rows, labels)
		}
	}
	sources = map[string]string{"capacity": "default", "max_cost": "default", "weight": "default", "rates": "default"}
	plain := settingRows(policy(map[string]any{"capacity": 0, "max_cost": 0, "weight": 1}), shaper.SettingsOfTenants())
	if len(plain) != 1 || plain[0][0] != "capacity" {
		t.Errorf("rows of defaults: %v", plain)
	}
	sources = map[string]string{"rates": "api", "max_cost": "tier:gold"} // somebody has set these defaults
	set := settingRows(policy(map[string]any{"max_cost": 0}), shaper.SettingsOfTenants())
	want := [][]string{{"max cost", "0", "tier:gold"}, {"rates", "none", "api"}}
	slices.SortFunc(set, slices.Compare)
	if !slices.EqualFunc(set, want, slices.Equal) {
		t.Errorf("rows of defaults that somebody has set: %v, want %v", set, want)
	}
}
