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
	// sessionLife is the lifetime of a session, used or not.
	sessionLife = 12 * time.Hour
	// sessionAge is how long a lookup of a session is cached. A session that another process has
	// ended ends here within this time.
	sessionAge = time.Second
	// sessionWait bounds one call of the store.
	sessionWait = time.Second
	// sessionsHeld bounds the sessions in the cache.
	sessionsHeld = 1000

	keyBytes = 32
)

// Store keeps sessions for all processes that share it, and over restarts. sessions.Store is one.
type Store interface {
	// SaveSession stores a session for the time of life.
	SaveSession(ctx context.Context, id [sha256.Size]byte, life time.Duration) error
	// FindSession returns the rest of the session's lifetime; 0 if there is no session.
	FindSession(ctx context.Context, id [sha256.Size]byte) (time.Duration, error)
	// EndSession deletes a session.
	EndSession(ctx context.Context, id [sha256.Size]byte) error
}

// sessions makes and checks the cookies of operators who have signed in.
//
// A cookie is a random key. The store and this process keep only a digest of the key and the token.
// So a stolen store opens no session, and a new token ends all sessions. While the store is
// unavailable, the sessions that this process knows stay valid, and new ones are valid at this
// process alone.
type sessions struct {
	digest  [sha256.Size]byte // of the token
	store   Store
	guesses *auth.Guesses
	overTLS func(*http.Request) bool // the cookie of such a request is sent over TLS alone

	mu   sync.Mutex
	held map[[sha256.Size]byte]session
}

// session is a cached session.
type session struct {
	until time.Time
	seen  time.Time // when the store was called
	local bool      // the store does not have it
	ended bool      // kept until its end, in case the store has not deleted it
}

func newSessions(token string, store Store, guesses *auth.Guesses) *sessions {
	return &sessions{
		digest: sha256.Sum256([]byte(token)), store: store, guesses: guesses, overTLS: auth.OverTLS(),
		held: map[[sha256.Size]byte]session{},
	}
}

// opens compares digests, so that its duration reveals neither content nor length of the token.
func (s *sessions) opens(token string) bool {
	got := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(got[:], s.digest[:]) == 1
}

// name of the cookie. It contains the port, because browsers share cookies among the ports of a
// host. Over TLS its prefix makes browsers refuse one that another host, or plain HTTP, has set.
func (s *sessions) name(r *http.Request) string {
	plain := "sluice_session"
	if s.overTLS(r) {
		plain = "__Host-" + plain
	}
	if _, port, err := net.SplitHostPort(r.Host); err == nil && port != "" {
		return plain + "_" + port
	}
	return plain
}

// idOf is the id of a stored session; false if the text is no key.
func (s *sessions) idOf(key string) (id [sha256.Size]byte, ok bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(key)
	if err != nil || len(raw) != keyBytes {
		return id, false
	}
	return sha256.Sum256(append(raw, s.digest[:]...)), true
}

// shown is the session whose cookie the request has.
func (s *sessions) shown(r *http.Request) (id [sha256.Size]byte, ok bool) {
	c, err := r.Cookie(s.name(r))
	if err != nil {
		return id, false
	}
	return s.idOf(c.Value)
}

// of reports whether the request has a valid session.
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
	address := func() string { return auth.PeerNetwork(r.RemoteAddr) }
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

// remember caches a session. An ended one stays ended.
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
		for id := range s.held { // any: the store still has it
			if len(s.held) < sessionsHeld {
				break
			}
			delete(s.held, id)
		}
	}
	s.held[id] = now
}

// begin makes a session.
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
	return s.bake(r, key, int(sessionLife/time.Second))
}

// end ends the session of the request, here at once and in other processes within sessionAge.
func (s *sessions) end(r *http.Request) *http.Cookie {
	if id, ok := s.shown(r); ok && s.holds(r, id) {
		s.mu.Lock()
		have := s.held[id]
		have.ended = true
		s.held[id] = have
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(r.Context(), sessionWait)
		defer cancel()
		_ = s.store.EndSession(ctx, id) // it has ended here in any case
	}
	return s.bake(r, "", -1)
}

func (s *sessions) bake(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: s.name(r), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: s.overTLS(r),
	}
}
