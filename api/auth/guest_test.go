package auth

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/7509e464/sluice/queue"
)

func TestGuests(t *testing.T) {
	prefixes := func(texts ...string) (ps []netip.Prefix) {
		for _, text := range texts {
			ps = append(ps, netip.MustParsePrefix(text))
		}
		return ps
	}
	direct := gate(t, Config{Modes: []Mode{Guest}})
	behind := gate(t, Config{
		Modes: []Mode{Guest},
		Guest: GuestConfig{
			Tier: "free", TrustedProxies: prefixes("10.0.0.1/32", "10.0.0.2/32", "2001:db8:f::/48"),
		},
	})
	for _, c := range []struct {
		name  string
		a     *Authenticator
		from  string
		lines []string
		want  string
	}{
		{"the address of the connection", direct, "192.0.2.7:1234", nil, "guest:192.0.2.7"},
		{"a header of a client", direct, "192.0.2.7:1234", []string{"X-Forwarded-For: 198.51.100.1"},
			"guest:192.0.2.7"},
		{"other headers of a client", direct, "192.0.2.7:1234", []string{
			"X-Real-IP: 198.51.100.1", "Forwarded: for=198.51.100.1", "True-Client-IP: 198.51.100.1",
		}, "guest:192.0.2.7"},
		{"IPv6 is its /64", direct, "[2001:db8:1:2:3:4:5:6]:1234", nil, "guest:2001:db8:1:2::/64"},
		{"its neighbour", direct, "[2001:db8:1:2:ffff::1]:9", nil, "guest:2001:db8:1:2::/64"},
		{"the next /64", direct, "[2001:db8:1:3::1]:9", nil, "guest:2001:db8:1:3::/64"},
		{"mapped IPv4", direct, "[::ffff:192.0.2.7]:1234", nil, "guest:192.0.2.7"},
		{"mapped IPv4 in hex", direct, "[::ffff:c000:207]:1234", nil, "guest:192.0.2.7"},
		{"a zone", direct, "[fe80::1%eth0]:1234", nil, "guest:fe80::/64"},
		{"loopback", direct, "[::1]:1234", nil, "guest:::/64"},
		{"no address", direct, "@", nil, "refused: address"},
		{"a unix socket", direct, "", nil, "refused: address"},

		{"through a proxy", behind, "10.0.0.1:1", []string{"X-Forwarded-For: 192.0.2.7"}, "guest:192.0.2.7"},
		{"through two proxies", behind, "10.0.0.1:1", []string{"X-Forwarded-For: 192.0.2.7, 10.0.0.2"},
			"guest:192.0.2.7"},
		{"through two proxies, in two headers", behind, "10.0.0.1:1",
			[]string{"X-Forwarded-For: 192.0.2.7", "X-Forwarded-For: 10.0.0.2"}, "guest:192.0.2.7"},
		{"what the client wrote before its address", behind, "10.0.0.1:1",
			[]string{"X-Forwarded-For: 198.51.100.1, 192.0.2.7"}, "guest:192.0.2.7"},
		{"rubbish before its address", behind, "10.0.0.1:1", []string{"X-Forwarded-For: unknown, 192.0.2.7"},
			"guest:192.0.2.7"},
		{"a proxy's address before its own", behind, "10.0.0.1:1",
			[]string{"X-Forwarded-For: 10.0.0.2, 192.0.2.7"}, "guest:192.0.2.7"},
		{"a client that is no proxy", behind, "192.0.2.9:1", []string{"X-Forwarded-For: 198.51.100.1"},
			"guest:192.0.2.9"},
		{"a client beside the proxies", behind, "10.0.0.3:1", []string{"X-Forwarded-For: 198.51.100.1"},
			"guest:10.0.0.3"},
		{"a client that calls itself a proxy", behind, "192.0.2.9:1", []string{"X-Forwarded-For: 10.0.0.1"},
			"guest:192.0.2.9"},
		{"a mapped proxy", behind, "[::ffff:10.0.0.1]:1", []string{"X-Forwarded-For: 192.0.2.7"},
			"guest:192.0.2.7"},
		{"a mapped client", behind, "10.0.0.1:1", []string{"X-Forwarded-For: ::ffff:192.0.2.7"}, "guest:192.0.2.7"},
		{"a mapped proxy in the chain", behind, "10.0.0.1:1",
			[]string{"X-Forwarded-For: 192.0.2.7, ::ffff:10.0.0.2"}, "guest:192.0.2.7"},
		{"an IPv6 proxy and client", behind, "[2001:db8:f::1]:1",
			[]string{"X-Forwarded-For: 2001:db8:1:2::9"}, "guest:2001:db8:1:2::/64"},
		{"a zone in the chain", behind, "10.0.0.1:1", []string{"X-Forwarded-For: fe80::9%eth0"}, "guest:fe80::/64"},
		{"a proxy that says nothing", behind, "10.0.0.1:1", nil, "refused: address"},
		{"a proxy that says nothing of use", behind, "10.0.0.1:1", []string{"X-Forwarded-For: unknown"},
			"refused: address"},
		{"an address with a port", behind, "10.0.0.1:1", []string{"X-Forwarded-For: 192.0.2.7:4321"},
			"refused: address"},
		{"proxies alone", behind, "10.0.0.1:1", []string{"X-Forwarded-For: 10.0.0.2"}, "refused: address"},
	} {
		if got := outcome(t, c.a, request(c.from, c.lines...)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if p, err := behind.Authenticate(request("192.0.2.7:1")); err != nil ||
		p != (Principal{Tenant: "guest:192.0.2.7", Tier: "free"}) {
		t.Errorf("%+v, %v", p, err)
	}
	for _, text := range []string{"0.0.0.0/0", "::/0", "::ffff:10.0.0.0/104"} {
		if _, err := newGuests(GuestConfig{TrustedProxies: prefixes(text)}); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
}

// Guests of one /48 have the bounds of one address.
func TestNetworks(t *testing.T) {
	guests := gate(t, Config{Modes: []Mode{Guest}})
	network, err := ClientNetwork()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, want, ofGuest string }{
		{"192.0.2.7:1", "192.0.2.7", ""},
		{"[::ffff:192.0.2.7]:1", "192.0.2.7", ""},
		{"[2001:db8:1:2::9]:1", "2001:db8:1::/48", "2001:db8:1::/48"},
		{"[2001:db8:1:ffff::9]:1", "2001:db8:1::/48", "2001:db8:1::/48"},
		{"[2001:db8:2:2::9]:1", "2001:db8:2::/48", "2001:db8:2::/48"},
		{"[fe80::1%eth0]:1", "fe80::/48", "fe80::/48"},
		{"@", "", ""},
	} {
		r := request("192.0.2.1:1")
		r.RemoteAddr = c.from
		got, ok := network(r)
		if got != c.want || ok != (c.want != "") || PeerNetwork(c.from) != c.want {
			t.Errorf("%s counts as %q, and as a peer as %q, want %q", c.from, got, PeerNetwork(c.from), c.want)
		}
		if p, _ := guests.Authenticate(r); p.Network() != c.ofGuest {
			t.Errorf("%s is a guest of %q, want %q", c.from, p.Network(), c.ofGuest)
		}
	}
	for _, p := range []Principal{{Tenant: "acme"}, {Tenant: "guest:2001:db8:1:2::/64", KeyID: "k"}, {Tenant: "guest:x"}} {
		if got := p.Network(); got != "" {
			t.Errorf("%+v has the network %q", p, got)
		}
	}
}

func FuzzGuest(f *testing.F) {
	a := gate(f, Config{
		Modes: []Mode{Guest},
		Guest: GuestConfig{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	})
	for _, seed := range [][2]string{
		{"192.0.2.7:1", ""}, {"10.0.0.1:1", "192.0.2.7"}, {"10.0.0.1:1", "1.2.3.4, 10.0.0.2"},
		{"[::ffff:10.0.0.1]:1", "::1"}, {"[fe80::1%x]:1", "a"},
		{"10.0.0.1:1", "::ffff:10.0.0.9,"}, {"10.0.0.1", "fe80::1%10.0.0.1"}, {"x", "1.2.3.4"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, from, chain string) {
		r := request("192.0.2.7:1")
		r.RemoteAddr = from
		r.Header["X-Forwarded-For"] = []string{chain}
		p, err := a.Authenticate(r)
		if err != nil {
			return
		}
		rest, isGuest := strings.CutPrefix(p.Tenant, "guest:")
		prefix, isPrefix := strings.CutSuffix(rest, "/64")
		addr, err := netip.ParseAddr(prefix)
		if !isGuest || err != nil || addr.Zone() != "" || addr.Is4In6() || addr.Is6() != isPrefix ||
			!legalTenant(p.Tenant) {
			t.Errorf("%q %q: tenant %q", from, chain, p.Tenant)
		}
		if isPrefix && netip.PrefixFrom(addr, 64).Masked().Addr() != addr {
			t.Errorf("%q %q: tenant %q has more than its /64", from, chain, p.Tenant)
		}
		// Only a proxy may speak for another.
		if peer, err := netip.ParseAddrPort(from); err == nil &&
			!netip.MustParsePrefix("10.0.0.0/8").Contains(peer.Addr().Unmap()) {
			if address, _ := prefixOf(peer.Addr(), guestBits); p.Tenant != queue.GuestPrefix+address {
				t.Errorf("%q made %q of itself by %q", from, p.Tenant, chain)
			}
		}
	})
}
