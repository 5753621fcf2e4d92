package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/dashboard"
)

func TestAdminWithToken(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminToken = "s3cret" })
	for _, tt := range []struct {
		path, authorization string
		status              int
	}{
		{"/v1/tenants", "", 401}, {"/v1/tenants", "Bearer s3cre", 401},
		{"/v1/tenants", "Bearer s3cret ", 200}, {"/v1/tenants", "bearer s3cret", 200},
		{"/v1/tenants", "Basic s3cret", 401}, {"/v1/tenants", "s3cret", 401}, {"/v1/tenants", "Bearer ", 401},
		{"/metrics", "", 401}, {"/metrics", "Bearer s3cret", 200}, {"/nothing", "", 401},
		{"/nothing", "Bearer s3cret", 404},
		{"/livez", "", 200}, {"/readyz", "", 200}, {"/version", "", 200}, {"/docs", "", 200},
		{"/openapi.json", "", 200},
	} {
		// With a token neither the Host nor the origin matters.
		r := b.admin.do(t, "GET", tt.path, headers{
			"Authorization": tt.authorization, "Host": "sluice.example", "Sec-Fetch-Site": "cross-site",
		}, "")
		if r.Code != tt.status {
			t.Errorf("%s with %q: %d %s", tt.path, tt.authorization, r.Code, r.Body)
		}
		if (r.Header().Get("WWW-Authenticate") != "") != (tt.status == 401) {
			t.Errorf("%s: WWW-Authenticate %q", tt.path, r.Header().Get("WWW-Authenticate"))
		}
		if strings.Contains(r.Body.String(), "s3cret") {
			t.Errorf("the answer contains the token: %s", r.Body)
		}
	}
}

// A session of the dashboard is as good as the token, but not on behalf of another site's page.
func TestAdminWithSession(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminToken = "s3cret" })
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "http://localhost/login", strings.NewReader("token=s3cret"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	b.s.Admin().ServeHTTP(w, r)
	if len(w.Result().Cookies()) != 1 {
		t.Fatalf("login: %d %s", w.Code, w.Body)
	}
	c, page := w.Result().Cookies()[0], w.Header().Get(dashboard.PageHeader)
	alone := httptest.NewRequest("GET", "http://localhost/v1/tenants", nil)
	alone.AddCookie(c)
	w = httptest.NewRecorder()
	if b.s.Admin().ServeHTTP(w, alone); w.Code != 401 {
		t.Errorf("the cookie alone: %d %s", w.Code, w.Body)
	}
	for _, tt := range []struct {
		method, path, cookie, site, origin, authorization string
		status                                            int
	}{
		{"GET", "/v1/tenants", c.Value, "same-origin", "", "", 200},
		{"GET", "/v1/tenants", c.Value, "", "", "", 200},
		{"GET", "/metrics", c.Value, "none", "", "", 200},
		{"GET", "/v1/tenants", c.Value + "A", "same-origin", "", "", 401},
		{"POST", "/v1/tenants/a/pause?create=true", c.Value, "same-origin", "http://localhost", "", 200},
		{"POST", "/v1/tenants/a/pause?create=true", c.Value, "", "http://localhost", "", 200},
		{"POST", "/v1/tenants/a/pause?create=true", c.Value, "cross-site", "https://evil.example", "", 403},
		{"POST", "/v1/tenants/a/pause?create=true", c.Value, "same-site", "http://localhost:3000", "", 403},
		{"POST", "/v1/tenants/a/pause?create=true", c.Value, "", "https://evil.example", "", 403},
		{"POST", "/v1/tenants/a/pause?create=true", c.Value, "", "null", "", 403},
		{"GET", "/v1/tenants", c.Value, "cross-site", "", "", 403},
		{"DELETE", "/v1/tenants/a", c.Value, "cross-site", "", "", 403},
		{"GET", "/v1/tenants", c.Value, "same-origin", "", "Bearer wrong", 401},
		{"GET", "/v1/tenants", c.Value, "cross-site", "", "Bearer s3cret", 200},
		{"GET", "/", "", "cross-site", "", "", 303}, {"GET", "/login", "", "cross-site", "", "", 200},
		{"GET", "/assets/app.js", "", "", "", "", 200}, {"GET", "/assets/nothing", "", "", "", "", 404},
	} {
		r := httptest.NewRequest(tt.method, "http://localhost"+tt.path, nil)
		for name, value := range map[string]string{
			"Cookie": c.Name + "=" + tt.cookie, "Sec-Fetch-Site": tt.site, "Origin": tt.origin,
			"Authorization": tt.authorization, dashboard.PageHeader: page,
		} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		b.s.Admin().ServeHTTP(w, r)
		if w.Code != tt.status {
			t.Errorf("%+v: %d %s", tt, w.Code, w.Body)
		}
	}
}

