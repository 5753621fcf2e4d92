package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/7509e464/sluice/api/client/wire"
)

// JWTConfig holds the settings for verifying tokens.
type JWTConfig struct {
	Issuer      string        // that every token must name; required
	Audience    string        // that every token must be for; required
	Leeway      time.Duration // how far the issuer's clock may be off; default none
	TenantClaim string        // the claim whose value is the tenant, after "member:"; default "sub"
	TierClaim   string        // the claim whose value is the tier; empty: none
	Keys        []TokenKey    // of the issuer; Keys or JWKS is required
	JWKS        string        // a file or an http or https URL with further keys of the issuer; empty: none
	Refresh     time.Duration // how often the JWKS is read again; default 5m
}

// ErrNoKeys means that the issuer's keys could not be fetched yet, so that no token can be
// verified.
var ErrNoKeys = errors.New("auth: the issuer's keys have not been fetched yet")

const (
	memberPrefix = "member:"
	maxTenant    = 255 // bytes
	maxTier      = 64
)

// tokens verifies JWTs.
type tokens struct {
	parser      *jwt.Parser
	keys        []TokenKey
	set         *keySet // nil: none
	tenantClaim string
	tierClaim   string
}

func newTokens(ctx context.Context, c JWTConfig, log *slog.Logger) (*tokens, error) {
	if c.Issuer == "" || c.Audience == "" {
		return nil, errors.New("auth: jwt: issuer and audience must be set")
	}
	if len(c.Keys) == 0 && c.JWKS == "" {
		return nil, errors.New("auth: jwt: no keys")
	}
	t := &tokens{
		keys: c.Keys, tenantClaim: c.TenantClaim, tierClaim: c.TierClaim,
		parser: jwt.NewParser(jwt.WithValidMethods(Algorithms()), jwt.WithIssuer(c.Issuer),
			jwt.WithAudience(c.Audience),
			jwt.WithExpirationRequired(), jwt.WithLeeway(c.Leeway), jwt.WithStrictDecoding()),
	}
	if t.tenantClaim == "" {
		t.tenantClaim = "sub"
	}
	if c.JWKS == "" {
		return t, nil
	}
	var err error
	if t.set, err = newKeySet(ctx, c.JWKS, c.Refresh, log); err != nil {
		return nil, fmt.Errorf("auth: jwt: keys: %w", err)
	}
	return t, nil
}

// principal verifies the token and reads its claims.
func (t *tokens) principal(ctx context.Context, text string) (Principal, error) {
	claims := jwt.MapClaims{}
	token, err := t.parser.ParseWithClaims(text, claims, func(token *jwt.Token) (any, error) {
		return t.candidates(ctx, token)
	})
	switch {
	case err == nil:
	case errors.Is(err, ErrNoKeys):
		return Principal{}, ErrNoKeys
	case !errors.Is(err, jwt.ErrTokenInvalidClaims): // not even its claims are verified
		return Principal{}, refuse(BadToken)
	case errors.Is(err, jwt.ErrTokenInvalidIssuer), errors.Is(err, jwt.ErrTokenInvalidAudience):
		return Principal{}, refuse(Elsewhere)
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return Principal{}, refuse(NotYet)
	case errors.Is(err, jwt.ErrTokenExpired), claims["exp"] == nil:
		return Principal{}, refuse(Expired)
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing): // one of the issuer and the audience
		return Principal{}, refuse(Elsewhere)
	default:
		return Principal{}, refuse(BadToken)
	}
	who, named := claims[t.tenantClaim].(string)
	if !named || !legalTenant(memberPrefix+who) || who == "" {
		return Principal{}, refuse(NoTenant)
	}
	p := Principal{Tenant: memberPrefix + who, KeyID: "jwt"}
	if kid, _ := token.Header["kid"].(string); plainName(kid) {
		p.KeyID = "jwt:" + kid
	}
	if t.tierClaim != "" {
		if tier, _ := claims[t.tierClaim].(string); plainName(tier) {
			p.Tier = tier
		}
	}
	return p, nil
}

var errKey = errors.New("auth: no key fits the token")

// candidates returns the keys that may have signed the token: those of its algorithm and, if it
// names one, of its key id. A key without an id may have signed any. The set is not searched for an
// id that a key of the configuration has.
func (t *tokens) candidates(ctx context.Context, token *jwt.Token) (any, error) {
	if _, critical := token.Header["crit"]; critical {
		return nil, fmt.Errorf("%w: it has extensions that must be understood (RFC 7515)", errKey)
	}
	kid, named := "", false
	if value, present := token.Header["kid"]; present {
		if kid, named = value.(string); !named {
			return nil, fmt.Errorf("%w: its key id is not a string", errKey)
		}
	}
	var set jwt.VerificationKeySet
	exact := false
	add := func(keys []TokenKey) {
		for _, k := range keys {
			if k.algorithm == token.Method.Alg() && (!named || k.id == "" || k.id == kid) {
				set.Keys = append(set.Keys, k.key)
				exact = exact || named && k.id == kid
			}
		}
	}
	add(t.keys)
	if t.set != nil && !exact {
		keys, err := t.set.find(ctx, kid, named)
		if err != nil && len(set.Keys) == 0 {
			return nil, err
		}
		add(keys)
	}
	if len(set.Keys) == 0 {
		return nil, errKey
	}
	return set, nil
}

// legalTenant is the rule of the API for names of tenants: 1 to 255 bytes of UTF-8 without control
// and format characters.
func legalTenant(name string) bool {
	return name != "" && len(name) <= maxTenant && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, wire.IsControl)
}

// plainName accepts 1 to 64 of A-Z a-z 0-9 . _ -.
func plainName(s string) bool {
	return s != "" && len(s) <= maxTier && consistsOf(s, secretDigits+"._-")
}
