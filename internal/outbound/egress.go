package outbound

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// metadata are the addresses where a machine finds what only it may know: link-local networks, and
// the services of clouds that give out credentials.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::254/128"),  // Amazon
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
}

// nat64 and sixToFour have an IPv4 address within the one of IPv6 (RFC 6052, RFC 3056).
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// errMetadata refuses to dial.
var errMetadata = errors.New("the address is link-local or serves the metadata of a cloud, and is not in egress.allow")

// EgressRule returns the rule that an upstream's address breaks, empty if none: link-local and
// metadata addresses must be allowed.
func EgressRule(addr netip.Addr, allow []netip.Prefix) string {
	addr = addr.Unmap().WithZone("")
	within := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	if within(allow) {
		return ""
	}
	addr = Translated(addr)
	if within(metadata) {
		return "must not be link-local, nor serve the metadata of a cloud, unless egress.allow has it"
	}
	return ""
}

// Translated returns the IPv4 address that NAT64 or 6to4 reach by an address, else the address
// itself, without a zone.
func Translated(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:]))
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return addr
}

// egress is the net.Dialer.Control that checks the very address that is dialled, so that no name
// leads elsewhere.
func egress(allow []netip.Prefix) func(network, address string, c syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("outbound: an address that cannot be checked: %w", err)
		}
		if EgressRule(at.Addr(), allow) != "" {
			return errMetadata
		}
		return nil
	}
}
