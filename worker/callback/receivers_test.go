package callback

import (
	"errors"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/shaper"
)

func receivers(t testing.TB, allow ...string) *Receivers {
	t.Helper()
	g, err := NewReceivers(allow)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Parts of the rules, enough to tell them apart.
const (
	ruleLength   = "1024 bytes"
	ruleASCII    = "must be ASCII"
	ruleValid    = "must be a valid URL"
	ruleScheme   = "must be an http or https URL"
	ruleUser     = "user information"
	ruleFragment = "fragment"
	rulePort     = "port from 1 to 65535"
	ruleLowPort  = "port 80 or 443"
	ruleZone     = "zone"
	ruleName     = "letters, digits"
	ruleForm     = "four decimal numbers"
	rulePublic   = "public address"
)

// Check refuses URLs that lead to a private address, hide their target or can be read in two ways.
// It quotes none.
func TestCheck(t *testing.T) {
	g := receivers(t)
	for raw, rule := range map[string]string{
		"https://partner.example/hooks?token=1":                 "",
		"HTTPS://Partner.Example":                               "",
		"http://partner.example.:8080/":                         "",
		"http://a_b-c.example:1024/%2e%2e/":                     "",
		"https://8.8.8.8/":                                      "",
		"https://[2606:4700:4700::1111]:443/":                   "",
		"https://xn--bcher-kva.example/":                        "",
		"https://redis/":                                        "", // may be public: the dial tells
		"https://partner.example/" + strings.Repeat("x", 1000):  "",
		"https://partner.example/" + strings.Repeat("x", 1001):  ruleLength,
		"https://partner.example/ ":                             ruleASCII,
		"https://partner.example/\r\nX: y":                      ruleASCII,
		"https://partner.example/\x00":                          ruleASCII,
		"https://partner.example\\@evil.example/":               ruleASCII,
		"https://bücher.example/":                               ruleASCII,
		"https://１２７.0.0.1/":                                    ruleASCII,
		"https://%E2%91%A0%E2%91%A1%E2%91%A6.0.0.1/":            ruleName,
		"https://partner.example:http/":                         ruleValid,
		"https://[::1/":                                         ruleValid,
		"":                                                      ruleScheme,
		"partner.example/":                                      ruleScheme,
		"//partner.example/":                                    ruleScheme,
		"ftp://partner.example/":                                ruleScheme,
		"file:///etc/passwd":                                    ruleScheme,
		"gopher://127.0.0.1:6379/_FLUSHALL":                     ruleScheme,
		"http:partner.example":                                  ruleScheme,
		"http://[127.0.0.1]/":                                   ruleValid,
		"http://::1/":                                           ruleValid,
		"http://":                                               ruleScheme,
		"http://:80/":                                           ruleName,
		"https://user:hunter2@partner.example/":                 ruleUser,
		"https://@partner.example/":                             ruleUser,
		"https://partner.example@evil.example/":                 ruleUser,
		"https://partner.example/#":                             ruleFragment,
		"https://partner.example/#@127.0.0.1":                   ruleFragment,
		"https://partner.example:0/":                            rulePort,
		"https://partner.example:65536/":                        rulePort,
		"https://partner.example:22/":                           ruleLowPort,
		"https://partner.example:1023/":                         ruleLowPort,
		"http://[fe80::1%25eth0]/":                              ruleZone,
		"http://[2606:4700:4700::1111%25lo]/":                   ruleZone,
		"http://a..b/":                                          ruleName,
		"http://localhost../":                                   ruleName,
		"http://" + strings.Repeat("a", 64) + ".example/":       ruleName,
		"http://" + strings.Repeat("abcdefg.", 32) + "example/": ruleName,
		"http://a,b.example/":                                   ruleName,
		"http://2130706433/":                                    ruleForm,
		"http://0177.0.0.1/":                                    ruleForm,
		"http://0x7f000001/":                                    ruleForm,
		"http://0X7F.1/":                                        ruleForm,
		"http://0x/":                                            ruleForm,
		"http://127.1/":                                         ruleForm,
		"http://127.0.0.1./":                                    ruleForm,
		"http://8.8.8.010/":                                     ruleForm,
		"http://127.0.0.1/":                                     rulePublic,
		"http://127.255.255.254:8080/":                          rulePublic,
		"http://0.0.0.0/":                                       rulePublic,
		"http://10.0.0.1/":                                      rulePublic,
		"http://172.31.0.1/":                                    rulePublic,
		"http://192.168.0.1/":                                   rulePublic,
		"http://100.64.0.1/":                                    rulePublic,
		"http://169.254.169.254/latest/meta-data/":              rulePublic,
		"http://168.63.129.16/":                                 rulePublic,
		"http://224.0.0.1/":                                     rulePublic,
		"http://255.255.255.255/":                               rulePublic,
		"http://[::]/":                                          rulePublic,
		"http://[::1]/":                                         rulePublic,
		"http://[0:0:0:0:0:0:0:1]/":                             rulePublic,
		"http://[::ffff:127.0.0.1]/":                            rulePublic,
		"http://[::ffff:7f00:1]/":                               rulePublic,
		"http://[::ffff:8.8.8.8]/":                              rulePublic,
		"http://[::127.0.0.1]/":                                 rulePublic,
		"http://[64:ff9b::7f00:1]/":                             rulePublic,
		"http://[64:ff9b:1::7f00:1]/":                           rulePublic,
		"http://[2002:7f00:1::]/":                               rulePublic,
		"http://[2001:0:7f00:1::]/":                             rulePublic,
		"http://[fd00:ec2::254]/":                               rulePublic,
		"http://[fe80::1]/":                                     rulePublic,
		"http://[ff02::1]/":                                     rulePublic,
		"http://localhost/":                                     rulePublic,
		"http://LOCALHOST.:8080/":                               rulePublic,
		"http://a.localhost/":                                   rulePublic,
		"http://a.b.localhost./":                                rulePublic,
		"http://localhost.example/":                             "",
		"http://notlocalhost/":                                  "",
		"http://127.0.0.1.example/":                             "",
		"http://1.2.3.4.5.example:8080/?q=http://127.0.0.1/":    "",
		"https://partner.example/?next=//127.0.0.1/&u=a:b@c":    "",
		"https://partner.example/a/../b":                        "",
		"https://partner.example?" + strings.Repeat("a=b&", 20) + "end=%23": "",
	} {
		err := g.Check(raw, nil)
		switch {
		case rule == "" && err != nil:
			t.Errorf("%q: %v", raw, err)
		case rule != "" && (err == nil || !strings.Contains(err.Error(), rule)):
			t.Errorf("%q: %v, want one about %q", raw, err, rule)
		case err != nil &&
			(strings.Contains(err.Error(), "hunter2") || len(raw) > 8 && strings.Contains(err.Error(), raw)):
			t.Errorf("%q is quoted: %v", raw, err)
		}
	}
}

// A listed prefix covers its own paths, however a URL writes them. A private URL outside of it is
// refused.
func TestListedPrefixes(t *testing.T) {
	g := receivers(t, "https://partner.example", "http://10.0.0.7:8080/hooks/", "https://API.example:443/v1/hook",
		"http://[::1]:9000/x", "http://localhost:25/")
	for raw, want := range map[string]bool{
		"https://partner.example":                      true,
		"https://PARTNER.example:443/a/../b?c":         true,
		"http://partner.example/":                      false,
		"https://partner.example:8443/":                false,
		"https://partner.example.evil.example/":        false,
		"https://evil.example/https://partner.example": false,
		"https://partner.example./":                    false, // public then, so this costs nothing
		"http://10.0.0.7:8080/hooks/":                  true,
		"http://10.0.0.7:8080/hooks/a/b?c=../d":        true,
		"http://10.0.0.7:8080/%68ooks/a":               true,
		"http://10.0.0.7:8080/hooks/a.b/...":           true,
		"http://10.0.0.7:8080/hooks/a%20b":             true,
		"http://localhost:25/":                         true,
		"http://[0:0::1]:9000/x":                       true,
		"http://[::1]:9000/x/y":                        true,
		"https://api.example/v1/hook":                  true,
		"https://api.example/v1/hook/1":                true,
		"https://api.example/v1/hook?1":                true,
		"https://api.example/v1/hooks":                 false,
		"https://api.example/v1/hook;x":                false,
		"https://api.example/v2/hook":                  false,
		"https://api.example/V1/hook":                  false,
	} {
		if _, why, err := g.inspect(raw, nil); (why == listed) != want || err != nil {
			t.Errorf("%q: trust %d, %v, want listed: %t", raw, why, err, want)
		}
	}
	for _, raw := range []string{
		"http://10.0.0.7:8080/", "http://10.0.0.7:8080/hooks", "http://10.0.0.7:8080/hooksx",
		"http://10.0.0.7:8080/HOOKS/", "http://10.0.0.7:8081/hooks/",
		"https://10.0.0.7:8080/hooks/", "http://10.0.0.8:8080/hooks/", "http://10.0.0.7:8080//hooks/",
		"http://[::1]:9000/xy", "http://[::1]:9001/x",
		"http://10.0.0.7:8080/hooks/..", "http://10.0.0.7:8080/hooks/../admin",
		"http://10.0.0.7:8080/hooks/./a", "http://10.0.0.7:8080/hooks/%2e%2e/admin",
		"http://10.0.0.7:8080/hooks/.%2E/admin", "http://10.0.0.7:8080/hooks/%252e%252e/admin",
		"http://10.0.0.7:8080/hooks/..%2fadmin",
		"http://10.0.0.7:8080/hooks/..%5Cadmin", "http://10.0.0.7:8080/hooks/..;/admin",
		"http://10.0.0.7:8080/hooks/..;x=y/admin",
		"http://10.0.0.7:8080/hooks/%c0%ae%c0%ae/admin",
		"http://10.0.0.7:8080/hooks/%EF%BC%8E%EF%BC%8E/admin", "http://10.0.0.7:8080/hooks/.%09./admin",
		"http://10.0.0.7:8080/hooks/..%00/admin", "http://10.0.0.7:8080/x/../hooks/a",
		"http://10.0.0.7:8080/hooks%2fa",
	} {
		if _, why, err := g.inspect(raw, nil); why == listed || err == nil {
			t.Errorf("%q: trust %d, %v", raw, why, err)
		}
	}
}

func TestBadPrefixesAreAllNamed(t *testing.T) {
	_, err := NewReceivers([]string{
		"https://good.example/", "", "partner.example/", "https://user:hunter2@partner.example/",
		"https://partner.example/?token=hunter2",
		"https://partner.example/a/../b", "http://127.1/", "https://partner.example/%252e/",
		"https://*.example/", "http://127.0.0.1/",
	})
	var ps shaper.Problems
	if !errors.As(err, &ps) {
		t.Fatalf("error %v", err)
	}
	var fields []string
	for _, p := range ps {
		fields = append(fields, p.Field)
	}
	want := []string{
		"allow[1]", "allow[2]", "allow[3]", "allow[4]", "allow[5]", "allow[6]", "allow[7]", "allow[8]",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s\n%v", diff, err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error has a secret: %v", err)
	}
}

