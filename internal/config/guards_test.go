package config_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Guards are read as they are written. What is absent has its default.
func TestGuards(t *testing.T) {
	got := mustLoad(t, config.Sources{File: write(t, route+`
auth: { mode: guest }
guards:
  guests:  { rate: 20/m, algorithm: sliding-log, block: 60s, by: [guest] }
  readers: { rate: 100/s, burst: 200, by: [tenant, endpoint], endpoints: [get-job, list-jobs], on_error: closed, shadow: true }
  logins:  { rate: 5/m, by: [address, type], routes: [default], types: [user.login, "a b"], endpoints: [submit-job] }
`)}).Guards
	want := map[string]config.Guard{
		"guests": {
			Policy: limiter.Policy{
				Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 20, Period: time.Minute},
				Block: time.Minute,
			},
			By: []guard.By{guard.ByGuest},
		},
		"readers": {
			Policy: limiter.Policy{
				Algorithm: limiter.TokenBucket, Rate: shaper.Rate{Limit: 100, Period: time.Second},
				Burst: 200,
			},
			By: []guard.By{guard.ByTenant, guard.ByEndpoint}, Endpoints: []string{"get-job", "list-jobs"},
			FailClosed: true, Shadow: true,
		},
		"logins": {
			Policy: limiter.Policy{Algorithm: limiter.TokenBucket, Rate: shaper.Rate{Limit: 5, Period: time.Minute}},
			By:     []guard.By{guard.ByAddress, guard.ByType}, Endpoints: []string{"submit-job"},
			Routes: []string{"default"}, Types: []string{"user.login", "a b"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A mistake is reported alone, with its field, value and rule.
func TestGuardProblems(t *testing.T) {
	for text, want := range map[string]string{
		"a b: { rate: 1/s, by: [tenant] }": `guards."a b": the name: must be 1 to 64`,
		"x: 5/m":                           "guards.x: a text: must be a section",
		"x: { by: [tenant] }":              "guards.x.rate: nothing: must be set",
		"x: { rate: 1/s }": "guards.x.by: nothing: must be a list of tenant, guest, endpoint, address, " +
			"network, route, type",
		"x: { rate: 1/s, by: tenant }":                       "guards.x.by: a text: must be a list",
		"x: { rate: 1/s, by: [] }":                           "guards.x.by: a list: must be a list",
		"x: { rate: 1/s, by: [colour] }":                     `guards.x.by[0]: "colour": must be one of`,
		"x: { rate: 1/s, by: [tenant, tenant] }":             `guards.x.by[1]: "tenant": must not be repeated`,
		"x: { rate: 1/s, by: [guest] }":                      "guards.x.by: guest: must not be guest unless",
		"x: { rate: 1/s, by: [tenant], endpoints: [login] }": `guards.x.endpoints[0]: "login": must be one of submit-job`,
		"x: { rate: 1/s, by: [type], endpoints: [get-job] }": `guards.x.endpoints[0]: "get-job": must be one of submit-job, submit-batch, replay-job`,
		"x: { rate: 1/s, by: [tenant], routes: [login] }":    `guards.x.routes[0]: "login": must be one of default`,
		"x: { rate: 1/s, by: [tenant], routes: login }":      "guards.x.routes: a text: must be a list of default",
		"x: { rate: 1/s, by: [tenant], types: user.login }": "guards.x.types: a text: must be a list of " +
			"types of jobs",
		"x: { rate: 1/s, by: [tenant], types: [7] }":        "guards.x.types[0]: 7: must be a text of 1 to 255 bytes",
		"x: { rate: 1/s, by: [tenant], types: [\"a\\n\"] }": "guards.x.types[0]: ",
		"x: { rate: 1/s, by: [tenant], types: [a, a] }":     `guards.x.types[1]: "a": must not be repeated`,
		"x: { rate: fast, by: [tenant] }":                   `guards.x.rate: "fast": not a rate`,
		"x: { rate: 1/s, by: [tenant], algorithm: gcra }":   `guards.x.algorithm: "gcra": must be one of fixed-window`,
		"x: { rate: 1/s, by: [tenant], block: 60s }": "guards.x.block: 1m0s: must be 0: only sliding-log " +
			"blocks",
		"x: { rate: 1/s, by: [tenant], burst: 1000000000000 }": "guards.x.burst: 1000000000000: burst × " +
			"period",
		"x: { rate: 1/s, by: [tenant], on_error: maybe }": `guards.x.on_error: "maybe": must be one of open, closed`,
		"x: { rate: 1/s, by: [tenant], shadows: true }": "guards.x.shadows: unknown key: must be a setting " +
			"of this section; is guards.x.shadow meant?",
		"x: { rate: 5/s, algorithm: fixed-window, burst: 2, by: [tenant] }": "guards.x.burst: 2: must be 0",
	} {
		_, err := config.Load(config.Sources{File: write(t, route+"guards:\n  "+text+"\n")})
		ps := problems(t, err)
		if !slices.ContainsFunc(ps, func(p shaper.Problem) bool {
			return strings.HasPrefix(p.Field+": "+p.Value+": "+p.Rule, want)
		}) {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
		if len(ps) > 1 {
			t.Errorf("%s: more than one problem: %v", text, err)
		}
	}
}

// The example of docs/limiters.md is valid.
func TestGuardsOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/limiters.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	example, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("there is no example")
	}
	if c := mustLoad(t, config.Sources{File: write(t, route+example)}); len(c.Guards) != 4 {
		t.Errorf("%d guards", len(c.Guards))
	}
}
