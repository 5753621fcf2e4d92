package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/7509e464/sluice/internal/certtest"
)

// identity returns one with a certificate of the authority.
func identity(t *testing.T, ca *certtest.Authority, s certtest.Subject) Identity {
	t.Helper()
	cert, key := ca.Issue(t, s)
	return Identity{Cert: cert, Key: key}
}

// over makes a connection of newLimited one with TLS, after its handshake.
func over(t *testing.T, conn net.Conn, c *tls.Config) *tls.Conn {
	t.Helper()
	c = c.Clone()
	c.ServerName = "localhost"
	secured := tls.Client(conn, c)
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if err := secured.Handshake(); err != nil {
		t.Fatal(err)
	}
	return secured
}

// Connections that never end their handshake are idle: new ones take their place, in all and by
// address, and no handshake holds up the accepting of connections.
func TestHandshakesMakeRoom(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	ca := certtest.New(t, "ca")
	s := newLimited(t, Bounds{Connections: 3}, identity(t, ca, certtest.Subject{}))
	silent, half := s.dial(), s.dial()
	if _, err := half.Write([]byte{0x16, 3, 1, 2, 0, 1}); err != nil { // the beginning of a hello
		t.Fatal(err)
	}
	s.waitIdle(2)
	third := over(t, s.dial(), ca.Trust())
	if s.ask(third, "/"); !s.answered(third) {
		t.Error("not answered beside two silent connections")
	}
	for _, victim := range []net.Conn{silent, half} {
		next := over(t, s.dial(), ca.Trust())
		if s.ask(next, "/"); !s.answered(next) || !closed(victim) {
			t.Error("a connection without a handshake has kept its place")
		}
	}
	s.want(3, 0, 2)
	for range 300 { // half-open ones replace each other
		s.dial()
	}
	last := over(t, s.dial(), ca.Trust())
	if s.ask(last, "/"); !s.answered(last) {
		t.Error("not answered after 300 silent connections")
	}
}

// A handshake has the time of a header, then its connection is closed.
func TestHandshakeTimeout(t *testing.T) {
	ca := certtest.New(t, "ca")
	s := newLimited(t, Bounds{Connections: 3}, identity(t, ca, certtest.Subject{}), func(srv *http.Server) {
		srv.ReadHeaderTimeout = 50 * time.Millisecond
	})
	if !closed(s.dial()) {
		t.Error("a silent connection stays")
	}
	s.want(0, 0, 0)
}

// Probes are answered over TLS in reserved slots, by HTTP/1.1 and HTTP/2; other requests get 503.
func TestReservedSlotsOverTLS(t *testing.T) {
	ca := certtest.New(t, "ca")
	s := newLimited(t, Bounds{Connections: 1}, identity(t, ca, certtest.Subject{}))
	busy := over(t, s.dial(), ca.Trust())
	s.ask(busy, "/hold")
	<-s.held
	for _, h2 := range []bool{false, true} {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.Trust(), ForceAttemptHTTP2: h2, DisableKeepAlives: !h2}}
		for path, want := range map[string]int{"/livez": http.StatusOK, "/": http.StatusServiceUnavailable} {
			r, err := c.Get("https://" + s.l.Addr().String() + path)
			if err != nil {
				t.Fatal(err)
			}
			if _ = r.Body.Close(); r.StatusCode != want || r.ProtoMajor != map[bool]int{false: 1, true: 2}[h2] {
				t.Errorf("%s: %d by %s, want %d", path, r.StatusCode, r.Proto, want)
			}
		}
		c.CloseIdleConnections()
	}
	if got := testutil.ToFloat64(s.l.spare); got < 2 {
		t.Errorf("%v connections in reserved slots", got)
	}
	close(s.release)
	if !s.answered(busy) {
		t.Error("the busy one is not answered")
	}
}

// The bounds on the time of an answer work over TLS.
func TestDeadlineOverTLS(t *testing.T) {
	ca := certtest.New(t, "ca")
	ended := make(chan error, 1)
	s := newLimited(t, Bounds{Connections: 3}, identity(t, ca, certtest.Subject{}), func(srv *http.Server) {
		srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			piece := make([]byte, 1<<20)
			for {
				if _, err := w.Write(piece); err != nil {
					ended <- err
					return
				}
			}
		})
	})
	conn := over(t, s.dial(), ca.Trust())
	s.ask(conn, "/") // and read nothing
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("ended by %v", err)
	}
}

// Plain HTTP gets 400 and no redirect; TLS 1.1 is refused, and 1.2 where 1.3 is the lowest.
func TestOnlyTLS(t *testing.T) {
	ca := certtest.New(t, "ca")
	i := identity(t, ca, certtest.Subject{})
	s := newLimited(t, Bounds{Connections: 9}, i)
	if status := s.status(s.dial("/")); status != http.StatusBadRequest {
		t.Errorf("plain HTTP is answered %d", status)
	}
	try := func(version uint16) (tls.ConnectionState, error) {
		c := ca.Trust()
		c.MinVersion, c.MaxVersion, c.ServerName, c.NextProtos = version, version, "localhost", []string{"h2", "http/1.1"}
		secured := tls.Client(s.dial(), c)
		err := secured.Handshake()
		return secured.ConnectionState(), err
	}
	if _, err := try(tls.VersionTLS11); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		if st, err := try(version); err != nil || st.NegotiatedProtocol != "h2" {
			t.Errorf("%s: %v, protocol %q", tls.VersionName(version), err, st.NegotiatedProtocol)
		}
	}
	i.MinVersion = tls.VersionTLS13
	if _, err := s.l.Secure(i); err != nil {
		t.Fatal(err)
	}
	if _, err := try(tls.VersionTLS12); err == nil {
		t.Error("TLS 1.2 is accepted although 1.3 is the lowest")
	}
}

