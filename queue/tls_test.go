package queue_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// authority is a certificate authority of a test, with files in a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority with its certificate in ca.pem, and certificates of 127.0.0.1 for
// each name in NAME.pem and NAME.key.
func newAuthority(t *testing.T, names ...string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, "ca", &x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign})
	for _, name := range names {
		a.issue(t, name, &x509.Certificate{
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		})
	}
	return a
}

// server is what a server needs that demands certificates of clients.
func (a *authority) server() redistest.TLS {
	return redistest.TLS{Cert: a.file("server.pem"), Key: a.file("server.key"), CA: a.file("ca.pem")}
}

// client is the parameters of a client's certificate, after others.
func (a *authority) client() string {
	return "&tls_cert=" + a.file("client.pem") + "&tls_key=" + a.file("client.key")
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) issue(t *testing.T, name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	do(err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter, c.BasicConstraintsValid = time.Now().Add(-time.Hour), time.Now().Add(time.Hour), true
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	do(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	do(err)
	do(os.WriteFile(a.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	do(os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	made, err := x509.ParseCertificate(der)
	do(err)
	return made, key
}

// TestTLS: a Redis whose certificate is of an own CA, and which demands one of the client. What is
// missing ends the start, and the error says what to set.
func TestTLS(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t, "server", "client"), newAuthority(t, "client")
	_, port := redistest.StartTLS(t, a.server())
	at := fmt.Sprint("127.0.0.1:", port)
	ca := "rediss://" + at + "?tls_ca=" + a.file("ca.pem")
	right := ca + a.client()
	for name, tt := range map[string]struct{ url, want string }{
		"no CA":                    {"rediss://" + at, "set ?tls_ca="},
		"another CA":               {"rediss://" + at + "?tls_ca=" + other.file("ca.pem"), "set ?tls_ca="},
		"no client certificate":    {ca, "set ?tls_cert="},
		"another CA of the client": {ca + "&tls_cert=" + other.file("client.pem") + "&tls_key=" + other.file("client.key"), "tls_cert="},
		"no such file":             {ca + "x", "tls_ca: open "},
		"a file without one":       {"rediss://" + at + "?tls_ca=" + a.file("ca.key"), "no certificate in PEM"},
		"a key of another":         {ca + "&tls_cert=" + a.file("client.pem") + "&tls_key=" + a.file("ca.key"), "tls_cert and tls_key"},
		"no TLS":                   {"redis://" + at, ""},
		"everything":               {right, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := queue.Connect(t.Context(), queue.EngineOptions{URL: tt.url, Logger: slog.New(slog.DiscardHandler)}, queue.Options{Shards: 1})
			if err == nil {
				defer func() { _ = q.Close() }()
			}
			switch tt.want {
			case "nothing":
				if err != nil {
					t.Fatal(err)
				}
				if v, err := q.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.Admitted {
					t.Errorf("Submit: %+v, %v", v, err)
				}
			case "":
				if err == nil {
					t.Error("a connection without TLS works")
				}
			default:
				if !errors.Is(err, queue.ErrNoEngine) || errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want ErrNoEngine with %q", err, tt.want)
				}
			}
		})
	}
}

// TestTLSOfAClusterAndOfSentinel: the same settings hold for each node of a cluster, for sentinels
// and for the master that they name.
func TestTLSOfAClusterAndOfSentinel(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, "server", "client")
	settings := "&tls_ca=" + a.file("ca.pem") + a.client()
	submit := func(t *testing.T, url string) {
		t.Helper()
		q := open(t, queue.EngineOptions{URL: url}, defaults)
		for i := range 8 {
			w := work()
			w.Tenant = fmt.Sprint("tenant ", i)
			if v, err := q.Submit(t.Context(), w); err != nil || v.Outcome != shaper.Admitted {
				t.Errorf("Submit: %+v, %v", v, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ended, stop, err := q.Watch(ctx, "0") // by a connection of its own
		if err != nil || ended == nil {
			t.Fatal(err)
		}
		stop()
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartTLSCluster(t, a.server())
		submit(t, strings.Replace(c.URL(), "redis+", "rediss+", 1)+settings)
		for i, slots := range c.Slots(t.Context()) {
			if len(slots) < 2 {
				t.Errorf("node %d has keys in the slots %v alone", i+1, slots)
			}
		}
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		_, port := redistest.StartTLS(t, a.server())
		at := redistest.StartTLSSentinel(t, "sluice", port, a.server())
		submit(t, "rediss+sentinel://"+at+"?master_name=sluice"+settings)
	})
}
