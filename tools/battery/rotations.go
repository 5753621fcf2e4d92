package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/api/client/wire"
)

// rotations are the checks of credentials that are replaced while they are in use.
func rotations() []check {
	return []check{{
		id:     "S5",
		what:   "certificate, API key, operator's token and secret of callbacks are replaced every second under load, the key of the store once",
		target: "no request fails, no job is lost, and every callback is signed by a secret in force",
		quick:  scale{window: 10 * time.Second, limit: time.Minute},
		full:   scale{window: 60 * time.Second, limit: 3 * time.Minute},
		run:    rotateCredentials,
	}}
}

const (
	rotationClients = 8                     // half of them by HTTP/2, half of those with a new connection each time
	rotationPause   = 40 * time.Millisecond // of each client between two submissions
	rotationTurn    = time.Second
)

// rotation is what the clients use at present.
type rotation struct {
	w *world

	receiver string // URL
	pool     *x509.CertPool
	ca       *x509.Certificate
	sign     *ecdsa.PrivateKey

	mu  sync.Mutex
	key wire.NewKey
	op  wire.NewOperator
	// secrets of callbacks in force, the newest first, and the one that was revoked last
	secrets []wire.NewCallbackSecret

	called sync.Map // ids of callbacks
	sent   atomic.Int64
	failed atomic.Int64
	first  atomic.Pointer[string] // failure
}

func (r *rotation) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.failed.Add(1)
	r.first.CompareAndSwap(nil, &text)
}

// certificate writes a new pair, first the one file, then the other.
func (r *rotation) certificate(serial int64) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "sluice"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: r.ca == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	by, sign := template, key
	if r.ca != nil {
		by, sign = r.ca, r.sign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, sign)
	if err != nil {
		return err
	}
	if r.ca == nil { // the first is the authority
		r.sign, r.pool = key, x509.NewCertPool()
		if r.ca, err = x509.ParseCertificate(der); err == nil {
			r.pool.AddCert(r.ca)
		}
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name string
		*pem.Block
	}{{"server.pem", &pem.Block{Type: "CERTIFICATE", Bytes: der}}, {"server.key", &pem.Block{Type: "PRIVATE KEY", Bytes: private}}} {
		path := filepath.Join(r.w.dir, file.name)
		if err := os.WriteFile(path+".next", pem.EncodeToMemory(file.Block), 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".next", path); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // in which they do not fit
	}
	return nil
}

// operate sends a request of the operator in charge.
func (r *rotation) operate(ctx context.Context, method, path, body string, into any) error {
	r.mu.Lock()
	token := r.op.Token
	r.mu.Unlock()
	raw, err := r.send(ctx, method, path, body, token)
	if err != nil || into == nil || len(raw) == 0 {
		return err
	}
	return json.Unmarshal(raw, into)
}

// send sends a request with a token, or without if that is empty.
func (r *rotation) send(ctx context.Context, method, path, body, token string) ([]byte, error) {
	header := map[string]string{"Authorization": "Bearer " + token}
	if token == "" {
		header = nil
	}
	status, raw, err := r.w.call(ctx, method, r.w.sluices[0].admin, path, header, []byte(body))
	if err != nil || status/100 != 2 {
		return nil, fmt.Errorf("%s %s: %d %.200s %w", method, path, status, raw, err)
	}
	return raw, nil
}

// turn replaces every credential: the new one is in use before the old one is revoked.
func (r *rotation) turn(ctx context.Context, n int64) error {
	if err := r.certificate(1000 + n); err != nil {
		return err
	}
	if n == 1 { // processes take a new key within five seconds, and rotate-keys waits for that
		if err := r.newKey(n); err != nil {
			return err
		}
	}
	var key wire.NewKey
	if err := r.operate(ctx, http.MethodPost, "/v1/tenants/acme/keys", `{"name":"rotated"}`, &key); err != nil {
		return err
	}
	var op wire.NewOperator
	if err := r.operate(ctx, http.MethodPost, "/v1/operators", fmt.Sprintf(`{"name":"op-%d","role":"admin"}`, n), &op); err != nil {
		return err
	}
	if err := r.turnSecret(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	oldKey, oldOp := r.key, r.op
	r.key, r.op = key, op
	r.mu.Unlock()
	if n == 0 {
		return nil
	}
	if err := pause(ctx, 200*time.Millisecond); err != nil { // requests with the old key end
		return err
	}
	if err := r.operate(ctx, http.MethodDelete, "/v1/tenants/acme/keys/"+oldKey.ID, "", nil); err != nil {
		return err
	}
	return r.operate(ctx, http.MethodDelete, "/v1/operators/"+oldOp.ID, "", nil)
}

// turnSecret revokes the older secret of callbacks and makes the next one: receivers have always
// known both in force for a second.
func (r *rotation) turnSecret(ctx context.Context) error {
	const path = "/v1/tenants/acme/callbacks/secrets"
	r.mu.Lock()
	known := r.secrets
	r.mu.Unlock()
	if len(known) > 1 {
		if err := r.operate(ctx, http.MethodDelete, path+"/"+known[1].ID, "", nil); err != nil {
			return err
		}
	}
	r.mu.Lock() // a callback that the next one signs waits for its being known
	defer r.mu.Unlock()
	var made wire.NewCallbackSecret
	raw, err := r.send(ctx, http.MethodPost, path, "", r.op.Token)
	if err == nil {
		err = json.Unmarshal(raw, &made)
	}
	if err != nil {
		return err
	}
	r.secrets = append([]wire.NewCallbackSecret{made}, r.secrets...)
	r.secrets = r.secrets[:min(len(r.secrets), 3)]
	return nil
}

// ServeHTTP receives callbacks: each must be signed by a secret of the tenant in force.
func (r *rotation) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the attempt was broken off
	}
	r.mu.Lock()
	secrets := r.secrets
	r.mu.Unlock()
	for _, s := range secrets {
		hook, err := webhooks.NewWebhook(s.Secret)
		if err == nil && hook.Verify(body, req.Header) == nil {
			r.called.Store(req.Header.Get("webhook-id"), true)
			return
		}
	}
	r.fail("a callback has the signatures %q", req.Header.Get("webhook-signature"))
}

