package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/7509e464/sluice/internal/numbers"
	"github.com/7509e464/sluice/shaper"
)

// Sources are the sources of settings. A later one overrides an earlier one: the defaults, Preset,
// File, Environ, Flags.
type Sources struct {
	Preset  map[string]any    // other defaults, nested like the file
	File    string            // path of a YAML file; empty: none
	Environ []string          // KEY=VALUE, as os.Environ gives them
	Flags   map[string]string // by the key of the setting
	Routes  []string          // NAME=URL: urls of routes, from flags
}

// maxFile bounds the size of a configuration file.
const maxFile = 16 << 20

// Load reads and checks the settings of all sources. The error is of type shaper.Problems and
// contains all problems.
func Load(from Sources) (Config, error) {
	r, values := from.merge()
	config := r.config(values)
	config.Notes, config.Files = slices.Concat(r.notes(values), r.costNotes(config), config.idleSettings()), r.files
	return config, r.problems.Err()
}

// notes are those of Config. The environment decides which store a process accepts, so another
// source than the file is named.
func (r *reader) notes(values map[string]any) []string {
	written, _ := sectionOf(r.written, "store")["environment"].(string)
	set, _ := sectionOf(values, "store")["environment"].(string)
	origin := r.origin["store.environment"]
	if origin == "" || written == "" || written == set {
		return r.open
	}
	return append(r.open, fmt.Sprintf("%s sets store.environment to %s, over %s in the file", origin, cmp.Or(set, "none"), written))
}

// costNotes names the routes whose answers report costs, such as tokens, where nobody has set a
// rate for them: the default is one of jobs.
func (r *reader) costNotes(c Config) (notes []string) {
	_, written := sectionOf(sectionOf(r.written, "tenants"), "defaults")["rate"]
	if written || r.origin["tenants.defaults.rate"] != "" || len(c.Tenants.Tiers)+len(c.Tenants.Named) > 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.Routes)) {
		if _, own := c.Tenants.Routes[name]; !own && strings.HasPrefix(c.Routes[name].CostFrom, "/") {
			notes = append(notes, fmt.Sprintf("routes.%s.cost_from: tenants.defaults.rate is not set, so each tenant may use %s of these costs",
				name, c.Tenants.Defaults.Rate))
		}
	}
	return notes
}

// idleSettings names settings that have no effect: what the defaults say for one route outranks
// what a tier or a tenant says for all routes, and without a pool there is nothing to divide.
func (c Config) idleSettings() (notes []string) {
	stated := map[string]shaper.Overrides{}
	for name, o := range c.Tenants.Tiers {
		stated["tiers."+quoteName(name)] = o
	}
	for name, o := range c.Tenants.Named {
		stated["tenants."+quoteName(name)] = o
	}
	paths := slices.Sorted(maps.Keys(stated))
	with := func(is func(shaper.Overrides) bool) (some []string) {
		for _, path := range paths {
			if is(stated[path]) {
				some = append(some, path)
			}
		}
		return some
	}
	for _, s := range shaper.SettingsOfTenants() {
		for _, route := range slices.Sorted(maps.Keys(c.Tenants.Routes)) {
			if !s.IsSet(c.Tenants.Routes[route]) {
				continue
			}
			over := with(func(o shaper.Overrides) bool { return s.IsSet(o) && !s.IsSet(o.Routes[route]) })
			if len(over) > 0 {
				of := "routes." + quoteName(route) + "." + s.Key()
				notes = append(notes, fmt.Sprintf("tenants.defaults.%s outranks %s, which is for all routes; %s.%s would not be outranked",
					of, firstOf(over, "."+s.Key()), over[0], of))
			}
		}
		if s.Key() != "weight" && s.Key() != "reserve" || len(c.Tenants.Pools) > 0 {
			continue
		}
		if of := with(s.IsSet); len(of) > 0 {
			notes = append(notes, fmt.Sprintf("%s divides nothing: no route has a rate or is in a pool", firstOf(of, "."+s.Key())))
		}
	}
	return notes
}

