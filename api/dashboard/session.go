package dashboard

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"time"
)

// sessionLife is how long a session holds after the page was last opened.
const sessionLife = 12 * time.Hour

const (
	stampBytes = 8
	nonceBytes = 16
	sealBytes  = sha256.Size
)

// sessions makes and checks the cookies of those who have shown the admin token.
//
// A cookie is an instant, a nonce and a seal over both by a key that is derived from the token, so no process remembers anything: a session
// outlives a restart, holds at every process with the same token, and ends everywhere when the token is changed.
type sessions struct {
	digest [sha256.Size]byte // of the token
	key    []byte
	name   string
}

func newSessions(token string) *sessions {
	s := &sessions{digest: sha256.Sum256([]byte(token)), key: seal([]byte(token), []byte("sluice dashboard session"))}
	// Browsers keep one jar for all ports of a host: two programs with different tokens must not overwrite each other's cookie.
	s.name = "sluice_session_" + hex.EncodeToString(seal(s.key, []byte("name"))[:4])
	return s
}

func seal(key, what []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(what)
	return mac.Sum(nil)
}

// opens compares digests, so that the time taken tells neither content nor length of the token.
func (s *sessions) opens(token string) bool {
	got := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(got[:], s.digest[:]) == 1
}

// value is the content of a cookie that holds until then.
func (s *sessions) value(until time.Time) string {
	body := make([]byte, stampBytes+nonceBytes, stampBytes+nonceBytes+sealBytes)
	binary.BigEndian.PutUint64(body, uint64(until.Unix()))
	_, _ = rand.Read(body[stampBytes:]) // never fails
	return base64.RawURLEncoding.EncodeToString(append(body, seal(s.key, body)...))
}

// holds reports whether the content of a cookie was made by value and has not ended.
func (s *sessions) holds(value string, now time.Time) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err != nil || len(raw) != stampBytes+nonceBytes+sealBytes {
		return false
	}
	body := raw[:stampBytes+nonceBytes]
	if !hmac.Equal(raw[len(body):], seal(s.key, body)) {
		return false
	}
	return now.Unix() < int64(binary.BigEndian.Uint64(body))
}

// of reports whether the request shows a session.
func (s *sessions) of(r *http.Request) bool {
	c, err := r.Cookie(s.name)
	return err == nil && s.holds(c.Value, time.Now())
}

// cookie begins a session, or goes on with it.
func (s *sessions) cookie(r *http.Request, now time.Time) *http.Cookie {
	return s.bake(r, s.value(now.Add(sessionLife)), int(sessionLife/time.Second))
}

func (s *sessions) forget(r *http.Request) *http.Cookie { return s.bake(r, "", -1) }

func (s *sessions) bake(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: s.name, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
}
