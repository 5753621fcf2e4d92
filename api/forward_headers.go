package api

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/httpmsg"
)

// Values of Forward.Forwarded: what happens to headers that say where a request came from.
const (
	ReplaceForwarded = "replace" // those of the client are replaced by its address
	AppendForwarded  = "append"  // they are passed, with the address of the peer
	PassForwarded    = "pass"    // they are passed
)

// upstreamHeaders returns the headers of a request that go to the upstream: see httpmsg.Headers for
// those that the table decides on. h are those that the client has sent.
func (s *Server) upstreamHeaders(c *call, h http.Header, forwarded string) http.Header {
	out := httpmsg.ToUpstream(h)
	keep := func(name string, values []string) {
		if len(values) == 0 {
			delete(out, name)
		} else {
			out[name] = values
		}
	}
	used := s.cfg.Auth != nil && len(h[auth.Header]) == 0 && c.who.KeyID != "" && !c.who.ByCertificate()
	for name, values := range out {
		switch {
		case httpmsg.Is(name, "Prefer"):
			keep(name, codec.OtherPreferences(values))
		case httpmsg.Is(name, "Cookie"):
			keep(name, httpmsg.WithoutOwnCookies(values))
		case httpmsg.Is(name, "Authorization", "X-Api-Key"):
			if used || slices.ContainsFunc(values, s.isAdminToken) {
				delete(out, name)
			}
		case httpmsg.Is(name, "Max-Forwards") && c.r.Method == http.MethodOptions:
			if n, err := strconv.ParseUint(values[0], 10, 31); err == nil && n > 0 {
				out[name] = []string{strconv.FormatUint(n-1, 10)}
			}
		}
	}
	s.setOrigin(c.r, out, forwarded)
	return out
}

// isAdminToken reports whether a value of Authorization or X-API-Key is the operators' token.
func (s *Server) isAdminToken(value string) bool {
	if s.cfg.AdminToken == "" {
		return false
	}
	want := sha256.Sum256([]byte(s.cfg.AdminToken))
	_, token, _ := strings.Cut(value, " ")
	for _, text := range []string{value, token} {
		got := sha256.Sum256([]byte(strings.TrimSpace(text)))
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			return true
		}
	}
	return false
}

// setOrigin treats the headers that say where a request came from as the route wants it.
func (s *Server) setOrigin(r *http.Request, out http.Header, forwarded string) {
	const list = "X-Forwarded-For"
	peer := r.RemoteAddr
	if host, _, err := net.SplitHostPort(peer); err == nil {
		peer = host
	}
	switch cmp.Or(forwarded, ReplaceForwarded) {
	case AppendForwarded:
		for name := range out {
			if name != list && httpmsg.Is(name, list) { // an upstream would take it for the same list
				delete(out, name)
			}
		}
		out[list] = []string{strings.Join(append(slices.Clone(out[list]), peer), ", ")}
	case ReplaceForwarded:
		claimed := false
		for name := range out {
			if httpmsg.IsOrigin(name) {
				delete(out, name)
				claimed = true
			}
		}
		if claimed {
			out[list] = []string{s.sender(r, peer)}
		}
	}
}

// sender is the address of the client: that of the peer, or the one that a trusted proxy reports.
func (s *Server) sender(r *http.Request, peer string) string {
	address := s.addressOf(r)
	if network, err := netip.ParsePrefix(address); err == nil { // an IPv6 client counts by its network
		if at, err := netip.ParseAddr(peer); err == nil && network.Contains(at.WithZone("")) {
			return peer
		}
		return network.Addr().String()
	}
	return cmp.Or(address, peer)
}

// checkMethod refuses methods that are not passed on.
func checkMethod(r *http.Request) error {
	if rule := httpmsg.CheckMethod(r.Method); rule != "" {
		return problem.NotForwarded.With("the method " + rule + ": call the upstream directly")
	}
	if values := r.Header["Max-Forwards"]; r.Method == http.MethodOptions && len(values) > 0 && values[0] == "0" {
		return problem.NotForwarded.With("Max-Forwards is 0: the request must not be passed on")
	}
	return nil
}

// identityOf is what two forwarded requests with one idempotency key must have in common: method,
// target and body, and the credentials for the upstream, as an HMAC (RFC 2104) with the key. An
// answer is for the user who asked.
func identityOf(m httpmsg.Request, key string) []byte {
	same := m.Method + " " + m.Target + "\r\n" + string(m.Body)
	mac := hmac.New(sha256.New, []byte(key))
	given := false
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		if !httpmsg.Is(name, "Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Auth-Token", "X-Access-Token") {
			continue
		}
		for _, value := range m.Header[name] {
			given = true
			mac.Write(binary.BigEndian.AppendUint32([]byte(name), uint32(len(value))))
			mac.Write([]byte(value))
		}
	}
	if !given {
		return []byte(same)
	}
	return append(mac.Sum(nil), same...)
}

// clientHeaders writes the headers of an upstream's answer as they go to the client. On the address
// of the API a browser takes it for a page of the API: it must not run it, or keep anything of it.
func clientHeaders(h, answer http.Header, r *http.Request, ownAddress, hasBody bool) {
	for name, values := range httpmsg.ToClient(answer) {
		if httpmsg.Is(name, "Set-Cookie") {
			if values = httpmsg.WithoutOwnSetCookies(values); len(values) == 0 {
				continue
			}
		}
		if !ownAddress && (httpmsg.IsPagePolicy(name) || httpmsg.IsAddressState(name) && isBrowser(r)) {
			continue // a 304 would replace the policy of the answer that a browser keeps
		}
		h[name] = values
	}
	if !ownAddress && hasBody && !inert(answer["Content-Type"]) {
		h["Content-Security-Policy"] = []string{"sandbox"}
		h["X-Content-Type-Options"] = noSniff
		h["Cross-Origin-Resource-Policy"] = []string{"same-origin"}
	}
}

// isBrowser reports whether a browser may have sent the request. Not all of them send
// Sec-Fetch-Site, and none to a name that is neither https nor loopback, but all begin their
// User-Agent so.
func isBrowser(r *http.Request) bool {
	return r.Header["Sec-Fetch-Site"] != nil || r.Header["Sec-Fetch-Mode"] != nil ||
		strings.HasPrefix(r.Header.Get("User-Agent"), "Mozilla/")
}

// inert reports whether no browser runs an answer with this content type, whatever it has.
func inert(contentType []string) bool {
	if len(contentType) != 1 {
		return false // it would guess
	}
	kind, _, err := mime.ParseMediaType(contentType[0])
	main, sub, _ := strings.Cut(kind, "/")
	switch {
	case err != nil:
		return false
	case main == "image", main == "audio", main == "video", main == "font":
		return !strings.Contains(sub, "xml") && !strings.Contains(sub, "html") && !strings.Contains(sub, "svg")
	}
	return kind == "application/octet-stream" || kind == "application/json" || strings.HasSuffix(sub, "+json") ||
		kind == "text/event-stream" || kind == "text/plain" || kind == "application/zip" || kind == "application/gzip"
}
