package auth

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/7509e464/sluice/queue"
)

var otherSecret = []byte(strings.Repeat("o", 32))

// twoIssuers are issuers with equal key ids and different secrets.
func twoIssuers(t *testing.T) []JWTConfig {
	t.Helper()
	a, b := hmacOnly(t), hmacOnly(t)
	a.Keys = []TokenKey{must[TokenKey](t)(NewSecretKey("k", string(hmacSecret)))}
	b.Keys = []TokenKey{must[TokenKey](t)(NewSecretKey("k", string(otherSecret)))}
	b.Issuer, b.Audience, b.Prefix, b.TenantClaim = "https://other.example/", "other", "partner:", "org"
	return []JWTConfig{a, b}
}

// TestIssuers: the keys and settings of an issuer count for its tokens alone.
func TestIssuers(t *testing.T) {
	a := gate(t, Config{Modes: []Mode{JWT}, Issuers: twoIssuers(t)})
	kid := map[string]any{"kid": "k"}
	others := map[string]any{"iss": "https://other.example/", "aud": "other", "org": "x"}
	both := func(with map[string]any) map[string]any { m := maps.Clone(others); maps.Copy(m, with); return m }
	for _, c := range []struct {
		name   string
		key    []byte
		claims map[string]any
		want   string
	}{
		{"the first", hmacSecret, nil, "member:u-17"},
		{"the second", otherSecret, others, "partner:x"},
		{"the second, by a key of the first", hmacSecret, others, "refused: token"},
		{"the first, by a key of the second", otherSecret, nil, "refused: token"},
		{"the audience of the other", otherSecret, both(map[string]any{"aud": audience}), "refused: token-audience"},
		{"no tenant", otherSecret, both(map[string]any{"org": nil}), "refused: token-tenant"},
		{"an unknown issuer", hmacSecret, map[string]any{"iss": "https://third.example/"}, "refused: token-audience"},
		{"an unknown issuer, by a key of the second", otherSecret, both(map[string]any{"iss": "x"}), "refused: token"},
		{"two issuers", hmacSecret, map[string]any{"iss": []string{issuer, "https://other.example/"}}, "refused: token"},
		{"a tenant of the first", otherSecret, both(map[string]any{"org": "member:u-17"}), "partner:member:u-17"},
	} {
		if got := outcome(t, a, token(sign(t, HS256, c.key, kid, claims(c.claims)))); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	for _, kid := range []string{"../k", "/etc/passwd", "k\x00", strings.Repeat("k", 4000)} {
		if got := outcome(t, a, token(sign(t, HS256, hmacSecret, map[string]any{"kid": kid}, claims()))); got != "refused: token" {
			t.Errorf("kid %.20q: %s", kid, got)
		}
	}
	none := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims(claims(others)))
	text, _ := none.SignedString(jwt.UnsafeAllowNoneSignatureType)
	if got := outcome(t, a, token(text)); got != "refused: token" {
		t.Errorf("alg none: %s", got)
	}
}

