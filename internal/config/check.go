package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/7509e464/sluice/shaper"
)

// InForce is one setting as it would apply.
type InForce struct {
	Key   string `json:"key"`
	Value string `json:"value"` // without secrets
	From  string `json:"from"`  // "default", "file", or the variable or flag
}

// Check is like Load, but returns the settings as text, too, with those of routes, guards, pools,
// tiers and tenants.
func Check(from Sources) (Config, []InForce, error) {
	r, values := from.merge()
	config := r.config(values)
	if err := r.problems.Err(); err != nil {
		return Config{}, nil, err
	}
	config.Notes, config.Files = slices.Concat(r.notes(values), r.costNotes(config), config.idleSettings()), r.files
	l := lister{r: r}
	for _, s := range Settings() {
		steps := strings.Split(s.Key, ".")
		l.value(steps, take(values, steps), s)
	}
	fill(sectionOf(values, "routes"), RouteSettings)
	fillCosts(config, sectionOf(values, "routes"))
	fill(sectionOf(values, "guards"), GuardSettings)
	fill(sectionOf(values, "pools"), PoolSettings)
	l.rest(nil, values)
	return config, l.lines, nil
}

// take removes the value at the steps from the tree and returns it.
func take(tree map[string]any, steps []string) any {
	last := len(steps) - 1
	section := sectionOf(tree, strings.Join(steps[:last], "."))
	if last == 0 {
		section = tree
	}
	value := section[steps[last]]
	delete(section, steps[last])
	return value
}

// fill adds the defaults to each section. A route to asynq has no url and no breaker, and only one
// with forward has what concerns forwarded requests.
func fill(sections map[string]any, settings func() []Setting) {
	for _, section := range sections {
		values, ok := section.(map[string]any)
		if !ok {
			continue
		}
		_, handsOff := values["asynq"]
		for _, s := range settings() {
			group, key, nested := strings.Cut(s.Key, ".")
			switch {
			case s.Default == "", group == "asynq" && !handsOff, group == "breaker" && handsOff,
				s.Key == "method" && values["url"] == nil, slices.Contains(forwardKeys, s.Key) && values["forward"] == nil:
				continue
			case !nested:
				group, key = "", s.Key
			}
			at := values
			if nested {
				if at, ok = values[group].(map[string]any); !ok {
					at = map[string]any{}
					values[group] = at
				}
			}
			if _, set := at[key]; !set {
				at[key] = s.typed(s.Default)
			}
		}
	}
}

// fillCosts adds to each route whose answers are read where they have the actual cost. That depends
// on the pools.
func fillCosts(c Config, routes map[string]any) {
	for name, section := range routes {
		values, _ := section.(map[string]any)
		if _, handsOff := values["asynq"]; handsOff {
			delete(values, "min_cost")
		} else {
			values["cost_from"] = c.costFrom(name)
		}
	}
}

// lister builds the lines.
type lister struct {
	r     *reader
	lines []InForce
}

// rest lists the remaining tree, without the settings with a fixed key.
func (l *lister) rest(steps []string, section map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(section)) {
		at := append(slices.Clip(steps), name)
		switch value := section[name].(type) {
		case string:
			if hides(at) {
				l.add(at, hidden)
				continue
			}
			l.value(at, value, Setting{Key: name})
		case map[string]any:
			if len(value) > 0 {
				l.rest(at, value)
			} else if len(steps) == 1 && (steps[0] == "tiers" || steps[0] == "tenants" && name != "defaults") {
				l.add(at, "no settings of its own") // those of the defaults are listed with the other settings
			}
		case []any:
			l.add(at, listText(at, value))
		default:
			l.value(at, value, Setting{Key: name})
		}
	}
}

func (l *lister) value(steps []string, value any, s Setting) {
	text := "not set"
	switch v := value.(type) {
	case nil:
	case string:
		switch {
		case v == "":
		case slices.Contains([]string{"url", "forward", "token_url", "proxy", "callbacks.proxy", "redis.url", "traces.endpoint"}, s.Key):
			text = withoutPassword(v)
		case s.Secret:
			text = hidden
		default:
			text = v
		}
	default:
		text = show(v)
	}
	l.add(steps, text)
}

func (l *lister) add(steps []string, text string) {
	quoted := make([]string, len(steps))
	for i, step := range steps {
		quoted[i] = quoteName(step)
	}
	line := InForce{Key: strings.Join(quoted, "."), Value: text, From: "default"}
	if origin, ok := l.r.origin[line.Key]; ok {
		line.From = origin
	} else if has(l.r.written, steps) {
		line.From = "file"
	}
	l.lines = append(l.lines, line)
}

// hides reports whether the setting of a route at the steps is a secret or may have one.
func hides(steps []string) bool {
	return len(steps) == 4 && steps[0] == "routes" &&
		(steps[2] == "headers" || steps[2] == "oauth2" && steps[3] == "client_secret")
}

// has reports whether the tree has a value at the steps.
func has(tree map[string]any, steps []string) bool {
	for _, step := range steps[:len(steps)-1] {
		tree, _ = tree[step].(map[string]any)
	}
	_, ok := tree[steps[len(steps)-1]]
	return ok
}

// listText returns a list on one line: rates or names. Lists that may contain secrets are counted
// only.
func listText(steps []string, list []any) string {
	last := steps[len(steps)-1]
	if last == "secrets" || last == "keys" || last == "allow" && steps[0] == "callbacks" {
		return fmt.Sprintf("%d, hidden", len(list))
	}
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i] = fmt.Sprint(item)
		if pace, ok := item.(map[string]any); ok && pace["rate"] == nil { // such as an address to forward from
			var parts []string
			for _, name := range slices.Sorted(maps.Keys(pace)) {
				below, _ := pace[name].(map[string]any) // such as tls
				for _, key := range slices.Sorted(maps.Keys(below)) {
					parts = append(parts, fmt.Sprint(name, ".", key, " ", below[key]))
				}
				if below == nil {
					parts = append(parts, fmt.Sprint(name, " ", pace[name]))
				}
			}
			texts[i] = strings.Join(parts, " ")
		} else if ok {
			texts[i] = fmt.Sprint(pace["rate"])
			if burst, set := pace["burst"]; set {
				texts[i] += fmt.Sprintf(" burst %v", burst)
			}
			if pace["by"] == shaper.ByJobs {
				texts[i] += " by jobs"
			}
		}
	}
	return strings.Join(texts, ", ")
}

// withoutPassword returns the URL without its password, and without its query, which may have
// another one. A URL with credentials elsewhere is hidden.
func withoutPassword(text string) string {
	if reference.MatchString(text) {
		shown, _ := publicURL(text)
		return shown
	}
	u, err := url.Parse(text)
	if err != nil || u.User == nil && strings.Contains(text, "@") {
		return hidden
	}
	query := ""
	if u.RawQuery != "" {
		u.RawQuery, query = "", "?"+hidden
	}
	return u.Redacted() + query
}
