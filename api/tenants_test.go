package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

func (r reply) tenant(t *testing.T) wire.Tenant {
	t.Helper()
	var out wire.Tenant
	if err := json.Unmarshal(r.Body.Bytes(), &out); err != nil || r.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", r.Code, err, r.Body)
	}
	return out
}

func TestTenantNeverSeenHasTheDefaults(t *testing.T) {
	b := newBench(t)
	r := b.admin.do(t, "GET", "/v1/tenants/new", nil, "")
	got := r.tenant(t)
	policy := got.InForce()
	if got.Tenant != "new" || policy.Rate != (shaper.Rate{Limit: 10, Period: time.Second}) || policy.Capacity != 1000 ||
		got.Revision != 0 ||
		got.Sources["rate"] != "default" || got.LimitedBy != "idle" || r.Header().Get("ETag") != `"0"` {
		t.Errorf("%s %s", r.Header().Get("ETag"), r.Body)
	}
}

func TestPatchIsAMergePatch(t *testing.T) {
	b := newBench(t)
	for _, step := range []struct {
		patch   string
		rate    shaper.Rate
		cap     int64
		sources string // of rate and capacity
		reason  string
	}{
		{`{"rate":{"limit":200,"period_ms":1000},"reason":"accept"}`, shaper.Rate{Limit: 200, Period: time.Second},
			1000, "api default", "accept"},
		{`{"capacity":50}`, shaper.Rate{Limit: 200, Period: time.Second}, 50, "api api", ""},
		{`{"rate":{"period_ms":500}}`, shaper.Rate{Limit: 200, Period: 500 * time.Millisecond}, 50, "api api", ""},
		{`{"rate":null,"capacity":7,"reason":null}`, shaper.Rate{Limit: 10, Period: time.Second}, 7, "default api", ""},
		{`{"rate":{"limit":20}}`, shaper.Rate{Limit: 20, Period: time.Second}, 7, "api api", ""},
		{`{}`, shaper.Rate{Limit: 20, Period: time.Second}, 7, "api api", ""},
		{`{"capacity":null,"rate":null,"burst":null,"rates":null,"concurrency":null,"max_wait_ms":null,` +
			`"paused":null}`,
			shaper.Rate{Limit: 10, Period: time.Second}, 1000, "default default", ""},
	} {
		got := b.admin.do(t, "PATCH", "/v1/tenants/a", nil, step.patch).tenant(t)
		policy := got.InForce()
		if sources := got.Sources["rate"] + " " + got.Sources["capacity"]; policy.Rate != step.rate ||
			policy.Capacity != step.cap || sources != step.sources || got.Reason != step.reason {
			t.Errorf("%s: rate %v capacity %d sources %s reason %q", step.patch, policy.Rate, policy.Capacity,
				sources, got.Reason)
		}
	}
}

func TestPatchTakesEverySetting(t *testing.T) {
	b := newBench(t)
	h := headers{"Content-Type": "application/merge-patch+json; charset=utf-8"}
	got := b.admin.do(t, "PATCH", "/v1/tenants/a", h, `{"rate":{"limit":7,"period_ms":3000},"burst":2,"capacity":0,"concurrency":0,
		"max_wait_ms":5000,"paused":true,"rates":[{"limit":1000,"period_ms":86400000},{"limit":5,"period_ms":1000,"burst":9}]}`).tenant(t)
	want := []shaper.PaceJSON{
		{Limit: 1000, PeriodMS: 86400000, Burst: 1},
		{Limit: 5, PeriodMS: 1000, Burst: 9},
	}
	if policy := got.InForce(); policy.Rate != (shaper.Rate{Limit: 7, Period: 3 * time.Second}) || policy.Burst != 2 ||
		policy.Capacity != 0 || policy.Concurrency != 0 || policy.MaxWait != 5*time.Second || !policy.Paused ||
		got.LimitedBy != "paused" || !slices.Equal(*got.Rates, want) {
		t.Errorf("%+v", got)
	}
}

func TestPutReplacesAndDeleteDrops(t *testing.T) {
	b := newBench(t)
	b.admin.do(t, "PATCH", "/v1/tenants/a", nil, `{"capacity":50,"paused":true}`)
	got := b.admin.do(t, "PUT", "/v1/tenants/a", nil,
		`{"rate":{"limit":1,"period_ms":60000},"reason":"slow"}`).tenant(t)
	if policy := got.InForce(); policy.Capacity != 1000 || policy.Paused || policy.Rate.Limit != 1 || got.Reason != "slow" {
		t.Errorf("%+v", got)
	}
	r := b.admin.do(t, "DELETE", "/v1/tenants/a", nil, "")
	if r.Code != http.StatusNoContent || r.Body.Len() != 0 {
		t.Errorf("%d %s", r.Code, r.Body)
	}
	if got := b.admin.do(t, "GET", "/v1/tenants/a", nil, "").tenant(t); got.Rate.Limit != 10 {
		t.Errorf("%+v", got)
	}
}

