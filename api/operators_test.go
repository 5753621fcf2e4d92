package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const rootToken = "s3cret"

// enroll creates an operator by the admin token, and returns the answer.
func (b *bench) enroll(t testing.TB, body string) wire.NewOperator {
	t.Helper()
	r := b.admin.do(t, "POST", "/v1/operators", headers{"Authorization": "Bearer " + rootToken}, body)
	var o wire.NewOperator
	if err := json.Unmarshal(r.Body.Bytes(), &o); err != nil || r.Code != 201 || o.Token == "" {
		t.Fatalf("create: %d %s %v", r.Code, r.Body, err)
	}
	return o
}

// as are the headers of a request with a token.
func as(token string) headers { return headers{"Authorization": "Bearer " + token} }

func withRoot(c *Config) { c.AdminToken = rootToken }

// TestOperators: created, listed without a token, revoked.
func TestOperators(t *testing.T) {
	b := newBench(t, withRoot)
	olaf := b.enroll(t, `{"name":"olaf","role":"operator","expires_at":"2999-01-01T00:00:00Z","networks":["192.0.2.1","2001:db8::1/32"]}`)
	vera := b.enroll(t, `{"name":"vera","role":"viewer","networks":[]}`)
	if olaf.By != "admin" || olaf.Role != "operator" || olaf.Expires.Year() != 2999 ||
		!slices.Equal(olaf.Networks, []string{"192.0.2.1/32", "2001:db8::/32"}) || len(vera.Networks) != 0 {
		t.Errorf("%+v", olaf)
	}
	b.admin.do(t, "GET", "/v1/tenants", as(vera.Token), "").status(t, 200)
	r := b.admin.do(t, "GET", "/v1/operators", as(rootToken), "")
	var list wire.OperatorList
	if err := json.Unmarshal(r.Body.Bytes(), &list); err != nil || len(list.Items) != 2 {
		t.Fatalf("%s %v", r.Body, err)
	}
	if list.Items[1].Name != "vera" || time.Since(list.Items[1].Used) > time.Minute || !list.Items[0].Used.IsZero() {
		t.Errorf("%+v", list)
	}
	if strings.Contains(r.Body.String(), vera.Token[40:]) {
		t.Error("the list has a token")
	}
	b.admin.do(t, "POST", "/v1/operators", as(rootToken), `{"name":"vera","role":"admin"}`).want(t, 409, "operator-exists")
	b.admin.do(t, "DELETE", "/v1/operators/"+vera.ID, as(rootToken), "").status(t, 204)
	b.admin.do(t, "GET", "/v1/tenants", as(vera.Token), "").want(t, 401, "unauthorized")
	for _, id := range []string{vera.ID, "x", "..%2fx"} {
		b.admin.do(t, "DELETE", "/v1/operators/"+id, as(rootToken), "").want(t, 404, "unknown-operator")
	}
	for _, body := range []string{
		`{}`, `{"name":"x"}`, `{"role":"viewer"}`, `{"name":"","role":"viewer"}`, `{"name":"x","role":"root"}`,
		`{"name":"x","role":1}`, `{"name":"admin","role":"viewer"}`, `{"name":"LOCAL","role":"viewer"}`,
		`{"name":"oidc:x","role":"viewer"}`, `{"name":"a\u0007","role":"viewer"}`, `{"name":"x","role":"viewer","networks":["x"]}`,
		`{"name":"x","role":"viewer","networks":[1]}`, `{"name":"x","role":"viewer","networks":"10.0.0.0/8"}`,
		`{"name":"x","role":"viewer","expires_at":"2020-01-01T00:00:00Z"}`, `{"name":"x","role":"viewer","id":"y"}`,
		`{"name":"x","role":"viewer","role":"admin"}`,
		`{"name":"x","role":"viewer","networks":[` + strings.TrimSuffix(strings.Repeat(`"::1",`, 101), ",") + `]}`,
	} {
		b.admin.do(t, "POST", "/v1/operators", as(rootToken), body).want(t, 422, "invalid-request")
	}
}

