package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"math/big"
	"net/http"
	"strings"
)

// An API key is sluice_<id>_<secret>: the id of queue.Key and 256 random bits in base 62.
const (
	keyPrefix    = "sluice_"
	idLength     = 28
	secretLength = 43 // base 62 digits that hold 256 bits
	keyLength    = len(keyPrefix) + idLength + 1 + secretLength

	maxToken = 8 << 10 // bytes of a token; larger ones are not worth verifying
)

// credential is the credential of a request. The zero value is none.
type credential struct {
	key   apiKey
	token string // a JWT, not verified
}

type apiKey struct {
	id     string
	secret string
}

func (c credential) mode() Mode {
	switch {
	case c.key.id != "":
		return Keys
	case c.token != "":
		return JWT
	default:
		return Guest
	}
}

// opens compares the digest of the secret in constant time.
func (k apiKey) opens(hash [sha256.Size]byte) bool {
	got := sha256.Sum256([]byte(k.secret))
	return subtle.ConstantTimeCompare(got[:], hash[:]) == 1
}

// Header holds a credential beside an Authorization that belongs to another server. Then neither
// that nor X-API-Key is read.
const Header = "Sluice-Api-Key"

// credentialOf reads the one credential in the headers. An empty header is a bad credential, not
// none: the client meant to send one.
func credentialOf(h http.Header) (credential, error) {
	authorization, hasAuthorization := h["Authorization"]
	key, hasKey := h["X-Api-Key"]
	if own, has := h[Header]; has {
		authorization, hasAuthorization, key, hasKey = nil, false, own, true
	}
	switch {
	case !hasAuthorization && !hasKey:
		return credential{}, nil
	case len(authorization)+len(key) != 1:
		return credential{}, refuse(Malformed)
	case hasKey:
		return parseCredential(key[0])
	}
	scheme, text, _ := strings.Cut(authorization[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return credential{}, refuse(Malformed)
	}
	return parseCredential(strings.TrimLeft(text, " "))
}

// parseCredential finds the kind by the form.
func parseCredential(text string) (credential, error) {
	switch {
	case strings.HasPrefix(text, keyPrefix):
		// A malformed key is answered as an unknown one, without a lookup.
		id, secret := text[len(keyPrefix):], ""
		if len(text) == keyLength {
			id, secret = id[:idLength], id[idLength:]
		}
		if secret == "" || secret[0] != '_' || !consistsOf(id, idDigits) || !consistsOf(secret[1:], secretDigits) {
			return credential{}, refuse(BadKey)
		}
		return credential{key: apiKey{id: id, secret: secret[1:]}}, nil
	case strings.Count(text, ".") == 2 && len(text) <= maxToken:
		return credential{token: text}, nil
	default:
		return credential{}, refuse(Malformed)
	}
}

const (
	idDigits     = "0123456789abcdefghijklmnopqrstuv"
	secretDigits = idDigits + "wxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

func consistsOf(text, digits string) bool { return strings.Trim(text, digits) == "" }

// Secret is the half of a new API key that is never stored.
type Secret struct{ text string }

// NewSecret returns a secret of 256 random bits.
func NewSecret() Secret {
	var bits [sha256.Size]byte
	_, _ = rand.Read(bits[:]) // never fails
	digits := new(big.Int).SetBytes(bits[:]).Text(62)
	return Secret{strings.Repeat("0", secretLength-len(digits)) + digits}
}

// Hash returns the SHA-256 of the secret, which is stored.
func (s Secret) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(s.text)) }

// Key returns the whole API key with this id, for the client alone.
func (s Secret) Key(id string) string { return keyPrefix + id + "_" + s.text }

// String returns a fixed text, so that a log cannot show the secret by accident.
func (Secret) String() string { return "(hidden)" }
