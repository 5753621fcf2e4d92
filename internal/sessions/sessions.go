// Package sessions stores the sessions of operators in Redis, for all processes.
package sessions

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/internal/store"
)

// Session is a session of an operator on the dashboard. What opens it is not stored: the ID is a
// digest of its cookie, and Page one of what its page sends with each request.
type Session struct {
	ID       [sha256.Size]byte `json:"-"`
	Page     []byte            `json:"page"`
	Operator string            `json:"operator,omitempty"` // id of the account; empty: the admin token
	Name     string            `json:"name"`
	Role     operators.Role    `json:"role"`
	Address  string            `json:"address,omitempty"` // of the client that signed in
	Created  time.Time         `json:"created"`
	Until    time.Time         `json:"until"` // its end, used or not; zero: there is no session
}

// MaxSessions bounds the stored sessions. One more ends the oldest.
const MaxSessions = 10_000

// Store stores sessions. It is safe for concurrent use.
type Store struct{ store *store.Store }

// New returns the sessions in the store of a queue.
func New(s *store.Store) Store { return Store{s} }

// SaveSession stores the session of an operator. It deletes those that have ended. Errors:
// store.ErrUnavailable.
func (s Store) SaveSession(ctx context.Context, made Session) error {
	text, err := json.Marshal(made)
	if err != nil {
		return fmt.Errorf("sessions: encode: %w", err)
	}
	all, err := s.all(ctx)
	if err != nil {
		return err
	}
	surplus := max(0, len(all)-MaxSessions+1)
	_, err = s.store.Fast.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, old := range all {
			if i < surplus || !time.Now().Before(old.Until) {
				p.HDel(ctx, store.SessionsKey, hex.EncodeToString(old.ID[:]))
			}
		}
		p.HSet(ctx, store.SessionsKey, hex.EncodeToString(made.ID[:]), text)
		return nil
	})
	return store.Unavailable(err)
}

// FindSession returns a session, the zero one if there is none. Errors: store.ErrUnavailable.
func (s Store) FindSession(ctx context.Context, id [sha256.Size]byte) (Session, error) {
	texts, err := s.store.Fast.HMGet(ctx, store.SessionsKey, hex.EncodeToString(id[:])).Result()
	if err != nil {
		return Session{}, store.Unavailable(err)
	}
	text, _ := texts[0].(string)
	found, ok := decode(hex.EncodeToString(id[:]), text)
	if !ok || !time.Now().Before(found.Until) {
		return Session{}, nil
	}
	return found, nil
}

// ListSessions returns the sessions that have not ended, the oldest first. Errors:
// store.ErrUnavailable.
func (s Store) ListSessions(ctx context.Context) ([]Session, error) {
	all, err := s.all(ctx)
	now := time.Now()
	return slices.DeleteFunc(all, func(s Session) bool { return !now.Before(s.Until) }), err
}

func (s Store) all(ctx context.Context) ([]Session, error) {
	fields, err := s.store.Fast.HGetAll(ctx, store.SessionsKey).Result()
	if err != nil {
		return nil, store.Unavailable(err)
	}
	all := make([]Session, 0, len(fields))
	for id, text := range fields {
		if found, ok := decode(id, text); ok {
			all = append(all, found)
		}
	}
	slices.SortFunc(all, func(a, b Session) int {
		return cmp.Or(a.Created.Compare(b.Created), slices.Compare(a.ID[:], b.ID[:]))
	})
	return all, nil
}

// decode reads a stored session. One that cannot be read opens nothing.
func decode(id, text string) (s Session, ok bool) {
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != sha256.Size || json.Unmarshal([]byte(text), &s) != nil || len(s.Page) != sha256.Size {
		return Session{}, false
	}
	copy(s.ID[:], raw)
	return s, true
}

// EndSession deletes a session, if it exists. Errors: store.ErrUnavailable.
func (s Store) EndSession(ctx context.Context, id [sha256.Size]byte) error {
	if err := s.store.Fast.HDel(ctx, store.SessionsKey, hex.EncodeToString(id[:])).Err(); err != nil {
		return store.Unavailable(err)
	}
	return s.store.Confirm(ctx, store.SessionsKey)
}
