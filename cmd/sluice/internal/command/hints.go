package command

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/cmd/sluice/internal/access"
)

// hint says what to do next about the failure of a client command, empty if the failure says it
// all. has tells the flags of the command.
func hint(err error, has func(flag string) bool) string {
	at, token := "--api (SLUICE_API)", "The API key or token is the one of --api-key, else of SLUICE_KEY; sluice key create TENANT makes a key."
	switch {
	case has("admin-token"):
		at, token = "--admin (SLUICE_ADMIN)", "The token goes into --admin-token (SLUICE_ADMIN_TOKEN); it is the setting admin.token of the server."
	case has("admin"):
		at = "--admin"
	}
	var call *url.Error
	var name *net.DNSError
	var answer *client.Error
	switch {
	case errors.As(err, &call) && errors.Is(err, syscall.ECONNREFUSED):
		return "Nothing listens there. Start Sluice with sluice dev or sluice serve, or say where it is with " + at + "."
	case errors.As(err, &call) && errors.As(err, &name):
		return "The name of the host is not known. Say where Sluice is with " + at + ", such as http://127.0.0.1:8080."
	case errors.As(err, &call) && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "Plain HTTP is spoken there: write http:// in " + at + "."
	case errors.Is(err, client.ErrNotSluice):
		return "Something else listens there. Say where Sluice is with " + at + "."
	case !errors.As(err, &answer):
		return ""
	}
	switch {
	case answer.Status == http.StatusUnauthorized:
		return token
	case answer.Kind() == "unknown-tenant" && has("create"):
		return "Is the name right? sluice tenant list has them all. To make a tenant before its first job: --create."
	case answer.Kind() == "unknown-tenant":
		return "Is the name right? sluice tenant list has them all."
	case answer.Kind() == "unknown-job" && has("tenant"):
		return "Only its own tenant can read a job: name that with --tenant. sluice job find needs no tenant."
	case answer.Status == http.StatusNotFound && (answer.Kind() == "not-found" || answer.Kind() == ""):
		return "That may be the wrong listener. Jobs are at --api (SLUICE_API), by default http://" + access.DefaultAPI +
			"; tenants, keys and figures at --admin (SLUICE_ADMIN), by default http://" + access.DefaultAdmin + "."
	}
	return ""
}
