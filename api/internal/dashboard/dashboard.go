// Package dashboard serves the page at / of the admin listener: live figures, and controls for
// tenants and jobs.
//
// The page is files (web/), embedded in the program and served as they are: modules that the
// browser loads without a build step, a style sheet for light and dark, and uPlot for charts. It
// takes every figure from the public HTTP API, above all from GET /v1/stream. Its
// Content-Security-Policy limits it to this listener and to the scripts among these files.
//
// The files are constant and hold no secrets, so they need no credential. The API behind them does:
// if there is an admin token, the operator signs in once (/login) and gets a session cookie that
// scripts cannot read (session.go). The guard of the admin listener, in package api, accepts that
// cookie in place of the token, but never from a page of another site.
package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
	session "github.com/7509e464/sluice/internal/sessions"
	"github.com/7509e464/sluice/shaper"
)

//go:embed web
var web embed.FS

// Paths of the page on the admin listener.
const (
	PagePath   = "/"
	AssetsPath = "/assets/"
	LoginPath  = "/login"
	LogoutPath = "/logout"
	// SignOnPath leads to the provider of single sign-on, which sends the browser back to
	// CallbackPath.
	SignOnPath   = "/login/oidc"
	CallbackPath = "/login/callback"
)

const (
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' " +
		"data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
	maxLogin = 4 << 10 // bytes of the login form
)

// Marks in the HTML files that are replaced by settings of the process.
const (
	signedInMark = ` data-session="none"`
	wrongMark    = `<!-- wrong -->`
	signOnMark   = `<!-- sign-on -->`
	signOnLink   = `<a class="button" href="` + SignOnPath + `">Sign in with single sign-on</a>`
	keyMark      = `data-key=""`
)

// Dashboard serves the page and keeps its sessions.
type Dashboard struct {
	sessions *sessions // nil: there is no token, and nobody must sign in
	holder   Holder
	signOn   SignOn // nil: none
	assets   map[string]*asset
	unserved http.Handler // answers unknown paths
	page     *asset
	login    *asset
	wrong    *asset // the login page after a wrong token
	tooOften *asset // after many wrong tokens
	entered  []byte // the page that keeps the second key of a session
}

// Holder returns the operator who has a token. Its errors are problems.
type Holder func(r *http.Request, token string) (operators.Actor, error)

// SignOn signs operators in elsewhere. Its errors are problems. Each call takes SignOnWait at most,
// or twice that if it begins while another one reads what the provider says of itself.
type SignOn interface {
	// Begin returns the URL at which the operator signs in, and a ticket for End that only the
	// browser keeps.
	Begin(r *http.Request) (to, ticket string, err error)
	// End returns the operator of a request with which the browser has come back.
	End(r *http.Request, ticket string) (operators.Actor, error)
}

// New makes the dashboard of a listener with this admin token; empty: there is none. unserved
// answers unknown paths. Wrong cookies count in guesses, and holder counts wrong tokens. overTLS
// reports whether a browser used TLS. signOn may be nil.
func New(
	token string, store Store, guesses *auth.Guesses, holder Holder, signOn SignOn, overTLS func(*http.Request) bool,
	unserved http.Handler,
) (*Dashboard, error) {
	d := &Dashboard{holder: holder, signOn: signOn, assets: map[string]*asset{}, unserved: unserved}
	if token != "" {
		d.sessions = newSessions(token, store, guesses)
		d.sessions.overTLS = overTLS
	}
	err := fs.WalkDir(web, "web", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := web.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, "web/")
		switch name {
		case "index.html":
			if d.sessions != nil {
				content = bytes.Replace(content, []byte(signedInMark), []byte(` data-session="cookie"`), 1)
			}
			d.page, err = newAsset(name, content)
		case "entered.html":
			d.entered = content
		case "login.html":
			if signOn != nil {
				content = bytes.Replace(content, []byte(signOnMark), []byte(signOnLink), 1)
			}
			if d.login, err = newAsset(name, content); err != nil {
				return err
			}
			if d.wrong, err = newAsset(name, loginWith(content, "That is not a valid token.")); err != nil {
				return err
			}
			d.tooOften, err = newAsset(name, loginWith(content, fmt.Sprintf("That is not a valid token. "+
				"More than %d wrong ones came from your address within a minute.", auth.GuessLimit)))
		default:
			d.assets[AssetsPath+name], err = newAsset(name, content)
		}
		return err
	})
	if err == nil {
		d.assets[AssetsPath+settingsName], err = newAsset(settingsName, settingsModule())
	}
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	return d, nil
}

// settingsName is the module with the settings that have a field on the page.
const settingsName = "settings.js"

// settingsModule returns that module, made from the table of settings.
func settingsModule() []byte {
	type knob struct {
		Name     string      `json:"name"`
		Label    string      `json:"label"`
		Kind     shaper.Kind `json:"kind"`
		Low      int64       `json:"low"`
		High     int64       `json:"high"`
		Optional bool        `json:"optional"` // it may be none
		Pool     bool        `json:"pool"`
	}
	knobs := []knob{}
	for _, s := range shaper.Settings() {
		if s.Knob {
			label := s.Label()
			knobs = append(knobs, knob{s.Name, strings.ToUpper(label[:1]) + label[1:], s.Kind, s.Low, s.High,
				s.Default == "", s.Pool})
		}
	}
	text, _ := json.Marshal(knobs) // text and numbers cannot fail
	return fmt.Appendf(nil, "export const settings = %s;\n", text)
}

