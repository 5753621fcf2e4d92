package signon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/7509e464/sluice/internal/idptest"
	"github.com/7509e464/sluice/internal/operators"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func provider(t *testing.T, p *idptest.IDP, edit func(*Config)) *Provider {
	t.Helper()
	c := Config{
		Issuer: p.URL, ClientID: "sluice", ClientSecret: "s3cret", Redirect: "https://sluice.example/login/callback",
		Scopes: []string{"email"}, NameClaim: "email", GroupsClaim: "groups",
		Groups:  map[operators.Role][]string{operators.Viewer: {"staff"}, operators.Operator: {"sre"}},
		Timeout: 10 * time.Second,
	}
	if edit != nil {
		edit(&c)
	}
	made := New(c)
	t.Cleanup(made.Close)
	return made
}

// begin sends a browser away, and returns its ticket and what the provider sends it back with.
func begin(t *testing.T, of *Provider, at *idptest.IDP) (ticket string, back url.Values) {
	t.Helper()
	to, ticket, err := of.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	at.Begun = u.Query()
	return ticket, url.Values{"state": {u.Query().Get("state")}, "code": {"code"}}
}

func TestSignOn(t *testing.T) {
	at := idptest.New(t)
	of := provider(t, at, nil)
	ticket, back := begin(t, of, at)
	for name, want := range map[string]string{
		"client_id": "sluice", "response_type": "code", "scope": "openid email", "code_challenge_method": "S256",
		"redirect_uri": "https://sluice.example/login/callback",
	} {
		if got := at.Begun.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, secret := range []string{ticket, at.Asked.Get("code_verifier"), "s3cret"} {
		if secret != "" && strings.Contains(at.Begun.Encode(), secret) {
			t.Errorf("the browser's URL has %q", secret)
		}
	}
	who, err := of.End(t.Context(), ticket, back)
	if err != nil || who.Name != "oidc:vera@example.com" || who.Role != operators.Operator || who.ID != "" {
		t.Errorf("%+v, %v", who, err)
	}
	another, _ := begin(t, of, at)
	if another == ticket {
		t.Error("two sign-ins have one ticket")
	}
}

// TestRoles: an operator has the highest role of all groups, also of those that userinfo alone
// names, and none without a group that has one.
func TestRoles(t *testing.T) {
	at := idptest.New(t)
	everybody := func(c *Config) { c.Groups[operators.Viewer] = []string{Everybody} }
	for name, tt := range map[string]struct {
		edit   func(*Config)
		claims jwt.MapClaims
		info   map[string]any
		role   operators.Role
		err    error
	}{
		"one group as a text":        {nil, jwt.MapClaims{"groups": "staff"}, nil, operators.Viewer, nil},
		"no group":                   {nil, jwt.MapClaims{"groups": []string{"guests"}}, nil, "", ErrNoRole},
		"no claim":                   {nil, jwt.MapClaims{"groups": nil}, nil, "", ErrNoRole},
		"groups of userinfo":         {nil, jwt.MapClaims{"groups": nil}, map[string]any{"sub": "17", "groups": []string{"sre"}}, operators.Operator, nil},
		"userinfo of another":        {nil, jwt.MapClaims{"groups": nil}, map[string]any{"sub": "18", "groups": []string{"sre"}}, "", ErrNoRole},
		"userinfo changes no claim":  {nil, jwt.MapClaims{"email": nil, "groups": "staff"}, map[string]any{"sub": "17", "email": "a@b.c", "groups": []string{"sre"}}, operators.Viewer, nil},
		"everybody":                  {everybody, jwt.MapClaims{"groups": nil}, nil, operators.Viewer, nil},
		"a group that is called *":   {func(c *Config) { c.Groups = map[operators.Role][]string{operators.Admin: {"root"}} }, jwt.MapClaims{"groups": []string{"*"}}, nil, "", ErrNoRole},
		"groups of another type":     {nil, jwt.MapClaims{"groups": map[string]any{"sre": true}}, nil, "", ErrNoRole},
		"a name with a bidi mark":    {nil, jwt.MapClaims{"email": "vera\u202e@example.com"}, nil, "", ErrNoName},
		"a name in other letters":    {nil, jwt.MapClaims{"email": "vеra@example.com"}, nil, "", ErrNoName},
		"an email of userinfo":       {nil, jwt.MapClaims{"email": nil, "email_verified": true}, map[string]any{"sub": "17", "email": "a@b.c", "email_verified": false}, "", ErrUnverified},
		"an email not verified":      {nil, jwt.MapClaims{"email_verified": false}, nil, "", ErrUnverified},
		"an email verified":          {nil, jwt.MapClaims{"email_verified": "true"}, nil, operators.Operator, nil},
		"no name":                    {nil, jwt.MapClaims{"email": nil}, nil, "", ErrNoName},
		"a name that is a number":    {nil, jwt.MapClaims{"email": 5}, nil, "", ErrNoName},
		"another claim for the name": {func(c *Config) { c.NameClaim = "sub" }, jwt.MapClaims{"email_verified": false}, nil, operators.Operator, nil},
	} {
		t.Run(name, func(t *testing.T) {
			of := provider(t, at, tt.edit)
			at.Claims, at.Info = tt.claims, tt.info
			ticket, back := begin(t, of, at)
			who, err := of.End(t.Context(), ticket, back)
			if !errors.Is(err, tt.err) || who.Role != tt.role {
				t.Errorf("%+v, %v, want the role %q and %v", who, err, tt.role, tt.err)
			}
		})
	}
}

// TestForged: what is not the answer to this browser's sign-in, or not of the provider, opens
// nothing.
func TestForged(t *testing.T) {
	at := idptest.New(t)
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		idp    func()
		claims jwt.MapClaims
		ticket func(string) string
		back   func(url.Values)
		err    error
	}{
		"no ticket":               {ticket: func(string) string { return "" }, err: ErrElsewhere},
		"the ticket of another":   {ticket: func(string) string { other, _ := begin(t, provider(t, at, nil), at); return other }, err: ErrElsewhere},
		"a short ticket":          {ticket: func(s string) string { return s[:20] }, err: ErrElsewhere},
		"no state":                {back: func(v url.Values) { v.Del("state") }, err: ErrElsewhere},
		"another state":           {back: func(v url.Values) { v.Set("state", strings.Repeat("A", 43)) }, err: ErrElsewhere},
		"another issuer":          {back: func(v url.Values) { v.Set("iss", "https://evil.example") }, err: ErrElsewhere},
		"two issuers":             {back: func(v url.Values) { v["iss"] = []string{at.URL, "https://evil.example"} }, err: ErrElsewhere},
		"the provider refuses":    {back: func(v url.Values) { v.Del("code"); v.Set("error", "access_denied") }, err: ErrRefused},
		"another code":            {back: func(v url.Values) { v.Set("code", "x") }, err: ErrRefused},
		"a nonce of another":      {claims: jwt.MapClaims{"nonce": "x"}, err: ErrElsewhere},
		"no nonce":                {claims: jwt.MapClaims{"nonce": nil}, err: ErrElsewhere},
		"for another client":      {claims: jwt.MapClaims{"aud": "other"}, err: ErrRefused},
		"for others, too":         {claims: jwt.MapClaims{"aud": []string{"other", "sluice"}}, err: ErrRefused},
		"of another party":        {claims: jwt.MapClaims{"aud": []string{"other", "sluice"}, "azp": "other"}, err: ErrRefused},
		"of a party of one":       {claims: jwt.MapClaims{"azp": "other"}, err: ErrRefused},
		"of a party by number":    {claims: jwt.MapClaims{"azp": 5}, err: ErrRefused},
		"about nobody":            {claims: jwt.MapClaims{"sub": nil}, err: ErrRefused},
		"made at no time":         {claims: jwt.MapClaims{"iat": nil}, err: ErrRefused},
		"made tomorrow":           {claims: jwt.MapClaims{"iat": time.Now().Add(24 * time.Hour).Unix()}, err: ErrRefused},
		"a code beside an error":  {back: func(v url.Values) { v.Set("error", "access_denied") }, err: ErrRefused},
		"no issuer, but promised": {idp: func() { at.Meta = map[string]any{"authorization_response_iss_parameter_supported": true} }, err: ErrElsewhere},
		"of another issuer":       {claims: jwt.MapClaims{"iss": "https://evil.example"}, err: ErrRefused},
		"expired":                 {claims: jwt.MapClaims{"exp": time.Now().Add(-time.Hour).Unix()}, err: ErrRefused},
		"signed by another key":   {idp: func() { at.Sign = stranger }, err: ErrRefused},
		"signed by nobody":        {idp: func() { at.Sign, at.Method = jwt.UnsafeAllowNoneSignatureType, jwt.SigningMethodNone }, err: ErrRefused},
		"signed by the client id": {idp: func() { at.Sign, at.Method = []byte("s3cret"), jwt.SigningMethodHS256 }, err: ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			of := provider(t, at, nil)
			at.Claims, at.Sign, at.Method, at.Meta = tt.claims, nil, nil, nil
			if tt.idp != nil {
				tt.idp()
			}
			ticket, back := begin(t, of, at)
			if tt.ticket != nil {
				ticket = tt.ticket(ticket)
			}
			if tt.back != nil {
				tt.back(back)
			}
			who, err := of.End(t.Context(), ticket, back)
			if !errors.Is(err, tt.err) || who != (operators.Actor{}) {
				t.Errorf("%+v, %v, want %v", who, err, tt.err)
			}
		})
	}
}

