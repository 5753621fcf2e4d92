package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper"
)

// tiered is a bench with the tiers free and pro, and a default for the route other.
func tiered(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	per := func(limit int64) *shaper.Rate { return &shaper.Rate{Limit: limit, Period: time.Second} }
	b.queue.Baseline.Routes = map[string]shaper.Overrides{"other": {Capacity: new(int64(7))}}
	b.queue.Baseline.Tiers = map[string]shaper.Overrides{
		"free": {Rate: per(2)},
		"pro": {
			Rate: per(50), Capacity: new(int64(5000)),
			Routes: map[string]shaper.Overrides{"other": {Rate: per(3)}},
		},
	}
	return b
}

// sourced is a setting of the policy as a test writes it: its value and where it comes from.
func sourced(p wire.Policy) string {
	rate, _ := json.Marshal(p.Rate.Limit)
	return string(rate) + " " + p.Sources["rate"] + ", " + p.Sources["capacity"]
}

func TestTierOfATenant(t *testing.T) {
	b := tiered(t)
	for _, step := range []struct{ method, body, tier, source, general, other string }{
		{"PATCH", `{}`, "", "default", "10 default, default", "10 default, default"},
		{"PATCH", `{"tier":"pro"}`, "pro", "api", "50 tier:pro, tier:pro", "3 tier:pro, default"},
		{"PATCH", `{"rate":{"limit":200,"period_ms":1000}}`, "pro", "api", "200 api, tier:pro",
			"3 tier:pro, default"},
		{"PATCH", `{"tier":"free"}`, "free", "api", "200 api, default", "200 api, default"},
		{"PATCH", `{"rate":null}`, "free", "api", "2 tier:free, default", "2 tier:free, default"},
		{"PATCH", `{"tier":null}`, "", "default", "10 default, default", "10 default, default"},
		{"PUT", `{"tier":"free","capacity":9}`, "free", "api", "2 tier:free, api", "2 tier:free, default"},
		{"PUT", `{"capacity":9}`, "", "default", "10 default, api", "10 default, default"},
	} {
		got := b.admin.do(t, step.method, "/v1/tenants/a", nil, step.body).tenant(t)
		if got.Tier != step.tier || got.Sources["tier"] != step.source ||
			sourced(got.Policy) != step.general || sourced(got.Routes["other"].Policy) != step.other {
			t.Errorf("%s %s: tier %q from %s, %s, other %s", step.method, step.body, got.Tier,
				got.Sources["tier"], sourced(got.Policy),
				sourced(got.Routes["other"].Policy))
		}
	}
}

func TestSettingsOfARoute(t *testing.T) {
	b := tiered(t)
	for _, step := range []struct{ method, body, general, other string }{
		{"PATCH", `{"routes":{"other":{"rate":{"limit":5,"period_ms":60000}}}}`, "10 default, default",
			"5 api, default"},
		{"PATCH", `{"rate":{"limit":20,"period_ms":1000}}`, "20 api, default", "5 api, default"},
		{"PATCH", `{"routes":{"other":{"capacity":1}}}`, "20 api, default", "5 api, api"},
		{"PATCH", `{"routes":{"other":{"rate":null}}}`, "20 api, default", "20 api, api"},
		{"PATCH", `{"routes":{"other":null}}`, "20 api, default", "20 api, default"},
		{"PATCH", `{"routes":{"other":{"rate":{"limit":6}}}}`, "20 api, default", "6 api, default"},
		{"PATCH", `{"routes":null,"rate":null}`, "10 default, default", "10 default, default"},
		{"PUT", `{"routes":{"other":{"rate":{"limit":5,"period_ms":1000}}}}`, "10 default, default",
			"5 api, default"},
		{"PUT", `{}`, "10 default, default", "10 default, default"},
	} {
		got := b.admin.do(t, step.method, "/v1/tenants/a", nil, step.body).tenant(t)
		if sourced(got.Policy) != step.general || sourced(got.Routes["other"].Policy) != step.other {
			t.Errorf("%s %s: %s, other %s", step.method, step.body, sourced(got.Policy),
				sourced(got.Routes["other"].Policy))
		}
	}
}

