package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

const (
	issuer   = "https://issuer.example/"
	audience = "sluice"
)

// keyPairs are made once; nobody keeps them.
var keyPairs = sync.OnceValue(func() (p struct {
	rsa   *rsa.PrivateKey
	other *rsa.PrivateKey
	ec    *ecdsa.PrivateKey
	p384  *ecdsa.PrivateKey
	ed    ed25519.PrivateKey
}) {
	var errs [5]error
	p.rsa, errs[0] = rsa.GenerateKey(rand.Reader, 2048)
	p.other, errs[1] = rsa.GenerateKey(rand.Reader, 2048)
	p.ec, errs[2] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p.p384, errs[3] = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	_, p.ed, errs[4] = ed25519.GenerateKey(rand.Reader)
	if err := errors.Join(errs[:]...); err != nil {
		panic(err)
	}
	return p
})

var hmacSecret = []byte("thirty-two bytes of a test secret, no less")

// claims are those of a good token; with lays others over them, and nil takes one away.
func claims(with ...map[string]any) map[string]any {
	c := map[string]any{"iss": issuer, "aud": audience, "sub": "u-17", "exp": time.Now().Add(time.Hour).Unix()}
	for _, w := range with {
		maps.Copy(c, w)
	}
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// sign makes a token, whatever is in it.
func sign(t testing.TB, algorithm string, key any, header, claims map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), jwt.MapClaims(claims))
	maps.Copy(token.Header, header)
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func publicPEM(t testing.TB, public any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func hmacOnly(t testing.TB) JWTConfig {
	t.Helper()
	key := must[TokenKey](t)(NewSecretKey("", string(hmacSecret)))
	return JWTConfig{Issuer: issuer, Audience: audience, Leeway: 30 * time.Second, Keys: []TokenKey{key}}
}

func token(text string) *http.Request { return request(somewhere, "Authorization: Bearer "+text) }

func TestTokens(t *testing.T) {
	p, key := keyPairs(), must[TokenKey](t)
	all := gate(t, Config{Modes: []Mode{JWT, Guest}, JWT: JWTConfig{Issuer: issuer, Audience: audience,
		Keys: []TokenKey{
			key(NewSecretKey("h", string(hmacSecret))), key(NewPublicKey("r", RS256, publicPEM(t, p.rsa.Public()))),
			key(NewPublicKey("e", ES256, publicPEM(t, p.ec.Public()))),
			key(NewPublicKey("", EdDSA, publicPEM(t, p.ed.Public()))),
		}}})
	kid := func(id any) map[string]any { return map[string]any{"kid": id} }
	encode := func(v any) string {
		return base64.RawURLEncoding.EncodeToString(must[[]byte](t)(json.Marshal(v)))
	}
	// none is a token that nobody signed.
	none := func(algorithm string) string {
		return encode(map[string]any{"alg": algorithm, "typ": "JWT"}) + "." + encode(claims()) + "."
	}
	good := sign(t, RS256, p.rsa, kid("r"), claims())
	parts := strings.Split(good, ".")
	swapped := strings.Split(sign(t, RS256, p.rsa, kid("r"), claims(map[string]any{"sub": "another"})), ".")
	publicAsSecret := []byte(publicPEM(t, p.rsa.Public()))
	for _, c := range []struct{ name, token, want string }{
		{"HS256", sign(t, HS256, hmacSecret, kid("h"), claims()), "member:u-17"},
		{"RS256", good, "member:u-17"},
		{"ES256", sign(t, ES256, p.ec, kid("e"), claims()), "member:u-17"},
		{"EdDSA, by a key without an id", sign(t, EdDSA, p.ed, kid("whatever"), claims()), "member:u-17"},
		{"without a key id", sign(t, RS256, p.rsa, nil, claims()), "member:u-17"},
		{"one audience of several", sign(t, RS256, p.rsa, nil,
			claims(map[string]any{"aud": []string{"x", audience}})), "member:u-17"},

		{"alg none", none("none"), "refused: token"},
		{"alg None", none("None"), "refused: token"},
		{"alg HS256 and no signature", none("HS256"), "refused: token"},
		{"no alg", encode(map[string]any{}) + "." + encode(claims()) + ".", "refused: token"},
		{"HS512", sign(t, "HS512", hmacSecret, kid("h"), claims()), "refused: token"},
		{"RS512", sign(t, "RS512", p.rsa, kid("r"), claims()), "refused: token"},
		{"PS256", sign(t, "PS256", p.rsa, kid("r"), claims()), "refused: token"},
		{"the public key as a secret", sign(t, HS256, publicAsSecret, kid("r"), claims()), "refused: token"},
		{"the public key as a secret, without an id", sign(t, HS256, publicAsSecret, nil, claims()),
			"refused: token"},
		{"the modulus as a secret", sign(t, HS256, p.rsa.N.Bytes(), kid("r"), claims()), "refused: token"},
		{"the id of a key for another algorithm", sign(t, ES256, p.ec, kid("r"), claims()), "refused: token"},
		{"an unknown key id", sign(t, RS256, p.rsa, kid("x"), claims()), "refused: token"},
		{"an empty key id", sign(t, RS256, p.rsa, kid(""), claims()), "refused: token"},
		{"a key id that is none", sign(t, RS256, p.rsa, kid(7), claims()), "refused: token"},
		{"a key id that is a path", sign(t, HS256, []byte{}, kid("../../dev/null"), claims()), "refused: token"},
		{"the key of somebody else", sign(t, RS256, p.other, kid("r"), claims()), "refused: token"},
		{"a key in the header", sign(t, RS256, p.other, map[string]any{
			"jwk": map[string]any{"kty": "RSA"}, "kid": "r",
		}, claims()), "refused: token"},
		{"a critical extension", sign(t, RS256, p.rsa, map[string]any{"crit": []string{"b64"}, "b64": false},
			claims()), "refused: token"},
		{"another body", parts[0] + "." + swapped[1] + "." + parts[2], "refused: token"},
		{"a changed signature", parts[0] + "." + parts[1] + "." + string(flipped(parts[2][0])) + parts[2][1:],
			"refused: token"},
		{"no signature", parts[0] + "." + parts[1] + ".", "refused: token"},
		{"padding", good + "=", "refused: token"},
		{"no base64", "a.b.c", "refused: token"},
		{"nothing but dots", "..", "refused: token"},
		{"claims that are no object", encode(map[string]any{"alg": "RS256"}) + "." + encode(7) + "." +
			parts[2], "refused: token"},

		{"expired", sign(t, RS256, p.rsa, nil,
			claims(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()})), "refused: token-expired"},
		{"without expiry", sign(t, RS256, p.rsa, nil, claims(map[string]any{"exp": nil})),
			"refused: token-expired"},
		{"an expiry that is no time", sign(t, RS256, p.rsa, nil, claims(map[string]any{"exp": "tomorrow"})),
			"refused: token"},
		{"not yet valid", sign(t, RS256, p.rsa, nil,
			claims(map[string]any{"nbf": time.Now().Add(time.Minute).Unix()})), "refused: token-early"},
		{"another issuer", sign(t, RS256, p.rsa, nil, claims(map[string]any{"iss": "https://evil.example/"})),
			"refused: token-audience"},
		{"no issuer", sign(t, RS256, p.rsa, nil, claims(map[string]any{"iss": nil})), "refused: token-audience"},
		{"another audience", sign(t, RS256, p.rsa, nil, claims(map[string]any{"aud": "other"})),
			"refused: token-audience"},
		{"no audience", sign(t, RS256, p.rsa, nil, claims(map[string]any{"aud": nil})), "refused: token-audience"},
		{"no audience in a list", sign(t, RS256, p.rsa, nil, claims(map[string]any{"aud": []string{}})),
			"refused: token-audience"},
		{"another issuer, and forged", sign(t, RS256, p.other, nil,
			claims(map[string]any{"iss": "https://evil.example/"})), "refused: token"},

		{"no tenant", sign(t, RS256, p.rsa, nil, claims(map[string]any{"sub": nil})), "refused: token-tenant"},
		{"an empty tenant", sign(t, RS256, p.rsa, nil, claims(map[string]any{"sub": ""})), "refused: token-tenant"},
		{"a tenant that is a number", sign(t, RS256, p.rsa, nil, claims(map[string]any{"sub": 7})),
			"refused: token-tenant"},
		{"a tenant with a line end", sign(t, RS256, p.rsa, nil, claims(map[string]any{"sub": "a\nb"})),
			"refused: token-tenant"},
		{"a tenant that is too long", sign(t, RS256, p.rsa, nil,
			claims(map[string]any{"sub": strings.Repeat("x", 249)})), "refused: token-tenant"},
		{"the longest tenant", sign(t, RS256, p.rsa, nil,
			claims(map[string]any{"sub": strings.Repeat("x", 248)})), "member:" + strings.Repeat("x", 248)},
		{"a tenant with a colon", sign(t, RS256, p.rsa, nil, claims(map[string]any{"sub": "guest:1.2.3.4"})),
			"member:guest:1.2.3.4"},
	} {
		if got := outcome(t, all, token(c.token)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestClaimsOfTenantAndTier(t *testing.T) {
	cfg := hmacOnly(t)
	cfg.TenantClaim, cfg.TierClaim = "https://sluice.example/org", "plan"
	a := gate(t, Config{Modes: []Mode{JWT}, JWT: cfg})
	for _, c := range []struct {
		claims map[string]any
		want   Principal
	}{
		{map[string]any{"plan": "pro"}, Principal{Tenant: "member:shop", Tier: "pro", KeyID: "jwt"}},
		{map[string]any{}, Principal{Tenant: "member:shop", Tier: "", KeyID: "jwt"}},
		{map[string]any{"plan": 7}, Principal{Tenant: "member:shop", Tier: "", KeyID: "jwt"}},
		{map[string]any{"plan": "a b"}, Principal{Tenant: "member:shop", Tier: "", KeyID: "jwt"}},
		{map[string]any{"plan": "../x"}, Principal{Tenant: "member:shop", Tier: "", KeyID: "jwt"}},
		{map[string]any{"plan": strings.Repeat("x", 64)}, Principal{Tenant: "member:shop", Tier: strings.Repeat("x", 64), KeyID: "jwt"}},
		{map[string]any{"plan": strings.Repeat("x", 65)}, Principal{Tenant: "member:shop", Tier: "", KeyID: "jwt"}},
	} {
		text := sign(t, HS256, hmacSecret, nil, claims(map[string]any{"https://sluice.example/org": "shop"},
			c.claims))
		if got, err := a.Authenticate(token(text)); err != nil || got != c.want {
			t.Errorf("%v: %+v, %v, want %+v", c.claims, got, err, c.want)
		}
	}
	for id, want := range map[any]string{"k1": "jwt:k1", "a b\n": "jwt", strings.Repeat("x", 65): "jwt"} {
		text := sign(t, HS256, hmacSecret, map[string]any{"kid": id},
			claims(map[string]any{"https://sluice.example/org": "shop"}))
		if got, err := a.Authenticate(token(text)); err != nil || got.KeyID != want {
			t.Errorf("key id %q: %+v, %v, want %s", id, got, err, want)
		}
	}
	number := sign(t, HS256, hmacSecret, nil, claims(map[string]any{"https://sluice.example/org": 7}))
	if got := outcome(t, a, token(number)); got != "refused: token-tenant" {
		t.Errorf("a tenant that is a number: %s", got)
	}
}

// The instants at which a token begins and ends, with the leeway on both sides.
func TestTokenTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := gate(t, Config{Modes: []Mode{JWT}, JWT: hmacOnly(t)})
		start := time.Now()
		at := func(d time.Duration) int64 { return start.Add(d).Unix() }
		text := sign(t, HS256, hmacSecret, nil, claims(map[string]any{
			"nbf": at(time.Minute), "exp": at(2 * time.Minute),
		}))
		for _, step := range []struct {
			at   time.Duration
			want string
		}{
			{30*time.Second - time.Nanosecond, "refused: token-early"},
			{30 * time.Second, "member:u-17"},
			{2*time.Minute + 30*time.Second - time.Nanosecond, "member:u-17"},
			{2*time.Minute + 30*time.Second, "refused: token-expired"},
		} {
			<-time.After(time.Until(start.Add(step.at)))
			if got := outcome(t, a, token(text)); got != step.want {
				t.Errorf("after %v: %s, want %s", step.at, got, step.want)
			}
		}
		// A token that says that it was issued later than now would outlive each revocation.
		for issued, want := range map[any]string{
			at(3 * time.Minute): "refused: token-early", time.Now().Add(31 * time.Second).Unix(): "refused: token-early",
			time.Now().Add(30 * time.Second).Unix(): "member:u-17", at(-time.Hour): "member:u-17", "soon": "refused: token",
		} {
			text := sign(t, HS256, hmacSecret, nil, claims(map[string]any{"iat": issued, "exp": at(time.Hour)}))
			if got := outcome(t, a, token(text)); !strings.HasPrefix(got, want) {
				t.Errorf("issued at %v: %s, want %s", issued, got, want)
			}
		}
	})
}

