package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestEveryOperationHasAScope: no operation of clients can be called without a scope.
func TestEveryOperationHasAScope(t *testing.T) {
	for _, op := range slices.Concat(contract.Jobs(1), contract.Forward(1)) {
		if !slices.Contains(queue.DefaultScopes(), op.Scope) {
			t.Errorf("%s has the scope %q", op.ID, op.Scope)
		}
	}
	if (&queue.Rights{Scopes: []queue.Scope{}}).Has(queue.ScopeRead) || (*queue.Rights)(nil).Has("") ||
		(*queue.Rights)(nil).Has(queue.ScopeWork) || !(*queue.Rights)(nil).Has(queue.ScopeForward) {
		t.Error("the default of scopes")
	}
}

// refusedFor checks a 403 that names what the credential lacks.
func (r reply) refusedFor(t *testing.T, what, missing string) {
	t.Helper()
	if r.Code != http.StatusForbidden || !strings.HasSuffix(r.problem.Type, ":forbidden") ||
		r.problem.Missing != missing || !strings.Contains(r.problem.Detail, missing) {
		t.Errorf("%s: %d %s missing %q %q, want %q", what, r.Code, r.problem.Type, r.problem.Missing, r.problem.Detail, missing)
	}
}

// TestDeniedRoutes: an operator, or the configuration, says which routes a tenant may use. A patch
// is in force at once, and what waits still leaves.
func TestDeniedRoutes(t *testing.T) {
	b := newBench(t)
	const path = "/v1/tenants/default"
	waiting, dead := b.submit(plainJob, nil).job.ID, b.dead(plainJob, "refused")
	b.admin.do(t, "PATCH", path, nil, `{"denied":true}`).tenant(t)
	refused := func() {
		t.Helper()
		for _, r := range []reply{
			b.intake.do(t, "POST", "/v1/jobs", nil, plainJob),
			b.intake.do(t, "POST", "/v1/jobs", headers{"Prefer": "wait=5"}, plainJob),
			b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+plainJob+`],"atomic":true}`),
			b.intake.do(t, "POST", "/v1/jobs/"+dead+"/replay", nil, ""),
			b.intake.do(t, "POST", "/v1/jobs", nil, `{"type":"t","payload":1,"cost":1000000}`),
		} {
			r.refusedFor(t, "a denied route", "default")
		}
	}
	refused()
	r := b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+plainJob+`]}`)
	if r.Code != http.StatusOK || !strings.Contains(r.Body.String(), `"missing":"default"`) {
		t.Errorf("a batch: %d %s", r.Code, r.Body)
	}
	swept := b.admin.do(t, "POST", path+"/replay", nil, `{"all":true}`).swept(t)
	queuetest.Compare(t, "the replay", swept, wire.Swept{Stopped: "forbidden", CreatedBefore: swept.CreatedBefore})
	if got := b.intake.do(t, "GET", "/v1/jobs/"+waiting, nil, ""); got.job.Position != 1 {
		t.Errorf("what waits: %s", got.Body)
	}
	b.admin.do(t, "POST", path+"/drain", nil, "")
	refused() // for good, which a client need not try again
	b.admin.do(t, "POST", path+"/resume", nil, "")
	refused()
	b.admin.do(t, "PATCH", path, nil, `{"denied":null}`).tenant(t)
	b.submit(plainJob, nil)
	text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String()
	if !strings.Contains(text, `sluice_admissions_total{outcome="denied"} 17`) {
		t.Errorf("metrics: %s", text)
	}
}