// TestRolesOfOperations: each operation and page is refused to every lower role, before
// its body is read; the refusal names the role that is needed.
func TestRolesOfOperations(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("page")) })
	b := newBench(t, withRoot, func(c *Config) {
		c.AdminSubmit, c.AdminPages = true, map[string]http.Handler{"/page": page}
	})
	tokens := map[operators.Role]string{}
	for _, role := range operators.Roles() {
		tokens[role] = b.enroll(t, fmt.Sprintf(`{"name":"o-%s","role":"%s"}`, role, role)).Token
	}
	type target struct {
		method, path string
		least        operators.Role
	}
	targets := []target{{"GET", "/metrics", operators.Viewer}, {"GET", "/page", operators.Admin}, {"POST", "/page/x", operators.Admin}}
	for _, op := range slices.Concat(contract.Tenants(), contract.Pools(), contract.TenantJobs(true, 1<<20), contract.Arrivals(),
		contract.Figures(), contract.Guards(), contract.Operators()) {
		path := op.Path
		for _, name := range []string{"tenant", "pool", "id", "key", "guard", "blocked", "operator"} {
			path = strings.ReplaceAll(path, "{"+name+"}", "x1")
		}
		targets = append(targets, target{op.Method, path, op.LeastRole()})
	}
	for _, at := range targets {
		for _, role := range operators.Roles() {
			if role.May(at.least) && at.method == "GET" && (strings.HasSuffix(at.path, "/stream") || strings.HasSuffix(at.path, "/arrivals") || strings.HasSuffix(at.path, "/events")) {
				continue // which do not end
			}
			r := httptest.NewRequest(at.method, "http://localhost"+at.path, strings.NewReader("{"))
			r.Header.Set("Authorization", "Bearer "+tokens[role])
			w := httptest.NewRecorder()
			b.s.Admin().ServeHTTP(w, r)
			var p wire.Problem
			_ = json.Unmarshal(w.Body.Bytes(), &p)
			refused := w.Code == 403 && strings.HasSuffix(p.Type, ":forbidden") && strings.Contains(p.Detail, "the role "+string(at.least))
			if refused == role.May(at.least) || w.Code == 401 {
				t.Errorf("%s %s by %s: %d %s", at.method, at.path, role, w.Code, w.Body)
			}
		}
	}
	for _, path := range openPaths {
		b.admin.do(t, "GET", path, nil, "").status(t, 200)
	}
}

// TestOperatorTokens: wrong and expired ones, and those from elsewhere.
func TestOperatorTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trusted := netip.MustParsePrefix("192.0.2.1/32") // the peer of test requests
		b := newBench(t, withRoot, func(c *Config) { c.TrustedProxies = []netip.Prefix{trusted} })
		far := b.enroll(t, `{"name":"far","role":"admin","networks":["10.0.0.0/8"]}`).Token
		end := time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339Nano)
		tim := b.enroll(t, `{"name":"tim","role":"admin","expires_at":"`+end+`"}`).Token
		b.admin.do(t, "GET", "/v1/tenants", as(far), "").want(t, 403, "forbidden")
		b.admin.do(t, "GET", "/v1/tenants", headers{"Authorization": "Bearer " + far, "X-Forwarded-For": "10.1.1.1"}, "").status(t, 200)
		b.admin.do(t, "GET", "/v1/tenants", headers{"Authorization": "Bearer " + far, "X-Forwarded-For": "10.1.1.1, 11.1.1.1"}, "").want(t, 403, "forbidden")
		b.admin.do(t, "GET", "/v1/tenants", as(tim), "").status(t, 200)
		time.Sleep(2 * time.Second)
		b.admin.do(t, "GET", "/v1/tenants", as(tim), "").want(t, 401, "unauthorized")
		other := far[:len(far)-8] + "AAAAAAAA"
		for range auth.GuessLimit {
			b.admin.do(t, "GET", "/v1/tenants", as(other), "").want(t, 401, "unauthorized")
		}
		b.admin.do(t, "GET", "/v1/tenants", as(other), "").want(t, 429, "rate-limited")
		b.admin.do(t, "GET", "/v1/tenants", as(operators.NewToken().Reveal()), "").want(t, 429, "rate-limited")
		b.admin.do(t, "GET", "/v1/tenants", headers{"Authorization": "Bearer " + far, "X-Forwarded-For": "10.1.1.1"}, "").status(t, 200)
		b.admin.do(t, "GET", "/v1/tenants", headers{"Authorization": "Basic " + far, "X-Forwarded-For": "10.1.1.1"}, "").want(t, 429, "rate-limited")
		// A wrong network reveals nothing without the secret.
		b.admin.do(t, "GET", "/v1/tenants", as(other), "").want(t, 429, "rate-limited")
	})
}