func TestPoliciesThatAreRefused(t *testing.T) {
	b := tiered(t)
	for _, c := range []struct{ body, field, rule string }{
		{`{"tier":"gold"}`, "tier", "must be one of free, pro"},
		{`{"tier":""}`, "tier", "1 to 64 bytes"},
		{`{"tier":5}`, "tier", ""},
		{`{"routes":{"nowhere":{"capacity":1}}}`, "routes.nowhere", "must be one of the routes: default, other"},
		{`{"routes":{"other":{"tier":"pro"}}}`, "routes.other.tier", "is not a known field"},
		{`{"routes":{"other":{"routes":{}}}}`, "routes.other.routes", "is not a known field"},
		{`{"routes":{"other":{"draining":true}}}`, "routes.other.draining", "is not a known field"},
		{`{"routes":{"other":{"capacity":-1}}}`, "routes.other.capacity", "must be"},
		{`{"routes":{"other":{"rate":{"limit":1,"period_ms":31622400000},"burst":9007199254740991}}}`,
			"routes.other.burst", "200 years"},
		{`{"routes":["other"]}`, "routes", ""},
		{`{"routes":{"other":{"rate":{"limit":1,"period_ms":31622400000},"rates":[{"limit":1,` +
			`"period_ms":31622400000,"burst":9007199254740991}]}}}`, "routes.other.rates[0].burst",
			"200 years"},
	} {
		for _, method := range []string{"PATCH", "PUT"} {
			r := b.admin.do(t, method, "/v1/tenants/a", nil, c.body)
			if r.want(t, http.StatusUnprocessableEntity, "invalid-request"); len(r.problem.Errors) == 0 ||
				r.problem.Errors[0].Field != c.field ||
				!strings.Contains(r.problem.Errors[0].Rule, c.rule) {
				t.Errorf("%s %s: %+v", method, c.body, r.problem.Errors)
			}
		}
	}
	if got := b.admin.do(t, "GET", "/v1/tenants/a", nil, "").tenant(t); got.Revision != 0 {
		t.Errorf("changed: %+v", got)
	}
}

// A refused rate is named by its own path, once.
func TestRefusedRatesAreNamedOnce(t *testing.T) {
	b := tiered(t)
	b.queue.Baseline.Pools = map[string]shaper.PoolSettings{"shared": {Routes: []string{"other"}}}
	for _, c := range []struct{ method, path, body, field, rule string }{
		{"PUT", "tenants/a", `{"routes":{"other":{"rate":{"limit":9}}}}`, "routes.other.rate", "must have limit and period_ms"},
		{"PUT", "tenants/a", `{"rate":{"period_ms":9}}`, "rate", "must have limit and period_ms"},
		{"PUT", "pools/shared", `{"rate":{"limit":9}}`, "rate", "must have limit and period_ms"},
		{"PATCH", "tenants/a", `{"rates":[{"rate":"5/s","by":null}]}`, "rates[0].by", "must be a string"},
		{"PATCH", "tenants/a", `{"rates":[{"burst":5}]}`, "rates[0]", "must have rate, or limit and period_ms"},
		{"PATCH", "tenants/a", `{"rates":[{"limit":5}]}`, "rates[0]", "must have rate, or limit and period_ms"},
	} {
		r := b.admin.do(t, c.method, "/v1/"+c.path, nil, c.body)
		if r.want(t, http.StatusUnprocessableEntity, "invalid-request"); len(r.problem.Errors) != 1 ||
			r.problem.Errors[0].Field != c.field || !strings.Contains(r.problem.Errors[0].Rule, c.rule) {
			t.Errorf("%s %s: %+v", c.method, c.body, r.problem.Errors)
		}
	}
}

// What the policy as a whole refuses is named as in the API, of a route too.
func TestProblemsAreNamedAsInTheAPI(t *testing.T) {
	got := problem.Of(shaper.Problems{
		{Field: "max_wait", Rule: "r"}, {Field: "routes.login.max_wait", Rule: "r"},
		{Field: "tier", Rule: "r"}, {Field: "routes.login.rate", Rule: "r"}, {Field: "rates", Rule: "r"},
		{Field: "routes.login.capacity", Rule: "r"},
	})
	want := []wire.FieldError{
		{Field: "max_wait_ms", Kind: "number", Rule: "r"}, {Field: "routes.login.max_wait_ms", Kind: "number",
			Rule: "r"}, {Field: "tier", Kind: "string", Rule: "r"},
		{Field: "routes.login.rate", Kind: "object", Rule: "r"}, {Field: "rates", Kind: "array", Rule: "r"},
		{Field: "routes.login.capacity", Kind: "number", Rule: "r"},
	}
	if !slices.Equal(got.Errors, want) {
		t.Errorf("%+v", got.Errors)
	}
}

