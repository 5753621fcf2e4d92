package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/queuetest"
)

// inForce is what Check lists, by key.
func inForce(t *testing.T, from config.Sources) map[string]config.InForce {
	t.Helper()
	_, settings, err := config.Check(from)
	if err != nil {
		t.Fatal(err)
	}
	byKey := map[string]config.InForce{}
	for _, s := range settings {
		if _, twice := byKey[s.Key]; twice {
			t.Errorf("%s is listed twice", s.Key)
		}
		byKey[s.Key] = s
	}
	return byKey
}

// Every setting is listed with the source that won, and no secret is.
func TestCheckListsWhatIsInForce(t *testing.T) {
	const hush = "hunter2hunter2hunter2"
	file := write(t, `
redis: { url: "redis://ops:`+hush+`@127.0.0.1:6379/0" }
admin: { token: `+hush+` }
worker: { lease: 40s }
routes:
  default: { url: "http://u:`+hush+`@127.0.0.1:9000/orders", timeout: 3s, secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw] }
  fleet: { asynq: { queue: q } }
tiers: { pro: { rate: 50/s }, free: {} }
tenants:
  defaults: { rate: 20/s, rates: [ { rate: 1000/24h, burst: 5 }, { rate: 60/m, by: jobs } ] }
  "a b": { tier: pro, routes: { default: { rate: 5/m } } }
guards: { logins: { algorithm: leaky-meter, rate: 5/s, by: [tenant, address] } }
`)
	got := inForce(t, config.Sources{
		File: file, Environ: []string{"SLUICE_HEADERS=none", "SLUICE_ROUTE_EXTRA_URL=http://extra/"},
		Flags: map[string]string{"log.level": "warn"}, Routes: []string{"more=http://more/"},
	})
	for _, s := range config.Settings() {
		if _, listed := got[s.Key]; !listed {
			t.Errorf("%s is not listed", s.Key)
		}
	}
	for key, want := range map[string][2]string{
		"redis.url":                         {"redis://ops:xxxxx@127.0.0.1:6379/0", "file"},
		"admin.token":                       {"(hidden)", "file"},
		"worker.lease":                      {"40s", "file"},
		"worker.sweep":                      {"1s", "default"},
		"headers":                           {"none", "SLUICE_HEADERS"},
		"log.level":                         {"warn", "--log-level"},
		"traces.endpoint":                   {"not set", "default"},
		"routes.default.url":                {"http://u:xxxxx@127.0.0.1:9000/orders", "file"},
		"routes.default.timeout":            {"3s", "file"},
		"routes.default.retry.max_backoff":  {"1h", "default"},
		"routes.default.secrets":            {"1, hidden", "file"},
		"routes.fleet.asynq.queue":          {"q", "file"},
		"routes.extra.url":                  {"http://extra/", "SLUICE_ROUTE_EXTRA_URL"},
		"routes.more.url":                   {"http://more/", "--route"},
		"tiers.pro.rate":                    {"50/s", "file"},
		"tiers.free":                        {"no settings of its own", "file"},
		"tenants.defaults.rates":            {"1000/24h burst 5, 60/m by jobs", "file"},
		`tenants."a b".routes.default.rate`: {"5/m", "file"},
		"guards.logins.by":                  {"tenant, address", "file"},
		"guards.logins.on_error":            {"open", "default"},
	} {
		if s := got[key]; s.Value != want[0] || s.From != want[1] {
			t.Errorf("%s: %q from %q, want %q from %q", key, s.Value, s.From, want[0], want[1])
		}
	}
	for key, s := range got {
		if strings.Contains(s.Value, hush) || strings.Contains(s.Value, "whsec_") {
			t.Errorf("%s shows a secret: %s", key, s.Value)
		}
	}
	if _, listed := got["routes.fleet.breaker.failures"]; listed {
		t.Error("a route to a fleet has a breaker")
	}
	if s := inForce(t, config.Sources{File: file,
		Flags: map[string]string{"redis.url": "redis+cluster://:" + hush +
			"@127.0.0.1:1?addr=127.0.0.1:2"}})["redis.url"]; strings.Contains(s.Value, hush) {
		t.Errorf("redis.url shows a secret: %s", s.Value)
	}
}

