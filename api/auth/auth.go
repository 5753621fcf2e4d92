package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/7509e464/sluice/queue/keystore"
)

// Mode is a kind of credential that is taken.
type Mode string

// The modes. None stands alone, and for it there is no Authenticator.
const (
	None  Mode = "none"  // the tenant is what the header Sluice-Tenant says
	Keys  Mode = "keys"  // API keys
	JWT   Mode = "jwt"   // JSON Web Tokens of one issuer
	Guest Mode = "guest" // no credential: a tenant for each address
)

// Principal is whose traffic a request is.
type Principal struct {
	Tenant string // for example "acme", "member:u-17", "guest:192.0.2.7"
	Tier   string // that the credential claims; empty for none
	KeyID  string // names the credential in logs, without opening anything; empty for guests
}

// KeyStore is where API keys are looked up. keystore.ErrUnknownKey says that there is none with
// this id; any other error means that nothing is known of it now. It is asked by several goroutines
// at once.
type KeyStore interface {
	FindKey(ctx context.Context, id string) (keystore.Key, error)
}

// Config is the settings of an Authenticator.
type Config struct {
	Modes  []Mode // at least one of Keys, JWT, Guest
	Keys   KeyStore
	JWT    JWTConfig
	Guest  GuestConfig
	Logger *slog.Logger // default slog.Default()
	// Guesses are asked before an API key is looked up in the store; nil: all are looked up.
	Guesses *Guesses
}

// Authenticator tells principals. It is safe for concurrent use.
type Authenticator struct {
	modes  map[Mode]bool
	keys   *keyCache
	tokens *tokens
	guests *guests

	guesses *Guesses
	address func(*http.Request) (string, bool)
}

// New makes an authenticator. Keys that are fetched from a URL are refreshed until ctx ends; that
// they cannot be had now is no error. What cannot work is one: a mode that is none, or settings of
// a mode that break a rule.
func New(ctx context.Context, c Config) (*Authenticator, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if len(c.Modes) == 0 {
		return nil, errors.New("auth: no mode")
	}
	a := &Authenticator{modes: map[Mode]bool{}, guesses: c.Guesses}
	var err error
	if a.address, err = ClientAddress(c.Guest.TrustedProxies...); err != nil {
		return nil, err
	}
	for _, mode := range c.Modes {
		a.modes[mode] = true
		switch mode {
		case Keys:
			if c.Keys == nil {
				return nil, errors.New("auth: no store of keys")
			}
			a.keys = newKeyCache(c.Keys)
		case JWT:
			a.tokens, err = newTokens(ctx, c.JWT, c.Logger)
		case Guest:
			a.guests, err = newGuests(c.Guest)
		default:
			err = fmt.Errorf("auth: mode %q: must be keys, jwt or guest", mode)
		}
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Takes reports whether the mode is on.
func (a *Authenticator) Takes(mode Mode) bool { return a.modes[mode] }

// Authenticate tells whose request it is. A *Refusal says why it is nobody's; any other error, such
// as *TooManyGuesses or one that wraps queue.ErrUnavailable or ErrNoKeys, that it cannot be told
// now.
func (a *Authenticator) Authenticate(r *http.Request) (Principal, error) {
	c, err := credentialOf(r.Header)
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

// Good reports whether a request that was let in once may go on, for answers that last: false once
// its credential is refused. While that cannot be told it may.
func (a *Authenticator) Good(r *http.Request) bool {
	_, err := a.Authenticate(r)
	var refusal *Refusal
	return !errors.As(err, &refusal)
}

// byKey compares before it looks at anything else, so that only who has the secret learns, by the
// time it takes, of the expiry.
func (a *Authenticator) byKey(r *http.Request, c apiKey) (Principal, error) {
	if a.guesses != nil {
		address := func() string { text, _ := a.address(r); return text }
		if err := a.guesses.Allow(r.Context(), c.id, address); err != nil {
			return Principal{}, err
		}
	}
	k, err := a.keys.find(r.Context(), c.id)
	switch {
	case errors.Is(err, keystore.ErrUnknownKey):
		return Principal{}, refuse(BadKey)
	case err != nil:
		return Principal{}, err
	case !c.opens(k.Hash), k.Expired(time.Now()):
		return Principal{}, refuse(BadKey)
	}
	if a.guesses != nil {
		a.guesses.Right(c.id)
	}
	return Principal{Tenant: k.Tenant, KeyID: k.ID}, nil
}

// Class is a class of reasons for a refusal. Metrics count by it.
type Class string

// The classes of refusals.
const (
	Missing   Class = "missing"        // no credential, and guests are not taken
	Malformed Class = "malformed"      // not one credential, or none of a kind that there is
	NotTaken  Class = "not-taken"      // of a kind that is not taken here
	BadKey    Class = "key"            // an API key that is unknown, revoked or expired, or whose secret is wrong
	BadToken  Class = "token"          // a JWT that no key of the issuer has signed, or that cannot be read
	Expired   Class = "token-expired"  // a JWT past its time
	NotYet    Class = "token-early"    // a JWT before its time
	Elsewhere Class = "token-audience" // a JWT of another issuer, or for another audience
	NoTenant  Class = "token-tenant"   // a JWT that names no tenant
	NoAddress Class = "address"        // a guest whose address cannot be told
)

// details are what each class tells the client.
var details = map[Class]string{
	Missing:   "send an API key or a token as Authorization: Bearer",
	Malformed: "send one API key or token, once, as Authorization: Bearer or X-API-Key",
	NotTaken:  "credentials of this kind are not taken here; an API key begins with sluice_, and a token is a JSON Web Token",
	BadKey:    "the API key is unknown, revoked or expired",
	BadToken:  "the token cannot be verified",
	Expired:   "the token is expired, or does not say when it will be",
	NotYet:    "the token is not valid yet",
	Elsewhere: "the token is of another issuer or for another audience",
	NoTenant:  "the token names no tenant",
	NoAddress: "the client's address cannot be told: a proxy sent none, or one that cannot be read",
}

// Classes are all classes of refusals.
func Classes() []Class {
	classes := make([]Class, 0, len(details))
	for c := range details {
		classes = append(classes, c)
	}
	slices.Sort(classes)
	return classes
}

// Refusal is why a request is nobody's. It holds nothing that the client sent.
type Refusal struct{ Class Class }

// Shown reports whether a credential was shown, which may have been a guess.
func (r *Refusal) Shown() bool { return r.Class != Missing && r.Class != NoAddress }

func refuse(c Class) *Refusal { return &Refusal{c} }

func (r *Refusal) Error() string { return details[r.Class] }

// Challenge is the value of WWW-Authenticate (RFC 6750): with an error only where a credential was
// sent.
func (r *Refusal) Challenge() string {
	const scheme = `Bearer realm="sluice"`
	if r.Class == Missing || r.Class == NoAddress {
		return scheme
	}
	return scheme + `, error="invalid_token"`
}
