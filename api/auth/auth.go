package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
)

// Mode is a kind of credential that is accepted.
type Mode string

// The modes. None excludes the others and needs no Authenticator.
const (
	None  Mode = "none"  // the header Sluice-Tenant names the tenant
	Keys  Mode = "keys"  // API keys
	JWT   Mode = "jwt"   // JSON Web Tokens of some issuers
	Cert  Mode = "cert"  // the verified certificate of the client's connection
	Guest Mode = "guest" // no credential: a tenant for each address
)

// Principal is the authenticated client of a request.
type Principal struct {
	Tenant string // for example "acme", "member:u-17", "guest:192.0.2.7"
	Tier   string // the tier that the credential claims; empty for none
	KeyID  string // the credential in logs, not a secret; empty for guests
	// Vouched means that the operator knows the tenant, by an API key, which only operators make.
	Vouched bool
	// Rights is what the credential allows; nil: the default.
	Rights *queue.Rights
}

// KeyStore looks up API keys; *queue.Keys is one. It must be safe for concurrent use.
type KeyStore interface {
	// FindKey returns the key with this id, also one that has expired. queue.ErrUnknownKey means
	// that there is none. Any other error means that the lookup failed.
	FindKey(ctx context.Context, id string) (queue.Key, error)
	// Used stores uses of keys, at most one a minute of a key.
	Used(ctx context.Context, uses []queue.Use) error
}

// Config is the settings of an Authenticator.
type Config struct {
	Modes []Mode    // at least one of Keys, JWT, Cert, Guest
	Keys  KeyStore  // required with the mode Keys
	JWT   JWTConfig // for the mode JWT
	// Issuers are further ones of tokens. JWT may be unset then.
	Issuers []JWTConfig
	// Revocations are the tokens that are refused although they are valid; nil: none.
	Revocations Revocations
	Cert        string       // for the mode Cert, what names the tenant: CertSANURI or CertCN
	Guest       GuestConfig  // for the mode Guest
	Logger      *slog.Logger // default slog.Default()
	// Guesses limits lookups of API keys in the store; nil: no limit.
	Guesses *Guesses
}

// Authenticator authenticates requests. It is safe for concurrent use.
type Authenticator struct {
	modes  map[Mode]bool
	keys   *keyCache
	tokens *tokens
	guests *guests
	cert   string

	guesses *Guesses
	uses    *uses
	address func(*http.Request) netip.Addr
	network func(*http.Request) (string, bool)
}