// TestProviderAway: errors of the provider are no refusal, have nothing that it said in full, and
// its metadata are read again, but not by each request.
func TestProviderAway(t *testing.T) {
	at := idptest.New(t)
	of := provider(t, at, nil)
	ticket, back := begin(t, of, at)
	at.Status = http.StatusInternalServerError
	if _, err := of.End(t.Context(), ticket, back); err == nil || errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a fault of the provider: %v", err)
	}
	at.Status, at.Claims, at.Fault = 0, jwt.MapClaims{"groups": nil}, http.StatusBadGateway
	if who, err := of.End(t.Context(), ticket, back); err == nil || errors.Is(err, ErrNoRole) {
		t.Errorf("its userinfo fails: %v, %v", who, err)
	}
	at.Issuer = "https://evil.example"
	other := provider(t, at, nil)
	_, _, err := other.Begin(t.Context())
	if err == nil {
		t.Fatal("metadata of another issuer are taken")
	}
	at.Issuer = ""
	if _, _, again := other.Begin(t.Context()); again == nil || again.Error() != err.Error() {
		t.Errorf("within a moment: %v", again)
	}
	other.tried = other.tried.Add(-2 * retryAfter)
	if _, _, err := other.Begin(t.Context()); err != nil {
		t.Errorf("later: %v", err)
	}
	// An hour later they are read again, and stay if that fails.
	known := other.known
	other.read = other.read.Add(-2 * readEvery)
	at.Issuer = "https://evil.example"
	if _, _, err := other.Begin(t.Context()); err != nil || other.known != known {
		t.Errorf("metadata that were read before: %v", err)
	}
	at.Issuer, other.tried = "", other.tried.Add(-2*retryAfter)
	if _, _, err := other.Begin(t.Context()); err != nil || other.known == known {
		t.Errorf("they are not read again: %v", err)
	}
	plain := provider(t, at, func(c *Config) { c.Issuer = "http://192.0.2.1/" })
	if _, _, err := plain.Begin(t.Context()); err == nil || !strings.Contains(err.Error(), "https") {
		t.Errorf("plain HTTP beyond this machine: %v", err)
	}
}

