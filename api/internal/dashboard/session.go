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
	"github.com/7509e464/sluice/internal/operators"
	session "github.com/7509e464/sluice/internal/sessions"
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
	// SaveSession stores a session until its end.
	SaveSession(ctx context.Context, made session.Session) error
	// FindSession returns a session, the zero one if there is none.
	FindSession(ctx context.Context, id [sha256.Size]byte) (session.Session, error)
	// ListSessions returns the sessions that have not ended, the oldest first.
	ListSessions(ctx context.Context) ([]session.Session, error)
	// EndSession deletes a session.
	EndSession(ctx context.Context, id [sha256.Size]byte) error
}

// sessions makes and checks the cookies of operators who have signed in.
//
// A cookie is a random key. The store and this process keep only a digest of the key and the token.
// So a stolen store opens no session, and a new token ends all sessions. Browsers send the cookie
// to every port of its host. So a request needs a second random key, too, which the page keeps for
// itself and sends as a header. While the store is unavailable, the sessions that this process
// knows stay valid, and new ones are valid at this process alone.
type sessions struct {
	digest  [sha256.Size]byte // of the token
	store   Store
	guesses *auth.Guesses
	overTLS func(*http.Request) bool // the cookie of such a request is sent over TLS alone

	mu   sync.Mutex
	held map[[sha256.Size]byte]cached
}

// cached is a cached session.
type cached struct {
	session.Session
	seen  time.Time // when the store was called
	local bool      // the store does not have it
	ended bool      // kept until its end, in case the store has not deleted it
}

func newSessions(token string, store Store, guesses *auth.Guesses) *sessions {
	return &sessions{
		digest: sha256.Sum256([]byte(token)), store: store, guesses: guesses, overTLS: auth.OverTLS(),
		held: map[[sha256.Size]byte]cached{},
	}
}

// Cookies.
const (
	sessionCookie = "sluice_session"
	ticketCookie  = "sluice_signon"
)

// name of a cookie. It contains the port, because browsers share cookies among the ports of a host.
// Over TLS its prefix makes browsers refuse one that another host, or plain HTTP, has set.
func (s *sessions) name(r *http.Request, plain string) string {
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
	c, err := r.Cookie(s.name(r, sessionCookie))
	if err != nil {
		return id, false
	}
	return s.idOf(c.Value)
}

// PageHeader has the second key of a session.
const PageHeader = "Sluice-Session"

// of returns the session that the request has both keys of.
func (s *sessions) of(r *http.Request) (found session.Session, ok bool) {
	found, ok = s.byCookie(r)
	if !ok {
		return session.Session{}, false
	}
	page := sha256.Sum256([]byte(r.Header.Get(PageHeader)))
	if subtle.ConstantTimeCompare(page[:], found.Page) != 1 {
		return session.Session{}, false
	}
	return found, true
}

// byCookie returns the session of the cookie alone.
func (s *sessions) byCookie(r *http.Request) (found session.Session, ok bool) {
	id, ok := s.shown(r)
	if !ok || !s.holds(r, id) {
		return session.Session{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found = s.held[id].Session
	return found, found.ID == id
}

func (s *sessions) holds(r *http.Request, id [sha256.Size]byte) bool {
	now := time.Now()
	s.mu.Lock()
	have, known := s.held[id]
	s.mu.Unlock()
	switch {
	case known && (have.ended || !now.Before(have.Until)):
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
	found, err := s.store.FindSession(ctx, id)
	if err != nil {
		return known
	}
	if !now.Before(found.Until) {
		if known {
			s.remember(id, cached{Session: have.Session, ended: true})
		} else {
			_ = s.guesses.Wrong(address())
		}
		return false
	}
	s.remember(id, cached{Session: found, seen: now})
	return true
}

// remember caches a session. An ended one stays ended.
func (s *sessions) remember(id [sha256.Size]byte, now cached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[id].ended {
		return
	}
	if len(s.held) >= sessionsHeld {
		for id, have := range s.held {
			if !time.Now().Before(have.Until) {
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

// begin makes a session of an operator, and ends the former one of the browser, whose cookie the
// new one replaces. page is the key that the page sends.
func (s *sessions) begin(r *http.Request, who operators.Actor) (cookie *http.Cookie, page string) {
	s.end(r)
	key := newKey()
	page = newKey()
	hash, now := sha256.Sum256([]byte(page)), time.Now()
	made := session.Session{
		Page: hash[:], Operator: who.ID, Name: who.Name, Role: who.Role, Address: who.Address,
		Created: now.UTC(), Until: now.Add(sessionLife).UTC(),
	}
	made.ID, _ = s.idOf(key)
	ctx, cancel := context.WithTimeout(r.Context(), sessionWait)
	defer cancel()
	err := s.store.SaveSession(ctx, made)
	s.remember(made.ID, cached{Session: made, seen: now, local: err != nil})
	return s.bake(r, key, int(sessionLife/time.Second)), page
}

func newKey() string {
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never fails
	return base64.RawURLEncoding.EncodeToString(raw)
}

// end ends the session of the request, here at once and in other processes within sessionAge.
func (s *sessions) end(r *http.Request) *http.Cookie {
	if id, ok := s.shown(r); ok && s.holds(r, id) {
		_ = s.endID(r.Context(), id) // it has ended here in any case
	}
	return s.bake(r, "", -1)
}

// endID ends a session, here at once. Its error is that of the store.
func (s *sessions) endID(ctx context.Context, id [sha256.Size]byte) error {
	s.mu.Lock()
	if have, known := s.held[id]; known {
		have.ended = true
		s.held[id] = have
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	return s.store.EndSession(ctx, id)
}

func (s *sessions) bake(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: s.name(r, sessionCookie), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: s.overTLS(r),
	}
}
