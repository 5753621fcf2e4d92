package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// reader converts the merged sources to a Config and collects their problems.
type reader struct {
	problems shaper.Problems
	origin   map[string]string // key → the variable or flag that gave its value
	given    string            // the flag that named the file
	path     string            // of the file
	written  map[string]any    // the content of the file
	anyRoute bool              // the routes are unknown, so any name is valid
	unread   bool              // the file could not be read, so missing settings may be in it

	variables map[string]string // the environment
	files     []string          // that settings refer to
	open      []string          // notes on those that everyone can read
}

func (r *reader) problem(path, value, rule string) {
	r.problems = append(r.problems, shaper.Problem{Field: path, Value: value, Rule: rule})
}

// at returns the path of a setting for a problem, with the variable or flag that gave its value.
func (r *reader) at(path string) string {
	if origin, ok := r.origin[path]; ok {
		return path + " (" + origin + ")"
	}
	return path
}

// kindOf names the type of a value without showing it, because a misplaced value may be a secret.
func kindOf(raw any) string {
	switch raw.(type) {
	case nil:
		return "nothing"
	case string:
		return "a text"
	case bool:
		return "true or false"
	case int, int64, float64:
		return "a number"
	case map[string]any:
		return "a section"
	case []any:
		return "a list"
	default:
		return "a value"
	}
}

// sectionOf returns the section at path of the tree, nil if there is none.
func sectionOf(tree map[string]any, path string) map[string]any {
	for step := range strings.SplitSeq(path, ".") {
		tree, _ = tree[step].(map[string]any)
	}
	return tree
}

// scalars reads the settings from the section values, which is at path in the file, into the struct
// that into points to. It reports every other key but those named in more, which the caller reads.
func (r *reader) scalars(path string, values map[string]any, settings []Setting, into any, more ...string) {
	known := append(slices.Clone(more), keysOf(settings)...)
	r.unknown(path, values, known)
	for _, s := range settings {
		section, key := values, s.Key
		if i := strings.LastIndexByte(s.Key, '.'); i >= 0 {
			section, key = sectionOf(values, s.Key[:i]), s.Key[i+1:]
		}
		raw, present := section[key]
		if !present {
			continue
		}
		content, whole := raw, true
		if text, is := raw.(string); is && (s.Secret || s.refers) {
			content, whole = r.expand(join(path, s.Key), text)
		}
		if !whole {
			continue
		}
		value, rule := s.read(content)
		if text, is := raw.(string); is && s.Kind == Text && !s.Secret && !s.refers && strings.Contains(text, "${") {
			r.problem(r.at(join(path, s.Key)), s.show(raw), "must have no reference: references stand in secrets, "+
				"and in URLs and headers of routes")
			continue
		}
		_, given := r.origin[s.Key]
		wrote := path != "" || given || has(r.written, strings.Split(s.Key, "."))
		if policy := strings.HasPrefix(s.Key, "tenants."); s.Kind == Rate && raw == "" && (path != "" || policy && wrote) {
			rule = s.Rule // only a rate that nobody wrote is not set
		}
		if s.protects && raw == "" && wrote {
			rule = s.Rule + "; to leave it not set, leave it out"
		}
		if rule != "" {
			r.problem(r.at(join(path, s.Key)), s.show(raw), rule+s.meant(raw))
			continue
		}
		assign(fieldOf(into, s.Key), value)
	}
}

// sortedKeys returns the keys of a section in order.
func sortedKeys[V any](section map[string]V) []string { return slices.Sorted(maps.Keys(section)) }

func keysOf(settings []Setting) []string {
	keys := make([]string, len(settings))
	for i, s := range settings {
		keys[i] = s.Key
	}
	return keys
}

// unknown reports unknown keys of a section and of the sections in it. A known key covers all keys
// below it.
func (r *reader) unknown(path string, values map[string]any, known []string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if slices.Contains(known, key) {
			continue
		}
		var below []string
		for _, k := range known {
			if rest, ok := strings.CutPrefix(k, key+"."); ok {
				below = append(below, rest)
			}
		}
		section, isSection := values[key].(map[string]any)
		switch {
		case below == nil:
			rule := "must be a setting of this section"
			if near := nearest(key, known); near != "" {
				rule += "; is " + join(path, near) + " meant?"
			} else {
				rule += placeOf(key)
			}
			r.problem(join(path, quoteName(key)), "unknown key", rule)
		case isSection:
			r.unknown(join(path, key), section, below)
		case values[key] != nil:
			r.problem(join(path, key), kindOf(values[key]), "must be a section")
		}
	}
}

// fieldOf returns a pointer to the field of a struct that has the name of the key: redis.data_dir
// is Redis.DataDir.
func fieldOf(of any, key string) any {
	at := reflect.ValueOf(of).Elem()
	for step := range strings.SplitSeq(key, ".") {
		name := strings.ReplaceAll(step, "_", "")
		at = at.FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
	}
	return at.Addr().Interface()
}

// assign sets a field to a value that Setting.read returned.
func assign(field, value any) {
	switch p := field.(type) {
	case *string:
		*p = value.(string)
	case *limiter.Algorithm:
		*p = limiter.Algorithm(value.(string))
	case *int64:
		*p = value.(int64)
	case *bool:
		*p = value.(bool)
	case *time.Duration:
		*p = value.(time.Duration)
	case *shaper.Rate:
		*p = value.(shaper.Rate)
	case **float64:
		*p = value.(*float64)
	case **int64:
		n := value.(int64)
		*p = &n
	case **bool:
		b := value.(bool)
		*p = &b
	case **shaper.Rate:
		rate := value.(shaper.Rate)
		*p = &rate
	default:
		panic(fmt.Sprintf("config: no setting has the type %T", field))
	}
}

// join returns the path of key below path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// quoteName quotes names that would be ambiguous in a path.
func quoteName(name string) string {
	if isRoute(name) {
		return name
	}
	return show(name)
}

// placeOf returns where a setting with this key stands, to follow a rule, or nothing.
func placeOf(key string) string {
	var paths, places []string
	for _, s := range Settings() {
		if strings.HasSuffix(s.Key, "."+key) {
			paths = append(paths, s.Key)
		}
	}
	for _, of := range []struct {
		place string
		keys  []string
	}{
		{"tenants and tiers", append(keysOf(TenantSettings()), "rates", "types")},
		{"tenants", []string{"tier"}}, {"tiers", keysOf(TierSettings())},
		{"pools", append(keysOf(PoolSettings()), "rates")}, {"routes", keysOf(RouteSettings())},
	} {
		if slices.Contains(of.keys, key) {
			places = append(places, of.place)
		}
	}
	switch {
	case len(places) > 0:
		return "; it is a setting of " + strings.Join(places, ", and of ")
	case len(paths) == 1:
		return "; is " + paths[0] + " meant?"
	}
	return ""
}

// nearest returns the first step of the known key that is near to key, or empty.
func nearest(key string, known []string) string {
	steps := make([]string, len(known))
	for i, k := range known {
		steps[i], _, _ = strings.Cut(k, ".")
	}
	return shaper.NearestKey(key, slices.Compact(steps))
}
