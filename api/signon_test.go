package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/internal/idptest"
	"github.com/7509e464/sluice/internal/queuetest"
)

// signingOn is a server with single sign-on, and its provider.
func signingOn(t *testing.T) (*bench, *idptest.IDP) {
	t.Helper()
	at := idptest.New(t)
	b := newBench(t, func(c *Config) {
		c.AdminToken, c.AdminURL = "s3cret", "https://sluice.example/"
		c.SignOn = &SignOn{
			Issuer: at.URL, ClientID: "sluice", NameClaim: "email", GroupsClaim: "groups",
			Viewers: []string{"staff"}, Admins: []string{"root"},
		}
	})
	t.Cleanup(b.s.End)
	return b, at
}

// send is a request of a browser to the admin listener.
func (b *bench) send(method, target string, cookies ...*http.Cookie) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = "192.0.2.7:4000"
	for _, c := range cookies {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	b.s.Admin().ServeHTTP(w, r)
	return w.Result()
}

func readAll(t *testing.T, r *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func cookieOf(t *testing.T, r *http.Response, name string) *http.Cookie {
	t.Helper()
	for _, c := range r.Cookies() {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no cookie %s among %v", name, r.Cookies())
	return nil
}

// TestSingleSignOn: a browser goes to the provider and comes back with a session of the role that
// its groups have, which the audit knows. Its cookie alone opens nothing.
func TestSingleSignOn(t *testing.T) {
	b, at := signingOn(t)
	if page := readAll(t, b.send("GET", "/login")); !strings.Contains(page, `href="/login/oidc"`) {
		t.Errorf("the page of the sign-in does not lead to the provider:\n%s", page)
	}
	away := b.send("GET", "/login/oidc")
	to, err := url.Parse(away.Header.Get("Location"))
	if err != nil || away.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to.String(), at.URL+"/authorize?") {
		t.Fatalf("%d to %v, %v", away.StatusCode, to, err)
	}
	queuetest.Compare(t, "the way back", to.Query().Get("redirect_uri"), "https://sluice.example/login/callback")
	ticket := cookieOf(t, away, "__Host-sluice_signon")
	if !ticket.HttpOnly || !ticket.Secure || ticket.SameSite != http.SameSiteLaxMode || ticket.MaxAge != 600 {
		t.Errorf("the ticket is %v", ticket)
	}
	at.Begun = to.Query()
	back := "/login/callback?code=code&state=" + url.QueryEscape(to.Query().Get("state"))
	in := b.send("GET", back, ticket)
	page := readAll(t, in)
	key := regexp.MustCompile(`data-key="([\w-]{43})"`).FindStringSubmatch(page)
	if in.StatusCode != http.StatusOK || key == nil || in.Header.Get("Cache-Control") != "no-store" ||
		!strings.Contains(in.Header.Get("Content-Security-Policy"), "script-src 'self'") {
		t.Fatalf("%d %v\n%s", in.StatusCode, in.Header, page)
	}
	queuetest.Compare(t, "the ticket's cookie is deleted", cookieOf(t, in, "__Host-sluice_signon").MaxAge, -1)
	queuetest.Compare(t, "the audit", strings.Join(b.recorded(), "\n"),
		"login oidc:vera@example.com viewer 192.0.2.7  ok null null null")
	session := cookieOf(t, in, "__Host-sluice_session")
	self := func(key string) (int, string) {
		r := httptest.NewRequest("GET", "/v1/self", nil)
		r.RemoteAddr = "192.0.2.7:4000"
		r.AddCookie(session)
		r.Header.Set(dashboard.PageHeader, key)
		w := httptest.NewRecorder()
		b.s.Admin().ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	if code, _ := self(""); code != http.StatusUnauthorized {
		t.Errorf("the cookie alone: %d", code)
	}
	if code, text := self(key[1]); code != http.StatusOK ||
		text != `{"name":"oidc:vera@example.com","role":"viewer","credential":"session","address":"192.0.2.7"}` {
		t.Errorf("the session: %d %s", code, text)
	}
	// A process that no longer has the provider takes none of its sessions.
	b.s.signOn = nil
	if code, _ := self(key[1]); code != http.StatusUnauthorized {
		t.Errorf("without a provider: %d", code)
	}
}

// TestSingleSignOnRefused: the page of the sign-in says why, and the audit has it.
func TestSingleSignOnRefused(t *testing.T) {
	b, at := signingOn(t)
	for name, tt := range map[string]struct {
		claims jwt.MapClaims
		query  string // of the way back, after the state
		ticket bool
		status int
		says   string
		kind   string
	}{
		"without the ticket": {nil, "&code=code", false, 401, "another browser", "unauthorized"},
		"refused there":      {nil, "&error=access_denied&error_description=<script>", true, 401, "not confirmed", "unauthorized"},
		"no role":            {jwt.MapClaims{"groups": []string{"guests"}}, "&code=code", true, 403, "none of your groups", "forbidden"},
		"a strange name":     {jwt.MapClaims{"email": "<b>"}, "&code=code", true, 403, "no name that an operator can have", "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			at.Claims = tt.claims
			away := b.send("GET", "/login/oidc")
			to, _ := url.Parse(away.Header.Get("Location"))
			at.Begun = to.Query()
			var cookies []*http.Cookie
			if tt.ticket {
				cookies = append(cookies, cookieOf(t, away, "__Host-sluice_signon"))
			}
			in := b.send("GET", "/login/callback?state="+to.Query().Get("state")+tt.query, cookies...)
			page := readAll(t, in)
			if in.StatusCode != tt.status || !strings.Contains(page, tt.says) || strings.Contains(page, "<script>") || len(in.Cookies()) != 0 {
				t.Errorf("%d %v\n%s", in.StatusCode, in.Cookies(), page)
			}
			queuetest.Compare(t, "the audit", strings.Join(b.recorded(), "\n"), "login.failed   192.0.2.7  "+tt.kind+" null null null")
		})
	}
}

// TestTwoTabs: the sign-in that another tab began last ends, although the first one came back
// before.
func TestTwoTabs(t *testing.T) {
	b, at := signingOn(t)
	begin := func() (state string, ticket *http.Cookie) {
		away := b.send("GET", "/login/oidc")
		to, _ := url.Parse(away.Header.Get("Location"))
		at.Begun = to.Query()
		return to.Query().Get("state"), cookieOf(t, away, "__Host-sluice_signon")
	}
	first, _ := begin()
	second, ticket := begin()
	if in := b.send("GET", "/login/callback?code=code&state="+first, ticket); in.StatusCode != http.StatusUnauthorized || len(in.Cookies()) != 0 {
		t.Errorf("the first tab: %d %v", in.StatusCode, in.Cookies())
	}
	if in := b.send("GET", "/login/callback?code=code&state="+second, ticket); in.StatusCode != http.StatusOK {
		t.Errorf("the second tab: %d", in.StatusCode)
	}
}

// TestWrongCodes: a stranger who makes up codes costs the provider few calls.
func TestWrongCodes(t *testing.T) {
	b, at := signingOn(t)
	away := b.send("GET", "/login/oidc")
	to, _ := url.Parse(away.Header.Get("Location"))
	ticket, back := cookieOf(t, away, "__Host-sluice_signon"), "/login/callback?code=x&state="+to.Query().Get("state")
	for n := range 12 {
		in := b.send("GET", back, ticket)
		if want := map[bool]int{false: http.StatusUnauthorized, true: http.StatusTooManyRequests}[n >= 10]; in.StatusCode != want ||
			(in.Header.Get("Retry-After") != "") != (n >= 10) {
			t.Errorf("code %d: %d, Retry-After %q", n, in.StatusCode, in.Header.Get("Retry-After"))
		}
	}
	var flood sync.WaitGroup
	for range 200 {
		flood.Go(func() { b.send("GET", back, ticket) })
	}
	flood.Wait()
	if n := at.Calls.Load(); n > 60 { // as many lookups of other credentials as a flood may cost, see auth.Guesses
		t.Errorf("the provider was called %d times", n)
	}
}

// TestSignOnSettings: an embedder's mistakes are named.
func TestSignOnSettings(t *testing.T) {
	_, err := newServer(newFake().ports(), Config{SignOn: &SignOn{Issuer: "http://id.example", Scopes: []string{"a b"}}})
	for _, want := range []string{"issuer must be an https", "client id must be set", "admin token must be set", "admin URL must be set", "scope must", "groups must"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}
