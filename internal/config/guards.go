package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Guard is a limiter before the intake.
type Guard struct {
	Policy     limiter.Policy
	By         []guard.By // the parts of the key that requests are counted by
	Endpoints  []string   // operations that it limits; none: all
	Routes     []string   // routes of the jobs that it counts; none: all
	Types      []string   // types of the jobs that it counts; none: all
	FailClosed bool       // refuse while Redis is unreachable
	Shadow     bool       // refuse nothing, and count what would be refused
}

// GuardSettings returns the scalar settings of a guard.
func GuardSettings() []Setting {
	names := make([]string, 0, len(limiter.Algorithms()))
	for _, a := range limiter.Algorithms() {
		names = append(names, string(a))
	}
	rate := TenantSettings()[0]
	rate.Default, rate.Help = "", "Requests of one key per period, such as 20/m. Required."
	return []Setting{
		rate,
		choice("algorithm", string(limiter.TokenBucket),
			"Algorithm of the limiter ([limiters](limiters.md)).", names...),
		{Key: "burst", Kind: Whole, Default: "0", min: 0, max: 1_000_000_000_000,
			Rule: "must be a whole number from 0; burst × period at most 200 years",
			Help: "Bucket size of token-bucket and leaky-meter; 0 is the limit of the rate."},
		duration("block", "0s", 0, shaper.MaxPeriod,
			"How long a key is refused after an overflow; for sliding-log only."),
		choice("on_error", "open",
			"Whether requests pass (open) or get 503 (closed) while Redis is unreachable.", "open", "closed"),
		toggle("shadow", "Refuse nothing, and count in sluice_guard_decisions_total what would be refused."),
	}
}

// guards reads the guards by name, after authentication and routes.
func (r *reader) guards(c *Config, values map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		path := "guards." + quoteName(name)
		if !isRoute(name) {
			r.problem(path, "the name", "must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
		}
		section, ok := values[name].(map[string]any)
		if !ok {
			r.problem(path, kindOf(values[name]), "must be a section with a rate")
			continue
		}
		g := r.guard(path, section, slices.Sorted(maps.Keys(c.Routes)))
		if slices.Contains(g.By, guard.ByGuest) && !slices.Contains(c.Auth.Modes(), auth.Guest) {
			r.problem(path+".by", "guest", "must not be guest unless auth.mode has guest")
		}
		c.Guards[name] = g
	}
}

func (r *reader) guard(path string, values map[string]any, routes []string) Guard {
	var g Guard
	var read struct {
		limiter.Policy
		OnError string
		Shadow  bool
	}
	for _, s := range GuardSettings() {
		if value, rule := s.read(s.typed(s.Default)); rule == "" {
			assign(fieldOf(&read, s.Key), value)
		}
	}
	before := len(r.problems)
	r.scalars(path, values, GuardSettings(), &read, "by", "endpoints", "routes", "types")
	g.Policy, g.FailClosed, g.Shadow = read.Policy, read.OnError == "closed", read.Shadow
	var bys []string
	for _, by := range guard.Bys() {
		bys = append(bys, string(by))
	}
	for _, by := range r.words(path+".by", values["by"], bys) {
		g.By = append(g.By, guard.By(by))
	}
	g.Routes = r.words(path+".routes", values["routes"], routes)
	g.Types = r.types(path+".types", values["types"])
	endpoints := guard.Endpoints()
	if (guard.Intake{By: g.By, Routes: g.Routes, Types: g.Types}).CountsJobs() {
		endpoints = guard.JobEndpoints()
	}
	g.Endpoints = r.words(path+".endpoints", values["endpoints"], endpoints)
	switch {
	case values["by"] == nil:
		r.problem(path+".by", "nothing", "must be a list of "+strings.Join(bys, ", "))
	case values["rate"] == nil:
		r.problem(path+".rate", "nothing", "must be set")
	case len(r.problems) == before:
		r.problems = append(r.problems, problemsOf(g.Policy.Validate()).Under(path)...)
	}
	return g
}

// types reads a list of job types; nil is an empty list.
func (r *reader) types(path string, raw any) []string {
	return r.list(path, raw, "must be a list of types of jobs", func(word string) string {
		if len(word) < 1 || len(word) > wire.MaxTypeBytes || strings.ContainsFunc(word, wire.IsControl) {
			return fmt.Sprintf("must be a text of 1 to %d bytes without control or format characters", wire.MaxTypeBytes)
		}
		return ""
	})
}

// words reads a list of distinct allowed words; nil is an empty list.
func (r *reader) words(path string, raw any, allowed []string) []string {
	choices := strings.Join(allowed, ", ")
	return r.list(path, raw, "must be a list of "+choices, func(word string) string {
		if !slices.Contains(allowed, word) {
			return shaper.OneOf("", word, allowed)
		}
		return ""
	})
}

// list reads a list of distinct texts; nil is an empty list. broken returns the rule that a text
// breaks, empty for none.
func (r *reader) list(path string, raw any, rule string, broken func(word string) (rule string)) []string {
	list, isList := raw.([]any)
	if raw == nil {
		return nil
	}
	if !isList || len(list) == 0 {
		r.problem(path, kindOf(raw), rule)
		return nil
	}
	var words []string
	for i, raw := range list {
		word, _ := raw.(string)
		switch at := fmt.Sprintf("%s[%d]", path, i); {
		case broken(word) != "":
			r.problem(at, show(raw), broken(word))
		case slices.Contains(words, word):
			r.problem(at, show(raw), "must not be repeated")
		default:
			words = append(words, word)
		}
	}
	return words
}