func TestKeysAreForOneAlgorithm(t *testing.T) {
	p := keyPairs()
	small := must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 1024))
	private := string(pem.EncodeToMemory(&pem.Block{
		Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(p.rsa),
	}))
	for _, c := range []struct{ name, algorithm, text string }{
		{"RSA for ES256", ES256, publicPEM(t, p.rsa.Public())},
		{"P-256 for RS256", RS256, publicPEM(t, p.ec.Public())},
		{"Ed25519 for ES256", ES256, publicPEM(t, p.ed.Public())}, {"P-384", ES256, publicPEM(t, p.p384.Public())},
		{"a public key for HS256", HS256, publicPEM(t, p.rsa.Public())},
		{"none", "none", publicPEM(t, p.rsa.Public())},
		{"1024 bits", RS256, publicPEM(t, small.Public())}, {"a private key", RS256, private},
		{"no PEM", RS256, "x"},
		{"two keys", RS256, publicPEM(t, p.rsa.Public()) + publicPEM(t, p.rsa.Public())},
		{"a torn key", RS256, "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"},
	} {
		if _, err := NewPublicKey("", c.algorithm, c.text); err == nil {
			t.Errorf("%s: taken", c.name)
		} else if strings.Contains(err.Error(), c.text) && len(c.text) > 3 {
			t.Errorf("%s: echoed", c.name)
		}
	}
	if _, err := NewSecretKey("", strings.Repeat("x", 31)); err == nil {
		t.Error("a secret of 31 bytes was taken")
	}
}

