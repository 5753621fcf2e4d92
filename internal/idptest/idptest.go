// Package idptest has an OpenID Connect provider for tests.
package idptest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

// IDP is an OpenID Connect provider with one code, "code", and one client, "sluice".
type IDP struct {
	*httptest.Server
	Claims jwt.MapClaims     // of the next ID token, over the usual ones; nil values leave one out
	Info   map[string]any    // what userinfo says; nil: it refuses
	Fault  int               // status of userinfo; 0: as Info says
	Sign   any               // the key of the next token; nil: its own
	Method jwt.SigningMethod // of the next token; nil: ES256
	Issuer string            // in the metadata; empty: its URL
	Meta   map[string]any    // further metadata
	Status int               // of the token endpoint; 0: 200
	Asked  url.Values        // what the token endpoint was asked for
	Begun  url.Values        // what a browser was sent with to the provider
	Calls  atomic.Int64      // of the token endpoint
	Basic  bool              // the secret of the last one was in its header
	Wait   chan struct{}     // the metadata come once it is closed; nil: at once
	mu     sync.Mutex        // of what concurrent calls of the token endpoint write
	key    *ecdsa.PrivateKey
}

// New starts a provider. The test ends it.
func New(t *testing.T) *IDP {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &IDP{key: key}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		if p.Wait != nil {
			select {
			case <-p.Wait:
			case <-r.Context().Done():
				return
			}
		}
		issuer := p.Issuer
		if issuer == "" {
			issuer = p.URL
		}
		all := map[string]any{
			"issuer": issuer, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token",
			"jwks_uri": p.URL + "/keys", "userinfo_endpoint": p.URL + "/userinfo",
			"id_token_signing_alg_values_supported": []string{"ES256"},
		}
		maps.Copy(all, p.Meta)
		answer(w, all)
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		k, err := jwkset.NewJWKFromKey(p.key.Public(), jwkset.JWKOptions{
			Metadata: jwkset.JWKMetadataOptions{ALG: jwkset.AlgES256, KID: "k", USE: jwkset.UseSig},
		})
		if err != nil {
			t.Error(err)
		}
		answer(w, map[string]any{"keys": []any{k.Marshal()}})
	})
	mux.HandleFunc("/userinfo", func(w http.ResponseWriter, _ *http.Request) {
		if p.Fault != 0 {
			http.Error(w, "no", p.Fault)
			return
		}
		if p.Info == nil {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		answer(w, p.Info)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		p.Calls.Add(1)
		p.mu.Lock()
		p.Asked = r.PostForm
		_, _, p.Basic = r.BasicAuth()
		p.mu.Unlock()
		if p.Status != 0 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(p.Status)
			answer(w, map[string]string{"error": "invalid_grant", "error_description": "hunter2"})
			return
		}
		sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
		if base64.RawURLEncoding.EncodeToString(sum[:]) != p.Begun.Get("code_challenge") || r.PostForm.Get("code") != "code" {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		answer(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": p.token(t)})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// token is the next ID token.
func (p *IDP) token(t *testing.T) string {
	claims := jwt.MapClaims{
		"iss": p.URL, "aud": "sluice", "sub": "17", "nonce": p.Begun.Get("nonce"), "exp": time.Now().Add(time.Minute).Unix(),
		"iat": time.Now().Unix(), "email": "vera@example.com", "groups": []string{"sre", "staff"},
	}
	for name, value := range p.Claims {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	var key any = p.key
	if p.Sign != nil {
		key = p.Sign
	}
	var method jwt.SigningMethod = jwt.SigningMethodES256
	if p.Method != nil {
		method = p.Method
	}
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"] = "k"
	text, err := token.SignedString(key)
	if err != nil {
		t.Error(err)
	}
	return text
}