// loginWith returns the login page with an error.
func loginWith(page []byte, what string) []byte {
	return bytes.Replace(page, []byte(wrongMark), []byte(`<p class="notice bad" role="alert">`+what+`</p>`), 1)
}

// Open reports whether the path is one of the dashboard, which needs no credential.
func Open(path string) bool {
	return slices.Contains([]string{PagePath, LoginPath, LogoutPath, SignOnPath, CallbackPath}, path) ||
		strings.HasPrefix(path, AssetsPath)
}

// ServeHTTP answers on the paths of the dashboard; the router checks the methods.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case PagePath:
		d.servePage(w, r)
	case LoginPath:
		if r.Method == http.MethodPost {
			d.signIn(w, r)
			return
		}
		d.serveLogin(w, r)
	case LogoutPath:
		d.signOut(w, r)
	case SignOnPath:
		d.leave(w, r)
	case CallbackPath:
		d.comeBack(w, r)
	default:
		a := d.assets[r.URL.Path]
		if a == nil {
			d.unserved.ServeHTTP(w, r)
			return
		}
		protect(w)
		a.serve(w, r, http.StatusOK)
	}
}

// Session returns the session that a request has both keys of: the cookie and PageHeader. It does
// not check the origin: see CrossOrigin.
func (d *Dashboard) Session(r *http.Request) (s session.Session, ok bool) {
	if d.sessions == nil {
		return s, false
	}
	return d.sessions.of(r)
}

// CookieSession is Session for pages of other makers, whose requests have the cookie alone.
func (d *Dashboard) CookieSession(r *http.Request) (s session.Session, ok bool) {
	if d.sessions == nil {
		return s, false
	}
	return d.sessions.byCookie(r)
}

// End ends a session, here at once, and in other processes within a second.
func (d *Dashboard) End(ctx context.Context, id [sha256.Size]byte) error {
	if d.sessions == nil { // of a process with a token
		return nil
	}
	return d.sessions.endID(ctx, id)
}

func (d *Dashboard) servePage(w http.ResponseWriter, r *http.Request) {
	if d.sessions != nil {
		if _, ok := d.sessions.byCookie(r); !ok {
			redirect(w, r, LoginPath)
			return
		}
	}
	protect(w)
	d.page.serve(w, r, http.StatusOK)
}

func (d *Dashboard) serveLogin(w http.ResponseWriter, r *http.Request) {
	if d.sessions == nil {
		redirect(w, r, PagePath)
		return
	}
	protect(w)
	d.login.serve(w, r, http.StatusOK)
}

// signIn exchanges a token for a session. It always accepts the right one: guesses must not lock
// out operators at the same address.
func (d *Dashboard) signIn(w http.ResponseWriter, r *http.Request) {
	if CrossOrigin(r) {
		http.Error(w, "Forms of pages of another origin are refused.", http.StatusForbidden)
		return
	}
	if d.sessions == nil {
		redirect(w, r, PagePath)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxLogin)
	who, err := d.holder(r, r.PostFormValue("token"))
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	d.enter(w, r, who)
}

// enter begins a session. The page asks for JSON, and keeps the key in the answer.
func (d *Dashboard) enter(w http.ResponseWriter, r *http.Request, who operators.Actor) {
	cookie, key := d.sessions.begin(r, who)
	http.SetCookie(w, cookie)
	w.Header().Set(PageHeader, key)
	if r.Header.Get("Accept") != "application/json" {
		redirect(w, r, PagePath)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"session": key}) // the client may be gone
}

// refuse answers a wrong token by the sign-in page, and anything else by a text.
func (d *Dashboard) refuse(w http.ResponseWriter, r *http.Request, err error) {
	protect(w)
	p := problem.Of(err)
	switch p.Status {
	case http.StatusUnauthorized:
		d.wrong.serve(w, r, p.Status)
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", p.Header.Get("Retry-After"))
		d.tooOften.serve(w, r, p.Status)
	default:
		http.Error(w, p.Detail, p.Status)
	}
}

// signOut ends the session and deletes its cookie.
func (d *Dashboard) signOut(w http.ResponseWriter, r *http.Request) {
	if CrossOrigin(r) {
		http.Error(w, "Forms of pages of another origin are refused.", http.StatusForbidden)
		return
	}
	if d.sessions != nil {
		http.SetCookie(w, d.sessions.end(r))
	}
	redirect(w, r, LoginPath)
}

func redirect(w http.ResponseWriter, r *http.Request, to string) {
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// protect sets the security headers. It keeps the referrer for the same origin: without it,
// browsers send the Origin null with a form.
func protect(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// CrossOrigin reports whether a browser makes the request for a page of another origin. Requests
// without any sign of an origin do not come from a current browser and are accepted.
func CrossOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return false
	case "": // an old browser, or a name that is neither https nor loopback
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	_, host, _ := strings.Cut(origin, "://")
	return !strings.EqualFold(host, r.Host)
}
