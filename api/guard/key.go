package guard

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/7509e464/sluice/api/auth"
)

// KeyFunc returns the key under which a request is counted, and whether it is counted at all.
// Blocked keys are stored and listed as they are, so a key must not be a secret.
type KeyFunc func(*http.Request) (key string, counted bool)

// KeyByAddress counts by the client's address, such as 192.0.2.7. IPv6 counts by the /64, because
// one host has all of it. X-Forwarded-For is only trusted from the trusted proxies. It returns an
// error for a prefix that no proxy can have.
func KeyByAddress(trusted ...netip.Prefix) (KeyFunc, error) {
	address, err := auth.ClientAddress(trusted...)
	return KeyFunc(address), err
}

// KeyByNetwork is KeyByAddress, but IPv6 counts by the /48, which one customer of a provider may
// have.
func KeyByNetwork(trusted ...netip.Prefix) (KeyFunc, error) {
	network, err := auth.ClientNetwork(trusted...)
	return KeyFunc(network), err
}

// KeyByHeader counts by the digest of a header, such as X-API-Key, because it may be a secret. A
// request without the header is not counted; another guard must count those.
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

// KeyByCredential counts by tenant: that of an API key, the tenant claim of a token, or the address
// of a guest. A request that the authenticator refuses is not counted; the handler must answer it.
func KeyByCredential(a *auth.Authenticator) KeyFunc {
	return func(r *http.Request) (string, bool) {
		who, err := a.Authenticate(r)
		return who.Tenant, err == nil
	}
}

// KeyByPath counts by method and path, such as POST /login. Where paths contain ids, write a
// KeyFunc that uses the pattern; otherwise each path is a key of its own.
func KeyByPath(r *http.Request) (string, bool) { return r.Method + " " + r.URL.Path, true }

// KeyOf combines keys: requests share a key if they share all parts. Parts are escaped and joined,
// as in 192.0.2.7&POST+%2Flogin. A request that one part does not count is not counted.
func KeyOf(parts ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, bool) {
		keys := make([]string, len(parts))
		for i, part := range parts {
			var counted bool
			if keys[i], counted = part(r); !counted {
				return "", false
			}
		}
		return JoinKeys(keys), true
	}
}

// JoinKeys makes one key of several, so that different parts make different keys. A single key
// stays as it is.
func JoinKeys(keys []string) string {
	if len(keys) == 1 {
		return keys[0]
	}
	escaped := make([]string, len(keys))
	for i, key := range keys {
		escaped[i] = url.QueryEscape(key)
	}
	return strings.Join(escaped, "&")
}