// TestIssuersNameDifferentTenants: unless both say so, two issuers cannot name one tenant.
func TestIssuersNameDifferentTenants(t *testing.T) {
	for name, change := range map[string]func(a, b *JWTConfig){
		"equal prefixes":     func(a, b *JWTConfig) { b.Prefix = "" },
		"one within another": func(a, b *JWTConfig) { b.Prefix = "member:x:" },
		"one shares":         func(a, b *JWTConfig) { b.Prefix, b.Shared = "", true },
		"one issuer twice":   func(a, b *JWTConfig) { b.Issuer = a.Issuer },
		"guests":             func(a, b *JWTConfig) { b.Prefix = "guest:" },
		"no colon":           func(a, b *JWTConfig) { b.Prefix = "partner" },
	} {
		all := twoIssuers(t)
		change(&all[0], &all[1])
		if _, err := New(t.Context(), Config{Modes: []Mode{JWT}, Issuers: all}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	all := twoIssuers(t)
	all[1].Prefix, all[0].Shared, all[1].Shared = "member:", true, true
	gate(t, Config{Modes: []Mode{JWT}, Issuers: all})
}

// TestScopesOfTokens: scope and scp name scopes; a token without any has the default, unless the
// issuer requires them.
func TestScopesOfTokens(t *testing.T) {
	for _, required := range []bool{false, true} {
		cfg := hmacOnly(t)
		cfg.Scoped = required
		a := gate(t, Config{Modes: []Mode{JWT}, JWT: cfg})
		for _, c := range []struct {
			claims map[string]any
			want   []queue.Scope
		}{
			{map[string]any{"scope": "openid read sluice:submit"}, []queue.Scope{queue.ScopeSubmit, queue.ScopeRead}},
			{map[string]any{"scp": []string{"cancel", "x"}}, []queue.Scope{queue.ScopeCancel}},
			{map[string]any{"scp": "forward"}, []queue.Scope{queue.ScopeForward}},
			{map[string]any{"scope": "openid"}, nil}, {nil, nil}, {map[string]any{"scope": "SUBMIT,read"}, []queue.Scope{queue.ScopeSubmit, queue.ScopeRead}},
			{map[string]any{"scp": []any{"submit read"}}, []queue.Scope{queue.ScopeSubmit, queue.ScopeRead}},
			// What is no text allows nothing.
			{map[string]any{"scope": 7}, []queue.Scope{}}, {map[string]any{"scp": []any{7}}, []queue.Scope{}}, {map[string]any{"scope": map[string]any{"read": 1}}, []queue.Scope{}},
		} {
			want := c.want
			if want == nil && !required {
				want = queue.DefaultScopes()
			}
			who, err := a.Authenticate(token(sign(t, HS256, hmacSecret, nil, claims(c.claims))))
			for _, scope := range queue.Scopes() {
				has := false
				for _, w := range want {
					has = has || w == scope
				}
				if err != nil || who.Rights.Has(scope) != has {
					t.Errorf("required %v, %v: %s is %v, %v", required, c.claims, scope, who.Rights.Has(scope), err)
				}
			}
		}
	}
}

// TestDiscovery: the metadata of the issuer name the set, if they are of this issuer; no hop leaves
// https off loopback, and what is wrong replaces no good keys.
func TestDiscovery(t *testing.T) {
	p := keyPairs()
	var mu sync.Mutex
	status, metadata := http.StatusOK, map[string]any{}
	redirect := ""
	set := jwks(t, map[string]any{"k": p.ec.Public()})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case redirect != "" && r.URL.Path == discoveryPath:
			http.Redirect(w, r, redirect, http.StatusFound)
		case r.URL.Path == discoveryPath:
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(metadata)
		default:
			_, _ = w.Write(set)
		}
	}))
	defer server.Close()
	fetch := func() error {
		s, err := newKeySet(t.Context(), server.URL+discoveryPath, server.URL, time.Hour, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		_, err = s.find(t.Context(), "", false)
		return err
	}
	metadata = map[string]any{"issuer": server.URL, "jwks_uri": server.URL + "/keys"}
	if err := fetch(); err != nil {
		t.Errorf("good metadata: %v", err)
	}
	for name, m := range map[string]map[string]any{
		"another issuer": {"issuer": "https://evil.example", "jwks_uri": server.URL + "/keys"},
		"no set":         {"issuer": server.URL}, "a set without TLS": {"issuer": server.URL, "jwks_uri": "http://issuer.example/keys"},
		"a file": {"issuer": server.URL, "jwks_uri": "file:///etc/passwd"},
	} {
		mu.Lock()
		metadata = m
		mu.Unlock()
		if fetch() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	mu.Lock()
	metadata, redirect = map[string]any{"issuer": server.URL, "jwks_uri": server.URL + "/keys"}, "http://issuer.example/"
	mu.Unlock()
	if fetch() == nil {
		t.Error("a redirect to http:// was followed")
	}
	for from, good := range map[string]bool{
		"https://issuer.example/x": true, "http://127.0.0.1:1/x": true, "http://[::1]/x": true, "http://localhost/x": true,
		"http://issuer.example/x": false, "http://10.0.0.1/x": false, "http://localhost.example/x": false, "https://": false,
	} {
		if rule := KeySetRule(from); (rule == "") != good {
			t.Errorf("%s: %q", from, rule)
		}
	}
}

// revocations are a list in memory.
type revocations struct {
	mu   sync.Mutex
	at   string
	list queue.NotBefore
	err  error
}

func (r *revocations) NotBefore(_ context.Context, known string) (string, queue.NotBefore, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.at == known {
		return known, nil, r.err
	}
	return r.at, maps.Clone(r.list), nil
}

// TestRevokedTokens: within about a second, tokens of before the instant are refused, and later
// ones are not. While the store does not answer, that stays; before its first answer nobody knows.
func TestRevokedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &revocations{at: "0", list: queue.NotBefore{}, err: queue.ErrUnavailable}
		a := gate(t, Config{Modes: []Mode{JWT}, JWT: hmacOnly(t), Revocations: store})
		issued := func(subject string) string {
			return sign(t, HS256, hmacSecret, nil, claims(map[string]any{"sub": subject, "iat": time.Now().Unix()}))
		}
		old, other := issued("a"), issued("b")
		bare := sign(t, HS256, hmacSecret, nil, claims(map[string]any{"sub": "a"}))
		if _, err := a.Authenticate(token(old)); !errors.Is(err, queue.ErrUnavailable) || !a.Good(token(old)) {
			t.Errorf("before the first answer: %v", err)
		}
		change := func(at string, list queue.NotBefore, err error) {
			store.mu.Lock()
			store.at, store.list, store.err = at, list, err
			store.mu.Unlock()
			time.Sleep(revokedEvery)
			synctest.Wait()
		}
		change("1", queue.NotBefore{}, nil)
		check := func(want string, texts ...string) {
			t.Helper()
			for _, text := range texts {
				if got := outcome(t, a, token(text)); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			}
		}
		check("member:a", old, bare)
		change("2", queue.NotBefore{"member:a": time.Now()}, nil)
		check("refused: token-revoked", old, bare)
		check("member:b", other)
		check("member:a", issued("a"))
		if a.Good(token(old)) {
			t.Error("a stream goes on")
		}
		change("3", nil, queue.ErrUnavailable)
		check("refused: token-revoked", old)
	})
}