// FuzzCheck looks for a URL that passes although it leads to a private address, as far as a URL can
// show that. No error quotes a URL.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{
		"https://partner.example/hooks/x?y=z", "https://partner.example/hooks/../x",
		"https://partner.example/hooks/%2e%2e/x", "http://127.0.0.1:80/",
		"http://2130706433/", "http://0x7f.1/", "http://[::ffff:127.0.0.1]/", "http://[fe80::1%25lo]/",
		"http://a@b/", "http://a.localhost./", "http://8.8.8.8:65536/",
		"https://partner.example:443/hooks/%252e%252e/", "https://PARTNER.example/hooks/..;/", "http:///x",
		"http://\\x", "http://[::1]a/", "http://%6c/",
	} {
		f.Add(seed)
	}
	g := receivers(f, "https://partner.example/hooks/")
	f.Fuzz(func(t *testing.T, raw string) {
		if err := g.Check(raw, nil); err != nil {
			if len(raw) > 12 && strings.Contains(err.Error(), raw) {
				t.Errorf("quoted: %v", err)
			}
			return
		}
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatalf("%q passes: %v", raw, err)
		}
		if u.User != nil || u.Fragment != "" {
			t.Errorf("%q passes with user information or a fragment", raw)
		}
		if u.Scheme != "http" && u.Scheme != "https" {
			t.Errorf("%q passes with the scheme %q", raw, u.Scheme)
		}
		if len(raw) > maxURL {
			t.Errorf("%q passes with %d bytes, want at most %d", raw, len(raw), maxURL)
		}
		host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
		if addr, ok := loose(host); ok && (addr.IsLoopback() || addr.IsPrivate() || !addr.IsGlobalUnicast()) {
			t.Errorf("%q leads to the address %v", raw, addr)
		}
		if host == "" {
			t.Errorf("%q passes without a host", raw)
		}
		if host == "localhost" || strings.HasSuffix(host, ".localhost") {
			t.Errorf("%q leads to this machine", raw)
		}
		_, why, _ := g.inspect(raw, nil)
		decoded := u.Path
		for range 3 {
			if again, err := url.PathUnescape(decoded); err == nil {
				decoded = again
			}
		}
		decoded = path.Clean(strings.ReplaceAll(decoded, `\`, "/"))
		if why == listed && (host != "partner.example" || decoded != "/hooks" && !strings.HasPrefix(decoded, "/hooks/")) {
			t.Errorf("%q is listed and leads to %s", raw, decoded)
		}
	})
}

// loose reads addresses as inet_aton does: one to four numbers in decimal, octal or hexadecimal.
// The last one fills the remaining bytes.
func loose(host string) (netip.Addr, bool) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().WithZone(""), true
	}
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, p := range parts {
		base := 10
		if hex, ok := strings.CutPrefix(p, "0x"); ok {
			p, base = hex, 16
		} else if len(p) > 1 && p[0] == '0' {
			base = 8
		}
		n, err := strconv.ParseUint(p, base, 32)
		switch last := i == len(parts)-1; {
		case err != nil, !last && n > 255, last && n >= 1<<(8*(5-len(parts))):
			return netip.Addr{}, false
		case last:
			sum += n
		default:
			sum += n << (8 * (3 - i))
		}
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}

// TestDeniedNetworks: no callback leads to a denied network, although its URL is listed.
func TestDeniedNetworks(t *testing.T) {
	g, err := NewReceivers([]string{
		"http://10.0.0.1/", "http://10.1.0.1/", "http://receiver.example/", "http://[64:ff9b::a00:1]/", "http://[2002:a00:1::]/",
	},
		netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32"))
	if err != nil {
		t.Fatal(err)
	}
	for url, good := range map[string]bool{
		"http://10.0.0.1/x": false, "http://10.1.0.1/x": true, "http://[::ffff:10.0.0.1]/": false, "http://receiver.example/x": true,
		"https://198.51.100.7/": false, "https://[2001:db8::1]/": false, "https://8.8.8.8/": true, "https://name.example/": true,
		"http://[64:ff9b::a00:1]/x": false, "http://[2002:a00:1::]/x": false, // 10.0.0.1 behind NAT64 and 6to4
	} {
		if err := g.Check(url, nil); (err == nil) != good {
			t.Errorf("%s: %v", url, err)
		}
	}
	for address, good := range map[string]bool{
		"10.0.0.1:80": false, "10.1.0.1:80": true, "[::ffff:10.0.0.1]:80": false, "[2001:db8::1]:443": false, "nonsense": false,
	} {
		if err := g.control(listed)("tcp", address, nil); (err == nil) != good {
			t.Errorf("a listed name that leads to %s: %v", address, err)
		}
	}
	if err := g.control(anybody)("tcp4", "198.51.100.7:443", nil); err == nil {
		t.Error("a name that leads to a denied public address is called")
	}
	only := g.Registered()
	for url, good := range map[string]bool{
		"https://8.8.8.8/": false, "https://name.example/": false, "http://receiver.example/x": true, "http://receiver.example:8080/x": false,
	} {
		if err := only.Check(url, nil); (err == nil) != good {
			t.Errorf("registered: %s: %v", url, err)
		}
	}
}

// TestEndpoints: an endpoint of a tenant may be at any address but those where machines find
// credentials, and denied ones; no other tenant has it.
func TestEndpoints(t *testing.T) {
	open, err := NewReceivers([]string{"http://listed.example/"}, netip.MustParsePrefix("10.9.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	for endpoint, good := range map[string]bool{
		"http://10.0.0.7:25/hooks/": true, "https://partner.example/": true, "http://127.0.0.1/": true, "http://[::1]:9/x": true,
		"http://169.254.169.254/": false, "http://[fe80::1]/": false, "http://[::ffff:169.254.0.1]/": false, "http://100.100.100.200/": false,
		"http://10.9.0.1/": false, "ftp://partner.example/": false, "https://partner.example/?a=b": false, "https://u:p@partner.example/": false,
		"https://partner.example/../": false, "": false,
	} {
		if err := open.CheckEndpoint(endpoint); (err == nil) != good {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	own := []string{"http://10.0.0.7:25/hooks/", "http://partner.example/done", "http://169.254.169.254/", "nonsense"}
	for url, want := range map[string]struct{ open, closed trust }{
		"http://10.0.0.7:25/hooks/a":       {registered, registered},
		"http://partner.example/done/1":    {registered, registered},
		"http://listed.example/x":          {listed, listed},
		"http://partner.example/else":      {anybody, -1},
		"http://10.0.0.7:25/":              {-1, -1},
		"http://169.254.169.254/latest":    {-1, -1}, // although it is stored
		"http://10.0.0.7:25/hooks/../x":    {-1, -1},
		"http://partner.example:81/done/1": {-1, -1},
	} {
		for g, want := range map[*Receivers]trust{open: want.open, open.Registered(): want.closed} {
			_, why, err := g.inspect(url, own)
			if err == nil && why != want || (err != nil) != (want < 0) {
				t.Errorf("%s, registered only: %t: trust %d, %v", url, g.closed, why, err)
			}
		}
		if err := open.Registered().Check(url, nil); (err == nil) != (want.closed == listed) {
			t.Errorf("%s of a tenant without endpoints: %v", url, err)
		}
	}
	for address, good := range map[string]bool{
		"10.0.0.7:25": true, "127.0.0.1:80": true, "8.8.8.8:80": true, "169.254.169.254:80": false, "10.9.1.1:80": false, "[fe80::1%eth0]:80": false,
	} {
		if err := open.control(registered)("tcp", address, nil); (err == nil) != good {
			t.Errorf("an endpoint whose name leads to %s: %v", address, err)
		}
	}
}
