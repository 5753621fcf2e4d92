package operators

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Account is an operator with a token of its own.
type Account struct {
	ID       string            // 26 characters of [a-z2-7]; a part of the token
	Name     string            // unique
	Role     Role              // what the operator may do
	Hash     [sha256.Size]byte // SHA-256 of the token's secret
	Created  time.Time         // by the clock of the process that made it, to the millisecond
	By       string            // the name of the actor who made it
	Expires  time.Time         // from then on the token is refused; zero: never
	Networks []netip.Prefix    // from which the token is accepted; none: from any
	Used     time.Time         // the last use, at most a minute late; zero: never
}

// Expired reports whether the token has ended at that time.
func (a Account) Expired(now time.Time) bool { return !a.Expires.IsZero() && !now.Before(a.Expires) }

// From reports whether the token is accepted from the address.
func (a Account) From(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	return len(a.Networks) == 0 ||
		slices.ContainsFunc(a.Networks, func(p netip.Prefix) bool { return p.Contains(address) })
}

// Network reads a prefix or an address. IPv4 within IPv6 counts as IPv4.
func Network(text string) (p netip.Prefix, ok bool) {
	if address, err := netip.ParseAddr(text); err == nil {
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), address.Zone() == ""
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err == nil && !p.Addr().Is4In6()
}

// NameRule is the rule of names that IsName checks. Letters of other scripts can look like those of
// a name that an audit has.
const NameRule = "must be 1 to 255 of the characters A-Z, a-z, 0-9, . _ @ + and -"

// IsName reports whether a text may be the name of an account.
func IsName(text string) bool {
	return text != "" && len(text) <= 255 && strings.Trim(text, nameCharacters) == ""
}

const nameCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+-"

// Reserved reports whether no account may have the name: those of actors without an account, and
// those of a login with single sign-on.
func Reserved(name string) bool {
	return slices.ContainsFunc(namesOfOthers, func(other string) bool { return strings.EqualFold(name, other) }) ||
		strings.HasPrefix(strings.ToLower(name), SingleSignOn)
}

// Names of actors that have no account.
const (
	AdminName    = "admin" // who has admin.token
	LocalName    = "local" // anybody, on loopback without a token
	SingleSignOn = "oidc:" // begins the names of those who signed in at an OIDC provider
)

// namesOfOthers are actors in the audit that are no accounts: those above, the configuration file,
// the audit itself, and several actors together.
var namesOfOthers = []string{AdminName, LocalName, "file", "command", "sluice", "others"}

// Token is the text with which an operator authenticates: sluiceop_ID_SECRET.
type Token struct{ id, secret string }

const (
	tokenPrefix  = "sluiceop_"
	idLength     = 26
	secretLength = 52 // of base32: 260 random bits
)

// NewToken returns a random token.
func NewToken() Token {
	return Token{strings.ToLower(rand.Text()[:idLength]), (rand.Text() + rand.Text())[:secretLength]}
}

// IsToken reports whether a text is meant as a token.
func IsToken(text string) bool { return strings.HasPrefix(text, tokenPrefix) }

// ParseToken reads a token. ok is false for any other text.
func ParseToken(text string) (t Token, ok bool) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(rest) != idLength+1+secretLength || rest[idLength] != '_' {
		return Token{}, false
	}
	t = Token{rest[:idLength], rest[idLength+1:]}
	return t, strings.Trim(t.id, idDigits) == "" && strings.Trim(t.secret, secretDigits) == ""
}

const (
	idDigits     = "abcdefghijklmnopqrstuvwxyz234567"
	secretDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// ID returns the id of the account.
func (t Token) ID() string { return t.id }

// Hash returns the digest that is stored.
func (t Token) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(t.secret)) }

// Opens reports whether the token is that of the account. Its duration reveals nothing about the
// secret.
func (t Token) Opens(a Account) bool {
	got := t.Hash()
	return subtle.ConstantTimeCompare(got[:], a.Hash[:]) == 1
}

// Reveal returns the whole token, for its operator alone.
func (t Token) Reveal() string { return tokenPrefix + t.id + "_" + t.secret }

// String returns a fixed text, so that a log cannot show the token by accident.
func (Token) String() string { return "(hidden)" }