// TestDeniedTypes: the types that a tenant may use are in force at once, and a refusal names the
// one that is missing, unless the request does not have it.
func TestDeniedTypes(t *testing.T) {
	b := newBench(t)
	const path, pay = "/v1/tenants/default", `{"type":"pay","payload":1}`
	dead := b.dead(pay, "refused")
	got := b.admin.do(t, "PATCH", path, nil, `{"types":["a","order.create"]}`).tenant(t)
	if types := got.InForce().Types; !slices.Equal(types, []string{"a", "order.create"}) || got.Sources["types"] != shaper.SourceAPI {
		t.Errorf("types %v of %s", types, got.Sources["types"])
	}
	b.submit(plainJob, nil)
	for _, r := range []reply{
		b.intake.do(t, "POST", "/v1/jobs", nil, pay),
		b.intake.do(t, "POST", "/v1/jobs", headers{"Prefer": "wait=5"}, pay),
		b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+pay+`],"atomic":true}`),
	} {
		r.refusedFor(t, "a denied type", "pay")
	}
	b.intake.do(t, "POST", "/v1/jobs/"+dead+"/replay", nil, "").refusedFor(t, "a replay", "type")
	r := b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+plainJob+`,`+pay+`]}`)
	if !strings.Contains(r.Body.String(), `"missing":"pay"`) || strings.Count(r.Body.String(), `"queued"`) != 1 {
		t.Errorf("a batch: %d %s", r.Code, r.Body)
	}
	swept := b.admin.do(t, "POST", path+"/replay", nil, `{"all":true}`).swept(t)
	queuetest.Compare(t, "the replay", swept, wire.Swept{Stopped: "forbidden", CreatedBefore: swept.CreatedBefore})
	for _, patch := range []string{`{"types":[]}`, `{"types":null}`} {
		b.admin.do(t, "PATCH", path, nil, patch).tenant(t)
		b.submit(pay, nil)
	}
	for _, wrong := range []string{`"a"`, `["a","a"]`, `[""]`, `[1]`, `["a\u0000"]`, `["` + strings.Repeat("a", 256) + `"]`,
		`[` + strings.Repeat(`"a",`, 16) + `"a"]`} {
		if r := b.admin.do(t, "PATCH", path, nil, `{"types":`+wrong+`}`); r.Code != http.StatusUnprocessableEntity ||
			!strings.HasPrefix(r.problem.Errors[0].Field, "types") {
			t.Errorf("types %.40s: %d %s", wrong, r.Code, r.Body)
		}
	}
}

// TestScopes: a key with one scope may do what that says and nothing else, by any method.
func TestScopes(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys})
	id := b.submit(plainJob, bearing(b.key("acme", "").Secret)).job.ID
	needs := func(method, target string) queue.Scope {
		switch {
		case method == "DELETE":
			return queue.ScopeCancel
		case strings.HasSuffix(target, "/replay"):
			return queue.ScopeReplay
		case method == "POST":
			return queue.ScopeSubmit
		}
		return queue.ScopeRead
	}
	for _, scope := range queue.Scopes() {
		key := b.key("acme", `{"scopes":["`+string(scope)+`"]}`)
		for _, op := range dataPlane(id) {
			if needs(op.method, op.target) == scope {
				continue // its other tests call it
			}
			h := bearing(key.Secret)
			h["X-HTTP-Method-Override"], h["X-Method-Override"] = "POST", "GET"
			r := b.intake.do(t, op.method, op.target, h, op.body)
			if op.method == http.MethodHead { // which has no body
				if r.Code != http.StatusForbidden {
					t.Errorf("HEAD with %s: %d", scope, r.Code)
				}
				continue
			}
			r.refusedFor(t, string(scope)+": "+op.method+" "+op.target, string(needs(op.method, op.target)))
		}
		if r := b.intake.do(t, "OPTIONS", "/v1/jobs/"+id, bearing(key.Secret), ""); r.Code != http.StatusMethodNotAllowed {
			t.Errorf("OPTIONS: %d", r.Code)
		}
	}
	// Nor does a repeated submission tell what became of its job.
	submitsOf := func() headers { return bearing(b.key("acme", `{"scopes":["submit"]}`).Secret) }
	first := submitsOf()
	first["Idempotency-Key"] = "k"
	ended := b.submit(plainJob, first).job.ID
	b.queue.Finish(ended, shaper.Succeeded, &queue.Response{Status: 200, Body: []byte("secret answer")}, nil)
	for _, again := range []string{plainJob, `{"jobs":[` + strings.TrimSuffix(plainJob, "}") + `,"idempotency_key":"k"}]}`} {
		h, path := submitsOf(), "/v1/jobs"
		if h["Idempotency-Key"] = "k"; again != plainJob {
			path = "/v1/jobs/batch"
			delete(h, "Idempotency-Key")
		}
		if r := b.intake.do(t, "POST", path, h, again); r.Code/100 != 2 || !strings.Contains(r.Body.String(), ended) || strings.Contains(r.Body.String(), "secret answer") {
			t.Errorf("a repeated submission: %d %s", r.Code, r.Body)
		}
	}
	// A wait is a read, also of one's own submission.
	submits := bearing(b.key("acme", `{"scopes":["submit"]}`).Secret)
	if r := b.submit(plainJob, submits); r.Code != http.StatusAccepted {
		t.Errorf("submit: %d", r.Code)
	}
	n := len(b.queue.IDs())
	submits["Prefer"] = "wait=1"
	b.intake.do(t, "POST", "/v1/jobs", submits, plainJob).refusedFor(t, "a wait", "read")
	if len(b.queue.IDs()) != n {
		t.Error("it was admitted")
	}
}