// The sources of a route's url outrank one another as those of the settings do.
// Where answers have the actual cost depends on the kind of the route and its pool, so it is listed
// also where the file does not say it.
func TestCheckListsWhereCostsAre(t *testing.T) {
	got := inForce(t, config.Sources{File: write(t, `
routes:
  alone: { url: "http://a/" }
  pooled: { url: "http://a/" }
  rated: { url: "http://a/", rate: 5/s }
  asks: { url: "http://a/", cost_from: header, min_cost: 3 }
  points: { url: "http://a/", cost_from: /usage }
  forwarded: { forward: "http://a/" }
  forwarded-asks: { forward: "http://a/", cost_from: header }
  fleet: { asynq: { queue: q } }
pools: { erp: { rate: 9/s, routes: [pooled, asks, points] } }
`)})
	for route, want := range map[string]string{
		"alone": "header, default, 1", "pooled": "none, default, 1", "rated": "none, default, 1",
		"asks": "header, file, 3", "points": "/usage, file, 1", "forwarded": "none, default, 1",
		"forwarded-asks": "header, file, 1", "fleet": ", , ",
	} {
		from, least := got["routes."+route+".cost_from"], got["routes."+route+".min_cost"]
		queuetest.Compare(t, route, from.Value+", "+from.From+", "+least.Value, want)
	}
}

func TestRouteURLs(t *testing.T) {
	file := write(t, "routes: { default: { url: \"http://file/\", timeout: 3s }, a-b: { url: "+
		"\"http://file/\" } }\n")
	environ := []string{
		"SLUICE_ROUTE_DEFAULT_URL=http://variable/", "SLUICE_ROUTE_A_B_URL=http://variable/",
		"SLUICE_ROUTE_NEW_ONE_URL=http://variable/", "SLUICE_ROUTE_NONE_URL=",
	}
	c := mustLoad(t, config.Sources{
		File: file, Environ: environ, Routes: []string{"default=http://flag/?a=b,c"},
	})
	want := map[string]string{
		"default": "http://flag/?a=b,c", "a-b": "http://variable/", "new_one": "http://variable/",
	}
	if len(c.Routes) != len(want) {
		t.Errorf("routes %v", c.Routes)
	}
	for name, url := range want {
		if got := c.Routes[name].URL; got != url {
			t.Errorf("%s: %q, want %q", name, got, url)
		}
	}
	if c.Routes["default"].Timeout.String() != "3s" {
		t.Errorf("the timeout of the file is lost: %v", c.Routes["default"].Timeout)
	}
}

// A mistake in the URL of a route is reported alone, with its source and without passwords.
func TestRouteURLProblems(t *testing.T) {
	twins := write(t, "routes: { a-b: { url: \"http://x/\" }, a.b: { url: \"http://x/\" } }\n")
	fleet := write(t, "routes: { fleet: { asynq: { queue: q } } }\n")
	for _, c := range []struct {
		name string
		from config.Sources
		want string
	}{
		{"a url alone", config.Sources{Routes: []string{"http://127.0.0.1:9000/?a=b"}},
			`--route: "http://127.0.0.1:9000/?a=b": must be NAME=URL, such as default=http`},
		{"a password", config.Sources{Routes: []string{"http://u:hunter2@x/"}},
			`--route: (hidden): must be NAME=URL`},
		{"no url", config.Sources{Routes: []string{"default"}}, `--route: "default": must be NAME=URL`},
		{"an empty url", config.Sources{Routes: []string{"default="}},
			`routes.default.url (--route): "": must be an absolute http:// or https:// URL`},
		{"twice", config.Sources{Routes: []string{"a=http://x/", "a=http://y/"}},
			`--route: "a": must name each route once`},
		{"no scheme", config.Sources{Environ: []string{"SLUICE_ROUTE_A_URL=localhost:9000"}},
			`routes.a.url (SLUICE_ROUTE_A_URL): "localhost:9000": must be an absolute http:// or https:// ` +
				`URL without a fragment, percent-encoded and without the segments . and ..; is http://localhost:9000 meant?`},
		{"a name", config.Sources{Environ: []string{"SLUICE_ROUTE_A B_URL=http://x/"}},
			`routes."a b": the name: must be 1 to 64`},
		{"two routes", config.Sources{File: twins, Environ: []string{"SLUICE_ROUTE_A_B_URL=http://y/"}},
			`SLUICE_ROUTE_A_B_URL: set: must match one route, but matches a-b and a.b: use --route NAME=URL`},
		{"beside asynq", config.Sources{File: fleet, Routes: []string{"fleet=http://x/"}},
			`routes.fleet.url: set: must not be set together with asynq`},
	} {
		_, err := config.Load(c.from)
		ps := problems(t, err)
		if strings.Contains(ps.Error(), "hunter2") {
			t.Errorf("%s: the problems reveal a password: %v", c.name, ps)
		}
		if len(ps) != 1 {
			t.Errorf("%s: the problems %v, want one", c.name, ps)
			continue
		}
		queuetest.Contains(t, c.name, ps[0].String(), c.want)
	}
}

