package callback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"code.dny.dev/ssrf"

	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/shaper"
)

// maxURL bounds a callback URL, in bytes.
const maxURL = 1024

// Receivers decides which URLs may be called: those under a prefix that the configuration lists,
// wherever they lead; those under an endpoint of the tenant, unless they lead to link-local
// addresses or to the metadata of a cloud; and all others whose address is public. It is safe for
// concurrent use.
type Receivers struct {
	listed    []prefix
	deny      []netip.Prefix
	closed    bool // to all that are not listed
	addresses *ssrf.Guardian
}

// azureHost is a public address that reaches the host of a machine in Azure, with its metadata.
var azureHost = netip.MustParsePrefix("168.63.129.16/32")

// NewReceivers makes Receivers. allow lists URL prefixes such as "https://partner.example/hooks/":
// a scheme, a host, perhaps a port, and a path that matches at the boundary of a segment. deny
// lists networks that no callback may lead to, listed or not. Its error is of type shaper.Problems,
// one for each prefix that breaks a rule.
func NewReceivers(allow []string, deny ...netip.Prefix) (*Receivers, error) {
	r := &Receivers{deny: deny, addresses: ssrf.New(ssrf.WithAnyPort(), ssrf.WithDeniedV4Prefixes(azureHost))}
	var ps shaper.Problems
	for i, raw := range allow {
		p, err := parsePrefix(raw)
		if err != nil {
			ps = append(ps, shaper.Problem{Field: fmt.Sprintf("allow[%d]", i), Value: "(hidden)", Rule: err.Error()})
			continue
		}
		r.listed = append(r.listed, p)
	}
	if err := ps.Err(); err != nil {
		return nil, fmt.Errorf("callback: %w", err)
	}
	return r, nil
}

// Registered returns Receivers that permit only the listed URLs, and those under endpoints.
func (r *Receivers) Registered() *Receivers {
	only := *r
	only.closed = true
	return &only
}

// denied reports whether callbacks must not lead to the address.
func (r *Receivers) denied(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	translated := outbound.Translated(addr)
	return slices.ContainsFunc(r.deny, func(p netip.Prefix) bool { return p.Contains(addr) || p.Contains(translated) })
}

// trust is why a URL may be called. It decides which addresses it may lead to.
type trust int

const (
	anybody    trust = iota // its address must be public
	registered              // an endpoint of the tenant
	listed                  // a prefix of the configuration
)

// Check checks a callback URL of a tenant with these endpoints, without resolving the name of its
// host. It returns nil if the URL is permitted. The error names the broken rule, such as "must lead
// to a public address", and never quotes the URL, which may hold secrets.
func (r *Receivers) Check(rawURL string, endpoints []string) error {
	_, _, err := r.inspect(rawURL, endpoints)
	return err
}

// CheckEndpoint checks an endpoint that is to be registered for a tenant. The error names the
// broken rule.
func (r *Receivers) CheckEndpoint(raw string) error {
	p, err := parsePrefix(raw)
	if err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(p.host); err == nil {
		return r.rule(addr, registered)
	}
	return nil
}

// inspect also returns the receiver's host and port, and why the URL may be called.
func (r *Receivers) inspect(raw string, endpoints []string) (receiver string, why trust, err error) {
	t, err := parse(raw)
	if err != nil {
		return "", anybody, err
	}
	receiver = t.receiver()
	covers := func(p prefix) bool { return p.covers(t) }
	switch {
	case slices.ContainsFunc(r.listed, covers):
		why = listed
	case slices.ContainsFunc(endpoints, func(raw string) bool {
		p, err := parsePrefix(raw)
		return err == nil && p.covers(t)
	}):
		why = registered
	case r.closed:
		return "", anybody, errors.New("must be below an endpoint of the tenant or a URL of callbacks.allow: " +
			"callbacks.mode is registered")
	case t.port != 80 && t.port != 443 && t.port < 1024:
		return "", anybody, errors.New("must use port 80 or 443 or one from 1024 on")
	case local(t.host):
		return "", anybody, errors.New(notPublic)
	}
	if t.addr.IsValid() {
		if err := r.rule(t.addr, why); err != nil {
			return "", anybody, err
		}
	}
	return receiver, why, nil
}

const notPublic = "must lead to a public address, or be below a URL of callbacks.allow or an endpoint of the tenant"

// rule returns the rule that an address breaks.
func (r *Receivers) rule(addr netip.Addr, why trust) error {
	switch {
	case r.denied(addr):
		return errors.New("must not lead to a network of callbacks.deny")
	case why == registered && outbound.EgressRule(addr, nil) != "":
		return errors.New("must not be link-local, nor serve the metadata of a cloud")
	case why == anybody && r.addresses.SafeAddr(addr) != nil:
		return errors.New(notPublic)
	}
	return nil
}

// errNotPublic refuses to dial a target.
var errNotPublic = errors.New("the target's address is not public, or denied")

