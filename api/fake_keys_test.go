package api

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
)

func (f *fakeQueue) CreateKey(_ context.Context, k queue.Key) (queue.Key, error) {
	id, _ := f.NewID(k.Tenant, "")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return queue.Key{}, f.failure
	}
	active := 0
	for _, other := range f.ring {
		if other.Tenant == k.Tenant && !other.Expired(time.Now()) {
			active++
		}
	}
	if active >= queue.MaxKeys {
		return queue.Key{}, queue.ErrTooManyKeys
	}
	k.ID, k.Created = id, time.Now().Truncate(time.Millisecond)
	f.ring = append(f.ring, k)
	return k, nil
}

func (f *fakeQueue) ListKeys(_ context.Context, tenant string) ([]queue.Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := slices.DeleteFunc(slices.Clone(f.ring), func(k queue.Key) bool { return k.Tenant != tenant })
	for i := range keys {
		keys[i].Hash = [sha256.Size]byte{}
	}
	slices.SortFunc(keys, func(a, b queue.Key) int { return strings.Compare(a.ID, b.ID) })
	return keys, f.failure
}

func (f *fakeQueue) RevokeKey(_ context.Context, tenant, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return f.failure
	}
	i := slices.IndexFunc(f.ring, func(k queue.Key) bool { return k.ID == id && k.Tenant == tenant })
	if i < 0 {
		return queue.ErrUnknownKey
	}
	f.ring = slices.Delete(f.ring, i, i+1)
	return nil
}

func (f *fakeQueue) FindKey(_ context.Context, id string) (queue.Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found++
	if f.failure != nil {
		return queue.Key{}, f.failure
	}
	if i := slices.IndexFunc(f.ring, func(k queue.Key) bool { return k.ID == id }); i >= 0 {
		return f.ring[i], nil
	}
	return queue.Key{}, queue.ErrUnknownKey
}

// Used stores the uses.
func (f *fakeQueue) Used(_ context.Context, uses []queue.Use) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range uses {
		for i := range f.ring {
			if f.ring[i].ID == u.ID {
				f.ring[i].Used = u.At
			}
		}
	}
	return f.failure
}

// RevokeTokens revokes nothing.
func (f *fakeQueue) RevokeTokens(_ context.Context, _, _ string, at time.Time) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return at.UTC().Truncate(time.Millisecond), f.failure
}

// Found is the number of calls of FindKey.
func (f *fakeQueue) Found() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found
}
