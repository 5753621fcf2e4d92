// Package certtest makes certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	PEM  string // its certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Subject is what a certificate says. It is for 127.0.0.1 and localhost, for servers and clients.
type Subject struct {
	CN     string
	URIs   []string  // among the alternative names
	Serial int64     // 1 if zero
	End    time.Time // in an hour if zero
	Usage  x509.ExtKeyUsage
	// Extra are further parts of the certificate, such as alternative names that URIs cannot have.
	Extra []pkix.Extension
	Names []pkix.AttributeTypeAndValue // of the subject, beside CN
}

// New returns an authority with a name.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.PEM = sign(t, of, of, &a.key.PublicKey, a.key)
	return a
}

// Issue returns a certificate and its key in PEM.
func (a *Authority) Issue(t testing.TB, s Subject) (cert, key string) {
	t.Helper()
	of := &x509.Certificate{
		SerialNumber: big.NewInt(max(1, s.Serial)), Subject: pkix.Name{CommonName: s.CN, ExtraNames: s.Names},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: s.End, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, ExtraExtensions: s.Extra,
	}
	if s.Usage != 0 {
		of.ExtKeyUsage = []x509.ExtKeyUsage{s.Usage}
	}
	if s.End.IsZero() {
		of.NotAfter = time.Now().Add(time.Hour)
	}
	for _, text := range s.URIs {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		of.URIs = append(of.URIs, u)
	}
	private := newKey(t)
	_, cert = sign(t, of, a.cert, &private.PublicKey, a.key)
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}

// Client returns the settings of a client that trusts the authority and has a certificate of it.
func (a *Authority) Client(t testing.TB, s Subject) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(pairOf(a.Issue(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	c := a.Trust()
	c.Certificates = []tls.Certificate{pair}
	return c
}

// Trust returns the settings of a client that trusts the authority.
func (a *Authority) Trust() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
}

func pairOf(cert, key string) (certPEM, keyPEM []byte) { return []byte(cert), []byte(key) }

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, of, by *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, string) {
	t.Helper()
	raw, err := x509.CreateCertificate(rand.Reader, of, by, public, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
}
