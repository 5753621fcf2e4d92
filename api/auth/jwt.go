package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
)

// JWTConfig holds the settings for verifying tokens.
type JWTConfig struct {
	Issuer      string        // that every token must name; required
	Audience    string        // that every token must be for; required
	Leeway      time.Duration // how far the issuer's clock may be off; default none
	TenantClaim string        // the claim whose value is the tenant, after Prefix; default "sub"
	Prefix      string        // of tenants; default "member:"
	// Shared allows that another issuer, which has it set too, names the same tenants.
	Shared bool
	// Scoped limits every token to the scopes that it names. Otherwise a token that names none of
	// queue.Scopes has the default.
	Scoped    bool
	TierClaim string        // the claim whose value is the tier; empty: none
	Keys      []TokenKey    // of the issuer; Keys or JWKS is required
	JWKS      string        // a file or a URL with further keys of the issuer, see KeySetRule; empty: none
	Discovery bool          // the JWKS is what the metadata of the issuer name (OpenID Connect Discovery)
	Refresh   time.Duration // how often the JWKS is read again; default 5m
}

// ErrNoKeys means that the issuer's keys cannot be fetched, so that the token cannot be verified.
var ErrNoKeys = errors.New("auth: the issuer's keys cannot be fetched")

const (
	memberPrefix = "member:"
	maxTenant    = 255 // bytes
	maxTier      = 64
)

// tokens verifies the JWTs of all issuers.
type tokens struct {
	issuers []*tokenIssuer
	revoked *revoked // nil: none can be revoked
}

// principal verifies the token and reads its claims. The issuer that the token names decides which
// keys and settings apply; the keys of others cannot verify it.
func (t *tokens) principal(ctx context.Context, text string) (Principal, error) {
	of := t.issuers[0]
	if len(t.issuers) > 1 {
		claims := jwt.MapClaims{}
		_, _, _ = jwt.NewParser().ParseUnverified(text, claims)
		name, _ := claims["iss"].(string)
		for _, other := range t.issuers {
			if other.name == name {
				of = other
			}
		}
	}
	return of.principal(ctx, text, t.revoked)
}

// newTokens makes the verifier of the issuers.
func newTokens(ctx context.Context, issuers []JWTConfig, revocations Revocations, log *slog.Logger) (*tokens, error) {
	t := &tokens{}
	for i, c := range issuers {
		of, err := newIssuer(ctx, c, log)
		if err != nil {
			return nil, err
		}
		for _, other := range issuers[:i] {
			if rule := IssuersRule(c, other); rule != "" {
				return nil, fmt.Errorf("auth: jwt: issuer %s: %s", c.Issuer, rule)
			}
		}
		t.issuers = append(t.issuers, of)
	}
	if revocations != nil {
		t.revoked = newRevoked(ctx, revocations, log)
	}
	return t, nil
}

// IssuersRule returns the rule that two issuers break together, empty if none.
func IssuersRule(a, b JWTConfig) string {
	p, q := cmp.Or(a.Prefix, memberPrefix), cmp.Or(b.Prefix, memberPrefix)
	switch {
	case a.Issuer == b.Issuer:
		return "must not be repeated"
	case (strings.HasPrefix(p, q) || strings.HasPrefix(q, p)) && !(a.Shared && b.Shared):
		return "must have a prefix that does not begin like that of another issuer, so that both cannot name the same " +
			"tenant; shared_tenants of both allows it"
	}
	return ""
}

// PrefixRule returns the rule that a prefix of tenants breaks, empty if none.
func PrefixRule(prefix string) string {
	if prefix == queue.GuestPrefix || !legalTenant(prefix) || len(prefix) > maxTier ||
		!strings.HasSuffix(prefix, ":") {
		return "must be 2 to 64 bytes that end with a colon, such as partner:, and not guest:"
	}
	return ""
}

// tokenIssuer verifies the JWTs of one issuer.
type tokenIssuer struct {
	name        string
	prefix      string
	scoped      bool
	parser      *jwt.Parser
	keys        []TokenKey
	set         *keySet // nil: none
	tenantClaim string
	tierClaim   string
}