func TestPauseAndResume(t *testing.T) {
	b := newBench(t)
	b.admin.do(t, "PATCH", "/v1/tenants/p", nil, `{"capacity":5}`)
	for _, body := range []string{"", "{}", `{"reason":"deploy"}`} {
		got := b.admin.do(t, "POST", "/v1/tenants/p/pause", nil, body).tenant(t)
		if !*got.Paused || (got.Reason == "deploy") != strings.Contains(body, "deploy") {
			t.Errorf("%q: %+v", body, got)
		}
		if actor := b.queue.Actor("p"); !strings.HasPrefix(actor, "local from 192.0.2.1") {
			t.Errorf("actor %q", actor)
		}
		if got := b.admin.do(t, "POST", "/v1/tenants/p/resume", nil, body).tenant(t); *got.Paused ||
			got.Sources["paused"] != "default" {
			t.Errorf("%q: %+v", body, got)
		}
	}
}

// One route is paused and resumed alone; in a paused tenant it stays paused.
func TestPauseOfARoute(t *testing.T) {
	b := newBench(t)
	b.submit(plainJob, headers{"Sluice-Tenant": "p"})
	for _, step := range []struct {
		verb, body               string
		tenant, byDefault, other bool // paused
	}{
		{"pause", `{"route":"other","reason":"mail is away"}`, false, false, true},
		{"resume", ``, false, false, true},
		{"pause", ``, true, true, true},
		{"resume", `{"route":"other"}`, true, true, true},
		{"resume", ``, false, false, false},
	} {
		got := b.admin.do(t, "POST", "/v1/tenants/p/"+step.verb, nil, step.body).tenant(t)
		paused := func(route string) bool {
			if f, own := got.Routes[route]; own {
				return *f.Paused
			}
			return *got.Paused
		}
		if *got.Paused != step.tenant || paused("default") != step.byDefault || paused("other") != step.other {
			t.Errorf("%s %s: %+v", step.verb, step.body, got)
		}
	}
	var history wire.History
	r := b.admin.do(t, "GET", "/v1/tenants/p/history", nil, "")
	if err := json.Unmarshal(r.Body.Bytes(), &history); err != nil {
		t.Fatal(err)
	}
	first := history.Items[len(history.Items)-1]
	if paused := first.After.Routes["other"].Paused; first.Before.Routes != nil || paused == nil || !*paused ||
		first.Reason != "mail is away" {
		t.Errorf("the history has %+v", first)
	}
	for body, detail := range map[string]string{
		`{"route":"nowhere"}`: `route (string "nowhere") must be one of the routes: default, other`, `{"route":""}`: "route (string)",
		`{"routes":["other"]}`: "routes (array) is not a known field",
	} {
		r := b.admin.do(t, "POST", "/v1/tenants/p/pause", nil, body)
		if r.want(t, http.StatusUnprocessableEntity, "invalid-request"); !strings.Contains(r.problem.Detail, detail) {
			t.Errorf("%s: %s", body, r.Body)
		}
	}
}

func TestConditionalChanges(t *testing.T) {
	b := newBench(t)
	for _, step := range []struct {
		match  string
		status int
	}{
		{`"0"`, 200}, {`"0"`, 412}, {`W/"1"`, 200}, {`*`, 200}, {`"9", "3"`, 200}, {`"3", "4", "x"`, 200},
		{`"x"`, 412}, {`4`, 422}, {``, 200},
	} {
		r := b.admin.do(t, "PATCH", "/v1/tenants/a", headers{"If-Match": step.match}, `{"capacity":5}`)
		if r.Code != step.status {
			t.Errorf("If-Match %s: %d %s", step.match, r.Code, r.Body)
		}
		if r.Code == 200 && r.Header().Get("ETag") != fmt.Sprintf(`"%d"`, r.tenant(t).Revision) {
			t.Errorf("ETag %s: %s", r.Header().Get("ETag"), r.Body)
		}
	}
}

// The name in the path is decoded exactly once, however it is encoded.
func TestTenantNamesInPaths(t *testing.T) {
	b := newBench(t)
	for path, name := range map[string]string{
		"a%2Fb": "a/b", "a%2fb": "a/b", "%C3%A9": "é", "%c3%a9": "é", "é": "é", "a%20b": "a b", "%2e": ".",
		"%2e%2e": "..", "..": "..",
		"%252e": "%2e", "a%252Fb": "a%2Fb", "100%25": "100%", "*": "*", "%7Bx%7D": "{x}", "a:b": "a:b",
		"a+b": "a+b", "%2F": "/",
		"pause": "pause", url.PathEscape(strings.Repeat("/", 255)): strings.Repeat("/", 255),
	} {
		for _, suffix := range []string{"", "/pause?create=true"} {
			method := "GET"
			if suffix != "" {
				method = "POST"
			}
			if got := b.admin.do(t, method, "/v1/tenants/"+path+suffix, nil, "").tenant(t); got.Tenant != name {
				t.Errorf("%s%s: tenant %q, want %q", path, suffix, got.Tenant, name)
			}
		}
	}
}