// TestSuggestions: a common mistake of a new user is refused with a suggestion.
func TestSuggestions(t *testing.T) {
	for setting, want := range map[string]string{
		"api: { listen: 8080 }":                       "is 127.0.0.1:8080 meant?",
		"api: { listen: \":8080\" }":                  "",
		"api: { status_rate: 100 }":                   "is 100/s meant?",
		"admin: { profiles: yes }":                    "is true meant?",
		"retention: { succeeded: 5 min }":             "is 5m meant?",
		"retention: { dead: 7d }":                     "is 168h meant?",
		"retention: { dead: 1000000000d }":            "",
		"worker: { lease: 30 }":                       "is 30s meant?",
		"worker: { lease: 30 seconds }":               "is 30s meant?",
		"worker: { concurrency: \"1,000\" }":          "is 1000 meant?",
		"worker: { concurrency: 0 }":                  "",
		"log: { level: INFO }":                        "is info meant?",
		"tenants: { defaults: { rate: 10 } }":         "is 10/s meant?",
		"tenants: { defaults: { rate: 10/sec } }":     "is 10/s meant?",
		"tenants: { a: { rate: 10 per minute } }":     "is 10/m meant?",
		"tenants: { a: { rate: 5 / hours } }":         "is 5/h meant?",
		"tenants: { a: { paused: on } }":              "is true meant?",
		"redis: { url: \"127.0.0.1:6379\" }":          "the scheme redis:// is missing",
		"admin: { token: short }":                     "",
		"headers: [both]":                             "",
		"tenants: { defaults: { capacity: 1.5 } }":    "",
		"store: { max_bytes: 1_000 }":                 "is 1000 meant?",
		"traces: { endpoint: \"collector:4318\" }":    "is http://collector:4318 meant?",
		"auth: { mode: toknes }":                      "",
		"auth: { mode: Key }":                         "is keys meant?",
		"auth: { mode: \"key; jwt\" }":                "is keys,jwt meant?",
		"auth: { mode: [keys, gest] }":                "is keys,guest meant?",
		"auth: { mode: keys jwt }":                    "is keys,jwt meant?",
		"callbacks: { timeout: \"10 s\" }":            "is 10s meant?",
		"worker: { horizon: \"\" }":                   "",
		"tenants: { a: { rate: u:hunter2@x } }":       "",
		"tenants: { a: { max_wait: 1.5 } }":           "is 1.5s meant?",
		"retention: { dead: 99999d }":                 "",
		"tenants: { a: { capacity: 1000000000000 } }": "",
		"foo: 1":                                         "", // like no key
		"tenants: { defaults: { rate: 0.5/s } }":         "is 1/2s meant?",
		"tenants: { defaults: { rate: 1.5/m } }":         "is 3/2m meant?",
		"tenants: { defaults: { rate: 0.5 } }":           "is 1/2s meant?",
		"tenants: { a: { rate: 10 req/min } }":           "is 10/m meant?",
		"tenants: { a: { rate: 10/mins } }":              "is 10/m meant?",
		"tenants: { a: { rate: 10/minutes } }":           "is 10/m meant?",
		"tenants: { a: { rate: 20rps } }":                "is 20/s meant?",
		"tenants: { a: { rate: 1 every 5 seconds } }":    "is 1/5s meant?",
		"tenants: { a: { rate: 10/week } }":              "",
		"tenants: { a: { rate: 2000/ms } }":              "",
		"tenants: { a: { max_wait: 5 mins } }":           "is 5m meant?",
		"tenants: { a: { max_wait: 1.5 hours } }":        "is 1.5h meant?",
		"callbacks: { timeout: 10m }":                    "", // too long, and no 10ms is meant
		"callbacks: { timeout: 10h }":                    "",
		"callbacks: { timeout: 5000 }":                   "", // perhaps of milliseconds
		"retention: { dead: 1d12h }":                     "",
		"retention: { dead: 1.5d }":                      "is 36h meant?",
		"worker: { concurrency: \"1,5\" }":               "",
		"worker: { concurrency: 1k }":                    "is 1000 meant?",
		"worker: { concurrency: 1e3 }":                   "is 1000 meant?",
		"api: { max_body: 1MiB }":                        "is 1048576 meant?",
		"api: { tenant_share: 30% }":                     "is 30 meant?",
		"worker: { concurrency: 30% }":                   "",
		"traces: { sample: 10% }":                        "is 0.1 meant?",
		"log: { level: warning }":                        "is warn meant?",
		"log: { level: wran }":                           "is warn meant?",
		"log: { level: loud }":                           "",
		"headers: ieft":                                  "is ietf meant?",
		"admin: { profiles: enabled }":                   "is true meant?",
		"api: { listen: \"http://127.0.0.1:8080/\" }":    "is 127.0.0.1:8080 meant?",
		"traces: { endpoint: \"htp://collector:4318\" }": "is http://collector:4318 meant?",
		"traces: { endpoint: \"http:/collector:4318\" }": "is http://collector:4318 meant?",
		"traces: { endpoint: \"ftp://collector:4318\" }": "",
		"api: { hosts: \"https://jobs.example/\" }":      "is jobs.example meant?",
		"tenatns: { a: { rate: 5/s } }":                  "is tenants meant?",
		"worker: { lease_time: 30s }":                    "is worker.lease meant?",
		"worker: { cncurrency: 30 }":                     "is worker.concurrency meant?",
		"tenants: { a: { max_wait_ms: 30 } }":            "is tenants.a.max_wait meant?",
		"tenants: { a: { rtae: 5/s } }":                  "is tenants.a.rate meant?",
	} {
		_, err := config.Load(config.Sources{File: write(t, route+setting+"\n")})
		if err == nil {
			if want != "" || !strings.Contains(setting, "max_bytes") && !strings.Contains(setting, ":8080") {
				t.Errorf("%s is accepted", setting)
			}
			continue
		}
		ps := problems(t, err)
		got := ps[0].String()
		if !strings.Contains(got, want) ||
			(want == "") != !strings.HasSuffix(got, "meant?") && !strings.HasSuffix(want, "is missing") {
			t.Errorf("%s: %s, want %q", setting, got, want)
		}
	}
}

