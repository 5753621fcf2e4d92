package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/config"
)

// certificate returns a certificate that ends at an instant, and its key.
func certificate(t *testing.T, end time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "client"}, NotAfter: end}
	signed, err := x509.CreateCertificate(rand.Reader, of, of, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// secrets writes files beside a configuration file, and returns the path for that one.
func secrets(t *testing.T, files map[string]string) (path string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "sluice.yaml")
}

// References stand in every secret. Files are relative to the configuration file, lose one line
// feed, and are watched.
func TestReferences(t *testing.T) {
	cert, key := certificate(t, time.Now().Add(365*24*time.Hour))
	path := secrets(t, map[string]string{
		"token": "0123456789abcdef\n", "two": "b\r\n", "key.pem": string(key), "cert.pem": string(cert), "empty": "\n",
	})
	file := `
admin: { token: "${file:token}" }
redis: { url: "redis://:${env:REDIS_PASSWORD}@127.0.0.1:6379" }
auth: { mode: jwt, jwt: { issuer: i, audience: a, keys: [ { algorithm: HS256, secret: "${env:LONG}" } ] } }
callbacks: { secrets: [ "${env:SIGNING}" ] }
routes:
  partner:
    url: "https://partner.example/${env:TOKEN}/orders"
    method: PUT
    secrets: [ "${env:SIGNING}" ]
    headers: { Authorization: "Bearer ${env:TOKEN}-${file:two}", X-Api-Version: "2026-01", X-Literal: "$${env:TOKEN} $x $$" }
    tls: { cert: cert.pem, key: key.pem, ca: cert.pem, server_name: partner.test }
    proxy: "http://u:hunter2@proxy.internal:3128"
    http2: false
  oauth:
    forward: "https://oauth.example/"
    oauth2: { token_url: "https://id.example/token", client_id: "${env:ID}", client_secret: "${env:TOKEN}", scopes: [a, b], audience: "orders" }
`
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	const signing = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	from := config.Sources{File: path, Environ: []string{
		"TOKEN=hunter2", "ID=17", "REDIS_PASSWORD=hunter2", "SIGNING=" + signing, "LONG=" + strings.Repeat("hunter2", 5),
	}}
	c, lines, err := config.Check(from)
	if err != nil {
		t.Fatal(err)
	}
	partner, oauth := c.Routes["partner"], c.Routes["oauth"]
	for what, pair := range map[string][2]any{
		"token":    {c.Admin.Token, "0123456789abcdef"},
		"redis":    {c.Redis.URL, "redis://:hunter2@127.0.0.1:6379"},
		"secrets":  {fmt.Sprint(c.Callbacks.Secrets, partner.Secrets), "[" + signing + "] [" + signing + "]"},
		"headers":  {fmt.Sprint(partner.Headers), "map[Authorization:Bearer hunter2-b X-Api-Version:2026-01 X-Literal:${env:TOKEN} $x $$]"},
		"url":      {partner.URL, "https://partner.example/hunter2/orders"},
		"shown":    {partner.Shown + " " + oauth.Shown, "https://partner.example/(hidden)/orders https://oauth.example/"},
		"method":   {partner.Method + " " + oauth.Method, "PUT "},
		"tls":      {partner.TLS.Cert == strings.TrimSpace(string(cert)) && partner.TLS.ServerName == "partner.test", true},
		"http2":    {fmt.Sprint(partner.HTTP2, oauth.HTTP2), "false true"},
		"oauth2":   {fmt.Sprint(oauth.OAuth2), "{https://id.example/token 17 hunter2 orders [a b]}"},
		"auth":     {fmt.Sprint(partner.Auth(), oauth.Auth()), "[certificate header signature] [oauth2]"},
		"of files": {len(c.Files), 4},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
	for _, line := range lines {
		if text := line.Value; strings.Contains(text, "hunter2") || strings.Contains(text, "MDEy") || strings.Contains(text, "2026-01") {
			t.Errorf("config check shows %s: %s", line.Key, text)
		}
	}
	if _, err := config.Load(from); err != nil || len(c.Notes) != 0 {
		t.Errorf("%v, notes %q", err, c.Notes)
	}
}

// A secret that everyone can read, and a certificate that has ended, are noted.
func TestNotesOnSecrets(t *testing.T) {
	cert, key := certificate(t, time.Now().Add(-time.Hour))
	path := secrets(t, map[string]string{"open": "x", "key": string(key), "cert": string(cert)})
	_ = os.Chmod(filepath.Join(filepath.Dir(path), "open"), 0o644)
	file := "routes: { a: { url: \"http://a.test\", headers: { X-A: \"${file:open}\", X-B: \"${file:open}\" }, tls: { cert: cert, key: key } } }"
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{File: path})
	if err != nil || len(c.Notes) != 2 || !strings.Contains(c.Notes[0], "read by everyone") || !strings.Contains(c.Notes[1], "has ended on") {
		t.Errorf("%v %q", err, c.Notes)
	}
}

