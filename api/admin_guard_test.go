package api

import (
	"net/http"
	"strings"
	"testing"
)

func TestAdminWithToken(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminToken = "s3cret" })
	for _, tt := range []struct {
		path, authorization string
		status              int
	}{
		{"/v1/tenants", "", 401}, {"/v1/tenants", "Bearer s3cre", 401}, {"/v1/tenants", "Bearer s3cret ", 200}, {"/v1/tenants", "bearer s3cret", 200},
		{"/v1/tenants", "Basic s3cret", 401}, {"/v1/tenants", "s3cret", 401}, {"/v1/tenants", "Bearer ", 401},
		{"/metrics", "", 401}, {"/metrics", "Bearer s3cret", 200}, {"/nothing", "", 401}, {"/nothing", "Bearer s3cret", 404},
		{"/livez", "", 200}, {"/readyz", "", 200}, {"/version", "", 200}, {"/docs", "", 200}, {"/openapi.json", "", 200},
	} {
		// With a token neither the Host nor the origin matters.
		r := b.admin.do(t, "GET", tt.path, headers{"Authorization": tt.authorization, "Host": "sluice.example", "Sec-Fetch-Site": "cross-site"}, "")
		if r.Code != tt.status {
			t.Errorf("%s with %q: %d %s", tt.path, tt.authorization, r.Code, r.Body)
		}
		if (r.Header().Get("WWW-Authenticate") != "") != (tt.status == 401) {
			t.Errorf("%s: WWW-Authenticate %q", tt.path, r.Header().Get("WWW-Authenticate"))
		}
		if strings.Contains(r.Body.String(), "s3cret") {
			t.Errorf("the token is told: %s", r.Body)
		}
	}
}

// A page of another maker is behind the guard with all below it.
func TestAdminPages(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.Method + " " + r.URL.Path)) })
	b := newBench(t, func(c *Config) { c.AdminToken = "s3cret"; c.AdminPages = map[string]http.Handler{"/other": page} })
	for path, want := range map[string]string{"/other": "POST /other", "/other/": "POST /other/", "/other/a/b%2Fc": "POST /other/a/b/c", "/others": ""} {
		b.admin.do(t, "POST", path, nil, "").want(t, 401, "unauthorized")
		r := b.admin.do(t, "POST", path, headers{"Authorization": "Bearer s3cret"}, "")
		if want == "" {
			r.want(t, 404, "not-found")
		} else if r.Code != 200 || r.Body.String() != want {
			t.Errorf("%s: %d %s", path, r.Code, r.Body)
		}
	}
	for _, path := range []string{"", "other", "/", "/other/", "/{x}", "/*"} {
		if _, err := New(b.queue, Config{AdminPages: map[string]http.Handler{path: page}}); err == nil {
			t.Errorf("%q is taken for a path", path)
		}
	}
}

func TestAdminWithoutToken(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminHosts = []string{"sluice.internal", "ops:9000"} })
	for _, tt := range []struct {
		host, origin, site string
		status             int
	}{
		{"localhost:8081", "", "", 200}, {"LOCALHOST", "", "", 200}, {"127.0.0.1:8081", "", "", 200}, {"127.8.9.1", "", "", 200},
		{"[::1]:8081", "", "", 200}, {"[::1]", "", "", 200}, {"[::ffff:127.0.0.1]:80", "", "", 200},
		{"sluice.internal:8081", "", "", 200}, {"Sluice.Internal", "", "", 200}, {"ops:9000", "", "", 200},
		{"ops:9001", "", "", 403}, {"evil.example", "", "", 403}, {"localhost.evil.example", "", "", 403}, {"127.0.0.1.evil.example", "", "", 403},
		{"10.0.0.1:8081", "", "", 403}, {"0.0.0.0", "", "", 403}, {"", "", "", 403},
		{"localhost:8081", "http://localhost:8081", "same-origin", 200},
		{"localhost:8081", "http://localhost:3000", "same-site", 403},
		{"localhost:8081", "https://evil.example", "", 403}, {"localhost:8081", "null", "", 403}, {"localhost:8081", "::", "", 403},
		{"localhost:8081", "", "cross-site", 403}, {"localhost:8081", "", "none", 200},
	} {
		h := headers{"Host": tt.host, "Origin": tt.origin, "Sec-Fetch-Site": tt.site}
		r := b.admin.do(t, "POST", "/v1/tenants/a/pause", h, "")
		if r.Code != tt.status {
			t.Errorf("%+v: %d %s", tt, r.Code, r.Body)
		}
		if r := b.admin.do(t, "GET", "/metrics", h, ""); r.Code != tt.status {
			t.Errorf("metrics, %+v: %d", tt, r.Code)
		}
		if r := b.admin.do(t, "GET", "/readyz", h, ""); r.Code != http.StatusOK {
			t.Errorf("probe, %+v: %d", tt, r.Code)
		}
	}
}

func TestVersion(t *testing.T) {
	b := newBench(t)
	r := b.admin.do(t, "GET", "/version", nil, "")
	if got := strings.TrimSpace(r.Body.String()); got != `{"version":"1.2.3","commit":"abc","go":"go1.26"}` {
		t.Errorf("%s", got)
	}
}
