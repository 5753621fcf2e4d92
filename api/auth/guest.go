package auth

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/7509e464/sluice/queue"
)

// GuestConfig holds the settings for clients without a credential.
type GuestConfig struct {
	// TrustedProxies lists proxies whose X-Forwarded-For is trusted. Empty: only the address of the
	// connection counts.
	TrustedProxies []netip.Prefix
	Tier           string // of every guest; empty for none
}

// guests identifies clients by their addresses.
type guests struct {
	tier     string
	clientIP func(http.Handler) http.Handler
}

func newGuests(c GuestConfig) (*guests, error) {
	g := &guests{tier: c.Tier, clientIP: middleware.ClientIPFromRemoteAddr}
	if len(c.TrustedProxies) == 0 {
		return g, nil
	}
	texts := make([]string, len(c.TrustedProxies))
	for i, p := range c.TrustedProxies {
		if rule := ProxyRule(p); rule != "" {
			return nil, fmt.Errorf("auth: trusted proxy %s: %s", p, rule)
		}
		texts[i] = p.String()
	}
	g.clientIP = middleware.ClientIPFromXFF(texts...)
	return g, nil
}

// ProxyRule returns the rule that a prefix of trusted proxies breaks, empty if none.
func ProxyRule(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return "must be a prefix, such as 10.1.2.3/32"
	case p.Bits() == 0:
		return "must not be every address: then every client would be a proxy"
	case p.Addr().Is4In6():
		return "must be written as IPv4"
	}
	return ""
}

// principal is the guest that the request comes from.
func (g *guests) principal(r *http.Request) (Principal, error) {
	address, known := prefixOf(g.address(r), guestBits)
	if !known {
		return Principal{}, refuse(NoAddress)
	}
	return Principal{Tenant: queue.GuestPrefix + address, Tier: g.tier}, nil
}

// address is the client's address; not valid if there is none.
func (g *guests) address(r *http.Request) (addr netip.Addr) {
	g.clientIP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		addr = middleware.GetClientIPAddr(r.Context())
	})).ServeHTTP(nil, r) // which writes nothing
	return addr
}

// Guest reports whether the principal is a client without a credential.
func (p Principal) Guest() bool { return p.KeyID == "" && queue.IsGuest(p.Tenant) }