// TestBrowserLeaves: the metadata are read for all, so one browser that leaves fails no other.
func TestBrowserLeaves(t *testing.T) {
	at := idptest.New(t)
	of := provider(t, at, nil)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, ctx := range []context.Context{gone, t.Context()} {
		if _, _, err := of.Begin(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestHangingProvider: a provider that does not answer costs a request the timeout.
func TestHangingProvider(t *testing.T) {
	at := idptest.New(t)
	at.Wait = make(chan struct{})
	defer close(at.Wait)
	of := provider(t, at, func(c *Config) { c.Timeout = 20 * time.Millisecond })
	if _, _, err := of.Begin(t.Context()); err == nil {
		t.Error("metadata that never came are taken")
	}
}

// TestRefusal: the error has the provider's reason, but no other words of it, and a wrong code
// costs the provider one call, with the secret where it wants it.
func TestRefusal(t *testing.T) {
	at := idptest.New(t)
	for name, tt := range map[string]struct {
		methods []string
		secret  string
		basic   bool
	}{
		"by default": {nil, "s3cret", true}, "both": {[]string{"client_secret_post", "client_secret_basic"}, "s3cret", true},
		"in the body": {[]string{"client_secret_post"}, "s3cret", false}, "no secret": {nil, "", false},
	} {
		at.Meta = map[string]any{"token_endpoint_auth_methods_supported": tt.methods}
		of := provider(t, at, func(c *Config) { c.ClientSecret = tt.secret })
		ticket, back := begin(t, of, at)
		before := at.Calls.Load()
		at.Status = http.StatusBadRequest
		_, err := of.End(t.Context(), ticket, back)
		if !errors.Is(err, ErrRefused) || !strings.HasSuffix(err.Error(), "it says invalid_grant") || at.Calls.Load() != before+1 || at.Basic != tt.basic {
			t.Errorf("%s: %v after %d calls, basic: %v", name, err, at.Calls.Load()-before, at.Basic)
		}
		at.Status = 0
		if _, err := of.End(t.Context(), ticket, back); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		back.Set("error", "hunter2")
		if _, err := of.End(t.Context(), ticket, back); !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