// The history shows tier and routes, and the tenant what was said of it through the API.
func TestOverridesAreShown(t *testing.T) {
	b := tiered(t)
	if got := b.admin.do(t, "GET", "/v1/tenants/a", nil, "").tenant(t); got.Overrides != nil {
		t.Errorf("of a tenant never seen: %+v", got.Overrides)
	}
	b.admin.do(t, "PATCH", "/v1/tenants/a", nil,
		`{"tier":"pro","rates":[],"routes":{"other":{"paused":true}}}`).tenant(t)
	const want = `{"rates":[],"tier":"pro","routes":{"other":{"paused":true}}}`
	got := b.admin.do(t, "GET", "/v1/tenants/a", nil, "").tenant(t)
	if text, err := json.Marshal(got.Overrides); err != nil || string(text) != want {
		t.Errorf("%s %v", text, err)
	}
	b.admin.do(t, "DELETE", "/v1/tenants/a", nil, "")
	var history wire.History
	if err := json.Unmarshal(b.admin.do(t, "GET", "/v1/tenants/a/history", nil, "").Body.Bytes(),
		&history); err != nil || len(history.Items) != 2 {
		t.Fatalf("%v %+v", err, history)
	}
	for i, c := range []struct{ before, after string }{{want, "{}"}, {"{}", want}} {
		before, _ := json.Marshal(history.Items[i].Before)
		after, _ := json.Marshal(history.Items[i].After)
		if string(before) != c.before || string(after) != c.after {
			t.Errorf("%s → %s", before, after)
		}
	}
}

// A dry run answers as the change would, checks all of it, and changes nothing.
func TestDryRun(t *testing.T) {
	b := tiered(t)
	b.admin.do(t, "PATCH", "/v1/tenants/a", nil, `{"capacity":50}`).tenant(t)
	for _, c := range []struct {
		method, query, body string
		status              int
		rate, sources       string
	}{
		{"PUT", "?dry_run=true", `{"tier":"pro"}`, 200, "50", "tier:pro tier:pro"},
		{"PATCH", "?dry_run=true", `{"rate":{"limit":7}}`, 200, "7", "api api"},
		{"PUT", "?dry_run=true", `{"tier":"gold"}`, 422, "", ""},
		{"PUT", "?dry_run=yes", `{}`, 422, "", ""},
		{"PUT", "?dry_run=", `{}`, 422, "", ""},
		{"PUT", "?dry_run=true&dry_run=true", `{}`, 422, "", ""},
		{"DELETE", "?dry_run=true", ``, 422, "", ""},
	} {
		r := b.admin.do(t, c.method, "/v1/tenants/a"+c.query, headers{"If-Match": `"1"`}, c.body)
		if r.Code != c.status {
			t.Errorf("%s %s %s: %d %s", c.method, c.query, c.body, r.Code, r.Body)
			continue
		}
		if c.status == 200 {
			got := r.tenant(t)
			if rate, _, _ := strings.Cut(sourced(got.Policy), " "); rate != c.rate ||
				got.Sources["rate"]+" "+got.Sources["capacity"] != c.sources || got.Revision != 1 {
				t.Errorf("%s %s: %+v", c.method, c.body, got)
			}
		}
	}
	b.admin.do(t, "PUT", "/v1/tenants/a?dry_run=true", headers{"If-Match": `"0"`}, `{}`).want(t,
		http.StatusPreconditionFailed, "")
	got := b.admin.do(t, "GET", "/v1/tenants/a", nil, "").tenant(t)
	if got.Revision != 1 || *got.Capacity != 50 || got.Tier != "" {
		t.Errorf("changed: %+v", got)
	}
	if got := b.admin.do(t, "PUT", "/v1/tenants/a?dry_run=false", nil, `{}`).tenant(t); got.Revision != 2 ||
		!slices.Equal([]string{got.Sources["capacity"]}, []string{"default"}) {
		t.Errorf("not changed: %+v", got)
	}
}

// A rate is taken as a text, too, as the configuration file and the command line write it.
func TestRateAsText(t *testing.T) {
	b := tiered(t)
	for _, step := range []struct{ method, body, general, other string }{
		{"PATCH", `{"rate":"30/s","routes":{"other":{"rate":"5/m"}}}`, "30/s", "5/m"},
		{"PATCH", `{"rate":{"limit":40}}`, "40/s", "5/m"},
		{"PUT", `{"rate":"5/24h","rates":[{"rate":"1000/24h","burst":100},{"rate":"1/s"},{"limit":7,"period_ms":1000}]}`, "5/d 1000/d burst 100 1/s burst 1 7/s burst 1", "5/d"},
		{"PATCH", `{"rates":[{"rate":"60/m","by":"jobs"},{"limit":7,"period_ms":1000,"by":"cost"}]}`, "5/d 60/m burst 1 by jobs 7/s burst 1", "5/d"},
	} {
		got := b.admin.do(t, step.method, "/v1/tenants/a", nil, step.body).tenant(t)
		general := got.Rate.String()
		for _, p := range got.InForce().Rates {
			general += " " + p.JSON().String()
		}
		if other := got.Routes["other"].Rate.String(); general != step.general || other != step.other {
			t.Errorf("%s %s: %s, other %s, want %s, other %s", step.method, step.body, general, other,
				step.general, step.other)
		}
	}
}