// TestOperatorsWithoutAdminToken: on loopback a request without a token is that of an admin, one
// with an operator's token has its role.
func TestOperatorsWithoutAdminToken(t *testing.T) {
	b := newBench(t)
	r := b.admin.do(t, "POST", "/v1/operators", nil, `{"name":"vera","role":"viewer"}`)
	var vera wire.NewOperator
	if err := json.Unmarshal(r.Body.Bytes(), &vera); err != nil || vera.By != "local" {
		t.Fatalf("%s %v", r.Body, err)
	}
	b.admin.do(t, "GET", "/v1/operators", as(vera.Token), "").want(t, 403, "forbidden")
	b.admin.do(t, "GET", "/v1/tenants", as(vera.Token), "").status(t, 200)
	b.admin.do(t, "GET", "/v1/operators", as("anything"), "").status(t, 200)
	b.admin.do(t, "GET", "/v1/operators", as(vera.Token+"x"), "").want(t, 401, "unauthorized")
	b.admin.do(t, "GET", "/v1/operators", headers{"Host": "evil.example"}, "").want(t, 403, "forbidden")
}

// TestOperatorsWhileTheStoreIsAway: known tokens are accepted, unknown ones are not called wrong.
func TestOperatorsWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, withRoot)
		vera := b.enroll(t, `{"name":"vera","role":"viewer"}`).Token
		b.admin.do(t, "GET", "/v1/guards", as(vera), "").status(t, 200)
		b.queue.Fail(queue.ErrUnavailable)
		time.Sleep(operators.AwayAge / 2)
		b.admin.do(t, "GET", "/v1/guards", as(vera), "").status(t, 200)
		b.admin.do(t, "GET", "/v1/guards", as(operators.NewToken().Reveal()), "").want(t, 503, "unavailable")
		time.Sleep(operators.AwayAge / 2)
		b.admin.do(t, "GET", "/v1/guards", as(vera), "").want(t, 503, "unavailable")
		b.admin.do(t, "GET", "/v1/guards", as(rootToken), "").status(t, 200)
	})
}

// TestStreamsOfRevokedOperators end within two seconds.
func TestStreamsOfRevokedOperators(t *testing.T) {
	b := newBench(t, withRoot)
	id := b.intake.do(t, "POST", "/v1/jobs", nil, `{"type":"t","payload":1}`).job.ID
	server := httptest.NewServer(b.s.Admin())
	defer server.Close()
	for _, path := range []string{"/v1/stream", "/v1/tenants/default/arrivals", "/v1/tenants/default/jobs/" + id + "/events"} {
		vera := b.enroll(t, `{"name":"vera","role":"viewer"}`)
		r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
		r.Header.Set("Authorization", "Bearer "+vera.Token)
		res, err := http.DefaultClient.Do(r)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: %v %v", path, res, err)
		}
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 1<<20)
		lines.Scan()
		b.admin.do(t, "DELETE", "/v1/operators/"+vera.ID, as(rootToken), "").status(t, 204)
		start := time.Now()
		for lines.Scan() {
			if time.Since(start) > 5*time.Second {
				t.Fatalf("%s goes on", path)
			}
		}
		_ = res.Body.Close()
	}
	b.s.End()
	http.DefaultClient.CloseIdleConnections()
}

// status expects a success.
func (r reply) status(t testing.TB, want int) {
	t.Helper()
	if r.Code != want {
		t.Errorf("status %d, want %d: %s", r.Code, want, r.Body)
	}
}