// A file that the dashboard does not have is a problem as any other path that is not there, without
// a credential too.
func TestNoSuchAsset(t *testing.T) {
	for _, token := range []string{"", "s3cret"} {
		b := newBench(t, func(c *Config) { c.AdminToken = token })
		for _, path := range []string{"/assets/nothing", "/assets/", "/assets/index.html"} {
			b.admin.do(t, "GET", path, nil, "").want(t, http.StatusNotFound, "not-found")
		}
	}
}

// A page of another maker is behind the guard with all below it.
func TestAdminPages(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.Method + " " + r.URL.Path))
	})
	b := newBench(t, func(c *Config) {
		c.AdminToken = "s3cret"
		c.AdminPages = map[string]http.Handler{"/other": page}
	})
	for path, want := range map[string]string{
		"/other": "POST /other", "/other/": "POST /other/", "/other/a/b%2Fc": "POST /other/a/b/c",
		"/others": "",
	} {
		b.admin.do(t, "POST", path, nil, "").want(t, 401, "unauthorized")
		r := b.admin.do(t, "POST", path, headers{"Authorization": "Bearer s3cret"}, "")
		if want == "" {
			r.want(t, 404, "not-found")
		} else if r.Code != 200 || r.Body.String() != want {
			t.Errorf("%s: %d %s", path, r.Code, r.Body)
		}
	}
	for _, path := range []string{"", "other", "/", "/other/", "/{x}", "/*"} {
		if _, err := newServer(b.queue.ports(), Config{AdminPages: map[string]http.Handler{path: page}}); err == nil {
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
		{"localhost:8081", "", "", 200}, {"LOCALHOST", "", "", 200}, {"127.0.0.1:8081", "", "", 200},
		{"127.8.9.1", "", "", 200},
		{"[::1]:8081", "", "", 200}, {"[::1]", "", "", 200}, {"[::ffff:127.0.0.1]:80", "", "", 200},
		{"sluice.internal:8081", "", "", 200}, {"Sluice.Internal", "", "", 200}, {"ops:9000", "", "", 200},
		{"ops:9001", "", "", 403}, {"evil.example", "", "", 403}, {"localhost.evil.example", "", "", 403},
		{"127.0.0.1.evil.example", "", "", 403},
		{"10.0.0.1:8081", "", "", 403}, {"0.0.0.0", "", "", 403}, {"", "", "", 403},
		{"localhost:8081", "http://localhost:8081", "same-origin", 200},
		{"localhost:8081", "http://localhost:3000", "same-site", 403},
		{"localhost:8081", "https://evil.example", "", 403}, {"localhost:8081", "null", "", 403},
		{"localhost:8081", "::", "", 403},
		{"localhost:8081", "", "cross-site", 403}, {"localhost:8081", "", "none", 200},
	} {
		h := headers{"Host": tt.host, "Origin": tt.origin, "Sec-Fetch-Site": tt.site}
		r := b.admin.do(t, "POST", "/v1/tenants/a/pause?create=true", h, "")
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

// Guesses of the admin token are rate-limited, by header and by form together. The same address can
// still use the right token.
func TestGuessedAdminTokens(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminToken = "s3cret" })
	for n := range auth.GuessLimit {
		b.admin.do(t, "GET", "/v1/tenants", bearing(fmt.Sprint("guess", n)), "").want(t,
			http.StatusUnauthorized, "unauthorized")
	}
	r := b.admin.do(t, "GET", "/v1/tenants", bearing("guess"), "")
	r.want(t, http.StatusTooManyRequests, "rate-limited")
	if r.Header().Get("Retry-After") == "" {
		t.Error("without Retry-After")
	}
	b.admin.do(t, "GET", "/v1/tenants", bearing("s3cret"), "").want(t, http.StatusOK, "")
	b.admin.do(t, "GET", "/v1/tenants", nil, "").want(t, http.StatusUnauthorized, "unauthorized") // no guess
	if status := signIn(b, "wrong").Code; status != http.StatusTooManyRequests {
		t.Errorf("by the form: %d", status)
	}
	if status := signIn(b, "s3cret").Code; status != http.StatusSeeOther {
		t.Errorf("the right one by the form: %d", status)
	}
}

