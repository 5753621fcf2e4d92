package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/dashboard"
)

// openPaths tell nothing that needs a secret: probes must work from anywhere, and the documents are the public contract.
var openPaths = []string{"/livez", "/readyz", "/version", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css"}

// guardAdmin lets through whoever may use the control plane: with a token in force, who shows it, or the session that the dashboard has given
// for it; without one, who reaches the listener by a loopback name and not from a page of another site. The files of the dashboard are
// as open as the documents.
func (s *Server) guardAdmin(next http.Handler) http.Handler {
	check := s.sameSite
	if s.cfg.AdminToken != "" {
		want := sha256.Sum256([]byte(s.cfg.AdminToken))
		check = func(r *http.Request) *problem { return s.credential(r, want) }
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(openPaths, r.URL.Path) && !dashboard.Open(r.URL.Path) {
			if p := check(r); p != nil {
				p.write(w)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// credential takes the token, or a session. A browser sends a session's cookie by itself, so it is believed only of requests that no other
// site's page has made: those must not change anything, and gain nothing by reading either.
func (s *Server) credential(r *http.Request, want [sha256.Size]byte) *problem {
	p := bearer(r, want)
	if p == nil || r.Header.Get("Authorization") != "" || !s.board.SignedIn(r) {
		return p
	}
	if dashboard.CrossOrigin(r) {
		return forbidden.with("requests from pages of another origin are refused")
	}
	return nil
}

// bearer compares digests, so that the time taken tells neither content nor length of the token.
func bearer(r *http.Request, want [sha256.Size]byte) *problem {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
		return nil
	}
	return unauthorized.with("send the admin token as Authorization: Bearer").set("WWW-Authenticate", `Bearer realm="sluice admin"`)
}

// sameSite refuses names that a foreign DNS server could have pointed here (DNS rebinding) and requests that a browser
// makes on behalf of a page of another origin.
func (s *Server) sameSite(r *http.Request) *problem {
	host := hostname(r.Host)
	known := func(name string) bool { return strings.EqualFold(name, host) || strings.EqualFold(name, r.Host) }
	if !loopback(host) && !slices.ContainsFunc(s.cfg.AdminHosts, known) {
		return forbidden.with("without an admin token only loopback names and the configured hosts are answered")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, r.Host) {
			return forbidden.with("requests from pages of another origin are refused")
		}
	}
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return forbidden.with("requests from pages of another site are refused")
	}
	return nil
}

// hostname is the Host header without its port and without the brackets of an IPv6 address.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
