package chart

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var (
	tlsFiles   string          // a directory with what a Secret of type kubernetes.io/tls has
	adminPaths map[string]bool // of the admin listener
)

func TestMain(m *testing.M) {
	raw, err := os.ReadFile("../../docs/openapi-admin.json")
	if err != nil {
		log.Fatal(err)
	}
	var document struct{ Paths map[string]any }
	if err := json.Unmarshal(raw, &document); err != nil {
		log.Fatal(err)
	}
	adminPaths = map[string]bool{}
	for path := range document.Paths {
		adminPaths[path] = true
	}
	if tlsFiles, err = os.MkdirTemp("", "chart"); err != nil {
		log.Fatal(err)
	}
	if err := certificate(tlsFiles); err != nil {
		log.Fatal(err)
	}
	log.SetOutput(io.Discard) // Helm tells of the links to rules and dashboard
	code := m.Run()
	_ = os.RemoveAll(tlsFiles)
	os.Exit(code)
}

// certificate writes a certificate that signs itself, and its key.
func certificate(directory string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"sluice"}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(directory, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
