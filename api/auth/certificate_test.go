package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/certtest"
)

// with is a request over a connection whose certificate was verified.
func with(t *testing.T, ca *certtest.Authority, s certtest.Subject, lines ...string) *http.Request {
	t.Helper()
	cert, _ := ca.Issue(t, s)
	block, _ := pem.Decode([]byte(cert))
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	r := request(somewhere, lines...)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{parsed}, VerifiedChains: [][]*x509.Certificate{{parsed}}}
	return r
}

// altNames is an extension with these URIs, byte for byte.
func altNames(t *testing.T, uris ...string) []pkix.Extension {
	t.Helper()
	var names []asn1.RawValue
	for _, uri := range uris {
		names = append(names, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tagURI, Bytes: []byte(uri)})
	}
	raw, err := asn1.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	return []pkix.Extension{{Id: oidSubjectAltNames, Value: raw}}
}

// A certificate names one tenant byte for byte, or is refused.
func TestTenantOfACertificate(t *testing.T) {
	ca := certtest.New(t, "ca")
	const refused = "refused: certificate"
	cn := gate(t, Config{Modes: []Mode{Cert}, Cert: CertCN})
	for name, want := range map[string]string{
		"acme": "acme", ".": ".", "..": "..", "a/b?c#d%41": "a/b?c#d%41", "Überfluss GmbH": "Überfluss GmbH", "+pool": "+pool", " x ": " x ",
		"": refused, "a\x00b": refused, "a\nb": refused, "a\u202eb": refused, "guest:192.0.2.7": refused, "member:u": refused,
		strings.Repeat("x", 255): strings.Repeat("x", 255), strings.Repeat("x", 256): refused,
	} {
		if got := outcome(t, cn, with(t, ca, certtest.Subject{CN: name, URIs: []string{"spiffe://x/other"}})); got != want {
			t.Errorf("%q: %s, want %q", name, got, want)
		}
	}
	two := certtest.Subject{CN: "a", Names: []pkix.AttributeTypeAndValue{{Type: oidCommonName, Value: "b"}, {Type: oidCommonName, Value: "c"}}}
	if got := outcome(t, cn, with(t, ca, two)); got != refused {
		t.Errorf("two common names: %s", got)
	}
	uri := gate(t, Config{Modes: []Mode{Cert}, Cert: CertSANURI})
	for names, want := range map[string]string{
		"": refused, "spiffe://x/acme": "spiffe://x/acme", "urn:acme": "urn:acme", "spiffe://x/a%62": "spiffe://x/a%62",
		"spiffe://x/a#": "spiffe://x/a#", "spiffe://x/a b": "spiffe://x/a b", "SPIFFE://x/a": "SPIFFE://x/a",
		"spiffe://x/a spiffe://x/b": "spiffe://x/a spiffe://x/b", "spiffe://x/a|spiffe://x/b": refused, "guest:1": refused,
		"spiffe://x/" + strings.Repeat("x", 255): refused,
	} {
		s := certtest.Subject{CN: "other"}
		if names != "" {
			s.Extra = altNames(t, strings.Split(names, "|")...)
		}
		if got := outcome(t, uri, with(t, ca, s)); got != want {
			t.Errorf("%q: %s, want %q", names, got, want)
		}
	}
	if got := outcome(t, cn, with(t, ca, certtest.Subject{CN: "acme", End: time.Now().Add(-time.Second)})); got != refused {
		t.Errorf("ended since the handshake: %s", got)
	}
	unverified := with(t, ca, certtest.Subject{CN: "acme"})
	unverified.TLS.VerifiedChains = nil
	if got := outcome(t, cn, unverified); got != "refused: missing" {
		t.Errorf("not verified: %s", got)
	}
	if _, err := New(t.Context(), Config{Modes: []Mode{Cert}}); err == nil {
		t.Error("accepted without what names the tenant")
	}
}

// A key outranks the certificate; what is no credential of Sluice does not count beside one.
func TestCertificateBesideOtherCredentials(t *testing.T) {
	ca := certtest.New(t, "ca")
	keys := &ring{}
	_, key := keys.add("shop", time.Time{})
	both := gate(t, Config{Modes: []Mode{Keys, Cert, Guest}, Keys: keys, Cert: CertCN})
	only := gate(t, Config{Modes: []Mode{Cert}, Cert: CertCN})
	none := gate(t, Config{Modes: []Mode{Keys, Guest}, Keys: keys})
	acme := certtest.Subject{CN: "acme"}
	for _, c := range []struct {
		of   *Authenticator
		line string
		want string
	}{
		{both, "Authorization: Bearer " + key, "shop"},
		{both, "X-API-Key: " + key, "shop"},
		{both, "Authorization: Bearer sluice_x", "refused: key"},
		{both, "Authorization: Basic dTpw", "acme"},
		{both, "Authorization: Bearer a.b.c", "acme"},
		{only, "Authorization: Bearer " + key, "acme"},
		{only, "Authorization: Bearer sluice_x", "acme"},
		{none, "Authorization: Bearer " + key, "shop"},
		{none, "Accept: */*", "guest:192.0.2.7"},
	} {
		if got := outcome(t, c.of, with(t, ca, acme, c.line)); got != c.want {
			t.Errorf("%s: %s, want %s", c.line, got, c.want)
		}
	}
	if got := outcome(t, both, request(somewhere)); got != "guest:192.0.2.7" {
		t.Errorf("without a certificate: %s", got)
	}
	who, err := both.Authenticate(with(t, ca, acme))
	if err != nil || !who.ByCertificate() || who.Guest() || who.KeyID != "cert:1" {
		t.Errorf("%+v %v", who, err)
	}
	if who, _ = both.Authenticate(with(t, ca, acme, "X-API-Key: "+key)); who.ByCertificate() {
		t.Errorf("by a key: %+v", who)
	}
}
