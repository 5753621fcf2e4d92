package cli

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/internal/certtest"
)

// Commands reach a server whose authority only --ca knows, and show it their certificate. What went
// wrong otherwise has a hint.
func TestTLSFlags(t *testing.T) {
	ca := certtest.New(t, "ca")
	dir := t.TempDir()
	put := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := ca.Issue(t, certtest.Subject{})
	good := TLSFlags{put("ca.pem", ca.PEM), put("cert.pem", cert), put("key.pem", key)}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = nil
	s.TLS = ca.Client(t, certtest.Subject{})
	s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, s.TLS.RootCAs
	s.StartTLS()
	defer s.Close()
	plain := httptest.NewServer(s.Config.Handler)
	defer plain.Close()
	for _, c := range []struct {
		what, url string
		flags     TLSFlags
		want      string // in the hint; empty: it works
	}{
		{"good", s.URL, good, ""},
		{"plain", plain.URL, TLSFlags{}, ""},
		{"no authority", s.URL, TLSFlags{"", good.Cert, good.CertKey}, "--ca (SLUICE_CA)"},
		{"no certificate", s.URL, TLSFlags{good.CA, "", ""}, "--cert (SLUICE_CERT)"},
		{"another name", strings.Replace(s.URL, "127.0.0.1", "127.0.0.2", 1), good, "another host name"},
		{"http at TLS", strings.Replace(s.URL, "https:", "http:", 1), good, "write https://"},
		{"https at plain", strings.Replace(plain.URL, "http:", "https:", 1), good, "write http://"},
	} {
		if c.what == "another name" {
			l, err := tls.Listen("tcp", "127.0.0.2:0", s.TLS)
			if err != nil {
				t.Skip(err) // no such address on this system
			}
			go func() { _ = http.Serve(l, s.Config.Handler) }()
			t.Cleanup(func() { _ = l.Close() })
			c.url = "https://" + l.Addr().String()
		}
		remote, err := AdminFlags{adminAccess{Admin: c.url}, c.flags}.Connect(1)
		if err != nil {
			t.Fatal(err)
		}
		err = remote.Ready(t.Context())
		if got := hint(err, map[string]string{"admin": ""}); (err == nil) != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %v\n%s\nwant %q", c.what, err, got, c.want)
		}
		if c.what == "http at TLS" && !errors.Is(err, client.ErrHTTPS) {
			t.Error(err)
		}
	}
	for name, flags := range map[string]TLSFlags{
		"--ca: open none": {CA: "none"}, "--ca: ": {CA: good.CertKey}, "--cert and --cert-key: must be given together": {Cert: good.Cert},
		"--cert: must be a certificate and its key": {Cert: good.CA, CertKey: good.CertKey},
	} {
		var usage UsageError
		if _, err := flags.HTTPClient(1); !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%+v: %v, want %s", flags, err, name)
		}
	}
}

func TestBaseURL(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:8081":    "http://127.0.0.1:8081",
		"0.0.0.0:8081":      "http://127.0.0.1:8081",
		":8081":             "http://127.0.0.1:8081",
		"[::]:8081":         "http://127.0.0.1:8081",
		"localhost:1":       "http://localhost:1",
		"https://x.example": "https://x.example",
		"http://x:1/":       "http://x:1",
	} {
		if got := BaseURL(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
