package auth

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestCredentialsDecideByTheirKind(t *testing.T) {
	store := &ring{}
	id, key := store.add("acme", time.Time{})
	_, second := store.add("other", time.Time{})
	_, expired := store.add("acme", time.Now().Add(-time.Second))
	revoked, gone := store.add("acme", time.Time{})
	store.revoke(revoked)
	all := gate(t, Config{Modes: []Mode{Keys, JWT, Guest}, Keys: store, JWT: hmacOnly(t)})
	keys := gate(t, Config{Modes: []Mode{Keys}, Keys: store})
	guests := gate(t, Config{Modes: []Mode{Guest}})
	tokens := gate(t, Config{Modes: []Mode{JWT}, JWT: hmacOnly(t)})
	good := sign(t, HS256, hmacSecret, nil, claims())
	wrongSecret := key[:len(key)-1] + string(flipped(key[len(key)-1]))
	unknownID := "sluice_" + strings.Repeat("9", idLength) + key[len(keyPrefix)+idLength:]
	for _, c := range []struct {
		name  string
		a     *Authenticator
		lines []string
		want  string
	}{
		{"a key", all, []string{"Authorization: Bearer " + key}, "acme"},
		{"a key, in the other header", all, []string{"X-API-Key: " + key}, "acme"},
		{"another case of the scheme", all, []string{"authorization: bEARER " + key}, "acme"},
		{"two spaces", all, []string{"Authorization: Bearer  " + key}, "acme"},
		{"a token", all, []string{"Authorization: Bearer " + good}, "member:u-17"},
		{"a token, in the other header", all, []string{"X-API-Key: " + good}, "member:u-17"},
		{"a key, in the header of its own", all, []string{"Sluice-Api-Key: " + key}, "acme"},
		{"a token, in the header of its own", all, []string{"Sluice-Api-Key: " + good}, "member:u-17"},
		{"beside the credential of another server", all,
			[]string{"Sluice-Api-Key: " + key, "Authorization: Basic x", "X-API-Key: y"}, "acme"},
		{"nothing", all, nil, "guest:192.0.2.7"},
		{"nothing, without guests", keys, nil, "refused: missing"},
		{"a key where there are guests alone", guests, []string{"Authorization: Bearer " + key},
			"refused: not-taken"},
		{"a key where there are tokens alone", tokens, []string{"Authorization: Bearer " + key},
			"refused: not-taken"},
		{"a token where there are keys alone", keys, []string{"Authorization: Bearer " + good},
			"refused: not-taken"},

		{"an empty header", all, []string{"Authorization: "}, "refused: malformed"},
		{"an empty header of the other kind", all, []string{"X-API-Key: "}, "refused: malformed"},
		{"an empty header of its own", all, []string{"Sluice-Api-Key: "}, "refused: malformed"},
		{"a header of its own twice", all, []string{"Sluice-Api-Key: " + key, "Sluice-Api-Key: " + second},
			"refused: malformed"},
		{"a wrong key in the header of its own, beside a good one", all,
			[]string{"Sluice-Api-Key: " + wrongSecret, "X-API-Key: " + key}, "refused: key"},
		{"an empty bearer", all, []string{"Authorization: Bearer"}, "refused: malformed"},
		{"an empty bearer with a space", all, []string{"Authorization: Bearer "}, "refused: malformed"},
		{"another scheme", all, []string{"Authorization: Basic " + key}, "refused: malformed"},
		{"no scheme", all, []string{"Authorization: " + key}, "refused: malformed"},
		{"the scheme in the other header", all, []string{"X-API-Key: Bearer " + key}, "refused: malformed"},
		{"neither key nor token", all, []string{"Authorization: Bearer opaque"}, "refused: malformed"},
		{"four parts", all, []string{"Authorization: Bearer a.b.c.d"}, "refused: malformed"},
		{"a token without end", all, []string{"Authorization: Bearer a.b." + strings.Repeat("c", maxToken)},
			"refused: malformed"},
		{"both headers", all, []string{"Authorization: Bearer " + key, "X-API-Key: " + key}, "refused: malformed"},
		{"both headers, one empty", all, []string{"Authorization: Bearer " + key, "X-API-Key: "},
			"refused: malformed"},
		{"one header twice", all, []string{"Authorization: Bearer " + key, "Authorization: Bearer " + key},
			"refused: malformed"},
		{"the other header twice", all, []string{"X-API-Key: " + key, "X-API-Key: " + second},
			"refused: malformed"},
		{"two keys in one", all, []string{"Authorization: Bearer " + key + ", Bearer " + second}, "refused: key"},

		{"a wrong secret", all, []string{"Authorization: Bearer " + wrongSecret}, "refused: key"},
		{"the secret of another key", all, []string{"Authorization: Bearer " + keyPrefix + id +
			second[len(keyPrefix)+idLength:]}, "refused: key"},
		{"no secret", all, []string{"Authorization: Bearer " + keyPrefix + id}, "refused: key"},
		{"an empty secret", all, []string{"Authorization: Bearer " + keyPrefix + id + "_"}, "refused: key"},
		{"a short secret", all, []string{"Authorization: Bearer " + key[:len(key)-1]}, "refused: key"},
		{"a long secret", all, []string{"Authorization: Bearer " + key + "0"}, "refused: key"},
		{"the prefix alone", all, []string{"Authorization: Bearer " + keyPrefix}, "refused: key"},
		{"an id that no key has", all, []string{"Authorization: Bearer " + unknownID}, "refused: key"},
		{"an id that no key can have", all, []string{"Authorization: Bearer " + strings.Replace(key, id,
			strings.Repeat("*", idLength), 1)}, "refused: key"},
		{"a revoked key", all, []string{"Authorization: Bearer " + gone}, "refused: key"},
		{"an expired key", all, []string{"Authorization: Bearer " + expired}, "refused: key"},
		{"a key of another case", all, []string{"Authorization: Bearer " + strings.ToUpper(key)},
			"refused: malformed"},
		{"a key with dots", all, []string{"Authorization: Bearer sluice_a.b.c"}, "refused: key"},
	} {
		if got := outcome(t, c.a, request(somewhere, c.lines...)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// flipped is another digit.
func flipped(c byte) byte {
	if c == 'x' {
		return 'y'
	}
	return 'x'
}

// The detail for the client depends only on the class.
func TestRefusalsRevealNothing(t *testing.T) {
	for _, class := range Classes() {
		r := refuse(class)
		if r.Error() == "" || !strings.HasPrefix(r.Challenge(), "Bearer ") {
			t.Errorf("%s: %q, %q", class, r.Error(), r.Challenge())
		}
		sent := class != Missing && class != NoAddress
		if strings.Contains(r.Challenge(), `error="invalid_token"`) != sent {
			t.Errorf("%s: %s", class, r.Challenge())
		}
	}
}

func TestSecrets(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		s := NewSecret()
		c, err := parseCredential(s.Key(strings.Repeat("0", idLength)))
		if err != nil || !c.key.opens(s.Hash()) || c.mode() != Keys {
			t.Fatalf("a new key is not one: %v", err)
		}
		if seen[s.text] || len(s.text) != secretLength || s.String() != "(hidden)" {
			t.Fatal("a secret that is none")
		}
		seen[s.text] = true
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for name, c := range map[string]Config{
		"no mode": {}, "none": {Modes: []Mode{None}}, "another": {Modes: []Mode{"password"}},
		"no store":  {Modes: []Mode{Keys}},
		"no issuer": {Modes: []Mode{JWT}},
		"no keys":   {Modes: []Mode{JWT}, JWT: JWTConfig{Issuer: "i", Audience: "a"}},
		"no file":   {Modes: []Mode{JWT}, JWT: JWTConfig{Issuer: "i", Audience: "a", JWKS: "absent.json"}},
	} {
		if _, err := New(t.Context(), c); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzCredential(f *testing.F) {
	key := NewSecret().Key(strings.Repeat("0", idLength))
	for _, seed := range []string{
		"", "Bearer", "Bearer " + key, "Basic x", "Bearer a.b.c", "bearer  sluice_", key, "Bearer sluice__",
		"Bearer " + key + "\x00",
	} {
		f.Add(seed, true, "", false)
		f.Add("", false, seed, true)
		f.Add(seed, true, seed, true)
	}
	f.Fuzz(func(t *testing.T, authorization string, hasAuthorization bool, key string, hasKey bool) {
		h := http.Header{}
		if hasAuthorization {
			h["Authorization"] = []string{authorization}
		}
		if hasKey {
			h["X-Api-Key"] = []string{key}
		}
		c, err := credentialOf(h)
		none := !hasAuthorization && !hasKey
		switch {
		case err != nil:
			if c != (credential{}) {
				t.Errorf("refused with %+v", c)
			}
			if strings.Contains(err.Error(), authorization) && len(authorization) > 20 {
				t.Errorf("%q is echoed", authorization)
			}
		case (c.mode() == Guest) != none:
			t.Errorf("%q %q: a guest=%v", authorization, key, c.mode() == Guest)
		case hasAuthorization && hasKey:
			t.Error("two credentials were taken")
		case c.mode() == Keys &&
			(len(c.key.id) != idLength || len(c.key.secret) != secretLength || !consistsOf(c.key.id,
				idDigits) || c.token != ""):
			t.Errorf("no key: %+v", c.key)
		case c.mode() == JWT && (strings.Count(c.token, ".") != 2 || strings.HasPrefix(c.token, keyPrefix)):
			t.Errorf("no token: %q", c.token)
		}
	})
}
