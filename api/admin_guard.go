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
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/listen"
)

// openPaths need no credential: probes must work from anywhere, and the documents are public.
var openPaths = []string{
	"/livez", "/readyz", "/version", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css",
}

// guardAdmin checks access to the control plane. If there is a token, a request needs the token or
// a session of the dashboard. Without a token, a request must name a loopback host and must not
// come from a page of another site. The files of the dashboard are open, as the documents are.
func (s *Server) guardAdmin(next http.Handler) http.Handler {
	check := s.operator()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch open := slices.Contains(openPaths, r.URL.Path) || dashboard.Open(r.URL.Path); {
		case listen.Reserved(r.Context()) && !isProbe(r):
			w.Header().Set("Connection", "close")
			if check(r) != nil {
				tooManyConnections().Write(w)
				return
			}
		case listen.Reserved(r.Context()):
			w.Header().Set("Connection", "close")
		case !open:
			if p := check(r); p != nil {
				p.Write(w)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// operator returns the function that checks that a request is an operator's; nil if it is.
func (s *Server) operator() func(*http.Request) *problem.Problem {
	if s.cfg.AdminToken == "" {
		return func(r *http.Request) *problem.Problem { return sameSite(r, s.cfg.AdminHosts) }
	}
	want := sha256.Sum256([]byte(s.cfg.AdminToken))
	return func(r *http.Request) *problem.Problem { return s.credential(r, want) }
}

// reserveConnections answers only probes on the reserved connections of the intake.
func reserveConnections(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if listen.Reserved(r.Context()) {
			w.Header().Set("Connection", "close")
			if !isProbe(r) {
				tooManyConnections().Write(w)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func isProbe(r *http.Request) bool { return r.URL.Path == "/livez" || r.URL.Path == "/readyz" }

// tooManyConnections is the problem of a client on a reserved connection.
func tooManyConnections() *problem.Problem {
	return problem.Overloaded.With("all connections, or those of the client's address, are in use").
		RetryIn(time.Second)
}

// credential accepts the token or a session. A browser sends the cookie of a session by itself, so
// the cookie counts only in requests that no page of another site has made.
//
// The right token is accepted however many wrong ones came from its address: guesses must not lock
// operators out.
func (s *Server) credential(r *http.Request, want [sha256.Size]byte) *problem.Problem {
	p := bearer(r, want)
	switch {
	case p == nil:
		return nil
	case r.Header.Get("Authorization") != "":
		if many := s.cfg.Guesses.Wrong(auth.PeerNetwork(r.RemoteAddr)); many != nil {
			return problem.Of(many)
		}
		return p
	case !s.board.SignedIn(r):
		return p
	case dashboard.CrossOrigin(r):
		return problem.Forbidden.With("requests from pages of another origin are refused")
	}
	return nil
}

// localOnly reports whether the intake listens on loopback and has no authentication. It then
// trusts the tenant that a request names.
func (s *Server) localOnly() bool { return s.cfg.LocalOnly && s.cfg.Auth == nil }

// keepLocal refuses requests to the intake that a page of another site makes a local browser send.
func (s *Server) keepLocal(next http.Handler) http.Handler {
	if !s.localOnly() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isProbe(r) {
			if p := sameSite(r, s.cfg.Hosts); p != nil {
				p.Write(w)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// bearer compares digests, so that its duration reveals neither content nor length of the token.
func bearer(r *http.Request, want [sha256.Size]byte) *problem.Problem {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
		return nil
	}
	return problem.Unauthorized.With("send the admin token as Authorization: Bearer; "+onAdmin).
		SetHeader("WWW-Authenticate", `Bearer realm="sluice admin"`)
}

// sameSite refuses names that a foreign DNS server could have pointed here (DNS rebinding), and
// requests that a browser makes for a page of another origin. hosts are allowed names beside those
// of loopback, also for the origins of pages.
func sameSite(r *http.Request, hosts []string) *problem.Problem {
	listed := func(host string) bool {
		return slices.ContainsFunc(hosts, func(name string) bool {
			return strings.EqualFold(name, hostname(host)) || strings.EqualFold(name, host)
		})
	}
	if !loopback(hostname(r.Host)) && !listed(r.Host) {
		return problem.Forbidden.With("without authentication only loopback names and the configured hosts " +
			"are answered: name this one in api.hosts or admin.hosts")
	}
	origin := r.Header.Get("Origin")
	if origin != "" {
		u, err := url.Parse(origin)
		switch {
		case err == nil && u.Host != "" && listed(u.Host):
			return nil
		case err != nil || !strings.EqualFold(u.Host, r.Host):
			return problem.Forbidden.With("requests from pages of another origin are refused")
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site": // another port of this host is the same site
		return problem.Forbidden.With("requests from pages of another origin are refused")
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