func newIssuer(ctx context.Context, c JWTConfig, log *slog.Logger) (*tokenIssuer, error) {
	if c.Issuer == "" || c.Audience == "" {
		return nil, errors.New("auth: jwt: issuer and audience must be set")
	}
	if len(c.Keys) == 0 && c.JWKS == "" && !c.Discovery {
		return nil, errors.New("auth: jwt: no keys")
	}
	if rule := PrefixRule(cmp.Or(c.Prefix, memberPrefix)); rule != "" {
		return nil, errors.New("auth: jwt: prefix: " + rule)
	}
	t := &tokenIssuer{
		name: c.Issuer, prefix: cmp.Or(c.Prefix, memberPrefix), scoped: c.Scoped,
		keys: c.Keys, tenantClaim: c.TenantClaim, tierClaim: c.TierClaim,
		parser: jwt.NewParser(jwt.WithValidMethods(Algorithms()), jwt.WithIssuer(c.Issuer),
			jwt.WithAudience(c.Audience),
			jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(c.Leeway), jwt.WithStrictDecoding()),
	}
	if t.tenantClaim == "" {
		t.tenantClaim = "sub"
	}
	from, metadataOf := c.JWKS, ""
	if c.Discovery {
		if rule := KeySetRule(c.Issuer); rule != "" {
			return nil, errors.New("auth: jwt: discovery: the issuer " + rule)
		}
		from, metadataOf = strings.TrimSuffix(c.Issuer, "/")+discoveryPath, c.Issuer
	}
	if from == "" {
		return t, nil
	}
	var err error
	if t.set, err = newKeySet(ctx, from, metadataOf, c.Refresh, log); err != nil {
		return nil, fmt.Errorf("auth: jwt: keys: %w", err)
	}
	return t, nil
}

// principal verifies the token and reads its claims.
func (t *tokenIssuer) principal(ctx context.Context, text string, revoked *revoked) (Principal, error) {
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
	case errors.Is(err, jwt.ErrTokenNotValidYet),
		errors.Is(err, jwt.ErrTokenUsedBeforeIssued): // one from the future would outlive each revocation
		return Principal{}, refuse(NotYet)
	case errors.Is(err, jwt.ErrTokenExpired), claims["exp"] == nil:
		return Principal{}, refuse(Expired)
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing): // one of the issuer and the audience
		return Principal{}, refuse(Elsewhere)
	default:
		return Principal{}, refuse(BadToken)
	}
	who, named := claims[t.tenantClaim].(string)
	if !named || !legalTenant(t.prefix+who) || who == "" {
		return Principal{}, refuse(NoTenant)
	}
	p := Principal{Tenant: t.prefix + who, KeyID: "jwt", Rights: t.rights(claims)}
	if err := revoked.check(p.Tenant, claims); err != nil {
		return Principal{}, err
	}
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

// rights are what a token allows, by its claim scope (RFC 8693) or scp: those of the names that are
// scopes here, alone or after "sluice:". Others are ignored. Names may be separated by commas, too.
// A claim that is no text and no list of texts allows nothing.
func (t *tokenIssuer) rights(claims jwt.MapClaims) *queue.Rights {
	var names []string
	read := func(value any) (ok bool) {
		text, ok := value.(string)
		names = append(names, strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r == ',' || r == ' ' })...)
		return ok
	}
	for _, claim := range []string{"scope", "scp"} {
		value, present := claims[claim]
		if list, ok := value.([]any); ok {
			for _, one := range list {
				if !read(one) {
					return &queue.Rights{Scopes: []queue.Scope{}}
				}
			}
		} else if present && !read(value) {
			return &queue.Rights{Scopes: []queue.Scope{}}
		}
	}
	scopes := []queue.Scope{}
	for _, scope := range queue.Scopes() {
		if slices.Contains(names, string(scope)) || slices.Contains(names, "sluice:"+string(scope)) {
			scopes = append(scopes, scope)
		}
	}
	if len(scopes) == 0 && !t.scoped {
		return nil
	}
	return &queue.Rights{Scopes: scopes}
}

var errKey = errors.New("auth: no key fits the token")

// candidates returns the keys that may have signed the token: those of its algorithm and, if it
// names one, of its key id. A key without an id may have signed any. The set is not searched for an
// id that a key of the configuration has.
func (t *tokenIssuer) candidates(ctx context.Context, token *jwt.Token) (any, error) {
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