// jwks is a set of keys as an issuer publishes it.
func jwks(t testing.TB, keys map[string]any) []byte {
	t.Helper()
	set := jwkset.NewMemoryStorage()
	for kid, key := range keys {
		k := must[jwkset.JWK](t)(jwkset.NewJWKFromKey(key, jwkset.JWKOptions{
			Metadata: jwkset.JWKMetadataOptions{KID: kid}, Marshal: jwkset.JWKMarshalOptions{Private: true},
		}))
		if err := set.KeyWrite(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	return must[json.RawMessage](t)(set.JSONPrivate(t.Context()))
}

func TestKeySetFile(t *testing.T) {
	p := keyPairs()
	path := filepath.Join(t.TempDir(), "jwks.json")
	publish := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A secret in a set is not taken: sets are made to be published.
	publish(jwks(t, map[string]any{"r": p.rsa.Public(), "h": hmacSecret, "e": p.ec, "x": p.p384.Public()}))
	a := gate(t, Config{Modes: []Mode{JWT}, JWT: JWTConfig{Issuer: issuer, Audience: audience, JWKS: path}})
	check := func(name, text, want string) {
		t.Helper()
		if got := outcome(t, a, token(text)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	id := func(kid string) map[string]any { return map[string]any{"kid": kid} }
	first := sign(t, RS256, p.rsa, id("r"), claims())
	next := sign(t, EdDSA, p.ed, id("d"), claims())
	check("a key of the set", first, "member:u-17")
	check("one that is published with its private half", sign(t, ES256, p.ec, id("e"), claims()), "member:u-17")
	check("without a key id", sign(t, ES256, p.ec, nil, claims()), "member:u-17")
	check("a secret of the set", sign(t, HS256, hmacSecret, id("h"), claims()), "refused: token")
	check("the public key as a secret", sign(t, HS256, []byte(publicPEM(t, p.rsa.Public())), id("r"),
		claims()), "refused: token")
	check("another key under the id", sign(t, RS256, p.other, id("r"), claims()), "refused: token")
	check("a key to come", next, "refused: token")

	// passed lets the time pass after which the file is checked again.
	passed := func() {
		a.tokens.issuers[0].set.file.mu.Lock()
		defer a.tokens.issuers[0].set.file.mu.Unlock()
		a.tokens.issuers[0].set.file.checked = time.Time{}
	}
	publish([]byte(`{"keys":`))
	passed()
	check("a torn file leaves the keys of before", first, "member:u-17")
	publish(jwks(t, map[string]any{"d": p.ed.Public()}))
	check("a change is not noticed at once", next, "refused: token")
	passed()
	check("a new key", next, "member:u-17")
	check("a key that is gone", first, "refused: token")
}

func TestKeySetFilesThatAreNone(t *testing.T) {
	for name, content := range map[string]string{
		"nothing": "", "no JSON": "x", "no keys": `{"keys":[]}`,
		"secrets alone": string(jwks(t, map[string]any{"h": hmacSecret})),
		"too large":     `{"keys":[]}` + strings.Repeat(" ", maxSet),
	} {
		path := filepath.Join(t.TempDir(), "jwks.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKeySet(path); err == nil || strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A set that cannot be fetched leaves tokens undecided, not refused. Once fetched, it is used on
// whatever becomes of the issuer; while that is away, an unknown key may be a new one.
func TestKeySetOfAURL(t *testing.T) {
	p := keyPairs()
	var content atomic.Pointer[[]byte]
	issuerServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if c := content.Load(); c != nil {
			_, _ = w.Write(*c)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer issuerServer.Close()
	good := sign(t, RS256, p.rsa, map[string]any{"kid": "r"}, claims())
	cfg := JWTConfig{Issuer: issuer, Audience: audience, JWKS: issuerServer.URL, Refresh: 10 * time.Millisecond}

	a := gate(t, Config{Modes: []Mode{JWT}, JWT: cfg})
	if _, err := a.Authenticate(token(good)); !errors.Is(err, ErrNoKeys) {
		t.Fatalf("without keys: %v", err)
	}
	if !a.Good(token(good)) {
		t.Error("a request is cut off because the issuer is away")
	}
	set := jwks(t, map[string]any{"r": p.rsa.Public()})
	content.Store(&set)
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	await := func(text, want string) {
		t.Helper()
		for got := ""; got != want; got = outcome(t, a, token(text)) {
			select {
			case <-deadline.C:
				t.Fatalf("%s, want %s", got, want)
			case <-poll.C:
			}
		}
	}
	unknown := sign(t, RS256, p.rsa, map[string]any{"kid": "x"}, claims())
	await(good, "member:u-17")
	await(unknown, "refused: token")
	content.Store(nil)
	await(unknown, "error: "+ErrNoKeys.Error())
	for _, c := range []struct{ name, token, want string }{
		{"while the issuer is away again", good, "member:u-17"},
		{"without a key id", sign(t, RS256, p.rsa, nil, claims()), "member:u-17"},
		{"another algorithm", sign(t, HS256, hmacSecret, map[string]any{"kid": "r"}, claims()), "refused: token"},
	} {
		if got := outcome(t, a, token(c.token)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Keys that are not understood are left out, from a file as from a URL, and an answer without a
// usable key changes nothing (RFC 7517, section 5).
func TestKeysThatAreNotUnderstood(t *testing.T) {
	p := keyPairs()
	var good struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(jwks(t, map[string]any{"r": p.rsa.Public()}), &good); err != nil {
		t.Fatal(err)
	}
	odd := []string{
		`{"kty":"AKP","alg":"ML-DSA-65","pub":"AAAA","kid":"pq"}`, `{"kty":"EC","crv":"secp256k1","x":"AA","y":"AA"}`,
		`{"kty":"OKP","crv":"Ed448","x":"AAAA"}`, `null`, `7`, `"x"`, `{}`, `{"kty":"RSA","n":"AQAB","kid":7}`, `{"kty":"RSA","n":"AQAB"}`,
		`{"kty":"RSA","n":"AQAB","e":"AQAB","use":"tls"}`, `{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}`,
		`{"kty":"RSA","n":"AQAB","e":"AQAB","key_ops":["wrap"]}`, `{"kty":"RSA","n":"AQAB","e":"AQAB","x5u":"http://x/"}`,
		`{"kty":"RSA","n":"AQAB","e":"AQAB","x5c":["broken"]}`, `{"kty":"oct","k":"AAAA"}`,
	}
	token1 := token(sign(t, RS256, p.rsa, map[string]any{"kid": "r"}, claims()))
	var content atomic.Pointer[string]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, *content.Load())
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "jwks.json")
	for _, one := range odd {
		set := fmt.Sprintf(`{"keys":[%s,%s,%s],"more":1}`, one, good.Keys[0], one)
		content.Store(&set)
		if err := os.WriteFile(path, []byte(set), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{server.URL, path} {
			a := gate(t, Config{Modes: []Mode{JWT}, JWT: JWTConfig{Issuer: issuer, Audience: audience, JWKS: from}})
			if got := outcome(t, a, token1); got != "member:u-17" {
				t.Errorf("beside %s of %.4s: %s", one, from, got)
			}
		}
	}
	set := fmt.Sprintf(`{"keys":[%s]}`, good.Keys[0])
	content.Store(&set)
	a := gate(t, Config{Modes: []Mode{JWT}, JWT: JWTConfig{Issuer: issuer, Audience: audience, JWKS: server.URL}})
	for _, empty := range []string{`{}`, `{"error":"try later"}`, `{"keys":[]}`, `{"keys":null}`, `<html>`, ``, `{"keys":[` + odd[0] + `]}`} {
		content.Store(&empty)
		unknown := token(sign(t, RS256, p.rsa, map[string]any{"kid": "new"}, claims())) // fetches again
		_, _ = a.Authenticate(unknown)
		if _, _, err := usableKeys([]byte(empty)); err == nil {
			t.Errorf("%q is taken for a set", empty)
		}
		if got := outcome(t, a, token1); got != "member:u-17" {
			t.Errorf("after %q: %s", empty, got)
		}
	}
}

// A key id that is not known is asked for at once, but not for each token.
func TestUnknownKeyIDsAreFetched(t *testing.T) {
	p := keyPairs()
	var fetches atomic.Int64
	var content atomic.Pointer[[]byte]
	publish := func(keys map[string]any) { content.Store(new(jwks(t, keys))) }
	publish(map[string]any{"r": p.rsa.Public()})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetches.Add(1)
		_, _ = w.Write(*content.Load())
	}))
	defer server.Close()
	a := gate(t, Config{
		Modes: []Mode{JWT}, JWT: JWTConfig{Issuer: issuer, Audience: audience, JWKS: server.URL},
	})
	publish(map[string]any{"r": p.rsa.Public(), "d": p.ed.Public()})
	if got := outcome(t, a,
		token(sign(t, EdDSA, p.ed, map[string]any{"kid": "d"}, claims()))); got != "member:u-17" ||
		fetches.Load() != 2 {
		t.Errorf("a new key: %s after %d fetches", got, fetches.Load())
	}
	for range 100 {
		if got := outcome(t, a,
			token(sign(t, EdDSA, p.ed, map[string]any{"kid": "nobody's"},
				claims()))); got != "refused: token" {
			t.Fatal(got)
		}
	}
	if n := fetches.Load(); n > 3 {
		t.Errorf("%d fetches for ids that nobody has", n)
	}
}

func TestErrorsOfFetchesHideTheURL(t *testing.T) {
	var said strings.Builder
	log := slog.New(slog.NewTextHandler(&said, nil))
	if _, err := newKeySet(t.Context(), "http://user:hunter2@127.0.0.1:1/", "", time.Hour, log); err != nil {
		t.Fatal(err)
	}
	if text := said.String(); text == "" || strings.Contains(text, "hunter2") || strings.Contains(text, "user") {
		t.Errorf("logged: %s", text)
	}
}

// TestKeySetWithoutProxy: no proxy variable redirects the fetch of keys. The variables never
// concern loopback; 0.0.0.0 leads there, and is another address to them.
func TestKeySetWithoutProxy(t *testing.T) {
	redirected := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		redirected <- r.URL.String()
	}))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	p := keyPairs()
	set := jwks(t, map[string]any{"r": p.rsa.Public()})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := strings.Replace(server.URL, "127.0.0.1", "0.0.0.0", 1)
	s, err := newKeySet(ctx, at, "", 0, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := s.find(ctx, "r", true); err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	select {
	case url := <-redirected:
		t.Errorf("the proxy got %s", url)
	default:
	}
}
