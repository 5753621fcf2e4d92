package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The algorithms that a token may be signed with.
const (
	HS256 = "HS256"
	RS256 = "RS256"
	ES256 = "ES256"
	EdDSA = "EdDSA"
)

// Algorithms returns all algorithms that a token may be signed with.
func Algorithms() []string { return []string{HS256, RS256, ES256, EdDSA} }

const (
	leastSecret = 32   // bytes of a secret for HS256 (RFC 7518, 3.2)
	leastRSA    = 2048 // bits (RFC 7518, 3.3)
)

// TokenKey is a key that verifies tokens of one algorithm and of no other: a public key never
// serves as a secret.
type TokenKey struct {
	id        string // empty: of tokens with any key id
	algorithm string
	key       any // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey, by the algorithm
}

// NewSecretKey makes a key for HS256. Its error is the rule that the secret breaks, without the
// secret.
func NewSecretKey(id, secret string) (TokenKey, error) {
	if len(secret) < leastSecret {
		return TokenKey{}, fmt.Errorf("must be at least %d bytes", leastSecret)
	}
	return TokenKey{id, HS256, []byte(secret)}, nil
}

// NewPublicKey makes a key for RS256, ES256 or EdDSA from a public key or a certificate in PEM. Its
// error is the rule that the text breaks.
func NewPublicKey(id, algorithm, text string) (TokenKey, error) {
	if algorithm == HS256 || !slices.Contains(Algorithms(), algorithm) {
		return TokenKey{}, fmt.Errorf("must be for one of %s", strings.Join(Algorithms()[1:], ", "))
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || strings.TrimSpace(string(rest)) != "" {
		return TokenKey{}, errors.New("must be one public key or certificate in PEM")
	}
	var key any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var c *x509.Certificate
		if c, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = c.PublicKey
		}
	default:
		return TokenKey{}, errors.New("must be a public key or a certificate; a private key stays with the issuer")
	}
	if err != nil {
		return TokenKey{}, errors.New("must be a valid public key or certificate")
	}
	fits, rule := algorithmOf(key)
	switch {
	case rule != "":
		return TokenKey{}, errors.New(rule)
	case fits != algorithm:
		return TokenKey{}, fmt.Errorf("must be a key for %s; this one is for %s", algorithm, fits)
	}
	return TokenKey{id, algorithm, key}, nil
}

// algorithmOf returns the one algorithm of a public key, or the rule that the key breaks.
func algorithmOf(key any) (algorithm, rule string) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < leastRSA {
			return "", fmt.Sprintf("must have at least %d bits", leastRSA)
		}
		return RS256, ""
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return "", "must be on the curve P-256"
		}
		return ES256, ""
	case ed25519.PublicKey:
		return EdDSA, ""
	default:
		return "", "must be an RSA, P-256 or Ed25519 key"
	}
}
