package auth

import (
	"net/http"
	"net/netip"
	"strings"
)

// ClientAddress returns a function that finds the address of a request's client, in the form that
// identifies guests: 192.0.2.7, or the /64 of an IPv6 address as in 2001:db8:1:2::/64. It trusts
// X-Forwarded-For of the trusted proxies alone. ok is false without an address.
func ClientAddress(trusted ...netip.Prefix) (func(*http.Request) (address string, ok bool), error) {
	g, err := newGuests(GuestConfig{TrustedProxies: trusted})
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) (string, bool) {
		who, err := g.principal(r)
		return strings.TrimPrefix(who.Tenant, guestPrefix), err == nil
	}, nil
}

// IsGuest reports whether the caller is a guest, identified by its address. Every credential has a
// key id.
func IsGuest(p Principal) bool { return p.KeyID == "" && strings.HasPrefix(p.Tenant, guestPrefix) }

// AddressOf returns the address of a connection's peer in the same form; empty if it has none.
func AddressOf(peer string) string {
	at, err := netip.ParseAddrPort(peer)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(guestName(at.Addr()), guestPrefix)
}
