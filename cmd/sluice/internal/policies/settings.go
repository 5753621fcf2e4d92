package policies

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

const (
	ratesHelp = "Further rates, such as '1000/24h burst 1000' or '60/m by jobs', separated by commas. The strictest " +
		"wins. A rate counts costs; by jobs it counts jobs. none: no further rates."
	typesHelp                = "Types of jobs that are admitted, separated by commas; others are refused with 403. " + shaper.AllTypes + ": any."
	typesSetting, resetField = "types", "Reset"
)

// settingFlags returns a flag for each setting that has no commands of its own, and the flag
// --reset for all of them and for others. help is the text of a flag.
func settingFlags(of []shaper.Setting, help func(shaper.Setting) string, others ...string) kong.Plugins {
	var fields []reflect.StructField
	var names []string
	add := func(field string, kind reflect.Type, tag string, args ...any) {
		fields = append(fields, reflect.StructField{Name: field, Type: kind, Tag: reflect.StructTag(fmt.Sprintf(tag, args...))})
	}
	for i, s := range of {
		names = append(names, s.Key())
		field, flag := fmt.Sprintf("Setting%d", i), strings.ReplaceAll(s.Key(), "_", "-")
		const tag = `setting:%q name:%q help:%q placeholder:%q`
		if s.NoFlag {
			continue
		}
		switch s.Kind {
		case shaper.KindRate:
			add(field, reflect.TypeFor[*shaper.Rate](), tag, s.Name, flag, help(s), "LIMIT/PERIOD")
		case shaper.KindRates:
			add(field, reflect.TypeFor[[]string](), tag+` filled:""`, s.Name, flag, ratesHelp, "RATE")
		case shaper.KindNumber:
			text := help(s)
			if s.High > 0 {
				text += fmt.Sprintf(" From %d to %d.", s.Low, s.High)
			}
			add(field, reflect.TypeFor[*int64](), tag, s.Name, flag, text, "N")
		case shaper.KindDuration:
			add(field, reflect.TypeFor[*time.Duration](), tag, s.Name, flag, help(s), "DURATION")
		case shaper.KindTypes:
			add(field, reflect.TypeFor[[]string](), tag+` filled:""`, s.Name, flag, typesHelp, "TYPE")
		case shaper.KindSwitch:
			add(field, reflect.TypeFor[*bool](), tag, s.Name, flag, help(s)+fmt.Sprintf(" --%s=false is the opposite.", flag), "true")
		}
	}
	names = append(names, others...)
	add(resetField, reflect.TypeFor[[]string](), `filled:"" placeholder:"SETTING" help:%q settings:%q`,
		"Reset settings to the configuration: "+strings.Join(names, ", ")+".", strings.Join(names, ","))
	return kong.Plugins{reflect.New(reflect.StructOf(fields)).Interface()}
}

// settingPatch returns the given flags as a JSON merge patch: null resets a setting. subject is
// what has the settings, such as "a tenant".
func settingPatch(flags kong.Plugins, subject string) (map[string]any, error) {
	patch := map[string]any{}
	given := reflect.ValueOf(flags[0]).Elem()
	reset, _ := given.Type().FieldByName(resetField)
	known := strings.Split(reset.Tag.Get("settings"), ",")
	for _, name := range given.FieldByIndex(reset.Index).Interface().([]string) {
		key := strings.TrimSuffix(strings.ReplaceAll(name, "-", "_"), "_ms") // as its flag, key or in the API
		if !slices.Contains(known, key) {
			return nil, cli.Usagef("--reset: %q: %s", name, shaper.OneOf("the settings of "+subject+": ", key, known))
		}
		patch[settingName(key)] = nil
	}
	for i := range given.NumField() - 1 {
		field := given.Type().Field(i)
		if given.Field(i).IsNil() {
			continue
		}
		name := field.Tag.Get("setting")
		if _, reset := patch[name]; reset {
			return nil, setAndReset(field.Tag.Get("name"))
		}
		value := given.Field(i).Interface()
		switch v := value.(type) {
		case []string:
			if name == typesSetting {
				types, err := typesOf(v)
				if err != nil {
					return nil, err
				}
				value = types
				break
			}
			if slices.Equal(v, []string{"none"}) { // as diff and history print it
				v = nil
			}
			paces := make([]shaper.PaceJSON, len(v))
			for i, text := range v {
				pace, err := shaper.ParsePace(text)
				if err != nil {
					return nil, cli.Usagef("--%s: %q: %v", field.Tag.Get("name"), text, err)
				}
				paces[i] = pace
			}
			value = paces
		case *time.Duration:
			if *v%time.Millisecond != 0 {
				return nil, cli.Usagef("--%s: %v: must be in whole milliseconds", field.Tag.Get("name"), *v)
			}
			value = v.Milliseconds()
		}
		patch[name] = value
	}
	return patch, nil
}

// typesOf reads the types of jobs of a flag. Words that could mean all or none are no types here.
func typesOf(words []string) ([]string, error) {
	types := make([]string, len(words))
	for i, word := range words {
		types[i] = strings.TrimSpace(word)
	}
	switch {
	case slices.Equal(types, []string{shaper.AllTypes}):
		return []string{}, nil
	case slices.Contains(types, shaper.AllTypes), slices.Contains(types, "none"):
		return nil, cli.Usagef("--types: %q: must be types of jobs, or %s alone; --denied admits none",
			strings.Join(words, ","), shaper.AllTypes)
	}
	return types, nil
}

// setAndReset is the error of a flag beside --reset of its setting.
func setAndReset(flag string) error {
	return cli.Usagef("--%s and --reset %[1]s exclude each other", flag)
}

// settingName returns the name in the API of the setting with the key; another key is its own name.
func settingName(key string) string {
	for _, s := range shaper.Settings() {
		if s.Key() == key {
			return s.Name
		}
	}
	return key
}

// settingRows returns the settings of a policy with their sources, for a table. A rare setting is
// there if it has another value than its default, or if somebody has set it.
func settingRows(policy wire.Policy, settings []shaper.Setting) (rows [][]string) {
	for _, s := range settings {
		text, source := s.Text(policy.Overrides), policy.Sources[s.Name]
		set := source != "" && source != shaper.SourceDefault
		if set || text != "" && (!s.Rare || text != s.Default) {
			rows = append(rows, []string{s.Label(), cmp.Or(text, s.Unset()), source})
		}
	}
	return rows
}
