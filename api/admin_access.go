package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/listen"
	"github.com/7509e464/sluice/internal/operators"
)

// openPaths need no credential: probes must work from anywhere, and the documents are public.
var openPaths = []string{
	"/livez", "/readyz", "/version", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css",
}

// authorizeAdmin finds who sends a request to the control plane, and puts the operators.Actor into
// the request's context. The files of the dashboard are open, as the documents are.
//
// Requests from outside the networks of operators are refused before all that.
func (s *Server) authorizeAdmin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isProbe(r) && !s.allowed(r) {
			w.Header().Set("Connection", "close")
			problem.Forbidden.With("the address of the client is in none of the networks of operators (admin.allow)").Write(w, r)
			return
		}
		open, reserved := isOpen(r), listen.Reserved(r.Context())
		if reserved {
			w.Header().Set("Connection", "close")
		}
		if reserved && !isProbe(r) || !reserved && !open {
			actor, p := s.operator(r)
			if p != nil {
				s.recordRefusal(r, p)
			}
			if reserved && p != nil {
				p = tooManyConnections()
			}
			if p != nil {
				p.Write(w, r)
				return
			}
			r = r.WithContext(operators.With(r.Context(), actor))
		}
		next.ServeHTTP(w, r)
	})
}

// isOpen reports whether a request needs no credential.
func isOpen(r *http.Request) bool {
	return slices.Contains(openPaths, r.URL.Path) || dashboard.Open(r.URL.Path)
}

// allowed reports whether a request comes from a network of operators.
func (s *Server) allowed(r *http.Request) bool {
	if len(s.cfg.AdminNetworks) == 0 {
		return true
	}
	from := s.clientIP(r)
	return slices.ContainsFunc(s.cfg.AdminNetworks, func(p netip.Prefix) bool { return p.Contains(from) })
}

// operator returns who sends a request: the operator whose token it has, whose session of the
// dashboard it has or, without an admin token, anybody on loopback.
//
// A browser sends the cookie of a session by itself, so the cookie counts only in requests that no
// page of another site has made. Without an admin token, a request must name a loopback host and
// must not come from a page of another site.
//
// A valid token is accepted however many wrong ones came from its address: guesses must not lock
// operators out.
func (s *Server) operator(r *http.Request) (operators.Actor, *problem.Problem) {
	authorization := r.Header.Get("Authorization")
	token := bearer(authorization)
	actor := operators.Actor{Role: operators.Admin, Address: text(s.clientIP(r))}
	switch {
	case s.cfg.AdminToken == "" && !operators.IsToken(token):
		actor.Name, actor.Credential = operators.LocalName, "none"
		return actor, sameSite(r, s.cfg.AdminHosts)
	case s.cfg.AdminToken != "" && equal(token, s.cfg.AdminToken):
		actor.Name, actor.Credential = operators.AdminName, "token"
		return actor, nil
	case authorization != "":
		return s.holder(r, token)
	}
	return s.signedIn(r, actor)
}

// signedIn returns the operator of the session that a request has. The pages of other makers do not
// send the second key of a session.
func (s *Server) signedIn(r *http.Request, actor operators.Actor) (operators.Actor, *problem.Problem) {
	find := s.board.Session
	for path := range s.cfg.AdminPages {
		if r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/") {
			find = s.board.CookieSession
		}
	}
	found, ok := find(r)
	switch {
	case !ok:
		return operators.Actor{}, unknownToken()
	case dashboard.CrossOrigin(r):
		return operators.Actor{}, problem.Forbidden.With("requests from pages of another origin are refused")
	case strings.HasPrefix(found.Name, operators.SingleSignOn) && s.signOn == nil:
		return operators.Actor{}, unknownToken() // of a provider that is no longer trusted
	case found.Operator == "":
		actor.Name, actor.Credential, actor.Role = found.Name, "session", found.Role
		return actor, nil
	}
	account, err := s.operators.Find(r.Context(), found.Operator, func() error { return nil })
	switch {
	case errors.Is(err, operators.ErrUnknown) || err == nil && account.Expired(time.Now()):
		return operators.Actor{}, unknownToken()
	case err != nil:
		return operators.Actor{}, problem.Of(err)
	}
	return s.actor(r, account, "session")
}

// reserveConnections answers only probes on the reserved connections of the intake.
func reserveConnections(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if listen.Reserved(r.Context()) {
			w.Header().Set("Connection", "close")
			if !isProbe(r) {
				tooManyConnections().Write(w, r)
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
				p.Write(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// bearer is the token of an Authorization header; empty if it has none.
func bearer(authorization string) string {
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// equal compares digests, so that its duration reveals neither content nor length of a secret.
func equal(shown, secret string) bool {
	got, want := sha256.Sum256([]byte(shown)), sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
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
