package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/auth"
)

const (
	// sessionLife is how long a session holds, however much it is used.
	sessionLife = 12 * time.Hour
	// sessionAge is how long the store's word on a session is believed: a session that was ended at
	// another process ends here as soon.
	sessionAge = time.Second
	// sessionWait bounds one question to the store.
	sessionWait = time.Second
	// sessionsHeld bounds the sessions that the process remembers.
	sessionsHeld = 1000

	keyBytes = 32
)

// Store keeps sessions for all processes that share it, and over restarts. *queue.Queue is one.
type Store interface {
	// SaveSession keeps a session for so long.
	SaveSession(ctx context.Context, id [sha256.Size]byte, life time.Duration) error
	// FindSession returns how long the session holds; 0 if there is none.
	FindSession(ctx context.Context, id [sha256.Size]byte) (time.Duration, error)
	// EndSession forgets a session.
	EndSession(ctx context.Context, id [sha256.Size]byte) error
}

// sessions makes and checks the cookies of those who have shown the admin token.
//
// A cookie is a random key. The store and this process keep only a digest of the key and the token.
// So a stolen store opens no session, and a new token ends all sessions. While the store is
// unavailable, the sessions that this process knows stay valid, and new ones are valid at this
// process alone.
type sessions struct {
	digest  [sha256.Size]byte // of the token
	store   Store
	guesses *auth.Guesses

	mu   sync.Mutex
	held map[[sha256.Size]byte]session
}

// session is what the process knows of a session.
type session struct {
	until time.Time
	seen  time.Time // when the store said so
	local bool      // the store does not have it
	ended bool      // kept until its time is over, in case the store could not be told
}

func newSessions(token string, store Store, guesses *auth.Guesses) *sessions {
	return &sessions{
		digest: sha256.Sum256([]byte(token)), store: store, guesses: guesses, held: map[[sha256.Size]byte]session{},
	}
}

// opens compares digests, so that the time taken tells neither content nor length of the token.
func (s *sessions) opens(token string) bool {
	got := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(got[:], s.digest[:]) == 1
}

// name of the cookie. Browsers keep one jar for all ports of a host: two programs on one host must
// not overwrite each other's cookie.
func name(r *http.Request) string {
	const plain = "sluice_session"
	if _, port, err := net.SplitHostPort(r.Host); err == nil && port != "" {
		return plain + "_" + port
	}
	return plain
}

// idOf is what a session is stored under; false where the text is no key.
func (s *sessions) idOf(key string) (id [sha256.Size]byte, ok bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(key)
	if err != nil || len(raw) != keyBytes {
		return id, false
	}
	return sha256.Sum256(append(raw, s.digest[:]...)), true
}

// shown is the session whose cookie the request carries.
func (s *sessions) shown(r *http.Request) (id [sha256.Size]byte, ok bool) {
	c, err := r.Cookie(name(r))
	if err != nil {
		return id, false
	}
	return s.idOf(c.Value)
}

// of reports whether the request shows a session that holds.
func (s *sessions) of(r *http.Request) bool {
	id, ok := s.shown(r)
	return ok && s.holds(r, id)
}

func (s *sessions) holds(r *http.Request, id [sha256.Size]byte) bool {
	now := time.Now()
	s.mu.Lock()
	have, known := s.held[id]
	s.mu.Unlock()
	switch {
	case known && (have.ended || !now.Before(have.until)):
		return false
	case known && (have.local || now.Sub(have.seen) < sessionAge):
		return true
	}
	address := func() string { return auth.AddressOf(r.RemoteAddr) }
	ctx, cancel := context.WithTimeout(r.Context(), sessionWait)
	defer cancel()
	if !known && s.guesses.Allow(ctx, hex.EncodeToString(id[:]), address) != nil {
		return false
	}
	left, err := s.store.FindSession(ctx, id)
	if err != nil {
		return known
	}
	if left <= 0 {
		if known {
			s.remember(id, session{until: have.until, ended: true})
		} else {
			_ = s.guesses.Wrong(address())
		}
		return false
	}
	s.remember(id, session{until: now.Add(left), seen: now})
	return true
}

// remember notes a session. One that was ended stays so.
func (s *sessions) remember(id [sha256.Size]byte, now session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[id].ended {
		return
	}
	if len(s.held) >= sessionsHeld {
		for id, have := range s.held {
			if !time.Now().Before(have.until) {
				delete(s.held, id)
			}
		}
		for id := range s.held { // any: the store knows it still
			if len(s.held) < sessionsHeld {
				break
			}
			delete(s.held, id)
		}
	}
	s.held[id] = now
}

// begin makes a session, for who has shown the token.
func (s *sessions) begin(r *http.Request) *http.Cookie {
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never fails
	key := base64.RawURLEncoding.EncodeToString(raw)
	id, _ := s.idOf(key)
	ctx, cancel := context.WithTimeout(r.Context(), sessionWait)
	defer cancel()
	err := s.store.SaveSession(ctx, id, sessionLife)
	now := time.Now()
	s.remember(id, session{until: now.Add(sessionLife), seen: now, local: err != nil})
	return bake(r, key, int(sessionLife/time.Second))
}

// end ends the session that the request shows, here at once and elsewhere within sessionAge.
func (s *sessions) end(r *http.Request) *http.Cookie {
	if id, ok := s.shown(r); ok && s.holds(r, id) {
		s.mu.Lock()
		have := s.held[id]
		have.ended = true
		s.held[id] = have
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(r.Context(), sessionWait)
		defer cancel()
		_ = s.store.EndSession(ctx, id) // it has ended here all the same
	}
	return bake(r, "", -1)
}

func bake(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: name(r), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
}