// Costs that meet the default rate of jobs are noted, until somebody sets a rate.
// TestNotesOnIdleSettings: what has no effect is named, and what has some is not.
func TestNotesOnIdleSettings(t *testing.T) {
	const route, pooled = `routes: { a: { url: "http://127.0.0.1:9/" } }
`, `routes: { a: { url: "http://127.0.0.1:9/", rate: 5/s } }
`
	for file, want := range map[string]string{
		pooled + `tiers: { gold: { weight: 4 } }
tenants: { defaults: { routes: { a: { weight: 7 } } } }`: "tenants.defaults.routes.a.weight outranks tiers.gold.weight, which is for all routes; " +
			"tiers.gold.routes.a.weight would not be outranked",
		pooled + `tiers: { gold: { rate: 4/s }, silver: { rate: 2/s } }
tenants: { defaults: { routes: { a: { rate: 1/s } } }, x: { rate: 2/s } }`: "tenants.defaults.routes.a.rate outranks tenants.x.rate (and 2 more), " +
			"which is for all routes; tenants.x.routes.a.rate would not be outranked",
		pooled + `tiers: { gold: { weight: 4, routes: { a: { weight: 9 } } } }
tenants: { defaults: { weight: 3, routes: { a: { weight: 7 } } } }`: "",
		route + `tenants: { x: { weight: 4 } }`:                          "tenants.x.weight divides nothing: no route has a rate or is in a pool",
		route + `tenants: { x: { reserve: 4/s }, y: { reserve: 4/s } }`:  "tenants.x.reserve (and 1 more) divides nothing: no route has a rate or is in a pool",
		pooled + `tenants: { x: { weight: 4, reserve: 1/s } }`:           "",
		route + `tenants: { defaults: { rate: 5/s }, x: { rate: 4/s } }`: "",
	} {
		path := filepath.Join(t.TempDir(), "sluice.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Sources{File: path})
		if err != nil || strings.Join(c.Notes, "\n") != want {
			t.Errorf("%s: %v, notes %q, want %q", file, err, c.Notes, want)
		}
	}
}

func TestNotesOnCosts(t *testing.T) {
	const route = "routes: { model: { forward: \"http://a.test\", cost_from: /usage/total_tokens } }\n"
	for more, want := range map[string]int{
		"": 1, "tenants: { defaults: { capacity: 5 } }": 1, "tenants: { defaults: { rate: 10/s } }": 0,
		"tiers: { gold: { rate: 9/s } }": 0, "tenants: { defaults: { routes: { model: { rate: 9/s } } } }": 0,
	} {
		path := filepath.Join(t.TempDir(), "sluice.yaml")
		if err := os.WriteFile(path, []byte(route+more), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Sources{File: path})
		if err != nil || len(c.Notes) != want || want == 1 && !strings.Contains(c.Notes[0], "may use 10/s of these costs") {
			t.Errorf("%s: %v, notes %q", more, err, c.Notes)
		}
	}
}

// A mistake names its setting and the rule, and never a value.
func TestMistakesOfCalls(t *testing.T) {
	cert, key := certificate(t, time.Now().Add(time.Hour))
	_, other := certificate(t, time.Now().Add(time.Hour))
	path := secrets(t, map[string]string{
		"empty": "\n", "lines": "hunter2\nhunter2", "cert": string(cert), "key": string(key), "other": string(other), "nonsense": "hunter2",
	})
	const url = `url: "http://a.test"`
	for route, want := range map[string]string{
		url + `, headers: { X-A: "${env:NOWHERE}" }`:                "routes.a.headers.X-A: ${env:NOWHERE}: must name a variable of the environment that is set and not empty",
		url + `, headers: { X-A: "${file:nowhere}" }`:               "routes.a.headers.X-A: ${file:nowhere}: must name a file that can be read: no such file or directory",
		url + `, headers: { X-A: "${file:empty}" }`:                 "routes.a.headers.X-A: ${file:empty}: must name a file that is not empty",
		url + `, headers: { X-A: "${file:lines}" }`:                 "routes.a.headers.X-A: (hidden): must have no line breaks",
		url + `, headers: { X-A: "${vault:x}hunter2" }`:             "routes.a.headers.X-A: a reference: must be ${env:NAME} or ${file:PATH}",
		url + `, headers: { X-A: "${hunter2" }`:                     "routes.a.headers.X-A: a reference: must be",
		url + `, headers: { X-A: 17 }`:                              "routes.a.headers.X-A: a number: must be a text: put it in quotes",
		url + `, headers: { X-A: "1", x_a: "2" }`:                   "routes.a.headers.x_a: the name: must differ from X-A",
		url + `, headers: { Host: hunter2 }`:                        "routes.a.headers.Host: the name: must be another header",
		url + `, headers: { Sluice-Tenant: hunter2 }`:               "routes.a.headers.Sluice-Tenant: the name: must be another",
		url + `, headers: { "X Y": hunter2 }`:                       `routes.a.headers."X Y": the name: must be the name of a header`,
		url + `, headers: hunter2`:                                  "routes.a.headers: a text: must be a section of headers",
		url + `, method: post`:                                      `routes.a.method: "post": must be one of POST, PUT, PATCH, DELETE, GET`,
		`forward: "http://a.test", method: PUT`:                     `routes.a.method: "PUT": must not be set together with forward`,
		`asynq: { queue: q }, headers: { A: b }`:                    "routes.a.headers: a section: must not be set together with asynq",
		url + `, oauth2: { token_url: "http://t.test" }`:            "routes.a.oauth2.client_id: nothing: must be set",
		url + `, oauth2: { token_url: "t.test/x" }`:                 "routes.a.oauth2.token_url: \"t.test/x\"",
		url + `, oauth2: { scopes: [ "a b" ] }`:                     `routes.a.oauth2.scopes[0]: "a b": must be visible ASCII`,
		url + `, tls: { cert: cert }`:                               "routes.a.tls: a section: must have both cert and key",
		url + `, tls: { cert: cert, key: other }`:                   "routes.a.tls.cert: the files: must be a certificate and its key in PEM",
		url + `, tls: { ca: nonsense }`:                             "routes.a.tls.ca: the file: must have a certificate in PEM",
		url + `, tls: { ca: nowhere }`:                              `routes.a.tls.ca: "nowhere": must name a file that can be read`,
		url + `, tls: { verify: false }`:                            "routes.a.tls.verify: unknown key",
		url + `, proxy: "socks5://u:hunter2@p"`:                     "routes.a.proxy: (hidden): must be none, env or the http:// URL",
		`url: "https://${env:SET}.test/x"`:                          "routes.a.url: https://(hidden).test/x: must have no reference in its host",
		url + `, tls: { key: "-----BEGIN\nhunter2" }`:               "routes.a.tls.key: (hidden): must name a file",
		url + `, http2: maybe`:                                      "routes.a.http2: \"maybe\": must be true or false",
		`url: "http://u:p@a.test", headers: { Authorization: "x" }`: "routes.a: headers and the user in url: must have one that sets the header Authorization",
		url + `, secrets: [ "${env:NOWHERE}" ]`:                     "routes.a.secrets[0]: ${env:NOWHERE}: must name a variable",
		url + `}, b: { url: "http://b.test", oauth2: { token_url: "http://t.test", client_id: c, client_secret: "${env:SET}" }, headers: { authorization: x }`: "routes.b: headers and oauth2: must have one",
	} {
		if err := os.WriteFile(path, []byte("routes: { a: { "+route+" } }"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Sources{File: path, Environ: []string{"SET=hunter2"}})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(strings.ReplaceAll(err.Error(), want, ""), "hunter2") {
			t.Errorf("%s:\n%v\nwant %s", route, err, want)
		}
		if strings.Contains(route, "file:") && !slices.ContainsFunc(c.Files, filepath.IsAbs) {
			t.Errorf("%s: the file is not watched: %q", route, c.Files)
		}
	}
}