// Who has no certificate of the authority, or one that has ended, or one of a server, is refused in
// the handshake; without client_auth: require, who has none is let in.
func TestClientCertificates(t *testing.T) {
	ca, clients, others := certtest.New(t, "ca"), certtest.New(t, "clients"), certtest.New(t, "others")
	i := identity(t, ca, certtest.Subject{})
	i.ClientCA = clients.PEM
	s := newLimited(t, Bounds{Connections: 99}, i)
	answered := func(c *tls.Config) (ok bool) {
		c.RootCAs = ca.Trust().RootCAs
		hc := &http.Client{Transport: &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}}
		defer hc.CloseIdleConnections()
		r, err := hc.Get("https://" + s.l.Addr().String() + "/")
		if err == nil {
			_ = r.Body.Close()
		}
		return err == nil
	}
	bad := map[string]*tls.Config{
		"foreign":       others.Client(t, certtest.Subject{}),
		"ended":         clients.Client(t, certtest.Subject{End: time.Now().Add(-time.Minute)}),
		"of a server":   clients.Client(t, certtest.Subject{Usage: x509.ExtKeyUsageServerAuth}),
		"of its server": ca.Client(t, certtest.Subject{}),
	}
	for name, c := range bad {
		// A client need not send a certificate that the server's list of authorities does not fit.
		sent := c.Certificates[0]
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &sent, nil }
		if answered(c) {
			t.Errorf("a certificate is accepted that is %s", name)
		}
	}
	if !answered(clients.Client(t, certtest.Subject{})) || answered(ca.Trust()) {
		t.Error("with a good certificate, or without one: require")
	}
	i.Optional = true
	if _, err := s.l.Secure(i); err != nil {
		t.Fatal(err)
	}
	if !answered(clients.Client(t, certtest.Subject{})) || !answered(ca.Trust()) || answered(bad["foreign"]) {
		t.Error("with a good certificate, without one, or with a foreign one: optional")
	}
	// A session of a client whose authority is trusted no more is not resumed.
	resuming := clients.Client(t, certtest.Subject{})
	resuming.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if !answered(resuming) {
		t.Error("not answered")
	}
	i.ClientCA = others.PEM
	if _, err := s.l.Secure(i); err != nil {
		t.Fatal(err)
	}
	sent := resuming.Certificates[0]
	resuming.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &sent, nil }
	if answered(resuming) {
		t.Error("a session was resumed")
	}
}

// While identities are replaced, no request fails, by new connections and by old ones of both
// versions of HTTP; one that does not fit changes nothing.
func TestSecureUnderLoad(t *testing.T) {
	ca := certtest.New(t, "ca")
	s := newLimited(t, Bounds{Connections: 99}, identity(t, ca, certtest.Subject{Serial: 1}))
	stop, failed := make(chan struct{}), make(chan error, 9)
	var sending sync.WaitGroup
	for n := range 6 {
		sending.Go(func() {
			tr := &http.Transport{TLSClientConfig: ca.Trust(), ForceAttemptHTTP2: n%2 == 0, DisableKeepAlives: n > 3}
			defer tr.CloseIdleConnections()
			for c := (&http.Client{Transport: tr}); ; {
				select {
				case <-stop:
					return
				default:
				}
				r, err := c.Post("https://"+s.l.Addr().String()+"/", "text/plain", strings.NewReader("x"))
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
					_ = r.Body.Close()
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	broken := identity(t, ca, certtest.Subject{})
	broken.Key = identity(t, ca, certtest.Subject{}).Key
	for serial := int64(2); serial < 40; serial++ {
		next := identity(t, ca, certtest.Subject{Serial: serial, End: time.Unix(4e9, 0)})
		if _, err := s.l.Secure(next); err != nil {
			t.Fatal(err)
		}
		if _, err := s.l.Secure(broken); err == nil {
			t.Fatal("a certificate with another key is accepted")
		}
		conn := over(t, s.dial(), ca.Trust())
		if got := conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != serial {
			t.Fatalf("certificate %d is shown, want %d", got, serial)
		}
		_ = conn.Close()
	}
	close(stop)
	sending.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.l)
	const want = `# HELP sluice_listener_certificate_expiry_timestamp_seconds When the certificate of a listener ends, in seconds since 1970.
# TYPE sluice_listener_certificate_expiry_timestamp_seconds gauge
sluice_listener_certificate_expiry_timestamp_seconds{listener="api"} 4e+09
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sluice_listener_certificate_expiry_timestamp_seconds"); err != nil {
		t.Error(err)
	}
}

// A certificate that has ended does not replace one that has not, and one that is not for servers
// replaces none.
func TestUnfitCertificateIsNotTaken(t *testing.T) {
	ca := certtest.New(t, "ca")
	s := newLimited(t, Bounds{Connections: 3}, identity(t, ca, certtest.Subject{Serial: 7}))
	for what, subject := range map[string]certtest.Subject{
		"has ended": {End: time.Now().Add(-time.Minute)}, "is for clients": {Usage: x509.ExtKeyUsageClientAuth},
	} {
		if _, err := s.l.Secure(identity(t, ca, subject)); err == nil {
			t.Errorf("a certificate that %s is taken", what)
		}
	}
	if got := over(t, s.dial(), ca.Trust()).ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != 7 {
		t.Errorf("the certificate in force is %d", got)
	}
}
