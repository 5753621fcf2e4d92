package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// securedRun holds two intakes in turns, without a protection and with it.
type securedRun struct {
	Plain   intakeSide `json:"without"`
	Secured intakeSide `json:"with"`
}

// measureTLS loads an intake with TLS and one without it, each by the same client, which encrypts
// on this machine, too.
func measureTLS(ctx context.Context, b *bench) ([]float64, error) {
	return b.measureSecured(ctx, "P1-tls", "TLS 1.3", certificate)
}

// measureCodec loads an intake that encrypts what it stores and one that does not.
func measureCodec(ctx context.Context, b *bench) ([]float64, error) {
	return b.measureSecured(ctx, "P1-codec", "codec", func(dir string) (*tls.Config, []string, error) {
		key := filepath.Join(dir, "codec.key")
		return nil, []string{"SLUICE_CODEC_KEY_FILE=" + key}, os.WriteFile(key, []byte(strings.Repeat("A", 43)+"=\n"), 0o600)
	})
}

// measureSecured compares intakes with and without a protection. protect writes its files, and
// returns the settings of a client, nil for plain HTTP, and the variables of a server.
func (b *bench) measureSecured(
	ctx context.Context, id, name string, protect func(dir string) (*tls.Config, []string, error),
) ([]float64, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	trust, environ, err := protect(dir)
	if err != nil {
		return nil, err
	}
	plain, err := startIntake(ctx, plainRedis, "")
	if err != nil {
		return nil, err
	}
	defer plain.close()
	secured, err := startIntake(ctx, plainRedis, "", environ...)
	if err != nil {
		return nil, err
	}
	defer secured.close()
	var runs []securedRun
	var ratios []float64
	lines := []string{fmt.Sprintf("%-8s %-25s %-25s %8s   %d connections; processor time a request in server + "+
		"Redis + client", "intake", "without", name, "ratio", intakeConnections)}
	for n := range b.runs {
		var r securedRun
		for _, side := range []struct {
			of     *intake
			result *intakeSide
			trust  *tls.Config
		}{{plain, &r.Plain, nil}, {secured, &r.Secured, trust}} {
			l := load{
				addr: side.of.addr, path: "/v1/jobs", body: intakeBody, connections: intakeConnections, want: "202", tls: side.trust,
			}
			if err := side.result.measure(ctx, l, side.of.pid(), side.of.store); err != nil {
				return nil, err
			}
		}
		ratio := r.Secured.PerSecond / r.Plain.PerSecond
		b.progress("%s: run %d of %d: %.2f", id, n+1, b.runs, ratio)
		runs, ratios = append(runs, r), append(ratios, ratio)
		lines = append(lines, fmt.Sprintf("run %-4d %-25v %-25v %8.2f", n+1, r.Plain, r.Secured, ratio))
	}
	b.detail(id, lines, runs)
	return ratios, nil
}

// certificate writes a certificate for 127.0.0.1 and its key into dir. It returns the settings of a
// client that trusts it, and the variables of a server.
func certificate(dir string) (trust *tls.Config, environ []string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	at := func(name, kind string, content []byte) string {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
		return path
	}
	environ = []string{
		"SLUICE_API_TLS_CERT=" + at("cert.pem", "CERTIFICATE", cert), "SLUICE_API_TLS_KEY=" + at("key.pem", "PRIVATE KEY", private),
	}
	trust = &tls.Config{MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1", RootCAs: x509.NewCertPool()}
	parsed, failed := x509.ParseCertificate(cert)
	if err = errors.Join(err, failed); err == nil {
		trust.RootCAs.AddCert(parsed)
	}
	return trust, environ, err
}