// signIn shows the token to the form.
func signIn(b *bench, token string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "http://localhost/login", strings.NewReader("token="+token))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	b.s.Admin().ServeHTTP(w, r)
	return w
}

// A stream of figures ends with the session that opened it.
func TestStreamOfFiguresEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.AdminToken = "s3cret" })
		defer b.s.End()
		answer := signIn(b, "s3cret")
		cookie := answer.Result().Cookies()[0]
		ended := make(chan struct{})
		r := httptest.NewRequest("GET", "http://localhost/v1/stream", nil)
		r.AddCookie(cookie)
		r.Header.Set(dashboard.PageHeader, answer.Header().Get(dashboard.PageHeader))
		go func() {
			defer close(ended)
			b.s.Admin().ServeHTTP(httptest.NewRecorder(), r)
		}()
		<-time.After(time.Minute)
		select {
		case <-ended:
			t.Fatal("it ends by itself")
		default:
		}
		out := httptest.NewRequest("POST", "http://localhost/logout", nil)
		out.AddCookie(cookie)
		b.s.Admin().ServeHTTP(httptest.NewRecorder(), out)
		select {
		case <-ended:
		case <-time.After(streamBeat + time.Second):
			t.Error("it goes on after the session has ended")
		}
	})
}

// An intake that takes everybody on this machine does not take pages of other sites for them.
func TestLocalIntake(t *testing.T) {
	b := newBench(t, func(c *Config) { c.LocalOnly, c.Hosts = true, []string{"jobs.example", "ops:9000"} })
	for _, tt := range []struct {
		host, origin, site string
		status             int
	}{
		{"localhost:8080", "", "", 202}, {"127.0.0.1:8080", "", "", 202}, {"[::1]:8080", "", "", 202},
		{"localhost:8080", "http://localhost:8080", "same-origin", 202},
		{"jobs.example", "", "", 202}, {"ops:9000", "", "", 202}, {"127.0.0.1:8080", "https://jobs.example",
			"cross-site", 202},
		{"evil.example:8080", "", "", 403}, {"evil.example", "http://evil.example", "same-origin", 403},
		{"ops:9001", "", "", 403},
		{"127.0.0.1:8080", "https://evil.example", "cross-site", 403}, {"localhost:8080", "null", "", 403},
		{"localhost:8080", "", "cross-site", 403},
	} {
		h := headers{"Host": tt.host, "Origin": tt.origin, "Sec-Fetch-Site": tt.site}
		if r := b.intake.do(t, "POST", "/v1/jobs", h, plainJob); r.Code != tt.status {
			t.Errorf("%+v: %d %s", tt, r.Code, r.Body)
		}
		if r := b.intake.do(t, "GET", "/readyz", h, ""); r.Code != http.StatusOK {
			t.Errorf("probe, %+v: %d", tt, r.Code)
		}
	}
	for name, change := range map[string]func(*Config){"public": func(c *Config) {}, "guarded": nil} {
		b := newBench(t)
		if change == nil {
			b = newGuarded(t, []auth.Mode{auth.Guest}, func(c *Config) { c.LocalOnly = true })
		}
		if r := b.intake.do(t, "POST", "/v1/jobs", headers{"Host": "jobs.example"},
			plainJob); r.Code != http.StatusAccepted {
			t.Errorf("%s: %d %s", name, r.Code, r.Body)
		}
	}
}

