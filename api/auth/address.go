package auth

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/7509e464/sluice/queue"
)

// The lengths of the IPv6 prefixes that count as one address. A host may change all bits behind its
// /64 at will, so a /64 is one guest. One customer of a provider may have a whole /48, so a /48 has
// the bounds of one address.
const (
	guestBits   = 64
	networkBits = 48
)

// ClientAddress returns a function that finds the address of a request's client, in the form that
// identifies guests: 192.0.2.7, or the /64 of an IPv6 address as in 2001:db8:1:2::/64. It trusts
// X-Forwarded-For of the trusted proxies alone. ok is false without an address.
func ClientAddress(trusted ...netip.Prefix) (func(*http.Request) (address string, ok bool), error) {
	return clientPrefix(guestBits, trusted)
}

// ClientIP is ClientAddress in full, for lists of networks. The address is not valid if there is
// none.
func ClientIP(trusted ...netip.Prefix) (func(*http.Request) netip.Addr, error) {
	g, err := newGuests(GuestConfig{TrustedProxies: trusted})
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) netip.Addr { return g.address(r).Unmap().WithZone("") }, nil
}

// ClientNetwork is ClientAddress in the form that bounds of one address count by: 192.0.2.7, or the
// /48 of an IPv6 address as in 2001:db8:1::/48. Budgets of memory, requests, streams, reads and
// connections, and the limit of wrong credentials, use it.
func ClientNetwork(trusted ...netip.Prefix) (func(*http.Request) (network string, ok bool), error) {
	return clientPrefix(networkBits, trusted)
}

func clientPrefix(bits int, trusted []netip.Prefix) (func(*http.Request) (string, bool), error) {
	g, err := newGuests(GuestConfig{TrustedProxies: trusted})
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) (string, bool) { return prefixOf(g.address(r), bits) }, nil
}

// OverTLS returns a function that reports whether the client used TLS, to this process or, as a
// trusted proxy says in X-Forwarded-Proto, to that proxy.
func OverTLS(trusted ...netip.Prefix) func(*http.Request) bool {
	return func(r *http.Request) bool {
		proto, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",")
		if r.TLS != nil || !strings.EqualFold(strings.TrimSpace(proto), "https") {
			return r.TLS != nil
		}
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		return err == nil && slices.ContainsFunc(trusted, func(p netip.Prefix) bool {
			return p.Contains(peer.Addr().Unmap().WithZone(""))
		})
	}
}

// PeerNetwork returns the address of a connection's peer in the form of ClientNetwork; empty if it
// has none.
func PeerNetwork(peer string) string {
	at, err := netip.ParseAddrPort(peer)
	if err != nil {
		return ""
	}
	network, _ := prefixOf(at.Addr(), networkBits)
	return network
}

// Network returns the network of an IPv6 guest, in the form of ClientNetwork. It is empty for other
// principals: an IPv4 address is one guest.
func (p Principal) Network() string {
	text, isPrefix := strings.CutSuffix(strings.TrimPrefix(p.Tenant, queue.GuestPrefix), "/64")
	addr, err := netip.ParseAddr(text)
	if !p.Guest() || !isPrefix || err != nil {
		return ""
	}
	network, _ := prefixOf(addr, networkBits)
	return network
}

// IsGuest reports whether the caller is a guest, identified by its address. Every credential has a
// key id.
func IsGuest(p Principal) bool { return p.Guest() }

// prefixOf is an IPv4 address, or the prefix of an IPv6 address with this many bits.
func prefixOf(addr netip.Addr, bits int) (text string, ok bool) {
	addr = addr.Unmap().WithZone("")
	if addr.Is4() {
		return addr.String(), true
	}
	prefix, err := addr.Prefix(bits)
	if err != nil || !addr.IsValid() {
		return "", false
	}
	return prefix.String(), true
}
