package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Identity is what a listener shows and requires in handshakes, in PEM.
type Identity struct {
	Cert, Key string
	// ClientCA has the authorities that certificates of clients are verified by; empty: clients are
	// not asked for one.
	ClientCA string
	Optional bool // a client needs no certificate; one that it has must be good
	// MinVersion is the lowest version, at least and by default tls.VersionTLS12.
	MinVersion uint16
}

// secured is an identity in force.
type secured struct {
	config *tls.Config
	end    time.Time // of the certificate
}

// Secure makes the listener speak TLS with this identity from the next handshake on. Connections
// that are open keep theirs. After an error the former identity stays. Call it before Serve for a
// listener with TLS.
func (l *Listener) Secure(i Identity) (end time.Time, err error) {
	pair, err := tls.X509KeyPair([]byte(i.Cert), []byte(i.Key))
	if err != nil {
		return time.Time{}, fmt.Errorf("listen: certificate and key: %w", err)
	}
	if former := l.secured.Load(); former != nil && time.Now().Before(former.end) && !time.Now().Before(pair.Leaf.NotAfter) {
		return time.Time{}, errors.New("listen: the certificate has ended, and the one in force has not")
	}
	if use := pair.Leaf.ExtKeyUsage; len(use) > 0 && !slices.Contains(use, x509.ExtKeyUsageServerAuth) && !slices.Contains(use, x509.ExtKeyUsageAny) {
		return time.Time{}, errors.New("listen: the certificate is not for servers (extended key usage)")
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: max(i.MinVersion, tls.VersionTLS12),
		NextProtos: []string{"h2", "http/1.1"},
	}
	if i.ClientCA != "" {
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !c.ClientCAs.AppendCertsFromPEM([]byte(i.ClientCA)) {
			return time.Time{}, errors.New("listen: no certificate of an authority of clients")
		}
		if i.Optional {
			c.ClientAuth = tls.VerifyClientCertIfGiven
		}
		// A resumed session would outlast the authority that verified its certificate.
		c.SessionTicketsDisabled = true
	}
	l.secured.Store(&secured{c, pair.Leaf.NotAfter})
	return pair.Leaf.NotAfter, nil
}

// Serve serves the connections of the listener by s, after Attend. Each handshake is made in the
// goroutine of its connection and within s.ReadHeaderTimeout. Until it ends the connection is idle.
func (l *Listener) Serve(s *http.Server) error {
	if l.secured.Load() == nil {
		return s.Serve(l)
	}
	s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return l.secured.Load().config, nil
	}}
	return s.ServeTLS(l, "", "")
}
