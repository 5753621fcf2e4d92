package config_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

// publicPEM is the public half of a key that nobody keeps.
func publicPEM(t *testing.T, public any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func indented(text string) string {
	return "\n        " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n        ")
}

// Modes, proxies and keys are read, the keys from texts and from files.
func TestAuthSection(t *testing.T) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.ToSlash(write(t, publicPEM(t, &curve.PublicKey)))
	const secret = "a secret of at least thirty-two bytes"
	c := mustLoad(t, config.Sources{File: write(t, route+`
tiers: { free: {} }
api: { listen: "0.0.0.0:8080", tls: off }
auth:
  mode: [keys, jwt, guest]
  jwt:
    issuer: https://issuer.example/
    audience: sluice
    keys:
    - { kid: old, algorithm: HS256, secret: "`+secret+`" }
    - { algorithm: ES256, public_key_file: "`+file+`" }
    - algorithm: EdDSA
      public_key: |`+indented(publicPEM(t, public))+`
  guest:
    trusted_proxies: [ "10.1.2.3/32", "2001:db8::/48" ]
    tier: free
`)})
	if want := []auth.Mode{auth.Keys, auth.JWT, auth.Guest}; !slices.Equal(c.Auth.Modes(), want) {
		t.Errorf("modes %v, want %v", c.Auth.Modes(), want)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.1.2.3/32"),
		netip.MustParsePrefix("2001:db8::/48")}; !slices.Equal(c.Auth.Guest.TrustedProxies, want) {
		t.Errorf("proxies %v", c.Auth.Guest.TrustedProxies)
	}
	if len(c.Auth.JWT.Keys) != 3 {
		t.Errorf("%d keys", len(c.Auth.JWT.Keys))
	}
}

