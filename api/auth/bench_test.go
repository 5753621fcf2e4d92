package auth

import (
	"net/http"
	"testing"
	"time"
)

// BenchmarkAuthenticate is what each kind of credential costs a request; a key is remembered.
func BenchmarkAuthenticate(b *testing.B) {
	store := &ring{}
	_, key := store.add("acme", time.Time{})
	p := keyPairs()
	public, err := NewPublicKey("e", ES256, publicPEM(b, p.ec.Public()))
	if err != nil {
		b.Fatal(err)
	}
	cfg := hmacOnly(b)
	cfg.Keys = append(cfg.Keys, public)
	a := gate(b, Config{Modes: []Mode{Keys, JWT, Guest}, Keys: store, JWT: cfg})
	for name, r := range map[string]*http.Request{
		"key": bearer(key), "guest": request(somewhere), "HS256": token(sign(b, HS256, hmacSecret, nil, claims())),
		"ES256": token(sign(b, ES256, p.ec, map[string]any{"kid": "e"}, claims())),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.Authenticate(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