// newKey puts a new key of the store before the others.
func (r *rotation) newKey(n int64) error {
	file := filepath.Join(r.w.dir, "codec.key")
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append([]byte(keyOfStore(n)+"\n"), old...), 0o600)
}

// rewrap runs sluice store rotate-keys.
func (r *rotation) rewrap(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, r.w.bin, "store", "rotate-keys", "--config",
		filepath.Join(r.w.dir, r.w.sluices[0].name+".yaml")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("store rotate-keys: %w: %.300s", err, out)
	}
	return nil
}

// submit sends jobs until the end, by a connection of its own, or by one for each.
func (r *rotation) submit(ctx context.Context, i int) {
	t := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: r.pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: i%2 == 0,
		DisableKeepAlives: i%4 > 1, MaxConnsPerHost: 1,
	}
	defer t.CloseIdleConnections()
	c := &http.Client{Transport: t, Timeout: 10 * time.Second}
	for n := 0; pause(ctx, rotationPause) == nil; n++ {
		r.mu.Lock()
		secret := r.key.Secret
		r.mu.Unlock()
		req, err := http.NewRequest(http.MethodPost, "https://"+r.w.api+"/v1/jobs",
			strings.NewReader(fmt.Sprintf(`{"type":"rotation","payload":{"n":"%d-%d"},"callback_url":"%s/"}`, i, n, r.receiver)))
		if err != nil {
			r.fail("%v", err)
			return
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+secret)
		r.sent.Add(1)
		resp, err := c.Do(req)
		if err != nil {
			r.fail("%v", err)
			continue
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusAccepted {
			r.fail("%s", resp.Status)
		}
	}
}

func rotateCredentials(ctx context.Context, w *world, f *findings) error {
	r := &rotation{w: w}
	for serial := range int64(2) {
		if err := r.certificate(serial); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(w.dir, "codec.key"), []byte(keyOfStore(-1)+"\n"), 0o600); err != nil {
		return err
	}
	receiver := httptest.NewServer(r)
	defer receiver.Close()
	r.receiver = receiver.URL
	if err := w.open(ctx, settings{
		defaults: tenant{rate: "1000/s"}, callbacks: receiver.URL + "/",
		more: fmt.Sprintf("api: { tls: { cert: %q, key: %q } }\nauth: { mode: keys }\ncodec: { key_file: %q }\n",
			filepath.Join(w.dir, "server.pem"), filepath.Join(w.dir, "server.key"), filepath.Join(w.dir, "codec.key")),
	}, "api,worker"); err != nil {
		return err
	}
	if err := r.turn(ctx, 0); err != nil {
		return err
	}
	loading, stop := context.WithTimeout(ctx, w.scale.window)
	defer stop()
	var clients sync.WaitGroup
	for i := range rotationClients {
		clients.Go(func() { r.submit(loading, i) })
	}
	turns, rewrapped := 0, make(chan error, 1)
	go func() {
		err := pause(ctx, 7*rotationTurn) // after the first turn, five seconds, and one more
		if err == nil {
			err = r.rewrap(ctx)
		}
		rewrapped <- err
	}()
	for n := int64(1); pause(loading, rotationTurn) == nil; n++ {
		if err := r.turn(ctx, n); err != nil {
			return err
		}
		turns++
	}
	clients.Wait()
	if err := <-rewrapped; err != nil {
		return err
	}
	var tenant wire.Tenant
	if err := until(ctx, "all jobs are delivered", 50*time.Millisecond, func() (bool, error) {
		err := r.operate(ctx, http.MethodGet, "/v1/tenants/acme", "", &tenant)
		return err == nil && tenant.Figures.Depth+tenant.Figures.Running == 0, err
	}); err != nil {
		return err
	}
	called := 0
	if err := until(ctx, "all callbacks came", 50*time.Millisecond, func() (bool, error) {
		called = 0
		r.called.Range(func(any, any) bool { called++; return true })
		return int64(called) >= tenant.Figures.Succeeded, nil
	}); err != nil {
		f.because("%d callbacks of %d came", called, tenant.Figures.Succeeded)
	}
	f.info("turns", float64(turns), "")
	f.atLeast("requests", float64(r.sent.Load()), w.scale.window.Seconds()*50, "")
	f.atMost("failed", float64(r.failed.Load()), 0, "")
	f.atMost("callbacks lost", float64(tenant.Figures.Succeeded-int64(called)), 0, "")
	f.atMost("lost", float64(r.sent.Load()-r.failed.Load()-tenant.Figures.Succeeded), 0, "")
	if first := r.first.Load(); first != nil {
		f.because("the first failure: %s", *first)
	}
	return ctx.Err()
}

// keyOfStore is the nth key of codec.key_file.
func keyOfStore(n int64) string {
	return fmt.Sprintf("%042dA=", n+2)
}
