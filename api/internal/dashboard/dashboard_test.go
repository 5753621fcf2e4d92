package dashboard

import (
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

const token = "0123456789abcdef"

func newDashboard(t testing.TB, token string) *Dashboard {
	t.Helper()
	guesses := auth.NewGuesses()
	holder := func(r *http.Request, shown string) (operators.Actor, error) {
		if shown == token {
			return operators.Actor{Name: operators.AdminName, Role: operators.Admin}, nil
		}
		if many := guesses.Wrong(auth.PeerNetwork(r.RemoteAddr)); many != nil {
			return operators.Actor{}, many
		}
		return operators.Actor{}, problem.Unauthorized.With("")
	}
	d, err := New(token, newMemory(), guesses, holder, nil, auth.OverTLS(netip.MustParsePrefix("192.0.2.0/24")),
		http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func send(d *Dashboard, method, target string, header http.Header, form url.Values) *http.Response {
	r := httptest.NewRequest(method, "http://localhost:8081"+target, strings.NewReader(form.Encode()))
	for name, values := range header {
		r.Header[name] = values
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result()
}

func content(t testing.TB, r *http.Response) string {
	t.Helper()
	all, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

// Everything that a page names is there, and everything that is there is named: nothing is loaded
// late, and nothing is left over.
func TestFilesAreNamed(t *testing.T) {
	d := newDashboard(t, "")
	named := map[string]bool{}
	for _, page := range [][]byte{d.page.plain, d.login.plain, d.entered} {
		for _, m := range regexp.MustCompile(`(?:href|src)="(/assets/[^"]+)"`).
			FindAllStringSubmatch(string(page), -1) {
			named[m[1]] = true
			if d.assets[m[1]] == nil {
				t.Errorf("%s is named and not there", m[1])
			}
		}
	}
	for name := range d.assets {
		if !named[name] && path.Ext(name) != ".txt" {
			t.Errorf("%s is there and named by no page: name it, so that it is fetched with the others", name)
		}
	}
	imports := regexp.MustCompile(`(?m)^import .* from "\./([^"]+)";$`)
	for name, a := range d.assets {
		for _, m := range imports.FindAllStringSubmatch(string(a.plain), -1) {
			if d.assets[AssetsPath+m[1]] == nil {
				t.Errorf("%s imports %s, which is not there", name, m[1])
			}
		}
	}
}

// The page has a field for each setting that the table marks, and knows no other.
func TestKnobsOfTheTable(t *testing.T) {
	d := newDashboard(t, "")
	marked := map[string]bool{}
	module := string(d.assets[AssetsPath+settingsName].plain)
	for _, s := range shaper.Settings() {
		if s.Knob {
			marked[s.Name] = true
		}
		fits := s.Kind == shaper.KindRate || s.Kind == shaper.KindNumber || s.Kind == shaper.KindDuration
		if s.Knob && !fits || s.Knob != strings.Contains(module, fmt.Sprintf(`"name":%q,`, s.Name)) {
			t.Errorf("%s, of the kind %s: has a knob %v, in %s", s.Name, s.Kind, s.Knob, module)
		}
	}
	code := string(d.assets[AssetsPath+"knobs.js"].plain)
	_, faces, _ := strings.Cut(code, "const faces = {")
	faces, _, _ = strings.Cut(faces, "\n};")
	for _, m := range regexp.MustCompile(`(?m)^  (\w+): \{`).FindAllStringSubmatch(faces, -1) {
		if !marked[m[1]] {
			t.Errorf("knobs.js has a face of %s, which has no knob", m[1])
		}
	}
}

// TestFilesLoadNothingForeign: the page loads nothing from other hosts, and sets no markup from
// text.
func TestFilesLoadNothingForeign(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)(?:https?:)?//[a-z0-9-]+\.[a-z][^"\s]*`)
	markup := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|\sstyle="|\son[a-z]+="`)
	err := fs.WalkDir(web, "web", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasPrefix(name, "web/vendor/") {
			return err
		}
		all, err := web.ReadFile(name)
		if err != nil {
			return err
		}
		if at := foreign.Find(all); at != nil && string(at) != "http://www.w3.org/2000/svg" {
			t.Errorf("%s: %s", name, at)
		}
		if at := markup.Find(all); at != nil {
			t.Errorf("%s: %s", name, at)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Assets have their type, are compressed where the client accepts it, and are revalidated by ETag.
// Other paths are not found.
func TestAssets(t *testing.T) {
	d := newDashboard(t, token)
	for _, c := range []struct {
		path, accept string
		status       int
		format       string
		packed       bool
	}{
		{"/assets/app.js", "", 200, "text/javascript; charset=utf-8", false},
		{"/assets/app.js", "gzip, deflate, br", 200, "text/javascript; charset=utf-8", true},
		{"/assets/app.js", "br, gzip;q=0", 200, "text/javascript; charset=utf-8", false},
		{"/assets/app.js", "gzip; q=0.5", 200, "text/javascript; charset=utf-8", true},
		{"/assets/tokens.css", "", 200, "text/css; charset=utf-8", false},
		{"/assets/mark.svg", "", 200, "image/svg+xml", false},
		{"/assets/vendor/uplot-license.txt", "", 200, "text/plain; charset=utf-8", false},
		{"/assets/nothing.js", "", 404, "", false},
		{"/assets/index.html", "", 404, "", false},
		{"/assets/../dashboard.go", "", 404, "", false},
	} {
		r := send(d, "GET", c.path, http.Header{"Accept-Encoding": {c.accept}}, nil)
		what := c.path + " with Accept-Encoding " + c.accept + ": "
		queuetest.Compare(t, what+"the status", r.StatusCode, c.status)
		queuetest.Compare(t, what+"is compressed", r.Header.Get("Content-Encoding") == "gzip", c.packed)
		if r.StatusCode != 200 {
			continue
		}
		queuetest.Compare(t, what+"Content-Type", r.Header.Get("Content-Type"), c.format)
		if r.Header.Get("Content-Security-Policy") != policy ||
			r.Header.Get("Cache-Control") != "private, no-cache" {
			t.Errorf("%s: %v", c.path, r.Header)
		}
		if c.packed {
			zip, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			if all, err := io.ReadAll(zip); err != nil || string(all) != string(d.assets[c.path].plain) {
				t.Errorf("%s: compressed, it is another file: %v", c.path, err)
			}
		}
		again := send(d, "GET", c.path, http.Header{
			"Accept-Encoding": {c.accept}, "If-None-Match": {`"other", W/` + r.Header.Get("Etag")},
		}, nil)
		if again.StatusCode != http.StatusNotModified || content(t, again) != "" {
			t.Errorf("%s again: %d", c.path, again.StatusCode)
		}
	}
}

// The token opens a session by a cookie that scripts and other sites cannot use. A wrong token, a
// token in the address and another site open none.
func TestSigningIn(t *testing.T) {
	d := newDashboard(t, token)
	if r := send(d, "GET", "/", nil, nil); r.StatusCode != 303 || r.Header.Get("Location") != "/login" {
		t.Fatalf("the page without a session: %d %v", r.StatusCode, r.Header)
	}
	if r := send(d, "GET", "/login", nil, nil); r.StatusCode != 200 ||
		strings.Contains(content(t, r), "not a valid token") {
		t.Errorf("login: %d", r.StatusCode)
	}
	for _, wrong := range []string{"", "0123456789abcde", token + " "} {
		r := send(d, "POST", "/login", nil, url.Values{"token": {wrong}})
		what, said := fmt.Sprintf("the token %q: ", wrong), content(t, r)
		queuetest.Compare(t, what+"the status", r.StatusCode, 401)
		queuetest.Compare(t, what+"the cookies", len(r.Cookies()), 0)
		queuetest.Contains(t, what+"the page", said, "not a valid token")
		if wrong != "" && strings.Contains(said, wrong) {
			t.Errorf("%sthe page repeats it", what)
		}
	}
	if r := send(d, "POST", "/login?token="+token, nil, url.Values{}); r.StatusCode != 401 {
		t.Errorf("a token in the address opens: %d", r.StatusCode)
	}
	r := send(d, "POST", "/login", nil, url.Values{"token": {token}})
	queuetest.Compare(t, "the status with the token", r.StatusCode, 303)
	queuetest.Compare(t, "the Location with the token", r.Header.Get("Location"), "/")
	if len(r.Cookies()) != 1 {
		t.Fatalf("with the token: the cookies %v, want one", r.Cookies())
	}
	c := r.Cookies()[0]
	queuetest.Compare(t, "the cookie", queuetest.Only(*c, "HttpOnly", "SameSite", "Path", "Secure"),
		http.Cookie{HttpOnly: true, SameSite: http.SameSiteStrictMode, Path: "/"})
	if strings.Contains(c.Value, token) {
		t.Error("the cookie holds the token")
	}
	cookie := http.Header{"Cookie": {c.Name + "=" + c.Value}}
	r = send(d, "GET", "/", cookie, nil)
	queuetest.Compare(t, "the status of the page", r.StatusCode, 200)
	queuetest.Compare(t, "the cookies of the page", len(r.Cookies()), 0)
	queuetest.Contains(t, "the page", content(t, r), `data-session="cookie"`)
	if r := send(d, "GET", "/login", cookie, nil); r.StatusCode != 200 {
		t.Errorf("login with a session: %d", r.StatusCode) // its page may have lost the other key
	}
	r = send(d, "POST", "/logout", cookie, nil)
	queuetest.Compare(t, "the status of the logout", r.StatusCode, 303)
	if gone := r.Cookies(); len(gone) != 1 || gone[0].MaxAge >= 0 {
		t.Errorf("logout sets the cookies %v, want one that deletes the session's", gone)
	}
	for _, path := range []string{"/login", "/logout"} {
		h := http.Header{"Origin": {"https://evil.example"}, "Cookie": cookie["Cookie"]}
		if r := send(d, "POST", path, h, url.Values{"token": {token}}); r.StatusCode != 403 ||
			len(r.Cookies()) > 0 {
			t.Errorf("%s from another site: %d", path, r.StatusCode)
		}
	}
}

// Without an admin token the page needs no session, and signing in leads to the page.
func TestWithoutToken(t *testing.T) {
	d := newDashboard(t, "")
	r := send(d, "GET", "/", nil, nil)
	queuetest.Compare(t, "the status of the page", r.StatusCode, 200)
	queuetest.Compare(t, "the cookies of the page", len(r.Cookies()), 0)
	queuetest.Contains(t, "the page", content(t, r), `data-session="none"`)
	for _, method := range []string{"GET", "POST"} {
		r := send(d, method, "/login", nil, url.Values{"token": {token}})
		queuetest.Compare(t, method+" /login: the status", r.StatusCode, 303)
		queuetest.Compare(t, method+" /login: the Location", r.Header.Get("Location"), "/")
		queuetest.Compare(t, method+" /login: the cookies", len(r.Cookies()), 0)
	}
	if _, ok := d.Session(httptest.NewRequest("GET", "/", nil)); ok {
		t.Error("somebody has signed in where nobody need")
	}
}

// A request is from another site if Sec-Fetch-Site says so, or else if Origin is another host.
func TestCrossOrigin(t *testing.T) {
	for _, c := range []struct {
		site, origin string
		cross        bool
	}{
		{"", "", false}, {"same-origin", "", false}, {"none", "", false},
		{"same-origin", "https://behind.a.proxy", false},
		{"same-site", "", true}, {"cross-site", "", true}, {"cross-site", "http://localhost:8081", true},
		{"anything", "", true},
		{"", "http://localhost:8081", false}, {"", "http://LOCALHOST:8081", false},
		{"", "http://localhost:3000", true}, {"", "null", true}, {"", "https://evil.example", true},
	} {
		r := httptest.NewRequest("POST", "http://localhost:8081/v1/tenants/a/pause", nil)
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if CrossOrigin(r) != c.cross {
			t.Errorf("%+v: %v", c, !c.cross)
		}
	}
}

// TestCookieOverTLS: where a trusted proxy says that the browser uses TLS, the cookie goes over TLS
// alone.
func TestCookieOverTLS(t *testing.T) {
	d := newDashboard(t, token)
	for proto, want := range map[string]bool{"https": true, "HTTPS, http": true, "http": false, "": false} {
		h := http.Header{"X-Forwarded-Proto": {proto}}
		for _, c := range send(d, "POST", "/login", h, url.Values{"token": {token}}).Cookies() {
			if c.Secure != want || strings.HasPrefix(c.Name, "__Host-") != want {
				t.Errorf("%q: Secure is %v of %s", proto, c.Secure, c.Name)
			}
			r := httptest.NewRequest("GET", "http://localhost:8081/", nil)
			r.RemoteAddr, r.Header = "192.0.2.1:1", h
			r.AddCookie(c)
			if _, ok := d.CookieSession(r); !ok {
				t.Errorf("%q: not signed in by %s", proto, c.Name)
			}
			r.Header = http.Header{"X-Forwarded-Proto": {map[bool]string{true: "http", false: "https"}[want]}}
			r.AddCookie(c)
			if _, ok := d.CookieSession(r); ok {
				t.Errorf("%q: signed in by %s of the other scheme", proto, c.Name)
			}
		}
	}
	d.sessions.overTLS = auth.OverTLS(netip.MustParsePrefix("198.51.100.0/24"))
	h := http.Header{"X-Forwarded-Proto": {"https"}}
	for _, c := range send(d, "POST", "/login", h, url.Values{"token": {token}}).Cookies() {
		if c.Secure {
			t.Error("the header of a stranger counts")
		}
	}
}
