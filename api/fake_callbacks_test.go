package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
)

func (f *fakeQueue) CallbacksOf(_ context.Context, tenant string) (queue.TenantCallbacks, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.callbacks[tenant], f.failure
}

func (f *fakeQueue) CreateCallbackSecret(
	_ context.Context, tenant string, kind queue.CallbackKind, by string,
) (queue.CallbackSecret, error) {
	id, _ := f.NewID(tenant, "")
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.callbacks[tenant]
	switch {
	case f.failure != nil:
		return queue.CallbackSecret{}, f.failure
	case len(of.Secrets) >= queue.MaxCallbackSecrets:
		return queue.CallbackSecret{}, queue.ErrTooManySecrets
	}
	made := queue.CallbackSecret{
		ID: id, Kind: kind, Key: queue.CallbackKey(strings.Repeat("s", 32)), Created: time.Now().Truncate(time.Millisecond), By: by,
	}
	of.Secrets = slices.Insert(of.Secrets, 0, made)
	f.callbacks[tenant] = of
	return made, nil
}

func (f *fakeQueue) RevokeCallbackSecret(_ context.Context, tenant, id string) (queue.CallbackSecret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.callbacks[tenant]
	i := slices.IndexFunc(of.Secrets, func(s queue.CallbackSecret) bool { return s.ID == id })
	switch {
	case f.failure != nil:
		return queue.CallbackSecret{}, f.failure
	case i < 0:
		return queue.CallbackSecret{}, queue.ErrUnknownSecret
	}
	gone := of.Secrets[i]
	of.Secrets = slices.Delete(slices.Clone(of.Secrets), i, i+1)
	f.callbacks[tenant] = of
	return gone, nil
}

func (f *fakeQueue) PutCallbackEndpoints(_ context.Context, tenant string, list []string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.callbacks[tenant]
	before := of.Endpoints
	of.Endpoints = list
	f.callbacks[tenant] = of
	return before, f.failure
}
