package cli

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/7509e464/sluice/api/client"
)

// isCause reports whether an error of this type is among the causes of err.
func isCause[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

// hint returns the next step after a failure of a client command, empty if the failure needs none.
// flags are those that the command has, with their values.
func hint(err error, flags map[string]string) string {
	has := func(flag string) bool {
		_, is := flags[flag]
		return is
	}
	at, token := "--api (SLUICE_API)",
		"Give the API key or token with --api-key (SLUICE_KEY). sluice key create TENANT creates a key."
	switch {
	case has("operator"):
		at, token = "--api (SLUICE_API), or as operator with --admin (SLUICE_ADMIN)",
			"Give the API key or token with --api-key (SLUICE_KEY), or as operator the token of the admin listener "+
				"with --admin-token (SLUICE_ADMIN_TOKEN)."
	case has("admin-token"):
		at, token = "--admin (SLUICE_ADMIN)",
			"Give the token with --admin-token (SLUICE_ADMIN_TOKEN). It is that of an operator, or the "+
				"server's setting admin.token or its file admin.token_file."
	case has("admin"):
		at = "--admin"
	}
	var call *url.Error
	var name *net.DNSError
	var answer *client.Error
	switch {
	case errors.As(err, &call) && errors.Is(err, syscall.ECONNREFUSED):
		return "No server listens at this address. Start one with sluice dev or sluice serve, or give its " +
			"address with " + at + "."
	case errors.As(err, &call) && errors.As(err, &name):
		return "The host name is unknown. Give the address of the server with " + at +
			", such as http://127.0.0.1:8080."
	case errors.As(err, &call) && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "The server speaks plain HTTP: write http:// in " + at + "."
	case errors.Is(err, client.ErrHTTPS):
		return "The server speaks TLS: write https:// in " + at + "."
	case isCause[x509.UnknownAuthorityError](err):
		return "The authority of the server's certificate is unknown here: give its file with --ca (SLUICE_CA)."
	case isCause[x509.HostnameError](err):
		return "The server's certificate is for another host name: write a name that it has in " + at + "."
	// Instead of the alert of the server, a client may see only that the connection has ended.
	case errors.As(err, &call) && (strings.Contains(err.Error(), "remote error: tls:") || strings.HasPrefix(call.URL, "https:") &&
		flags["cert"] == "" && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET))):
		return "The server closed the connection in the handshake of TLS. Give a certificate that it accepts with " +
			"--cert (SLUICE_CERT) and --cert-key (SLUICE_CERT_KEY)."
	case errors.Is(err, client.ErrNotSluice):
		return "Another program listens at this address. Give the address of the server with " + at + "."
	case !errors.As(err, &answer):
		return ""
	}
	atAdmin := strings.Contains(answer.Detail, "this is the admin listener")
	atAPI := strings.Contains(answer.Detail, "this is the listener of the API") ||
		answer.Kind() == "unauthorized" && !atAdmin || // which is the admin listener's, too, and says so
		answer.Kind() == "unknown-job" && strings.HasPrefix(answer.Detail, "the tenant has no job") && !has("tenant")
	switch {
	case atAdmin && !has("admin"):
		return "This is the admin listener. Give --api (SLUICE_API) the address of api.listen, by default http://" +
			DefaultAPI + "."
	case atAPI && has("admin") && !has("operator"):
		return "This is the listener of the API. Give --admin (SLUICE_ADMIN) the address of admin.listen, by default " +
			"http://" + DefaultAdmin + "."
	case answer.Status == http.StatusUnauthorized:
		return token
	case answer.Kind() == "unknown-tenant" && has("create"):
		return "Check the name: sluice tenant list prints all tenants. --create creates a tenant before " +
			"its first job."
	case answer.Kind() == "unknown-tenant":
		return "Check the name: sluice tenant list prints all tenants."
	case answer.Kind() == "unknown-route":
		return "Check the name: sluice route list prints the routes."
	case answer.Status == http.StatusTooManyRequests && answer.RetryAfter > 0:
		return "Try again in " + answer.RetryAfter.String() + "."
	case answer.Kind() == "unavailable":
		return "The server's log and its /readyz say why. docs/repair.md, \"Redis does not answer\", has what to do."
	case answer.Kind() == "unknown-pool":
		return "Check the name: sluice pool list prints the pools, which the configuration file of the server declares."
	case answer.Kind() == "unknown-job" && flags["tenant"] != "":
		return "Check the id, the tenant and how long ago the job ended: sluice job list --tenant " +
			Plain(flags["tenant"]) + " prints its jobs. An operator finds a job of any tenant by sluice job find ID."
	case answer.Kind() == "unknown-job" && has("operator") && flags["operator"] == "false" && flags["admin-token"] == "":
		return "Only its own tenant can read a job: name the tenant with --tenant. sluice job find ID " +
			"needs no tenant."
	case answer.Kind() == "unknown-job" && has("tenant"):
		return "Check the id and how long ago the job ended: sluice job list prints jobs."
	case answer.Status == http.StatusNotFound && (answer.Kind() == "not-found" || answer.Kind() == ""):
		return "This may be the wrong listener. Jobs are at --api (SLUICE_API), by default http://" +
			DefaultAPI +
			". Tenants, keys and figures are at --admin (SLUICE_ADMIN), by default http://" + DefaultAdmin + "."
	}
	return ""
}
