package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/worker"
)

// clientCertificate writes a certificate for clients and its key into a directory.
func clientCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "client.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
	write(t, filepath.Join(dir, "client.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// verifyInPython runs the page's function on a request of Sluice, as it came and changed.
func verifyInPython(t *testing.T, program, secret string, header http.Header, body []byte) {
	t.Helper()
	one := map[string]string{}
	for name := range header {
		one[name] = header.Get(name)
	}
	input, err := json.Marshal(map[string]any{"secret": secret, "headers": one, "body": string(body)})
	if err != nil {
		t.Fatal(err)
	}
	const cases = `
import json, sys
r, clock = json.load(sys.stdin), time.time
def check(case, want, secret=r["secret"], body=r["body"], at=0, **changed):
    headers = {**r["headers"], **{"Webhook-" + name.title(): value for name, value in changed.items()}}
    time.time = lambda: clock() + at
    if verify(secret, headers, body.encode()) != want:
        print(case)
check("as it came", True)
check("four minutes later", True, at=240)
check("behind another signature", True, signature="v1,AAAA " + r["headers"]["Webhook-Signature"])
check("another secret", False, secret="whsec_" + base64.b64encode(b"another secret of 32 bytes......").decode())
check("another body", False, body=r["body"] + " ")
check("another id", False, id="17")
check("six minutes later", False, at=360)
check("six minutes earlier", False, at=-360)
check("no signature", False, signature="")
check("no timestamp", False, timestamp="")
`
	run := exec.Command("python3", "-c", program+cases)
	run.Stdin = bytes.NewReader(input)
	if out, err := run.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("verify of the page is wrong: %v\n%s", err, out)
	}
}

// TestUpstreamsPage makes a request by each route of docs/upstreams.md, and checks what the
// upstream gets.
func TestUpstreamsPage(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../docs/upstreams.md")
	if err != nil {
		t.Fatal(err)
	}
	const signing = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	var got *http.Request // the last request
	var body []byte
	answer := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	upstream := httptest.NewServer(answer)
	defer upstream.Close()
	secured := httptest.NewUnstartedServer(answer)
	secured.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	secured.StartTLS()
	defer secured.Close()
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, secret, _ := r.BasicAuth(); id != "sluice" || secret != "s3cret" || r.FormValue("scope") != "orders" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"of-the-server","token_type":"Bearer","expires_in":600}`)
	}))
	defer tokens.Close()
	proxied := false
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxied = r.URL.IsAbs()
		answer(w, r)
	}))
	defer proxy.Close()

	verifier, err := webhooks.NewWebhook(signing)
	if err != nil {
		t.Fatal(err)
	}
	checks := map[string]func() bool{
		"partner": func() bool { return got.Header.Get("Authorization") == "Bearer tok" },
		"bearer":  func() bool { return got.Header.Get("Authorization") == "Bearer tok" },
		"apikey": func() bool {
			return got.Header.Get("X-Api-Key") == "k1" && got.Header.Get("X-Api-Version") == "2026-01"
		},
		"basic": func() bool {
			user, password, _ := got.BasicAuth()
			return user == "user" && password == "password"
		},
		"oauth": func() bool { return got.Header.Get("Authorization") == "Bearer of-the-server" },
		"mtls":  func() bool { return got.TLS != nil && len(got.TLS.PeerCertificates) == 1 },
		"signed": func() bool {
			verifyInPython(t, blocks(string(content), "python"), signing, got.Header, body)
			return verifier.Verify(body, got.Header) == nil
		},
		"proxied": func() bool { return proxied },
		"traced":  func() bool { return true }, // what jobs may set is checked at the intake
		"put": func() bool {
			return got.Method == http.MethodPut && got.RequestURI == "/v2/orders/17" && got.Header.Get("X-Api-Key") == "tok"
		},
	}
	dir := t.TempDir()
	clientCertificate(t, dir)
	write(t, filepath.Join(dir, "partner.key"), []byte("k1\n"))
	write(t, filepath.Join(dir, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secured.Certificate().Raw}))
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllSubmatch(content, -1) {
		lines := string(m[1])
		if !strings.Contains(lines, "routes:") {
			continue // a setting that concerns all routes
		}
		at := upstream.URL
		if strings.Contains(lines, "tls:") {
			at = secured.URL
		}
		lines = strings.NewReplacer("https://api.partner.example", at, "https://id.partner.example", tokens.URL,
			"http://proxy.internal:3128", proxy.URL).Replace(lines)
		path := filepath.Join(dir, "sluice.yaml")
		write(t, path, []byte(lines))
		cfg, err := config.Load(config.Sources{File: path, Environ: []string{
			"PARTNER_TOKEN=tok", "PARTNER_SECRET=s3cret", "PARTNER_SIGNING=" + signing,
			"PARTNER_BASIC=" + base64.StdEncoding.EncodeToString([]byte("user:password")),
		}})
		if err != nil || len(cfg.Routes) != 1 {
			t.Fatalf("%v in\n%s", err, m[1])
		}
		for name, route := range cfg.Routes {
			got = nil
			below := ""
			if route.Paths {
				below = "/17"
			}
			done, err := process.WorkerRoute(route).Try(t.Context(), worker.TrialRequest{Path: below, Payload: []byte(`{"qty":1}`)})
			switch check := checks[name]; {
			case err != nil || done.Status != http.StatusOK:
				t.Errorf("%s: %v %+v", name, err, done)
			case check == nil:
				t.Errorf("%s has no check", name)
			case string(body) != `{"qty":1}` || !check():
				t.Errorf("%s: the upstream got %s %s %v %q", name, got.Method, got.RequestURI, got.Header, body)
			}
			delete(checks, name)
		}
	}
	if len(checks) != 0 {
		t.Errorf("the page has no example of %v", checks)
	}
}
