package config_test

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/certtest"
	"github.com/7509e464/sluice/internal/config"
)

// oldForm returns a key in another form of PEM.
func oldForm(t *testing.T, key string) string {
	t.Helper()
	block, _ := pem.Decode([]byte(key))
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(private.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}))
}

// Each listener has its own certificate. A listener beyond loopback without one must say so.
func TestListenersTLS(t *testing.T) {
	ca := certtest.New(t, "ca")
	cert, key := ca.Issue(t, certtest.Subject{End: time.Now().AddDate(1, 0, 0)})
	other, _ := ca.Issue(t, certtest.Subject{})
	soon, soonKey := ca.Issue(t, certtest.Subject{})
	path := secrets(t, map[string]string{
		"cert.pem": cert, "key.pem": key, "ca.pem": ca.PEM, "other.pem": other, "soon.pem": soon, "soon.key": soonKey,
	})
	load := func(text string) (config.Config, string) {
		if err := os.WriteFile(path, []byte("routes: { default: { url: \"http://x/\" }, f: { forward: \"http://x/\" } }\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Sources{File: path})
		return c, fmt.Sprint(err)
	}
	c, problem := load(`
api:     { listen: ":8080", allow_public: true, tls: { cert: cert.pem, key: key.pem, client_ca: ca.pem } }
admin:   { listen: ":8081", token: 0123456789abcdef, tls: { cert: cert.pem, key: key.pem, min_version: 1.3 } }
metrics: { listen: ":8082", tls: off }
forward: [ { listen: ":8083", route: f, tls: { cert: cert.pem, key: key.pem, client_ca: ca.pem, client_auth: optional } },
  { listen: ":8084", route: f, tls: off } ]
`)
	if problem != "<nil>" {
		t.Fatal(problem)
	}
	content := func(text string) string { return strings.TrimSuffix(text, "\n") }
	secured := config.ListenerTLS{Cert: content(cert), Key: content(key), ClientCA: content(ca.PEM), ClientAuth: "require", MinVersion: "1.2"}
	want := map[string]*config.ListenerTLS{"api": &secured, "metrics": {Off: true}, "forward[1]": {Off: true}}
	one, two := secured, secured
	one.ClientCA, one.ClientAuth, one.MinVersion = "", "", "1.3"
	two.ClientAuth = "optional"
	want["admin"], want["forward[0]"] = &one, &two
	if diff := cmp.Diff(want, c.Listeners()); diff != "" {
		t.Error(diff)
	}
	if len(c.Files) != 3 {
		t.Errorf("watched: %q", c.Files)
	}

	const pair = "cert: cert.pem, key: key.pem"
	for text, want := range map[string]string{
		`api: { listen: ":8080", allow_public: true }`: `api.listen: ":8080": must be a loopback address without TLS: write ` +
			`tls: { cert: FILE, key: FILE } in api, or tls: off where a proxy ends TLS or the network is trusted ` +
			`(or SLUICE_API_TLS_OFF=true, or --api-tls-off)`,
		`admin: { listen: "10.0.0.1:1", token: 0123456789abcdef }`: "SLUICE_ADMIN_TLS_OFF=true",
		`metrics: { listen: "[::]:9464" }`:                         "SLUICE_METRICS_TLS_OFF=true",
		`forward: [ { listen: ":1", route: f } ]
api: { allow_public: true }`: `forward[0].listen: ":1": must be a loopback address without TLS`,
		"api: { tls: on }":    "api.tls: a text: must be off, or a section",
		"api: { tls: false }": "api.tls: true or false: must be off, or a section",
		`forward: [ { listen: "127.0.0.1:1", route: f, tls: [] } ]`:                                  "forward[0].tls: a list: must be off, or a section",
		"api: { tls: { cert: cert.pem } }":                                                           "api.tls: a section: must have both cert and key",
		"api: { tls: { min_version: 1.3 } }":                                                         "api.tls: a section: must have both cert and key",
		"api: { tls: { min_version: 1.1, " + pair + " } }":                                           "api.tls.min_version: 1.1: must be one of 1.2, 1.3",
		"api: { tls: { cert: none.pem, key: key.pem } }":                                             `api.tls.cert: "none.pem": must name a file that can be read`,
		"api: { tls: { cert: other.pem, key: key.pem } }":                                            "api.tls.cert: the files: must be a certificate and its key in PEM",
		"api: { tls: { off: true, " + pair + " } }":                                                  "api.tls.off: true: must not be set beside",
		"api: { tls: { client_auth: require, " + pair + " } }":                                       "api.tls.client_auth: require: needs client_ca",
		"api: { tls: { client_auth: maybe, " + pair + ", client_ca: ca.pem}}":                        "api.tls.client_auth: \"maybe\": must be one of require, optional",
		"api: { tls: { client_ca: key.pem, " + pair + " } }":                                         "api.tls.client_ca: the file: must have a certificate",
		"api: { tls: { client_ca: \"\", " + pair + " } }":                                            "api.tls.client_ca: \"\": must be the path of a file with certificates in PEM; to leave it not set, leave it out",
		"forward: [ { listen: \"127.0.0.1:1\", route: f, tls: { client_ca: \"\", " + pair + " } } ]": "forward[0].tls.client_ca: \"\": must be",
		"codec: { key_file: \"\" }":                                                                  "codec.key_file: \"\": must be the path of a file",
		"codec: { key_file: nowhere.key }":                                                           "must name a file that can be read: no such file or directory; sluice codec new-key --file makes one",
		"codec: { key_file: \"${file:codec.key}\" }":                                                 "secrets, and in URLs and headers of routes",
		"codec: { command: \"\" }":                                                                   "codec.command: \"\": must be the path of a program",
		"auth: { mode: cert }":                                                                       "api.tls.client_ca: nothing: must be set if auth.mode has cert",
		"auth: { mode: [keys, cert] }\napi: { tls: { client_ca: ca.pem, " + pair + " } }\nforward: [ { listen: \"127.0.0.1:1\", route: f } ]": "forward[0].tls.client_ca: nothing",
		"auth: { cert: { tenant: dns } }":                                   "auth.cert.tenant: \"dns\": must be one of san-uri, cn",
		"admin: { allow: [10.0.0.0/8, nobody] }":                            "admin.allow: \"10.0.0.0/8,nobody\": must be networks or addresses",
		"admin: { allow: [1] }":                                             "admin.allow: a list: must be networks",
		"admin: { oidc: { issuer: \"http://id.example\" } }":                "admin.oidc.issuer: \"http://id.example\": must be an https:// URL",
		"admin: { oidc: { issuer: \"https://id.example\" } }":               "admin.oidc.client_id: nothing: must be set beside admin.oidc.issuer",
		"admin: { oidc: { issuer: \"https://id.example\", client_id: i } }": "admin.public_url: nothing: must be set beside admin.oidc.issuer",
		"admin: { oidc: { client_id: i } }":                                 "admin.oidc.issuer: nothing: must be set",
		"admin: { oidc: { scopes: [\"a b\"] } }":                            "admin.oidc.scopes: \"a b\": must be scopes of visible ASCII",
		"admin: { oidc: { admins: [[root]] } }":                             "admin.oidc.admins: a list: must be names of groups",
		"admin: { public_url: \"https://x/y\" }":                            "admin.public_url: \"https://x/y\": must be an http:// or https:// URL",
	} {
		c, got := load(text)
		if !strings.Contains(got, want) {
			t.Errorf("%s\n%s\nwant %s", text, got, want)
		}
		if strings.Contains(got, "http://$") {
			t.Errorf("%s\n%s\nmisleads", text, got)
		}
		if strings.Contains(got, "api.tls") && c.API.TLS.On() && !strings.Contains(got, "one of") && !strings.Contains(got, "leave it out") {
			t.Errorf("%s: a mistake has contents", text)
		}
	}
	c, problem = load("admin: { allow: [10.0.0.0/8, 192.0.2.7, \"2001:db8::/32\"] }\napi: { tls: { cert: soon.pem, key: soon.key } }")
	if got := fmt.Sprint(c.Admin.Networks()); got != "[10.0.0.0/8 192.0.2.7/32 2001:db8::/32]" {
		t.Error(got, problem)
	}
	if got := strings.Join(c.Notes, " "); !strings.Contains(got, "the certificate of api.tls.cert ends on") {
		t.Errorf("notes %q", got)
	}
}

// Files of listeners are renewed one by one: a mistake in one of them, or elsewhere, keeps none of
// the others.
func TestRenew(t *testing.T) {
	in := func(certs ...string) (c config.Config) {
		for _, cert := range certs {
			of := config.ListenerTLS{Cert: cert, Key: "key of " + cert, MinVersion: "1.2"}
			if cert == "" {
				of = config.ListenerTLS{}
			}
			c.Forward = append(c.Forward, config.ForwardListener{TLS: of})
		}
		return c
	}
	now := in("a", "b", "", "d")
	if changed := now.Renew(in("a", "", "c", "e")); strings.Join(changed, " ") != "forward[3]" {
		t.Errorf("changed: %v", changed)
	}
	if diff := cmp.Diff(in("a", "b", "", "e"), now); diff != "" {
		t.Error(diff)
	}
	other := in("a2", "b2", "", "e2")
	other.Forward[0].TLS.MinVersion = "1.3"
	other.Forward[1].TLS.ClientCA = "ca"
	if changed := now.Renew(other); strings.Join(changed, " ") != "forward[3]" {
		t.Errorf("without a restart: %v", changed)
	}
}

// tlsFiles writes files for TestEverySettingEverySource, and returns the variables of a listener
// with TLS, and other values of its settings.
func tlsFiles(t *testing.T, section string) (environ []string, others map[string]string) {
	t.Helper()
	ca := certtest.New(t, "ca")
	cert, key := ca.Issue(t, certtest.Subject{})
	dir := filepath.Dir(secrets(t, map[string]string{"a.pem": cert, "b.pem": cert + ca.PEM, "a.key": key, "b.key": oldForm(t, key)}))
	at := func(name string) string { return filepath.Join(dir, name) }
	for setting, file := range map[string]string{"cert": "a.pem", "key": "a.key", "client_ca": "a.pem"} {
		environ = append(environ, config.Setting{Key: section + ".tls." + setting}.Env()+"="+at(file))
	}
	return environ, map[string]string{
		"cert": at("b.pem"), "key": at("b.key"), "client_ca": at("b.pem"), "client_auth": "optional", "min_version": "1.3",
	}
}