// New makes an authenticator. Until ctx ends it refreshes keys from a URL, where a failed fetch is
// no error, and stores when API keys are used.
//
// An unknown mode, or settings of a mode that break a rule, are errors.
func New(ctx context.Context, c Config) (*Authenticator, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if len(c.Modes) == 0 {
		return nil, errors.New("auth: no mode")
	}
	a := &Authenticator{modes: map[Mode]bool{}, guesses: c.Guesses, cert: c.Cert}
	peers, err := newGuests(GuestConfig{TrustedProxies: c.Guest.TrustedProxies})
	if err != nil {
		return nil, err
	}
	a.address = peers.address
	if a.network, err = ClientNetwork(c.Guest.TrustedProxies...); err != nil {
		return nil, err
	}
	for _, mode := range c.Modes {
		a.modes[mode] = true
		switch mode {
		case Keys:
			if c.Keys == nil {
				return nil, errors.New("auth: no store of keys")
			}
			a.keys, a.uses = newKeyCache(c.Keys), newUses(c.Keys, c.Logger)
			go a.uses.run(ctx)
		case JWT:
			issuers := c.Issuers
			if c.JWT.Issuer != "" || len(issuers) == 0 {
				issuers = append([]JWTConfig{c.JWT}, issuers...)
			}
			a.tokens, err = newTokens(ctx, issuers, c.Revocations, c.Logger)
		case Cert:
			if c.Cert != CertSANURI && c.Cert != CertCN {
				err = fmt.Errorf("auth: cert: %q: must be %s or %s", c.Cert, CertSANURI, CertCN)
			}
		case Guest:
			a.guests, err = newGuests(c.Guest)
		default:
			err = fmt.Errorf("auth: mode %q: must be keys, jwt, cert or guest", mode)
		}
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Takes reports whether the mode is one of Config.Modes.
func (a *Authenticator) Takes(mode Mode) bool { return a.modes[mode] }

// Authenticate returns the principal of a request, or a *Refusal, or *Forbidden for a client at an
// address where the credential must not be used. Any other error, such as
// *TooManyGuesses or one that wraps queue.ErrUnavailable or ErrNoKeys, means that it cannot decide
// now.
//
// A key or token of an accepted kind outranks the certificate of the connection. Beside a
// certificate, other values of those headers are not for Sluice.
func (a *Authenticator) Authenticate(r *http.Request) (Principal, error) {
	c, err := credentialOf(r.Header)
	foreign := !a.modes[c.mode()]
	if refusal, is := errors.AsType[*Refusal](err); is {
		foreign = refusal.Class == Malformed || !a.modes[Keys]
	}
	if certificate := a.certificate(r); certificate != nil && (foreign || c.mode() == Guest && err == nil) {
		return a.byCertificate(certificate)
	}
	if err != nil {
		return Principal{}, err
	}
	mode := c.mode()
	if !a.modes[mode] {
		if mode == Guest {
			return Principal{}, refuse(Missing)
		}
		return Principal{}, refuse(NotTaken)
	}
	switch mode {
	case Keys:
		return a.byKey(r, c.key)
	case JWT:
		return a.tokens.principal(r.Context(), c.token)
	default:
		return a.guests.principal(r)
	}
}

// Good reports whether a request that was accepted may go on, for long answers: false once its
// credential is refused. While Authenticate cannot decide, it is true.
func (a *Authenticator) Good(r *http.Request) bool {
	_, err := a.Authenticate(r)
	var refusal *Refusal
	var forbidden *Forbidden
	return !errors.As(err, &refusal) && !errors.As(err, &forbidden)
}

// byKey compares the secret before the expiry, so that its duration shows the expiry only to
// clients that have the secret.
func (a *Authenticator) byKey(r *http.Request, c apiKey) (Principal, error) {
	if a.guesses != nil {
		network := func() string { text, _ := a.network(r); return text }
		if err := a.guesses.Allow(r.Context(), c.id, network); err != nil {
			return Principal{}, err
		}
	}
	k, err := a.keys.find(r.Context(), c.id)
	switch {
	case errors.Is(err, queue.ErrUnknownKey):
		return Principal{}, refuse(BadKey)
	case err != nil:
		return Principal{}, err
	case !c.opens(k.Hash), k.Expired(time.Now()):
		return Principal{}, refuse(BadKey)
	}
	if a.guesses != nil {
		a.guesses.Right(c.id)
	}
	if !k.Rights.From(a.address(r)) {
		return Principal{}, &Forbidden{Missing: "network",
			Detail: "the API key must not be used from the address of this client"}
	}
	a.uses.note(k.ID)
	return Principal{Tenant: k.Tenant, KeyID: k.ID, Vouched: true, Rights: k.Rights}, nil
}

// Forbidden means that the credential of a request is good and does not allow the request.
type Forbidden struct {
	Missing string // what it lacks: a scope, a route, a type, or "network"
	Detail  string // for the client
}

func (e *Forbidden) Error() string { return e.Detail }

// Require returns nil, or the error that names the scope which the credential lacks.
func (p *Principal) Require(s queue.Scope) error {
	if p.Rights.Has(s) {
		return nil
	}
	return &Forbidden{Missing: string(s), Detail: "the credential lacks the scope " + string(s)}
}

// RequireJob returns nil, or the error that names the route, or the type of jobs, which the
// credential lacks.
func (p *Principal) RequireJob(route, kind string) error {
	if err := p.RequireRoute(route); err != nil || p.Rights.AllowsType(kind) {
		return err
	}
	return &Forbidden{Missing: kind, Detail: "the credential does not allow jobs of the type " + kind}
}

// RequireRoute returns nil, or the error that names the route.
func (p *Principal) RequireRoute(route string) error {
	if p.Rights.AllowsRoute(route) {
		return nil
	}
	return &Forbidden{Missing: route, Detail: "the credential does not allow the route " + route}
}

// RequireStored is RequireJob for a job that the request names by its id. The error does not name
// the type, which may be a path: the credential may not read the job.
func (p *Principal) RequireStored(route, kind string) error {
	if err := p.RequireRoute(route); err != nil || p.Rights.AllowsType(kind) {
		return err
	}
	return &Forbidden{Missing: "type", Detail: "the credential does not allow jobs of this type"}
}

// Class is a class of reasons for a refusal. Metrics count by it.
type Class string

// The classes of refusals.
const (
	Missing   Class = "missing"   // no credential, and guests are not accepted
	Malformed Class = "malformed" // several credentials, or one of no known kind
	NotTaken  Class = "not-taken" // of a kind whose mode is off
	// BadKey: an API key that is unknown, revoked or expired, or whose secret is wrong.
	BadKey    Class = "key"
	BadToken  Class = "token"          // a JWT that no key of the issuer has signed, or that cannot be read
	Expired   Class = "token-expired"  // a JWT past its time
	NotYet    Class = "token-early"    // a JWT before its time
	Revoked   Class = "token-revoked"  // a JWT of before the instant from which tokens are accepted
	Elsewhere Class = "token-audience" // a JWT of another issuer, or for another audience
	NoTenant  Class = "token-tenant"   // a JWT that names no tenant
	NoAddress Class = "address"        // a guest whose address is unknown
	// BadCertificate: a certificate that has ended since its connection began, or that names no
	// tenant.
	BadCertificate Class = "certificate"
)

// details are the texts for the client, by class.
var details = map[Class]string{
	Missing:   "send an API key or a token as Authorization: Bearer, or use a certificate, whichever the server accepts",
	Malformed: "send one API key, which begins with sluice_, or one JSON Web Token, as Authorization: Bearer or X-API-Key",
	NotTaken: "credentials of this kind are not accepted here; an API key begins with sluice_, and a token " +
		"is a JSON Web Token",
	BadKey:    "the API key is unknown, revoked or expired",
	BadToken:  "the token cannot be verified",
	Expired:   "the token is expired, or has no expiry",
	Revoked:   "the token was revoked: it is older than the tokens that are still accepted, or has no iat",
	NotYet:    "the token is not valid yet",
	Elsewhere: "the token is of another issuer or for another audience",
	NoTenant:  "the token names no tenant",
	NoAddress: "the client's address is unknown: a proxy sent none, or an invalid one",
	BadCertificate: "the certificate of the connection has ended, or does not name exactly one tenant " +
		"where the server reads its name",
}

// Classes returns all classes of refusals.
func Classes() []Class {
	classes := make([]Class, 0, len(details))
	for c := range details {
		classes = append(classes, c)
	}
	slices.Sort(classes)
	return classes
}

// Refusal is the reason why a request is not authenticated. It holds nothing that the client sent.
type Refusal struct{ Class Class }

// Shown reports whether the request had a credential, which may have been a guess.
func (r *Refusal) Shown() bool { return r.Class != Missing && r.Class != NoAddress }

func refuse(c Class) *Refusal { return &Refusal{c} }

func (r *Refusal) Error() string { return details[r.Class] }

// Challenge returns the value of WWW-Authenticate (RFC 6750). It has an error only if the request
// had a credential.
func (r *Refusal) Challenge() string {
	const scheme = `Bearer realm="sluice"`
	if r.Class == Missing || r.Class == NoAddress {
		return scheme
	}
	return scheme + `, error="invalid_token"`
}
