package queuetest

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/7509e464/sluice/queue"
)

func (s *suite) callbacksOf(tenant string) queue.TenantCallbacks {
	s.Helper()
	of, err := s.q.Callbacks().CallbacksOf(s.ctx, tenant)
	if err != nil {
		s.Fatal(err)
	}
	return of
}

func callbacksStored(s *suite) {
	const tenant, other = "één {a}", "other"
	if of := s.callbacksOf(tenant); of.Secrets != nil || of.Endpoints != nil {
		s.Errorf("a tenant without any has %+v", of)
	}
	c := s.q.Callbacks()
	var made []queue.CallbackSecret
	for _, kind := range []queue.CallbackKind{queue.CallbackHMAC, queue.CallbackEd25519} {
		secret, err := c.CreateCallbackSecret(s.ctx, tenant, kind, "vera")
		if err != nil {
			s.Fatal(err)
		}
		if secret.Kind != kind || secret.By != "vera" || (secret.Secret() == "") == (secret.PublicKey() == "") {
			s.Errorf("made %+v", secret)
		}
		made = append(made, secret)
	}
	endpoints := []string{"https://partner.example/hooks/", "http://10.0.0.7/"}
	if before, err := c.PutCallbackEndpoints(s.ctx, tenant, endpoints); err != nil || before != nil {
		s.Errorf("%v, %v", before, err)
	}
	newest := cmpopts.SortSlices(func(a, b queue.CallbackSecret) bool { return a.ID > b.ID }) // of one millisecond
	if diff := cmp.Diff(queue.TenantCallbacks{Secrets: made, Endpoints: endpoints}, s.callbacksOf(tenant), newest); diff != "" {
		s.Errorf("what the tenant has (-want +got):\n%s", diff)
	}
	if of := s.callbacksOf(other); of.Secrets != nil || of.Endpoints != nil {
		s.Errorf("another tenant has %+v", of)
	}
	for tenant, id := range map[string]string{other: made[0].ID, tenant: "none"} {
		if _, err := c.RevokeCallbackSecret(s.ctx, tenant, id); !errors.Is(err, queue.ErrUnknownSecret) {
			s.Errorf("%s of %s was revoked: %v", id, tenant, err)
		}
	}
	gone, err := c.RevokeCallbackSecret(s.ctx, tenant, made[0].ID)
	if diff := cmp.Diff(made[0], gone); err != nil || diff != "" {
		s.Errorf("revoked, %v (-want +got):\n%s", err, diff)
	}
	if _, err := c.RevokeCallbackSecret(s.ctx, tenant, made[0].ID); !errors.Is(err, queue.ErrUnknownSecret) {
		s.Errorf("revoked twice: %v", err)
	}
	if before, err := c.PutCallbackEndpoints(s.ctx, tenant, nil); err != nil || !slices.Equal(before, endpoints) {
		s.Errorf("%v, %v", before, err)
	}
	if diff := cmp.Diff(queue.TenantCallbacks{Secrets: made[1:]}, s.callbacksOf(tenant)); diff != "" {
		s.Errorf("what is left (-want +got):\n%s", diff)
	}
}

func callbackSecretBound(s *suite) {
	var all sync.WaitGroup
	var made, refused atomic.Int64
	for range 6 {
		all.Go(func() {
			switch _, err := s.q.Callbacks().CreateCallbackSecret(s.ctx, "acme", queue.CallbackHMAC, "vera"); {
			case err == nil:
				made.Add(1)
			case errors.Is(err, queue.ErrTooManySecrets):
				refused.Add(1)
			default:
				s.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != queue.MaxCallbackSecrets || refused.Load() != 4 || len(s.callbacksOf("acme").Secrets) != 2 {
		s.Errorf("%d secrets were made, %d refused", made.Load(), refused.Load())
	}
}
