package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ring is a store of keys in memory.
type ring struct {
	mu      sync.Mutex
	keys    map[string]queue.Key
	failure error
	asked   int
	used    []queue.Use   // as they were stored
	full    error         // of Used
	hold    chan struct{} // not nil: answers wait until it is closed
}

// FindKey implements KeyStore.
func (r *ring) FindKey(ctx context.Context, id string) (queue.Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if len(id) != idLength || !consistsOf(id, idDigits) {
		return queue.Key{}, fmt.Errorf("the id %q should not have come here", id)
	}
	k, known := r.keys[id]
	err := r.failure
	if hold := r.hold; hold != nil { // what was read was read; the answer is on its way
		r.mu.Unlock()
		select {
		case <-hold:
		case <-ctx.Done():
		}
		r.mu.Lock()
	}
	switch {
	case err != nil:
		return queue.Key{}, err
	case !known:
		return queue.Key{}, queue.ErrUnknownKey
	}
	return k, nil
}

// Used implements KeyStore.
func (r *ring) Used(_ context.Context, uses []queue.Use) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full != nil {
		return r.full
	}
	r.used = append(r.used, uses...)
	return nil
}

func (r *ring) questions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

func (r *ring) set(change func(r *ring)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

// add makes a key of the tenant and returns what the client gets.
func (r *ring) add(tenant string, expires time.Time) (id, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys == nil {
		r.keys = map[string]queue.Key{}
	}
	secret := NewSecret()
	id = fmt.Sprintf("%028d", len(r.keys)+1)
	r.keys[id] = queue.Key{ID: id, Tenant: tenant, Hash: secret.Hash(), Expires: expires}
	return id, secret.Key(id)
}

func (r *ring) revoke(id string) {
	r.set(func(r *ring) { delete(r.keys, id) })
}

// gate makes an authenticator that must be possible; what it runs ends with the test.
func gate(t testing.TB, c Config) *Authenticator {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	a, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// request is one with these header lines, from a client of this address.
func request(from string, lines ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://localhost/v1/jobs", nil)
	r.RemoteAddr = from
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

const somewhere = "192.0.2.7:1234"

// outcome is the tenant, or the class of the refusal.
func outcome(t testing.TB, a *Authenticator, r *http.Request) string {
	t.Helper()
	p, err := a.Authenticate(r)
	var refusal *Refusal
	switch {
	case errors.As(err, &refusal):
		if p != (Principal{}) {
			t.Errorf("refused, and yet %+v", p)
		}
		return "refused: " + string(refusal.Class)
	case err != nil:
		return "error: " + err.Error()
	case p.Tenant == "" || !legalTenant(p.Tenant):
		t.Errorf("tenant %q", p.Tenant)
	}
	return p.Tenant
}
