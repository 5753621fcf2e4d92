package callback

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// owned is what one tenant has of its own; the test changes it.
type owned struct {
	mu  sync.Mutex
	is  queue.TenantCallbacks
	err error
}

func (o *owned) set(is queue.TenantCallbacks, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.is, o.err = is, err
}

func (o *owned) of(_ context.Context, tenant string) (queue.TenantCallbacks, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if tenant != "acme" {
		return queue.TenantCallbacks{}, o.err
	}
	return o.is, o.err
}

// verifyPublic checks a signature v1a with a public key.
func verifyPublic(c call, key string) bool {
	public, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(key, "whpk_"))
	if err != nil {
		return false
	}
	text := c.header.Get("webhook-id") + "." + c.header.Get("webhook-timestamp") + "." + string(c.body)
	for _, one := range strings.Fields(c.header.Get("webhook-signature")) {
		if signature, is := strings.CutPrefix(one, "v1a,"); is {
			raw, err := base64.StdEncoding.DecodeString(signature)
			return err == nil && ed25519.Verify(public, []byte(text), raw)
		}
	}
	return false
}

// TestSecretsOfATenant: its own secrets sign in place of those of all, both while one replaces the
// other; each attempt has those of its time.
func TestSecretsOfATenant(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(200)
		var o owned
		s := b.service(Config{Secrets: []string{oldSecret}, Of: o.of})
		defer b.run(s)()
		first := queue.CallbackSecret{ID: "a", Kind: queue.CallbackHMAC, Key: []byte(strings.Repeat("a", 32))}
		next := queue.CallbackSecret{ID: "b", Kind: queue.CallbackEd25519, Key: []byte(strings.Repeat("b", 32))}
		next2 := queue.CallbackSecret{ID: "c", Kind: queue.CallbackHMAC, Key: []byte(strings.Repeat("c", 32))}
		epoch := int64(0)
		send := func(secrets ...queue.CallbackSecret) call {
			o.set(queue.TenantCallbacks{Secrets: secrets}, nil)
			epoch++
			b.handOver(s, completion(shaper.Succeeded, epoch))
			b.pass(3 * time.Second)
			calls := b.got()
			return calls[len(calls)-1]
		}
		for _, want := range [][]queue.CallbackSecret{nil, {first}, {next, first}, {next2, first}, {next}, nil} {
			c := send(want...)
			if n := len(strings.Fields(c.header.Get("webhook-signature"))); n != max(1, len(want)) {
				t.Errorf("%d signatures by %v", n, want)
			}
			if err := b.verify(c, oldSecret); (err == nil) != (len(want) == 0) {
				t.Errorf("with %v the secret of all says %v", want, err)
			}
			for _, secret := range want {
				switch secret.Kind {
				case queue.CallbackHMAC:
					if err := b.verify(c, secret.Secret()); err != nil {
						t.Errorf("%s: %v", secret.ID, err)
					}
				case queue.CallbackEd25519:
					if !verifyPublic(c, secret.PublicKey()) {
						t.Errorf("%s does not verify", secret.ID)
					}
				}
			}
		}
		other := completion(shaper.Dead, 9)
		other.Job.Tenant = "other"
		o.set(queue.TenantCallbacks{Secrets: []queue.CallbackSecret{first}}, nil)
		b.handOver(s, other)
		b.pass(3 * time.Second)
		calls := b.got()
		if err := b.verify(calls[len(calls)-1], oldSecret); err != nil {
			t.Errorf("a callback of another tenant: %v", err)
		}
	})
}

// TestWithoutTheSecretsNothingIsSent: while the secrets of a tenant cannot be read, its callbacks
// wait, and no attempt is charged.
func TestWithoutTheSecretsNothingIsSent(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(200)
		var o owned
		o.set(queue.TenantCallbacks{}, errors.New("away"))
		s := b.service(Config{Secrets: []string{oldSecret}, Of: o.of})
		defer b.run(s)()
		b.handOver(s, completion(shaper.Succeeded, 1))
		b.pass(time.Minute)
		if calls := b.got(); len(calls) != 0 {
			t.Errorf("%d requests", len(calls))
		}
		own := queue.CallbackSecret{Kind: queue.CallbackHMAC, Key: []byte(strings.Repeat("a", 32))}
		o.set(queue.TenantCallbacks{Secrets: []queue.CallbackSecret{own}}, nil)
		b.pass(time.Minute)
		calls := b.got()
		if got := counts(s); len(calls) != 1 || got != [4]float64{1, 0, 0, 1} {
			t.Fatalf("%d requests, counted %v", len(calls), got)
		}
		if err := b.verify(calls[0], own.Secret()); err != nil {
			t.Error(err)
		}
	})
}