func TestTenantsPageByPage(t *testing.T) {
	b := newBench(t)
	var want []string
	for i := range 7 {
		name := fmt.Sprintf("t/%d é", i)
		want = append(want, name)
		b.submit(plainJob, headers{"Sluice-Tenant": name})
	}
	var got []string
	for path := "/v1/tenants?limit=3"; path != ""; {
		r := b.admin.do(t, "GET", path, nil, "")
		var page wire.TenantList
		if err := json.Unmarshal(r.Body.Bytes(), &page); err != nil || len(page.Items) > 3 {
			t.Fatalf("%v %s", err, r.Body)
		}
		for _, item := range page.Items {
			got = append(got, item.Tenant)
			if item.Depth != 1 {
				t.Errorf("%s has depth %d", item.Tenant, item.Depth)
			}
		}
		path = ""
		if page.NextCursor != "" {
			path = "/v1/tenants?limit=3&cursor=" + url.QueryEscape(page.NextCursor)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if r := newBench(t).admin.do(t, "GET", "/v1/tenants", nil,
		""); strings.TrimSpace(r.Body.String()) != `{"items":[]}` {
		t.Errorf("none: %s", r.Body)
	}
}

// Only settings make a tenant, and what has create=true. A misspelt name gets a suggestion.
func TestUnknownTenants(t *testing.T) {
	b := newBench(t)
	b.submit(plainJob, headers{"Sluice-Tenant": "Acme"})
	change := []struct{ method, path, body string }{
		{"PATCH", "?create=false", `{"capacity":5}`}, {"PUT", "?create=false", `{"capacity":5}`},
		{"PATCH", "?create=false&dry_run=true", `{"capacity":5}`},
		{"POST", "/pause", ""}, {"POST", "/pause?create=false", `{"route":"other"}`}, {"POST", "/drain", ""},
		{"POST", "/resume", ""}, {"POST", "/unhold", ""},
		{"POST", "/purge", `{"all":true}`}, {"POST", "/replay", `{"all":true}`},
	}
	for _, c := range append(slices.Clip(change), struct{ method, path, body string }{"DELETE", "", ""}) {
		r := b.admin.do(t, c.method, "/v1/tenants/acmee"+c.path, nil, c.body)
		if r.want(t, http.StatusNotFound, "unknown-tenant"); !strings.HasSuffix(r.problem.Detail, "; is Acme meant?") {
			t.Errorf("%s %s: %s", c.method, c.path, r.Body)
		}
	}
	if got := b.admin.do(t, "GET", "/v1/tenants/acmee", nil, "").tenant(t); got.Revision != 0 {
		t.Errorf("a tenant was made: %+v", got)
	}
	b.admin.do(t, "PATCH", "/v1/tenants/acmee?create=maybe", nil, `{"capacity":5}`).want(t,
		http.StatusUnprocessableEntity, "invalid-request")
	b.submit(plainJob, headers{"Sluice-Tenant": "submits"})
	b.admin.do(t, "PATCH", "/v1/tenants/stated?create=true", nil, `{"capacity":5}`)
	for _, verb := range []string{"pause", "drain"} {
		if got := b.admin.do(t, "POST", "/v1/tenants/"+verb+"s/"+verb+"?create=true", nil, "").tenant(t); got.Revision != 1 {
			t.Errorf("%s with create=true: %+v", verb, got)
		}
	}
	for _, name := range []string{"submits", "stated"} {
		for _, c := range change {
			if r := b.admin.do(t, c.method, "/v1/tenants/"+name+c.path, nil, c.body); r.Code != http.StatusOK {
				t.Errorf("%s: %s %s: %d %s", name, c.method, c.path, r.Code, r.Body)
			}
		}
	}
}

// A 404 names the listener that answered, and the one that may serve the path. So does a 401 of the
// admin listener, which may be meant for the other one.
func TestNotFoundNamesTheListeners(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		d            document
		path         string
		here, theres string
	}{
		{b.intake, "/v1/tenants", "this is the listener of the API", "admin.listen"},
		{b.intake, "/", "this is the listener of the API", "admin.listen"},
		{b.admin, "/v1/jobs", "this is the admin listener", "api.listen"},
		{newBench(t, func(c *Config) { c.AdminToken = "s3cret" }).admin, "/v1/jobs", "this is the admin listener", "api.listen"},
	} {
		r := c.d.do(t, http.MethodGet, c.path, nil, "")
		if r.Code != http.StatusUnauthorized {
			r.want(t, http.StatusNotFound, "not-found")
		}
		if !strings.Contains(r.problem.Detail, c.here) ||
			!strings.Contains(r.problem.Detail, c.theres) {
			t.Errorf("%s: %s", c.path, r.Body)
		}
	}
}