// firstOf is a text with the setting at the first path, and with the number of the other paths.
func firstOf(paths []string, key string) string {
	if len(paths) == 1 {
		return paths[0] + key
	}
	return fmt.Sprintf("%s%s (and %d more)", paths[0], key, len(paths)-1)
}

// merge reads the file and merges the sources.
func (from Sources) merge() (r *reader, values map[string]any) {
	r = &reader{origin: map[string]string{}, given: "--config", path: from.File, variables: map[string]string{}}
	for _, variable := range from.Environ {
		name, value, _ := strings.Cut(variable, "=")
		r.variables[name] = value
	}
	var content []byte
	if from.File != "" {
		var err error
		if content, err = readFile(from.File); err != nil {
			r.problem(r.given, from.File, err.Error())
			r.unread = true
		}
	}
	values = nested(defaults())
	overlay(values, from.Preset)
	r.written = r.file(content)
	overlay(values, r.written)
	overlay(values, r.environ(from.Environ))
	overlay(values, r.routeVariables(from.Environ, slices.Sorted(maps.Keys(sectionOf(values, "routes")))))
	overlay(values, r.flags(from.Flags))
	overlay(values, r.routeFlags(from.Routes))
	return r, values
}

// overlay lays values over others, section by section. It keeps no section of over.
func overlay(values, over map[string]any) {
	for key, value := range over {
		section, ok := value.(map[string]any)
		if !ok {
			values[key] = value
			continue
		}
		below, ok := values[key].(map[string]any)
		if !ok {
			below = map[string]any{}
			values[key] = below
		}
		overlay(below, section)
	}
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	var cause *fs.PathError
	switch {
	case errors.As(err, &cause):
		return nil, fmt.Errorf("cannot be read: %w", cause.Err) // the problem names the path
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", err)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("must be at most %d bytes", maxFile)
	}
	content, err := os.ReadFile(path)
	if errors.As(err, &cause) {
		return nil, fmt.Errorf("cannot be read: %w", cause.Err)
	}
	return content, err
}

// defaults returns the defaults of all scalar settings.
func defaults() map[string]any {
	values := map[string]any{}
	for _, s := range Settings() {
		values[s.Key] = s.typed(s.Default)
	}
	return values
}

// nested converts values by path to nested sections.
func nested(values map[string]any) map[string]any {
	root := map[string]any{}
	for path, value := range values {
		steps := strings.Split(path, ".")
		at := root
		for _, step := range steps[:len(steps)-1] {
			next, ok := at[step].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[step] = next
			}
			at = next
		}
		at[steps[len(steps)-1]] = value
	}
	return root
}

// file reads the configuration file. It drops empty sections, so that they do not hide the
// defaults. It reports a section of a wrong type, before a later source can hide it.
func (r *reader) file(content []byte) map[string]any {
	values := r.yaml(content)
	r.unread = r.unread || values == nil
	for _, path := range []string{"api", "admin", "metrics"} {
		if section, is := values[path].(map[string]any); is && !markOff(section) {
			r.problem(path+".tls", kindOf(section["tls"]), tlsRule)
			delete(section, "tls")
		}
	}
	if section, _ := values["auth"].(map[string]any); section != nil {
		if list, is := section["jwt"].([]any); is { // the short form
			section["jwt"] = map[string]any{"issuers": list}
		}
	}
	for _, path := range []string{"redis", "api", "admin", "auth", "worker", "retention", "store",
		"callbacks", "egress", "routes", "pools", "tiers", "tenants", "guards", "traces", "audit", "log", "tenants.defaults", "auth.jwt", "auth.cert", "auth.guest"} {
		at, key := values, path
		if parent, child, deep := strings.Cut(path, "."); deep {
			at, _ = values[parent].(map[string]any)
			key = child
		}
		raw, present := at[key]
		if _, ok := raw.(map[string]any); !present || ok {
			continue
		}
		delete(at, key)
		if raw != nil {
			r.problem(path, kindOf(raw), "must be a section")
		}
	}
	return values
}

