package main

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/7509e464/sluice/api/client"
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
		return "That may be the wrong listener. Jobs are at --api (SLUICE_API), by default http://" + defaultAPI +
			"; tenants, keys and figures at --admin (SLUICE_ADMIN), by default http://" + defaultAdmin + "."
	}
	return ""
}

// invoked is how the program was called, for commands to paste: by its name, its path, or out of
// the sources.
func invoked(arg0 string) string {
	switch {
	case strings.Contains(arg0, "go-build"): // where go run puts it
		return "go run ./cmd/sluice"
	case strings.Contains(arg0, `\`): // Windows, whose shells quote in other ways
		return arg0
	case strings.Contains(arg0, "/"):
		return shellWord(arg0)
	}
	return "sluice"
}

// shellWord is the text as one word of a POSIX shell, for commands to paste.
func shellWord(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:@/+-"
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