// control returns the net.Dialer.Control of targets. It checks the very address that is dialled, so
// a name that resolves to another address later is refused, too.
func (r *Receivers) control(why trust) func(network, address string, c syscall.RawConn) error {
	return func(network, address string, c syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		switch {
		case err != nil || r.denied(at.Addr()):
			return errNotPublic
		case why != anybody:
			if r.rule(at.Addr(), why) != nil {
				return errNotPublic
			}
			return nil
		}
		if err := r.addresses.Safe(network, address, c); err != nil {
			return fmt.Errorf("%w: %w", errNotPublic, err)
		}
		return nil
	}
}

// checkName checks the addresses of a target that a proxy connects to. A nil resolver is that of
// the system. Errors: errNotPublic, or that the name cannot be resolved.
func (r *Receivers) checkName(ctx context.Context, hostport string, why trust, resolver *net.Resolver) error {
	if why == listed && len(r.deny) == 0 {
		return nil
	}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return err
	}
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	addrs, err := resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return errors.New("the name of the target cannot be resolved here, so its address cannot be checked")
	}
	for _, addr := range addrs {
		if r.rule(addr.Unmap(), why) != nil {
			return errNotPublic
		}
	}
	return nil
}

// origin is the scheme, host and port of a URL, in one form only.
type origin struct {
	scheme string
	host   string // lower case; an address as netip writes it
	port   uint16 // the scheme's own if the URL names none
}

// target is a URL that obeys the rules for all callbacks.
type target struct {
	origin
	addr netip.Addr // invalid if the host is a name
	url  *url.URL
}

// receiver is the host and port.
func (t target) receiver() string { return net.JoinHostPort(t.host, strconv.Itoa(int(t.port))) }

// parse reads a URL. It accepts nothing that two programs may read in two ways: no user
// information, no backslashes, no addresses in other than the usual form.
func parse(raw string) (target, error) {
	if len(raw) > maxURL {
		return target{}, fmt.Errorf("must have at most %d bytes", maxURL)
	}
	if strings.ContainsFunc(raw, func(c rune) bool { return c <= ' ' || c > '~' || c == '\\' }) {
		return target{}, errors.New("must be ASCII without spaces, backslashes and control characters: " +
			"other characters are percent-encoded, names of hosts in their xn-- form")
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil: // which would quote the URL
		return target{}, errors.New("must be a valid URL")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return target{}, errors.New("must be an http or https URL with a host")
	case u.User != nil:
		return target{}, errors.New("must not have user information")
	case strings.Contains(raw, "#"):
		return target{}, errors.New("must not have a fragment")
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(),
		map[string]string{"http": "80", "https": "443"}[u.Scheme]), 10, 16)
	if err != nil || port == 0 {
		return target{}, errors.New("must have a port from 1 to 65535")
	}
	t := target{
		origin: origin{scheme: u.Scheme, host: strings.ToLower(u.Hostname()), port: uint16(port)}, url: u,
	}
	if addr, err := netip.ParseAddr(t.host); err == nil {
		t.addr, t.host = addr, addr.String()
	}
	switch {
	case t.addr.Zone() != "":
		return target{}, errors.New("must not have an IPv6 zone")
	case !t.addr.IsValid() && !validName(t.host):
		return target{}, errors.New("must have a host of letters, digits, hyphens and dots")
	case !t.addr.IsValid() && numeric(t.host):
		return target{}, errors.New("must have an IPv4 address as four decimal numbers")
	}
	return t, nil
}

// validName accepts a host's name, perhaps with a dot at its end.
func validName(host string) bool {
	host = strings.TrimSuffix(host, ".")
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return len(host) <= 253
}

// numeric reports whether some programs take a host for an IPv4 address, such as 0x7f.1: its last
// label is a number (WHATWG URL, "ends in a number").
func numeric(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// local reports whether a name means this machine (RFC 6761, 6.3).
func local(host string) bool {
	host = strings.TrimSuffix(host, ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// prefix is one prefix that the operator lists.
type prefix struct {
	origin
	path string // begins with a slash
}

func parsePrefix(raw string) (prefix, error) {
	t, err := parse(raw)
	switch {
	case err != nil:
		return prefix{}, err
	case t.url.RawQuery != "" || t.url.ForceQuery:
		return prefix{}, errors.New("must not have a query")
	case !plain(t.url):
		return prefix{}, errors.New("must have a path of ASCII without . and .. and without semicolons and " +
			"percent signs")
	}
	return prefix{t.origin, cmp.Or(t.url.Path, "/")}, nil
}

// covers reports whether the target is under the prefix, for every server that may receive it.
func (p prefix) covers(t target) bool {
	if p.origin != t.origin {
		return false
	}
	if p.path == "/" {
		return true
	}
	rest, ok := strings.CutPrefix(t.url.Path, p.path)
	return ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(p.path, "/")) && plain(t.url)
}

// plain reports whether all servers read the same path from the URL: none can decode it twice,
// normalize its letters, or see a parent directory in it.
func plain(u *url.URL) bool {
	odd := strings.ContainsFunc(u.Path, func(c rune) bool {
		return c < ' ' || c > '~' || strings.ContainsRune(`\%;`, c)
	})
	segments := strings.Split(u.Path, "/")
	return !odd && !slices.Contains(segments, ".") && !slices.Contains(segments, "..") &&
		!strings.Contains(strings.ToLower(u.EscapedPath()), "%2f")
}