// TestRoutesAndTypesOfAKey: jobs of other routes and types are out of reach: alone, in a batch, by
// their ids and in lists.
func TestRoutesAndTypesOfAKey(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys})
	all := bearing(b.key("acme", "").Secret)
	const otherRoute, otherType = `{"type":"t","route":"other","payload":1}`, `{"type":"u","payload":1}`
	mine := b.submit(`{"type":"t","payload":1}`, all).job.ID
	narrow := bearing(b.key("acme", `{"routes":["default"],"types":["t"]}`).Secret)
	for body, missing := range map[string]string{otherRoute: "other", otherType: "u"} {
		stored := missing // of a job that the key may not read
		if body == otherType {
			stored = "type"
		}
		id := b.submit(body, all).job.ID
		n := len(b.queue.IDs())
		b.intake.do(t, "POST", "/v1/jobs", narrow, body).refusedFor(t, "submit "+body, missing)
		for _, atomic := range []string{"true", "false"} {
			b.intake.do(t, "POST", "/v1/jobs/batch", narrow, `{"atomic":`+atomic+`,"jobs":[{"type":"t","payload":1},`+body+`]}`).
				refusedFor(t, "a batch with "+body, missing)
		}
		if got := len(b.queue.IDs()); got != n {
			t.Errorf("%d jobs were admitted", got-n)
		}
		for _, op := range dataPlane(id) {
			if !strings.Contains(op.target, id) || op.method == http.MethodHead {
				continue
			}
			for _, prefer := range []string{"", "wait=30"} {
				h := headers{"Authorization": narrow["Authorization"], "Prefer": prefer}
				b.intake.do(t, op.method, op.target, h, op.body).refusedFor(t, op.method+" "+op.target, stored)
			}
		}
		if job, err := b.queue.Job(t.Context(), "acme", id); err != nil || job.State.Done() {
			t.Errorf("the job is %v, %v", job.State, err)
		}
	}
	b.intake.do(t, "GET", "/v1/jobs?state=queued&route=other", narrow, "").refusedFor(t, "a list", "other")
	r := b.intake.do(t, "GET", "/v1/jobs?state=all", narrow, "")
	var page wire.JobList
	if err := json.Unmarshal(r.Body.Bytes(), &page); err != nil || len(page.Items) != 1 || page.Items[0].ID != mine {
		t.Errorf("the list: %s %v", r.Body, err)
	}
	if r := b.intake.do(t, "GET", "/v1/jobs/"+mine, narrow, ""); r.Code != http.StatusOK {
		t.Errorf("its own job: %d", r.Code)
	}
	if r := b.intake.do(t, "GET", "/v1/jobs/"+strings.Repeat("0", 28), narrow, ""); r.Code != http.StatusNotFound {
		t.Errorf("no job: %d", r.Code)
	}
	b.intake.do(t, "GET", "/v1/forward/other/x", narrow, "").refusedFor(t, "forward", "other")
}

// TestRightsOfANewKey: what a key may do is shown and checked.
func TestRightsOfANewKey(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys})
	k := b.key("acme", `{"scopes":["read","submit","read"],"routes":["other"],"types":["a b"],"networks":["192.0.2.7","2001:db8::1/32"]}`)
	if !slices.Equal(k.Scopes, []string{"submit", "read"}) || !slices.Equal(k.Routes, []string{"other"}) ||
		!slices.Equal(k.Types, []string{"a b"}) || !slices.Equal(k.Networks, []string{"192.0.2.7/32", "2001:db8::/32"}) {
		t.Errorf("%+v", k)
	}
	if k := b.key("acme", ""); len(k.Scopes) != 5 || k.Routes != nil || k.Types != nil || k.Networks != nil {
		t.Errorf("the default: %+v", k)
	}
	for body, field := range map[string]string{
		`{"scopes":[]}`: "scopes", `{"scopes":"read"}`: "scopes", `{"scopes":["admin"]}`: "scopes[0]", `{"scopes":null}`: "scopes",
		`{"routes":["nowhere"]}`: "routes[0]", `{"routes":[7]}`: "routes[0]", `{"types":[""]}`: "types[0]", `{"types":["a\u0000"]}`: "types[0]",
		`{"networks":["example.com"]}`: "networks[0]", `{"networks":["192.0.2.0/33"]}`: "networks[0]",
		`{"networks":["::ffff:192.0.2.0/120"]}`: "networks[0]", `{"networks":[]}`: "networks",
	} {
		r := b.admin.do(t, "POST", "/v1/tenants/acme/keys", nil, body)
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if len(r.problem.Errors) == 0 || r.problem.Errors[0].Field != field {
			t.Errorf("%s: %+v", body, r.problem.Errors)
		}
	}
}
