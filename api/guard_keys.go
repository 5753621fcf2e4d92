package api

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/7509e464/sluice/api/auth"
)

// KeyFunc tells the key that a request is counted under, and whether it is counted at all. Keys
// that are blocked are stored and listed as they are, so a key must not be a secret.
type KeyFunc func(*http.Request) (key string, counted bool)

// KeyByAddress counts by the client's address, as in 192.0.2.7; of IPv6 by its /64, for a host has
// that to itself. X-Forwarded-For is believed of the trusted proxies alone. It fails on a prefix
// that no proxies can have.
func KeyByAddress(trusted ...netip.Prefix) (KeyFunc, error) {
	address, err := auth.ClientAddress(trusted...)
	return KeyFunc(address), err
}

// KeyByHeader counts by the digest of a header, such as X-API-Key, for it may be a secret. A
// request without it is not counted, so another guard must count those.
func KeyByHeader(name string) KeyFunc {
	return func(r *http.Request) (string, bool) {
		values := r.Header.Values(name)
		if len(values) == 0 {
			return "", false
		}
		sum := sha256.Sum256([]byte(strings.Join(values, "\x00")))
		return base64.RawURLEncoding.EncodeToString(sum[:16]), true
	}
}

// KeyByCredential counts by the tenant of an API key, or the tenant claim of a token, that the
// authenticator takes; and guests by their address where it takes guests. What it refuses is not
// counted: it is for the handler to answer.
func KeyByCredential(a *auth.Authenticator) KeyFunc {
	return func(r *http.Request) (string, bool) {
		who, err := a.Authenticate(r)
		return who.Tenant, err == nil
	}
}

// KeyByPath counts by method and path, such as POST /login. Where paths hold ids, count by a
// pattern with a KeyFunc of your own, or each path is a key.
func KeyByPath(r *http.Request) (string, bool) { return r.Method + " " + r.URL.Path, true }

// KeyOf counts by a combination: requests share a key if they share all of them. The parts are
// joined so that no two combinations are alike, as in 192.0.2.7&POST+%2Flogin. A request that one
// of them does not count is not counted.
func KeyOf(parts ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, bool) {
		keys := make([]string, len(parts))
		for i, part := range parts {
			var counted bool
			if keys[i], counted = part(r); !counted {
				return "", false
			}
		}
		return joinKeys(keys), true
	}
}

// joinKeys makes one key of several. One alone stays as it is.
func joinKeys(keys []string) string {
	if len(keys) == 1 {
		return keys[0]
	}
	escaped := make([]string, len(keys))
	for i, key := range keys {
		escaped[i] = url.QueryEscape(key)
	}
	return strings.Join(escaped, "&")
}