// Who is in none of the networks of operators is refused before a credential is looked at, except
// for probes. A trusted proxy says who asks; anybody else's header does not count.
func TestNetworksOfOperators(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.AdminToken = "s3cret"
		c.AdminNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	})
	for _, tt := range []struct {
		peer, via, path string
		status          int
	}{
		{"10.1.2.3:1", "", "/v1/tenants", 200}, {"[::ffff:10.1.2.3]:1", "", "/v1/tenants", 200},
		{"[2001:db8::7]:1", "", "/v1/tenants", 200}, {"[2001:db9::7]:1", "", "/v1/tenants", 403},
		{"11.1.2.3:1", "", "/v1/tenants", 403}, {"11.1.2.3:1", "10.1.2.3", "/v1/tenants", 403},
		{"192.0.2.1:1", "10.1.2.3", "/v1/tenants", 200}, {"192.0.2.1:1", "11.1.2.3", "/v1/tenants", 403},
		{"192.0.2.1:1", "10.1.2.3, 11.1.2.3", "/v1/tenants", 403}, {"192.0.2.1:1", "", "/v1/tenants", 403},
		{"11.1.2.3:1", "", "/", 403}, {"11.1.2.3:1", "", "/metrics", 403}, {"11.1.2.3:1", "", "/login", 403},
		{"11.1.2.3:1", "", "/docs", 403}, {"11.1.2.3:1", "", "/livez", 200}, {"11.1.2.3:1", "", "/readyz", 200},
		{"broken", "", "/v1/tenants", 403},
	} {
		for range 12 { // more than as many guesses as an address may make
			r := httptest.NewRequest("GET", tt.path, nil)
			r.RemoteAddr = tt.peer
			r.Header.Set("Authorization", "Bearer s3cret")
			if tt.status == 403 {
				r.Header.Set("Authorization", "Bearer guess")
			}
			if tt.via != "" {
				r.Header.Set("X-Forwarded-For", tt.via)
			}
			w := httptest.NewRecorder()
			b.s.Admin().ServeHTTP(w, r)
			if w.Code != tt.status || w.Code == 403 && !strings.Contains(w.Body.String(), "admin.allow") {
				t.Fatalf("%s via %q: %s is %d %s", tt.peer, tt.via, tt.path, w.Code, w.Body)
			}
		}
	}
}

// Behind a proxy that says nothing, the URL of the dashboard makes its cookie one for https alone.
func TestCookieOfAPublicURL(t *testing.T) {
	for url, want := range map[string]string{"": "sluice_session", "http://x": "sluice_session", "https://x": "__Host-sluice_session"} {
		b := newBench(t, func(c *Config) { c.AdminToken, c.AdminURL = "s3cret", url })
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "http://x/login", strings.NewReader("token=s3cret"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		b.s.Admin().ServeHTTP(w, r)
		cookies, page := w.Result().Cookies(), w.Header().Get(dashboard.PageHeader)
		if len(cookies) != 1 || cookies[0].Name != want || cookies[0].Secure != (want != "sluice_session") || cookies[0].Path != "/" ||
			cookies[0].Domain != "" {
			t.Errorf("%q: %v", url, cookies)
			continue
		}
		r = httptest.NewRequest("GET", "http://x/v1/tenants", nil)
		r.AddCookie(cookies[0])
		r.Header.Set(dashboard.PageHeader, page)
		w = httptest.NewRecorder()
		if b.s.Admin().ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Errorf("%q: with its cookie %d %s", url, w.Code, w.Body)
		}
	}
}