// TestViewersSeeNoContent: what clients wrote and upstreams answered is in no answer to a viewer.
func TestViewersSeeNoContent(t *testing.T) {
	b := newBench(t, withRoot, func(c *Config) { c.Routes["up"] = RouteInfo{Forward: &Forward{Path: "/", Wait: time.Second}} })
	vera, olaf := b.enroll(t, `{"name":"vera","role":"viewer"}`).Token, b.enroll(t, `{"name":"olaf","role":"operator"}`).Token
	const mark = "s3cretmark"
	dead := b.intake.do(t, "POST", "/v1/jobs", nil, `{"type":"t","payload":{"a":"`+mark+`"}}`).job.ID
	b.queue.Finish(dead, shaper.Dead, &queue.Response{Status: 500, Headers: map[string]string{"Location": mark}, Body: []byte(mark)},
		&queue.JobError{Message: "said " + mark, Detail: mark, Status: 500, At: time.Now()})
	r := httptest.NewRequest("PUT", "http://localhost/v1/forward/up/x/"+mark+"?q="+mark, strings.NewReader(mark))
	r.Header.Set("Prefer", "respond-async")
	r.Header.Set("X-Note", mark)
	sent := b.intake.send(t, r.WithContext(t.Context()))
	waits := sent.job.ID
	if waits == "" {
		t.Fatalf("%d %s", sent.Code, sent.Body)
	}
	server := httptest.NewServer(b.s.Admin())
	defer server.Close()
	for _, path := range []string{
		"/v1/jobs/" + dead, "/v1/jobs/" + waits + "?request_body=true", "/v1/tenants/default/jobs/" + dead,
		"/v1/tenants/default/jobs/" + waits + "?request_body=true", "/v1/tenants/default/jobs?state=all",
		"/v1/tenants/default/jobs/" + dead + "/events",
	} {
		for token, want := range map[string]bool{vera: false, olaf: true} {
			r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
			r.Header.Set("Authorization", "Bearer "+token)
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode != 200 || strings.Contains(string(body), mark) != want || strings.Contains(string(body), `"hidden":true`) == want {
				t.Errorf("%s, operator %v: %d %s", path, want, res.StatusCode, body)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	for _, filter := range []string{"error=" + mark, "idempotency_key=" + mark, "type=GET%20/" + mark} {
		list := "/v1/tenants/default/jobs?state=all&" + filter
		b.admin.do(t, "GET", list, as(vera), "").want(t, 403, "forbidden")
		b.admin.do(t, "GET", list, as(olaf), "").status(t, 200)
	}
	b.admin.do(t, "GET", "/v1/jobs/"+dead, as(vera), "").status(t, 200) // is as documented
	b.admin.do(t, "GET", "/v1/jobs/"+waits, as(vera), "").status(t, 200)
}

// TestSessionsOfOperators: a session has the role of its operator and ends with the token; admins
// see and end all sessions, others their own.
func TestSessionsOfOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, withRoot)
		sign := func(token string) headers {
			w := signIn(b, token)
			if w.Code != http.StatusSeeOther {
				t.Fatalf("sign in: %d %s", w.Code, w.Body)
			}
			c := w.Result().Cookies()[0]
			return headers{"Cookie": c.Name + "=" + c.Value, dashboard.PageHeader: w.Header().Get(dashboard.PageHeader)}
		}
		vera := b.enroll(t, `{"name":"vera","role":"viewer"}`)
		root, first, second := sign(rootToken), sign(vera.Token), sign(vera.Token)
		var self wire.Self
		_ = json.Unmarshal(b.admin.do(t, "GET", "/v1/self", first, "").Body.Bytes(), &self)
		if self != (wire.Self{Name: "vera", Role: "viewer", Credential: "session", Address: "192.0.2.1"}) {
			t.Errorf("%+v", self)
		}
		b.admin.do(t, "POST", "/v1/tenants/a/pause?create=true", first, "{}").want(t, 403, "forbidden")
		list := func(h headers) (all wire.SessionList) {
			_ = json.Unmarshal(b.admin.do(t, "GET", "/v1/sessions", h, "").Body.Bytes(), &all)
			return all
		}
		own, all := list(first), list(root)
		if len(own.Items) != 2 || len(all.Items) != 3 {
			t.Fatalf("own %+v, all %+v", own, all)
		}
		for _, one := range all.Items {
			if one.Current {
				b.admin.do(t, "DELETE", "/v1/sessions/"+one.ID, second, "").want(t, 404, "unknown-session")
			}
		}
		for _, one := range own.Items {
			if !one.Current {
				b.admin.do(t, "DELETE", "/v1/sessions/"+one.ID, first, "").status(t, 204)
			}
		}
		b.admin.do(t, "GET", "/v1/self", second, "").want(t, 401, "unauthorized")
		for _, id := range []string{"x", strings.Repeat("0", 64), strings.Repeat("0", 63)} {
			b.admin.do(t, "DELETE", "/v1/sessions/"+id, root, "").want(t, 404, "unknown-session")
		}
		b.admin.do(t, "DELETE", "/v1/operators/"+vera.ID, root, "").status(t, 204)
		b.admin.do(t, "GET", "/v1/self", first, "").want(t, 401, "unauthorized")
		time.Sleep(12*time.Hour - time.Second)
		b.admin.do(t, "GET", "/v1/self", root, "").status(t, 200)
		time.Sleep(time.Second)
		b.admin.do(t, "GET", "/v1/self", root, "").want(t, 401, "unauthorized")
		tim := b.enroll(t, `{"name":"tim","role":"viewer","networks":["10.0.0.1"]}`)
		if w := signIn(b, tim.Token); w.Code != 403 {
			t.Errorf("from a wrong network: %d", w.Code)
		}
	})
}

