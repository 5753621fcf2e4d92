package auth

import (
	"crypto/x509"
	"encoding/asn1"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
)

// What of a certificate names the tenant.
const (
	CertSANURI = "san-uri" // its one URI among the alternative names, such as spiffe://example/orders
	CertCN     = "cn"      // the common name of its subject
)

const certificatePrefix = "cert:"

// certificate returns the verified certificate of the client's connection; nil without one, and
// without the mode Cert.
func (a *Authenticator) certificate(r *http.Request) *x509.Certificate {
	if !a.modes[Cert] || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil
	}
	return r.TLS.VerifiedChains[0][0]
}

// byCertificate checks the end again, because a connection may outlast its certificate.
func (a *Authenticator) byCertificate(c *x509.Certificate) (Principal, error) {
	names := commonNames(c)
	if a.cert == CertSANURI {
		names = uris(c)
	}
	if len(names) != 1 || !legalTenant(names[0]) || a.reserved(names[0]) || time.Now().After(c.NotAfter) {
		return Principal{}, refuse(BadCertificate)
	}
	return Principal{Tenant: names[0], KeyID: certificatePrefix + c.SerialNumber.Text(16)}, nil
}

func commonNames(c *x509.Certificate) (names []string) {
	for _, attribute := range c.Subject.Names {
		if name, is := attribute.Value.(string); is && attribute.Type.Equal(oidCommonName) {
			names = append(names, name)
		}
	}
	return names
}

var (
	oidCommonName      = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidSubjectAltNames = asn1.ObjectIdentifier{2, 5, 29, 17}
)

// tagURI is that of a URI in a GeneralName (RFC 5280, section 4.2.1.6).
const tagURI = 6

// uris returns the URIs among the alternative names byte for byte: a url.URL has one form for
// several spellings, which would be one tenant.
func uris(c *x509.Certificate) (texts []string) {
	for _, extension := range c.Extensions {
		var list, name asn1.RawValue
		if !extension.Id.Equal(oidSubjectAltNames) {
			continue
		}
		if _, err := asn1.Unmarshal(extension.Value, &list); err != nil {
			return nil
		}
		for rest := list.Bytes; len(rest) > 0; {
			var err error
			if rest, err = asn1.Unmarshal(rest, &name); err != nil {
				return nil
			}
			if name.Class == asn1.ClassContextSpecific && name.Tag == tagURI {
				texts = append(texts, string(name.Bytes))
			}
		}
	}
	return texts
}

// reserved reports whether a name is of a guest or of a member, whom other credentials identify.
func (a *Authenticator) reserved(name string) bool {
	if a.tokens != nil && slices.ContainsFunc(a.tokens.issuers, func(of *tokenIssuer) bool { return strings.HasPrefix(name, of.prefix) }) {
		return true
	}
	return strings.HasPrefix(name, queue.GuestPrefix) || strings.HasPrefix(name, memberPrefix)
}

// ByCertificate reports whether the certificate of its connection identified the client, and no
// header.
func (p Principal) ByCertificate() bool { return strings.HasPrefix(p.KeyID, certificatePrefix) }
