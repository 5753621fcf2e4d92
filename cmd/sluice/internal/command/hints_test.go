package command

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/wire"
)

// A failure that the user can repair has a hint at the flags of the command. Others have none.
func TestHints(t *testing.T) {
	answer := func(status int, kind string) error {
		return fmt.Errorf("read: %w", &client.Error{Problem: wire.Problem{
			Type: "urn:sluice:problem:" + kind, Status: status,
		}})
	}
	refused := fmt.Errorf("client: %w", &url.Error{
		Op: "Get", URL: "http://127.0.0.1:1", Err: syscall.ECONNREFUSED,
	})
	for _, c := range []struct {
		what  string
		err   error
		flags []string
		want  string // empty: none
	}{
		{"nothing listens", refused, []string{"api", "api-key"}, "--api (SLUICE_API)"},
		{"no admin listener", refused, []string{"admin", "admin-token"}, "--admin (SLUICE_ADMIN)"},
		{"Redis is no server of a client", syscall.ECONNREFUSED, nil, ""},
		{"another server", fmt.Errorf("client: %w", client.ErrNotSluice), []string{"api"},
			"Another program listens"},
		{"no key", answer(401, "unauthorized"), []string{"api", "api-key"}, "SLUICE_KEY"},
		{"no token", answer(401, "unauthorized"), []string{"admin", "admin-token"}, "SLUICE_ADMIN_TOKEN"},
		{"another tenant's job", answer(404, "unknown-job"), []string{"api", "tenant"}, "--tenant"},
		{"the other listener", answer(404, "not-found"), []string{"admin"}, "wrong listener"},
		{"a route that is not there", answer(404, "unknown-route"), []string{"api"}, ""},
		{"a full queue", answer(429, "queue-full"), []string{"api"}, ""},
		{"anything else", errors.New("disk full"), []string{"api"}, ""},
	} {
		got := hint(c.err, func(flag string) bool { return slices.Contains(c.flags, flag) })
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
