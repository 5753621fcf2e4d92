package process_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/certtest"
	"github.com/7509e464/sluice/internal/config"
)

// syncedBuffer is a log that a test reads while it is written.
type syncedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// put replaces a file at once.
func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".next", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

// A certificate and its key are replaced one after the other, under load: no request fails, the
// former pair stays meanwhile, the log says so, and then new connections get the new certificate.
// Without a configuration file it is the same.
func TestRenewedCertificateUnderLoad(t *testing.T) {
	ca := certtest.New(t, "ca")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	cert, key := ca.Issue(t, certtest.Subject{Serial: 1})
	put(t, at("cert.pem"), cert)
	put(t, at("key.pem"), key)
	from := config.Sources{
		Environ: []string{"SLUICE_API_TLS_CERT=" + at("cert.pem"), "SLUICE_API_TLS_KEY=" + at("key.pem")},
		Flags:   map[string]string{"api.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0", "tenants.defaults.capacity": "1000000"},
		Routes:  []string{"default=http://127.0.0.1:9/"},
	}
	load := func() (config.Config, error) { return config.Load(from) }
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var log syncedBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	now := processtest.Launch(t, &process.Process{
		Config: cfg, Roles: process.Roles{API: true, Worker: true}, Embedded: true, Log: logger,
		Version: api.VersionInfo{Version: "(devel)", Commit: "unknown"}, Reloader: process.NewReloader("", cfg, load, logger),
	})
	base := "https://" + now.API.String()

	stop := make(chan struct{})
	var sending sync.WaitGroup
	var good atomic.Int64
	for n := range 4 {
		sending.Go(func() {
			tr := &http.Transport{TLSClientConfig: ca.Trust(), ForceAttemptHTTP2: n%2 == 0, DisableKeepAlives: n == 3, MaxConnsPerHost: 1}
			defer tr.CloseIdleConnections()
			c, err := client.New(base, "", &http.Client{Transport: tr})
			if err != nil {
				t.Error(err)
				return
			}
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := c.Submit(t.Context(), client.Submission{Tenant: "acme", Submission: wire.Submission{Type: "t", Payload: json.RawMessage("1")}})
				if err != nil {
					t.Error(err)
					return
				}
				good.Add(1)
			}
		})
	}
	shown := func() int64 {
		conn, err := tls.Dial("tcp", now.API.String(), ca.Trust())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	// until polls what a process does within 5 s of a change.
	until := func(what string, done func() bool) {
		for end := time.Now().Add(10 * time.Second); !done(); <-time.After(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within 10 s: %s; log:\n%s", what, log.String())
			}
			if serial := shown(); serial < 1 || serial > 2 {
				t.Fatalf("certificate %d", serial)
			}
		}
	}
	const refused = `problem="api.tls.cert: the files: must be a certificate and its key in PEM`
	cert, key = ca.Issue(t, certtest.Subject{Serial: 2})
	put(t, at("cert.pem"), cert)
	until("the mismatch is logged", func() bool { return strings.Contains(log.String(), refused) })
	if serial := shown(); serial != 1 {
		t.Errorf("certificate %d is shown beside another key", serial)
	}
	put(t, at("key.pem"), key)
	until("the new certificate", func() bool { return shown() == 2 })
	put(t, at("key.pem"), "broken")
	until("the broken key is logged", func() bool { return strings.Count(log.String(), refused) == 2 })
	if serial := shown(); serial != 2 {
		t.Errorf("certificate %d is shown after a broken file", serial)
	}
	close(stop)
	sending.Wait()
	t.Logf("%d submissions", good.Load())
	if n := strings.Count(log.String(), "the former settings stay in force"); n != 2 {
		t.Errorf("%d lines about files that do not fit:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "in force\" for=api.tls"); n != 2 {
		t.Errorf("%d lines about certificates:\n%s", n, log.String())
	}
}

// Certificates of clients name their tenants on the API and on listeners of forwarded requests. A
// certificate is no token for the admin listener.
func TestTenantsByCertificate(t *testing.T) {
	ca := certtest.New(t, "ca")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	cert, key := ca.Issue(t, certtest.Subject{})
	put(t, at("cert.pem"), cert)
	put(t, at("key.pem"), key)
	put(t, at("ca.pem"), ca.PEM)
	secured := map[string]any{"cert": at("cert.pem"), "key": at("key.pem"), "client_ca": at("ca.pem"), "client_auth": "optional"}
	up := make(chan http.Header, 9)
	upstream := upstreamOf(t, func(h http.Header) { up <- h })
	now := processtest.Start(t, map[string]any{
		"routes":  map[string]any{"f": map[string]any{"forward": upstream}},
		"auth":    map[string]any{"mode": []any{"cert", "keys"}, "cert": map[string]any{"tenant": "cn"}},
		"api":     map[string]any{"tls": secured},
		"admin":   map[string]any{"token": "0123456789abcdef", "tls": secured},
		"forward": []any{map[string]any{"listen": "127.0.0.1:0", "route": "f", "tls": secured}},
	})
	ask := func(c *tls.Config, method, url, body string, header ...string) (status int, answer string) {
		t.Helper()
		tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var text bytes.Buffer
		_, _ = text.ReadFrom(resp.Body)
		return resp.StatusCode, text.String()
	}
	acme := ca.Client(t, certtest.Subject{CN: "acme"})
	job := "https://" + now.API.String() + "/v1/jobs?state=queued"
	if status, text := ask(acme, "GET", job, ""); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	if status, text := ask(acme, "GET", job, "", "Sluice-Tenant", "shop"); status != http.StatusForbidden {
		t.Errorf("another tenant: %d %s", status, text)
	}
	if status, text := ask(ca.Trust(), "GET", job, ""); status != http.StatusUnauthorized {
		t.Errorf("without a certificate: %d %s", status, text)
	}
	if status, text := ask(ca.Client(t, certtest.Subject{CN: "guest:1"}), "GET", job, ""); status != http.StatusUnauthorized ||
		!strings.Contains(text, "certificate") {
		t.Errorf("a name that is refused: %d %s", status, text)
	}
	status, text := ask(acme, "GET", fmt.Sprintf("https://%s/x", now.Forward[0]), "", "Authorization", "Basic dTpw")
	if status != http.StatusTeapot {
		t.Fatalf("forwarded: %d %s", status, text)
	}
	if h := <-up; h.Get("Sluice-Tenant") != "acme" || h.Get("Authorization") != "Basic dTpw" {
		t.Errorf("the upstream got %v", h)
	}
	tenants := "https://" + now.Admin.String() + "/v1/tenants"
	if status, _ := ask(acme, "GET", tenants, ""); status != http.StatusUnauthorized {
		t.Errorf("a certificate without a token: %d", status)
	}
	if status, _ := ask(acme, "GET", tenants, "", "Authorization", "Bearer 0123456789abcdef"); status != http.StatusOK {
		t.Errorf("with the token: %d", status)
	}
}

// upstreamOf returns the URL of an upstream that reports the headers of its requests.
func upstreamOf(t *testing.T, got func(http.Header)) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got(r.Header)
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(s.Close)
	return s.URL
}