// yaml parses one document. It returns nil if the content is not one.
func (r *reader) yaml(content []byte) map[string]any {
	if documents(content) > 1 {
		r.problem(r.given, r.path, "has more than one YAML document: must be one document")
		return nil
	}
	var document yaml.Node
	var values map[string]any
	err := yaml.Unmarshal(content, &document)
	if err == nil {
		keysAsWritten(&document)
		oddNumbersAsText(&document)
		err = document.Decode(&values)
	}
	if err != nil {
		// For a document that is not a mapping, the error quotes its content.
		rule := "must be YAML: " + mistakeOf(err)
		if line := tabbed(content); line > 0 {
			rule = fmt.Sprintf("must be YAML: line %d is indented by a tab; indent by spaces", line)
		} else if strings.Contains(rule, "cannot unmarshal") {
			rule = "must be YAML, a mapping of sections"
		}
		r.problem(r.given, r.path, rule)
		return nil
	}
	if values == nil {
		values = map[string]any{} // an empty document is valid
	}
	return values
}

var definedTwice = regexp.MustCompile(`mapping key (".*") already defined at (line \d+)`)

// mistakeOf is what the parser says, in words for those who write the file.
func mistakeOf(err error) string {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n")
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n  ", "; ")
	return definedTwice.ReplaceAllString(text, "the key $1 is there already, at $2")
}

// tabbed returns the number of the first line that is indented by a tab, 0 if there is none.
func tabbed(content []byte) int {
	n := 0
	for line := range bytes.Lines(content) {
		n++
		rest := bytes.TrimLeft(line, " -")
		if len(rest) > 0 && rest[0] == '\t' && len(bytes.TrimSpace(rest)) > 0 {
			return n
		}
	}
	return 0
}

// IsEmpty reports whether a configuration file has no settings: nothing but comments.
func IsEmpty(content []byte) bool {
	var document any
	return yaml.Unmarshal(content, &document) == nil && document == nil
}

// oddNumbersAsText converts numbers that a flag or a variable would read differently, or not at
// all, to text: YAML reads 0100 as 64, and also 0x10, 0o17 and 1_000.
func oddNumbersAsText(n *yaml.Node) {
	for _, child := range n.Content {
		oddNumbersAsText(child)
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		return
	}
	if _, plain := numbers.ParseWhole(n.Value); !plain {
		n.Tag = "!!str"
	}
}

// keysAsWritten converts the keys of all mappings below the node to text, because they are names.
// YAML reads 0042 as the number 34 and 2024-01-01 as an instant. Each key is replaced by a copy,
// because an alias may use it as a value.
func keysAsWritten(n *yaml.Node) {
	for i, child := range n.Content {
		keysAsWritten(child)
		if n.Kind != yaml.MappingNode || i%2 == 1 {
			continue
		}
		if child.Kind == yaml.AliasNode {
			child = child.Alias
		}
		if child.Kind == yaml.ScalarNode && child.ShortTag() != "!!merge" {
			key := *child
			key.Tag = "!!str"
			n.Content[i] = &key
		}
	}
}

// documents counts the documents of a YAML stream. The parser reads only the first one.
func documents(content []byte) int {
	n, open := 0, false
	for line := range bytes.Lines(content) {
		line = bytes.TrimRight(line, " \t\r\n")
		switch {
		case bytes.Equal(line, []byte("---")) || bytes.HasPrefix(line, []byte("--- ")):
			n, open = n+1, true
		case bytes.Equal(line, []byte("...")):
			open = false
		case !open && len(line) > 0 && line[0] != '#' && line[0] != '%':
			n, open = n+1, true
		}
	}
	return n
}

// environ returns the variables of settings. It ignores empty ones, and others that start with
// SLUICE_, because orchestrators create some for a service of that name.
func (r *reader) environ(environ []string) map[string]any {
	byName := map[string]Setting{}
	for _, s := range Settings() {
		byName[s.Env()] = s
	}
	values := map[string]any{}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if s, ok := byName[name]; ok && value != "" {
			r.origin[s.Key] = name
			values[s.Key] = s.typed(value)
		}
	}
	return nested(values)
}

func (r *reader) flags(flags map[string]string) map[string]any {
	values := map[string]any{}
	for _, s := range Settings() {
		if text, ok := flags[s.Key]; ok {
			r.origin[s.Key] = "--" + s.Flag()
			values[s.Key] = s.typed(text)
		}
	}
	return nested(values)
}
