package outbound

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"
)

// TestEgress: link-local and metadata addresses are refused in every form, unless they are allowed;
// private and public ones are not.
func TestEgress(t *testing.T) {
	for text, good := range map[string]bool{
		"169.254.169.254": false, "169.254.0.1": false, "::ffff:169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false,
		"fd00:ec2::254": false, "100.100.100.200": false, "168.63.129.16": false, "64:ff9b::a9fe:a9fe": false, "2002:a9fe:a9fe::1": false,
		"10.0.0.1": true, "127.0.0.1": true, "::1": true, "192.0.2.1": true, "fd00:ec2::1": true, "64:ff9b::c000:201": true,
	} {
		addr := netip.MustParseAddr(text)
		if rule := EgressRule(addr, nil); (rule == "") != good {
			t.Errorf("%s: %q", text, rule)
		}
		if rule := EgressRule(addr, []netip.Prefix{netip.PrefixFrom(addr.Unmap().WithZone(""), addr.Unmap().BitLen())}); rule != "" {
			t.Errorf("%s although it is allowed: %q", text, rule)
		}
	}
}

// TestEgressIsCheckedAtTheDial: an upstream is not called at such an address, and is where it is
// allowed.
func TestEgressIsCheckedAtTheDial(t *testing.T) {
	for _, allow := range [][]netip.Prefix{nil, {netip.MustParsePrefix("169.254.0.0/16")}} {
		c := New("worker", "upstream", Options{Timeout: 50 * time.Millisecond, Egress: allow})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := c.Transport.DialContext(ctx, "tcp", "169.254.169.254:9")
		cancel()
		if refused := errors.Is(err, errMetadata); refused != (allow == nil) {
			t.Errorf("allowed %v: %v", allow, err)
		}
	}
}
