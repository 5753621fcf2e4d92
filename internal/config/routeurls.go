package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/7509e464/sluice/shaper"
)

// A variable of this form sets the url of one route.
const routeVariablePrefix, routeVariableSuffix = "SLUICE_ROUTE_", "_URL"

// RouteVariable returns the environment variable that sets the url of the route.
func RouteVariable(route string) string {
	return routeVariablePrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-",
		"_").Replace(route)) + routeVariableSuffix
}

// routeVariables reads the variables that set urls. A variable sets the url of the route in names
// that it matches. Without a match it adds a route whose name is in lower case.
func (r *reader) routeVariables(environ []string, names []string) map[string]any {
	urls := map[string]string{}
	for _, entry := range environ {
		variable, url, _ := strings.Cut(entry, "=")
		rest, starts := strings.CutPrefix(variable, routeVariablePrefix)
		name, ends := strings.CutSuffix(rest, routeVariableSuffix)
		if !starts || !ends || name == "" || url == "" {
			continue
		}
		var meant []string
		for _, route := range names {
			if RouteVariable(route) == variable {
				meant = append(meant, route)
			}
		}
		switch len(meant) {
		case 0:
			meant = []string{strings.ToLower(name)}
		case 1:
		default:
			r.problem(variable, "set", "must match one route, but matches "+strings.Join(meant,
				" and ")+": use --route NAME=URL")
			continue
		}
		urls[meant[0]] = url
		r.origin[routeURLPath(meant[0])] = variable
	}
	return routeSections(urls)
}

// routeFlags reads NAME=URL of each --route.
func (r *reader) routeFlags(flags []string) map[string]any {
	urls := map[string]string{}
	for _, flag := range flags {
		name, url, found := strings.Cut(flag, "=")
		_, repeated := urls[name]
		switch {
		case !found || !isRoute(name):
			r.problem("--route", Setting{}.show(flag),
				"must be NAME=URL, such as default=http://127.0.0.1:9000/orders; "+
					"a name has 1 to 64 of the characters A-Z a-z 0-9 . _ -")
			r.unread = true // so that no missing route is reported
		case repeated:
			r.problem("--route", show(name), "must name each route once")
		default:
			urls[name] = url
			r.origin[routeURLPath(name)] = "--route"
		}
	}
	return routeSections(urls)
}

func routeURLPath(route string) string { return "routes." + quoteName(route) + ".url" }

// routeSections returns routes in the form of the file.
func routeSections(urls map[string]string) map[string]any {
	if len(urls) == 0 {
		return nil
	}
	sections := map[string]any{}
	for name, url := range urls {
		sections[name] = map[string]any{"url": url}
	}
	return map[string]any{"routes": sections}
}

// Strays returns notes on variables that look like a misspelt setting, each with a suggestion. They
// are ignored like all other unknown variables, because orchestrators create some of their own.
func Strays(environ []string) []string {
	known := []string{"sluice_config", "sluice_roles", "sluice_api", "sluice_admin", "sluice_key"}
	for _, s := range Settings() {
		known = append(known, strings.ToLower(s.Env()))
	}
	fileOnly := map[string]string{}
	for _, s := range append(slices.Clip(lists), Setting{Key: "tenants.defaults.rates"}) {
		fileOnly[s.Env()] = s.Key
	}
	strays := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if value == "" || !strings.HasPrefix(name, "SLUICE_") ||
			slices.Contains(known, strings.ToLower(name)) {
			continue
		}
		if key := fileOnly[name]; key != "" {
			strays[name] = "is ignored: " + key + " is a list, which only the configuration file can set"
		} else if near := strayMeans(name, value, known); near != "" {
			strays[name] = "is unknown and is ignored; is " + near + " meant?"
		}
	}
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(strays)) {
		notes = append(notes, name+" "+strays[name])
	}
	return notes
}

// strayMeans returns the variable that an unknown one may mean, by its name and then by the scheme
// of its value; empty for none.
func strayMeans(name, value string, known []string) string {
	rest, ofRoute := strings.CutPrefix(name, routeVariablePrefix)
	route, isURL := strings.CutSuffix(rest, routeVariableSuffix)
	scheme, _, isScheme := strings.Cut(value, "://")
	near := strings.ToUpper(shaper.Nearest(name, known))
	switch {
	case ofRoute && isURL && route != "":
		return "" // it names a route
	case name == "SLUICE_ROUTE_URL",
		strings.HasPrefix(name, "SLUICE_ROUTES_") && strings.HasSuffix(name, routeVariableSuffix):
		return RouteVariable("NAME")
	case name == "SLUICE_API_KEY", name == "SLUICE_API_TOKEN":
		return "SLUICE_KEY"
	case near != "":
		return near
	case isScheme && strings.HasPrefix(scheme, "redis"):
		return "SLUICE_REDIS_URL"
	case ofRoute && !strings.HasSuffix(name, "_FORWARD") && (scheme == "http" || scheme == "https"):
		return RouteVariable("NAME")
	}
	return ""
}