// An unknown variable is reported with a suggestion. Variables of commands and of orchestrators are
// not reported.
func TestStrays(t *testing.T) {
	environ := []string{
		"SLUICE_WORKER_LEESE=4s", "SLUICE_ROUTES_DEFAULT_URL=http://x/", "SLUICE_ROUTE_URL=http://x/",
		"SLUICE_REDIS_URI=redis://x", "SLUICE_WORKER_LEASE=4s",
		"SLUICE_ROUTE_DEFAULT_URL=http://x/", "SLUICE_CONFIG=x", "SLUICE_ROLES=api", "SLUICE_API=http://x",
		"SLUICE_ADMIN=http://x", "SLUICE_KEY=x",
		// of an orchestrator, for services of these names
		"SLUICE_SERVICE_HOST=10.0.0.1", "SLUICE_SERVICE_PORT=8080", "SLUICE_PORT=tcp://10.0.0.1:8080",
		"SLUICE_PORT_8080_TCP_ADDR=10.0.0.1",
		"SLUICE_REDIS_PORT=tcp://10.0.0.1:6379", "SLUICE_REDIS_SERVICE_HOST=10.0.0.1",
		"SLUICE_API_PORT=tcp://x", "SLUICE_ADMIN_PORT=tcp://x", "OTHER_WORKER_LEESE=x",
		"SLUICE_WORKER_SWEEEP=", // empty: not set
		"SLUICE_REDIS=redis://x", "SLUICE_STORE=redis-server", "SLUICE_ROUTE_ORDERS=http://x/",
		"SLUICE_ROUTE_ORDERS_PORT=tcp://x", "SLUICE_API_KEY=k", "SLUICE_ADMIN_TOKNE=x",
		"SLUICE_TENANTS_DEFAULTS_RATES=1/s", "SLUICE_CALLBACKS_ALLOW=https://x/",
	}
	got := strings.Join(config.Strays(environ), "\n")
	want := strings.Join([]string{
		"SLUICE_ADMIN_TOKNE is unknown and is ignored; is SLUICE_ADMIN_TOKEN meant?",
		"SLUICE_API_KEY is unknown and is ignored; is SLUICE_KEY meant?",
		"SLUICE_CALLBACKS_ALLOW is ignored: callbacks.allow is a list, which only the configuration file can set",
		"SLUICE_REDIS is unknown and is ignored; is SLUICE_REDIS_URL meant?",
		"SLUICE_REDIS_URI is unknown and is ignored; is SLUICE_REDIS_URL meant?",
		"SLUICE_ROUTES_DEFAULT_URL is unknown and is ignored; is SLUICE_ROUTE_NAME_URL meant?",
		"SLUICE_ROUTE_ORDERS is unknown and is ignored; is SLUICE_ROUTE_NAME_URL meant?",
		"SLUICE_ROUTE_URL is unknown and is ignored; is SLUICE_ROUTE_NAME_URL meant?",
		"SLUICE_TENANTS_DEFAULTS_RATES is ignored: tenants.defaults.rates is a list, which only the configuration file can set",
		"SLUICE_WORKER_LEESE is unknown and is ignored; is SLUICE_WORKER_LEASE meant?",
	}, "\n")
	if got != want {
		t.Errorf("notes:\n%s\nwant:\n%s", got, want)
	}
}

