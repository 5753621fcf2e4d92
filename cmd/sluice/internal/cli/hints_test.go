package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
)

// A failure that the user can repair has a hint at the flags of the command. Others have none.
func TestHints(t *testing.T) {
	answer := func(status int, kind string) error {
		return fmt.Errorf("read: %w", &client.Error{Problem: wire.Problem{
			Type: "urn:sluice:problem:" + kind, Status: status,
		}})
	}
	said := func(status int, kind, detail string) error {
		return &client.Error{Problem: wire.Problem{Type: "urn:sluice:problem:" + kind, Status: status, Detail: detail}}
	}
	const admin, api = "send the admin token; this is the admin listener", "this is the listener of the API"
	asClient := []string{"api", "api-key", "admin", "admin-token", "operator=false", "tenant"}
	operator := []string{"api", "api-key", "admin", "admin-token=secret", "operator=false", "tenant"}
	refused := fmt.Errorf("client: %w", &url.Error{
		Op: "Get", URL: "http://127.0.0.1:1", Err: syscall.ECONNREFUSED,
	})
	for _, c := range []struct {
		what  string
		err   error
		flags []string // NAME or NAME=VALUE
		want  string   // empty: none
	}{
		{"nothing listens", refused, []string{"api", "api-key"}, "--api (SLUICE_API)"},
		{"no admin listener", refused, []string{"admin", "admin-token"}, "--admin (SLUICE_ADMIN)"},
		{"Redis is no server of a client", syscall.ECONNREFUSED, nil, ""},
		{"http:// at TLS", fmt.Errorf("client: %w", client.ErrHTTPS), []string{"admin", "admin-token"}, "write https:// in --admin"},
		{"https:// at plain HTTP", &url.Error{Op: "Get", URL: "https://x", Err: errors.New("http: server gave HTTP response to HTTPS client")},
			[]string{"api"}, "write http:// in --api"},
		{"an unknown authority", &url.Error{Op: "Get", URL: "https://x", Err: x509.UnknownAuthorityError{}}, []string{"api"}, "--ca (SLUICE_CA)"},
		{"another name", &url.Error{Op: "Get", URL: "https://x", Err: x509.HostnameError{Certificate: &x509.Certificate{}}}, []string{"api"},
			"another host name"},
		{"no certificate", &url.Error{Op: "Get", URL: "https://x", Err: errors.New("remote error: tls: certificate required")}, []string{"api"},
			"--cert (SLUICE_CERT)"},
		{"no certificate, and no alert", &url.Error{Op: "Post", URL: "https://x", Err: syscall.EPIPE}, []string{"api", "cert"}, "--cert (SLUICE_CERT)"},
		{"a lost connection", &url.Error{Op: "Post", URL: "http://x", Err: syscall.EPIPE}, []string{"api", "cert"}, ""},
		{"another server", fmt.Errorf("client: %w", client.ErrNotSluice), []string{"api"},
			"Another program listens"},
		{"no key", answer(401, "unauthorized"), []string{"api", "api-key"}, "SLUICE_KEY"},
		{"no token", said(401, "unauthorized", admin), []string{"admin", "admin-token"}, "SLUICE_ADMIN_TOKEN"},
		{"no key at the admin listener", said(401, "unauthorized", admin), []string{"api", "api-key"},
			"This is the admin listener. Give --api (SLUICE_API)"},
		{"a method of the API at the admin listener", said(405, "method-not-allowed", admin), []string{"api", "api-key"},
			"This is the admin listener. Give --api (SLUICE_API)"},
		{"no token at the API", said(401, "unauthorized", "the request has no credential"), []string{"admin", "admin-token"},
			"This is the listener of the API. Give --admin (SLUICE_ADMIN)"},
		{"a path of the admin listener at the API", said(404, "not-found", api), []string{"admin", "admin-token"},
			"This is the listener of the API. Give --admin (SLUICE_ADMIN)"},
		{"a job found at the API", said(404, "unknown-job", "the tenant has no job with this id"),
			[]string{"admin", "admin-token"}, "This is the listener of the API. Give --admin (SLUICE_ADMIN)"},
		{"no credential for jobs", said(401, "unauthorized", "the request has no credential"), operator,
			"or as operator the token of the admin listener with --admin-token"},
		{"an operator at the API", said(404, "not-found", api), operator, "wrong listener"},
		{"another tenant's job", answer(404, "unknown-job"), asClient, "name the tenant with --tenant"},
		{"a job that the tenant has not", answer(404, "unknown-job"), append(asClient, "tenant=acme"),
			"sluice job list --tenant acme prints its jobs"},
		{"a job that no tenant has", answer(404, "unknown-job"), operator, "Check the id"},
		{"the other listener", answer(404, "not-found"), []string{"admin"}, "wrong listener"},
		{"a route that is not there", answer(404, "unknown-route"), []string{"api"}, "sluice route list"},
		{"no Redis", answer(503, "unavailable"), []string{"api"}, "/readyz say why"},
		{"a full queue", answer(429, "queue-full"), []string{"api"}, ""},
		{"a full queue that says when", &client.Error{Problem: wire.Problem{Status: 429}, RetryAfter: 19 * time.Minute},
			[]string{"api"}, "Try again in 19m0s."},
		{"anything else", errors.New("disk full"), []string{"api"}, ""},
	} {
		flags := map[string]string{}
		for _, flag := range c.flags {
			name, value, _ := strings.Cut(flag, "=")
			flags[name] = value
		}
		got := hint(c.err, flags)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
