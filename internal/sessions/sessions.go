// Package sessions stores the sessions of operators in Redis, for all processes.
package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/7509e464/sluice/internal/store"
)

// Store stores sessions. It is safe for concurrent use.
type Store struct{ store *store.Store }

// New returns the sessions in the store of a queue.
func New(s *store.Store) Store { return Store{s} }

// SaveSession stores the session of an operator for the time of its life. Errors:
// queue.ErrUnavailable.
func (s Store) SaveSession(ctx context.Context, id [sha256.Size]byte, life time.Duration) error {
	return store.Unavailable(s.store.Fast.Set(ctx, sessionKey(id), "1", life).Err())
}

// FindSession returns the remaining life of a session, 0 if there is none. Errors:
// queue.ErrUnavailable.
func (s Store) FindSession(ctx context.Context, id [sha256.Size]byte) (time.Duration, error) {
	left, err := s.store.Fast.PTTL(ctx, sessionKey(id)).Result()
	return max(0, left), store.Unavailable(err) // -2: no such key
}

// EndSession deletes a session, if it exists. Errors: queue.ErrUnavailable.
func (s Store) EndSession(ctx context.Context, id [sha256.Size]byte) error {
	return store.Unavailable(s.store.Durable.Del(ctx, sessionKey(id)).Err())
}

func sessionKey(id [sha256.Size]byte) string { return store.SessionKey + hex.EncodeToString(id[:]) }