// Of the suggestions for routes, none is a wrong one.
func TestSuggestionsOfRoutes(t *testing.T) {
	for setting, want := range map[string]string{
		"url: \"htp://x\"": "is http://x meant?", "url: \"htps://x/\"": "is https://x/ meant?",
		"url: \"http//x\"": "is http://x meant?", "url: \"ftp://x\"": "", "url: \"http://x/#a\"": "",
		"url: \"http://x\", timeout: 10": "is 10s meant?", "url: \"http://x\", timeout: 10 d": "",
		"forward: \"http://x\", wait: 10m":                          "", // 10ms is not meant
		"forward: \"http://x\", max_response: 64kb":                 "is 64KiB meant?",
		"url: \"http://x\", cost_from: $.usage.total_tokens":        "is /usage/total_tokens meant?",
		"url: \"http://x\", cost_from: headers":                     "",
		"forward: \"http://x\", max_response_action: fial":          "is fail meant?",
		"url: \"http://x\", time_out: 10s":                          "is routes.a.timeout meant?",
		"url: \"http://x\", retry: { max_attemptz: 3 }":             "is routes.a.retry.max_attempts meant?",
		"url: \"http://x\", breaker: { delay: 10 seconds }":         "is 10s meant?",
		"url: \"http://x\", connections: 1_000, cost_missing: many": "is 1000 meant?",
	} {
		_, err := config.Load(config.Sources{File: write(t, "routes: { a: { "+setting+" } }\n")})
		ps := problems(t, err)
		got := ps[0].String()
		if !strings.Contains(got, want) || (want == "") != !strings.HasSuffix(got, "meant?") {
			t.Errorf("%s: %s, want %q", setting, got, want)
		}
	}
}

// A file says its own name, and a tab is called one.
func TestFilesThatAreNoYAML(t *testing.T) {
	for content, want := range map[string]string{
		"worker:\n\tlease: 30s\n":                 "sluice.yaml: must be YAML: line 2 is indented by a tab; indent by spaces",
		"routes:\n  a:\n  \turl: \"http://x/\"\n": "sluice.yaml: must be YAML: line 3 is indented by a tab; indent by spaces",
		"routes: {": "sluice.yaml: must be YAML: line 1",
	} {
		_, err := config.Load(config.Sources{File: write(t, content)})
		if got := problems(t, err)[0].String(); !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", content, got, want)
		}
	}
}

// The settings of the defaults are listed alone, whatever the file sets there.
func TestCheckListsDefaults(t *testing.T) {
	for _, defaults := range []string{"{ rate: 20/s }", "{}", "{ rate: 20/s, rates: [ { rate: 9/m } ] }"} {
		got := inForce(t, config.Sources{File: write(t, "routes: { a: { url: \"http://a/\" } }\n"+
			"tenants: { defaults: "+defaults+", acme: {} }\n")})
		if s, listed := got["tenants.defaults"]; listed {
			t.Errorf("%s: %v", defaults, s)
		}
		queuetest.Compare(t, "a tenant", got["tenants.acme"].Value, "no settings of its own")
	}
}

// What concerns forwarded requests is listed for the routes that forward.
func TestCheckListsForwardSettings(t *testing.T) {
	got := inForce(t, config.Sources{File: write(t, "routes: { a: { url: \"http://a/\" }, b: { forward: \"http://b/\" } }\n")})
	for _, key := range []string{"wait", "stream", "on_wait_end", "retention", "retry.unsafe"} {
		_, jobs := got["routes.a."+key]
		_, forwards := got["routes.b."+key]
		if jobs || !forwards {
			t.Errorf("%s is listed for the url: %v, for forward: %v", key, jobs, forwards)
		}
	}
}

// The addresses that forward are listed as they are written.
func TestCheckListsForward(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	text := "routes: { web: { forward: \"http://127.0.0.1:9\" } }\n" +
		"forward: [ { listen: \"127.0.0.1:8090\", route: web, tls: off } ]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, settings, err := config.Check(config.Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		if s.Key == "forward" && s.Value != "listen 127.0.0.1:8090 route web tls.off true" {
			t.Errorf("forward is %q", s.Value)
		}
	}
}