// TestOtherPagesTakeTheCookie: they do not send the second key.
func TestOtherPagesTakeTheCookie(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("page")) })
	b := newBench(t, withRoot, func(c *Config) { c.AdminPages = map[string]http.Handler{"/page": page} })
	c := signIn(b, rootToken).Result().Cookies()[0]
	alone := headers{"Cookie": c.Name + "=" + c.Value}
	b.admin.do(t, "GET", "/page/x", alone, "").status(t, 200)
	for _, path := range []string{"/v1/tenants", "/metrics", "/pages"} {
		b.admin.do(t, "GET", path, alone, "").want(t, 401, "unauthorized")
	}
	alone["Sec-Fetch-Site"] = "same-site"
	b.admin.do(t, "GET", "/page/x", alone, "").want(t, 403, "forbidden")
}

// TestWaitsEndWithTheirToken: an operator who waits for a job gets 401 within two seconds after the
// revocation; the wait of another one goes on.
func TestWaitsEndWithTheirToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, withRoot)
		olaf := b.enroll(t, `{"name":"olaf","role":"operator"}`)
		id := b.submit(plainJob, headers{"Sluice-Tenant": "acme"}).job.ID
		path := "/v1/tenants/acme/jobs/" + id
		go func() {
			<-time.After(5 * time.Second)
			b.admin.do(t, "DELETE", "/v1/operators/"+olaf.ID, as(rootToken), "").status(t, 204)
		}()
		begin := time.Now()
		waiting := func(token string) reply {
			h := as(token)
			h["Prefer"] = "wait=30"
			return b.admin.do(t, "GET", path, h, "")
		}
		waiting(olaf.Token).want(t, 401, "unauthorized")
		if took := time.Since(begin); took < 5*time.Second || took > 7*time.Second {
			t.Errorf("the wait ended after %v, the token after 5s", took)
		}
		begin = time.Now()
		waiting(rootToken).status(t, 200)
		if took := time.Since(begin); took != 30*time.Second {
			t.Errorf("the wait of the admin token ended after %v", took)
		}
		if b.queue.Watching() != 0 {
			t.Error("a watch goes on")
		}
	})
}

// TestNobodyIsNoAdmin: a request whose operator is not known is nobody's in the audit, and sees no
// payload.
func TestNobodyIsNoAdmin(t *testing.T) {
	b := newBench(t, withRoot)
	c := &call{r: httptest.NewRequestWithContext(t.Context(), "GET", "/", nil), param: func(string) string { return "" }}
	b.recorded()
	b.s.record(contract.Operation{Action: "tenant.patch"}, c, nil, nil)
	if got := b.recorded(); len(got) != 1 || strings.Contains(got[0], "admin") {
		t.Errorf("recorded %q", got)
	}
	b.s.saw(c, "acme", wire.JobDetail{Payload: json.RawMessage(`1`)})
	if !c.recorded.silent {
		t.Error("nobody saw a payload")
	}
}