// Modes are a list without repetition. None excludes the others.
func TestModes(t *testing.T) {
	for value, want := range map[string]string{
		"none": "", "keys": "keys", "keys, guest": "keys guest", "guest,keys": "guest keys",
		"": "refused", "none,keys": "refused", "keys,keys": "refused", "keys,": "refused",
		"password": "refused", "Keys": "refused",
	} {
		c, err := config.Load(config.Sources{File: write(t, route), Flags: map[string]string{"auth.mode": value}})
		got := "refused"
		if err == nil {
			var names []string
			for _, m := range c.Auth.Modes() {
				names = append(names, string(m))
			}
			got = strings.Join(names, " ")
		}
		if got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

// A mistake is reported with its field, value and rule, and without secrets.
func TestAuthProblems(t *testing.T) {
	const hush = "hunter2hunter2"
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	const jwt = "issuer: i, audience: a, "
	for _, c := range []struct{ name, section, want string }{
		{"a mode that is a list of lists", "mode: [[keys]]", "auth.mode: a list: must be none, or some of"},
		{"none among others", "mode: [none, keys]", `auth.mode: "none,keys": must be none, or some of`},
		{"no issuer", "mode: jwt", "auth.jwt.issuer: nothing: must be set if auth.mode has jwt"},
		{"no audience", "mode: jwt", "auth.jwt.audience: nothing: must be set"},
		{"no keys", "mode: [jwt, guest]", "auth.jwt: no keys: must have keys or jwks"},
		{"an empty list of keys", "mode: jwt, jwt: { " + jwt + "keys: [] }", "auth.jwt: no keys"},
		{"a short secret", "jwt: { keys: [ { algorithm: HS256, secret: " + hush + " } ] }",
			"auth.jwt.keys[0].secret: (hidden): must be at least 32 bytes"},
		{"no secret", "jwt: { keys: [ { algorithm: HS256 } ] }",
			"auth.jwt.keys[0].secret: (hidden): must be at least 32 bytes"},
		{"a secret for RS256", "jwt: { keys: [ { algorithm: RS256, secret: " + hush + " } ] }",
			"auth.jwt.keys[0]: a key: must have either public_key or public_key_file and no secret"},
		{"a public key for HS256", "jwt: { keys: [ { algorithm: HS256, public_key: x } ] }",
			"auth.jwt.keys[0]: a key: must have a secret and no public key"},
		{"both public keys", "jwt: { keys: [ { algorithm: RS256, public_key: x, public_key_file: y } ] }",
			"auth.jwt.keys[0]: a key: must have either"},
		{"no PEM", "jwt: { keys: [ { algorithm: RS256, public_key: " + hush + " } ] }",
			"auth.jwt.keys[0].public_key: (hidden): must be one public key or certificate in PEM"},
		{"a file that is not there", "jwt: { keys: [ { algorithm: RS256, public_key_file: absent.pem } ] }",
			`auth.jwt.keys[0].public_key_file: "absent.pem": cannot be read: no such file`},
		{"another algorithm", "jwt: { keys: [ { algorithm: none } ] }",
			`auth.jwt.keys[0].algorithm: "none": must be one of HS256, RS256, ES256, EdDSA`},
		{"no algorithm", "jwt: { keys: [ { kid: x } ] }", "auth.jwt.keys[0].algorithm: nothing: must be set"},
		{"an unknown key", "jwt: { keys: [ { algorithm: HS256, password: " + hush + " } ] }",
			"auth.jwt.keys[0].password: unknown key: must be a setting of this section"},
		{"keys that are none", "jwt: { keys: " + hush + " }", "auth.jwt.keys: a text: must be a list of sections"},
		{"a key that is none", "jwt: { keys: [ " + hush + " ] }", "auth.jwt.keys[0]: a text: must be a section"},
		{"a set that is not there", "mode: jwt, jwt: { " + jwt + "jwks: absent.json }",
			`auth.jwt.jwks: "absent.json": cannot be read: no such file`},
		{"another scheme", "jwt: { jwks: \"ftp://issuer.example/\" }",
			`auth.jwt.jwks: "ftp://issuer.example/": must be the path of a file, or an https:`},
		{"a set without TLS", "jwt: { jwks: \"http://issuer.example/\" }", "http:// only of a loopback address"},
		{"discovery without TLS", "mode: jwt, jwt: { issuer: \"http://i.example/\", audience: a, discovery: true }", "for discovery"},
		{"two issuers of the same tenants", "mode: jwt, jwt: [ { issuer: i, audience: a, keys: [ { algorithm: HS256, secret: " +
			strings.Repeat("s", 32) + " } ] }, { issuer: j, audience: a, keys: [ { algorithm: HS256, secret: " +
			strings.Repeat("s", 32) + " } ] } ]", "must have a prefix that does not begin like that of another issuer"},
		{"an issuer of a list", "mode: jwt, jwt: { issuers: [ { issuer: i, prefix: \"guest:\" } ] }", "auth.jwt.issuers[0].prefix"},
		{"a set with a password", "jwt: { jwks: \"ftp://u:" + hush + "@issuer.example/\" }",
			"auth.jwt.jwks: (hidden): must be"},
		{"an address for a prefix", "guest: { trusted_proxies: [ 10.1.2.3 ] }",
			`auth.guest.trusted_proxies[0]: "10.1.2.3": must be a prefix`},
		{"every address", "guest: { trusted_proxies: [ \"10.0.0.0/8\", \"0.0.0.0/0\" ] }",
			`auth.guest.trusted_proxies[1]: "0.0.0.0/0": must not be every address`},
		{"a mapped prefix", "guest: { trusted_proxies: [ \"::ffff:10.0.0.0/104\" ] }",
			"auth.guest.trusted_proxies[0]"},
		{"a prefix that is no list", "guest: { trusted_proxies: \"10.0.0.0/8\" }",
			"auth.guest.trusted_proxies: a text: must be a list of prefixes"},
		{"a tier that is none", "guest: { tier: \"a b\" }", `auth.guest.tier: "a b": must be 1 to 64`},
		{"no section", "jwt: true", "auth.jwt: true or false: must be a section"},
		{"leeway", "jwt: { leeway: 1h }", `auth.jwt.leeway: "1h": must be a duration from 0s to 5m`},
	} {
		_, err := config.Load(config.Sources{File: write(t, route+"auth: { "+c.section+" }\n")})
		var all []string
		for _, p := range problems(t, err) {
			all = append(all, p.String())
		}
		text := strings.Join(all, "\n")
		if !strings.Contains(text, c.want) || strings.Contains(text, hush) {
			t.Errorf("%s: %s\nwant %s", c.name, text, c.want)
		}
	}
	for name, key := range map[string]string{
		"a short RSA key": publicPEM(t, &weak.PublicKey),
		"a private key": string(pem.EncodeToMemory(&pem.Block{
			Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(weak),
		})),
	} {
		_, err := config.Load(config.Sources{File: write(t, route+`
auth:
  jwt:
    keys:
    - algorithm: RS256
      public_key: |`+indented(key)+"\n")})
		ps := problems(t, err)
		if len(ps) != 1 {
			t.Fatalf("%s has the problems %v, want one", name, ps)
		}
		queuetest.Compare(t, "the problem of "+name, queuetest.Only(ps[0], "Field", "Value"),
			shaper.Problem{Field: "auth.jwt.keys[0].public_key", Value: "(hidden)"})
	}
}

// With authentication the API may listen anywhere; without it, that needs a setting.
func TestPublicAPI(t *testing.T) {
	const public = route + "api: { listen: \"0.0.0.0:8080\", tls: off }\n"
	for section, wanted := range map[string]bool{
		"": false, "auth: { mode: none }": false, "auth: { mode: keys }": true,
		"auth: { mode: [guest] }": true,
	} {
		_, err := config.Load(config.Sources{File: write(t, public+section+"\n")})
		if (err == nil) != wanted {
			t.Errorf("%q: %v", section, err)
		}
	}
}
