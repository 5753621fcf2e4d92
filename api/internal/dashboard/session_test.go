package dashboard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/internal/queuetest"
	session "github.com/7509e464/sluice/internal/sessions"
)

// memory is a store of sessions.
type memory struct {
	mu    sync.Mutex
	ends  map[[sha256.Size]byte]session.Session
	away  bool
	asked int
}

func newMemory() *memory { return &memory{ends: map[[sha256.Size]byte]session.Session{}} }

var errAway = errors.New("away")

func (m *memory) call(do func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return errAway
	}
	do()
	return nil
}

func (m *memory) SaveSession(_ context.Context, made session.Session) error {
	return m.call(func() { m.ends[made.ID] = made })
}

func (m *memory) FindSession(_ context.Context, id [sha256.Size]byte) (found session.Session, err error) {
	err = m.call(func() { m.asked++; found = m.ends[id] })
	return found, err
}

func (m *memory) EndSession(_ context.Context, id [sha256.Size]byte) error {
	return m.call(func() { delete(m.ends, id) })
}

func (m *memory) ListSessions(context.Context) ([]session.Session, error) { return nil, nil }

// signInFrom posts a token from an address.
func signInFrom(d *Dashboard, peer, shown string) *http.Response {
	r := httptest.NewRequest("POST", "http://localhost:8081/login",
		strings.NewReader(url.Values{"token": {shown}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.RemoteAddr = peer
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result()
}

// Wrong tokens are rate-limited, and the right token still opens a session from the same address.
func TestWrongTokensLockNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDashboard(t, token)
		const guesser, another = "192.0.2.1:4000", "192.0.2.2:4000"
		for n := range auth.GuessLimit {
			if r := signInFrom(d, guesser,
				fmt.Sprint("guess ", n)); r.StatusCode != http.StatusUnauthorized ||
				r.Header.Get("Retry-After") != "" {
				t.Fatalf("wrong token %d: %d", n, r.StatusCode)
			}
		}
		r := signInFrom(d, guesser, "guess")
		queuetest.Compare(t, "the status of one too many", r.StatusCode, http.StatusTooManyRequests)
		if wait, err := strconv.Atoi(r.Header.Get("Retry-After")); err != nil || wait < 60 {
			t.Errorf("its Retry-After is %q", r.Header.Get("Retry-After"))
		}
		queuetest.Compare(t, "its cookies", len(r.Cookies()), 0)
		queuetest.Contains(t, "its page", content(t, r), "not a valid token")
		if r.Header.Get("Content-Security-Policy") == "" {
			t.Error("one too many: there is no Content-Security-Policy")
		}
		for _, peer := range []string{guesser, another} {
			if r := signInFrom(d, peer, token); r.StatusCode != http.StatusSeeOther || len(r.Cookies()) != 1 {
				t.Errorf("the right token from %s: %d", peer, r.StatusCode)
			}
		}
		if r := signInFrom(d, another, "guess"); r.StatusCode != http.StatusUnauthorized {
			t.Errorf("another address: %d", r.StatusCode)
		}
	})
}

// with is a request that carries the cookie.
func with(c *http.Cookie) *http.Request {
	r := httptest.NewRequest("GET", "http://localhost:8081/", nil)
	r.AddCookie(c)
	r.Header.Set(PageHeader, c.Raw)
	return r
}

// begin returns the cookie of a new session, with the key of its page as Raw.
func begin(s *sessions, at *http.Request) *http.Cookie {
	c, page := s.begin(at, operators.Actor{Name: operators.AdminName, Role: operators.Admin})
	c.Raw = page
	return c
}

func holds(s *sessions, r *http.Request) bool {
	_, ok := s.of(r)
	return ok
}

// TestCookieAlone: a cookie opens nothing without the key of its page, or with another one.
func TestCookieAlone(t *testing.T) {
	s := newSessions(token, newMemory(), auth.NewGuesses())
	at := with(&http.Cookie{Name: "x"})
	c, other := begin(s, at), begin(s, at)
	for page, want := range map[string]bool{c.Raw: true, "": false, other.Raw: false, c.Value: false, c.Raw[1:]: false} {
		r := with(c)
		r.Header.Set(PageHeader, page)
		if holds(s, r) != want {
			t.Errorf("with the key %q: %v", page, !want)
		}
	}
	if _, ok := s.byCookie(with(c)); !ok {
		t.Error("the page is not served")
	}
}

// Sessions hold at every process that shares the store and over restarts, and end absolutely.
func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		process := func(token string) *sessions { return newSessions(token, store, auth.NewGuesses()) }
		s, elsewhere := process(token), process(token)
		at := with(&http.Cookie{Name: "x"})
		c, second := begin(s, at), begin(s, at)
		queuetest.Compare(t, "the name of the cookie", c.Name, "sluice_session_8081")
		if c.Value == second.Value {
			t.Errorf("two sessions have the cookie %v", c)
		}
		for id := range store.ends {
			if strings.Contains(fmt.Sprintf("%x", id), c.Value) {
				t.Error("the store has what opens")
			}
		}
		queuetest.Compare(t, "it holds here", holds(s, with(c)), true)
		queuetest.Compare(t, "it holds at another process", holds(elsewhere, with(c)), true)
		queuetest.Compare(t, "it holds with another token", holds(process("another token 0000"), with(c)), false)
		for _, value := range []string{
			"", c.Value + "A", c.Value[:len(c.Value)-2], "!" + c.Value[1:], strings.Repeat("A", len(c.Value)),
		} {
			if holds(s, with(&http.Cookie{Name: c.Name, Raw: c.Raw, Value: value})) {
				t.Errorf("%q opens", value)
			}
		}
		for range 11 { // used all the time
			time.Sleep(time.Hour)
			if !holds(s, with(c)) {
				t.Fatal("ended early")
			}
		}
		time.Sleep(time.Hour)
		if holds(s, with(c)) || holds(elsewhere, with(c)) {
			t.Error("it is used, and so never ends")
		}
	})
}

// After a logout the session is invalid, even with a copy of its cookie.
func TestLogoutEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		s, elsewhere := newSessions(token, store, auth.NewGuesses()), newSessions(token, store, auth.NewGuesses())
		at := with(&http.Cookie{Name: "x"})
		c, other := begin(s, at), begin(s, at)
		if !holds(elsewhere, with(c)) {
			t.Fatal("it does not hold elsewhere")
		}
		if gone := s.end(with(c)); gone.MaxAge >= 0 {
			t.Errorf("the cookie becomes %v, want it to be deleted", gone)
		}
		if holds(s, with(c)) || !holds(s, with(other)) {
			t.Error("the copy opens, or another session does not")
		}
		time.Sleep(sessionAge)
		if holds(elsewhere, with(c)) {
			t.Error("elsewhere the copy opens after a second")
		}
		// The store is away: it ends here all the same, and stays so.
		store.away = true
		s.end(with(other))
		store.away = false
		time.Sleep(sessionAge)
		if holds(s, with(other)) {
			t.Error("the store brings it back")
		}
	})
}

// While the store is away, sessions stay open, and the token opens new ones.
func TestSessionsWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		s := newSessions(token, store, auth.NewGuesses())
		at := with(&http.Cookie{Name: "x"})
		c := begin(s, at)
		store.away = true
		local := begin(s, at)
		time.Sleep(time.Minute)
		if !holds(s, with(c)) || !holds(s, with(local)) {
			t.Error("signed out by the outage")
		}
		store.away = false
		time.Sleep(time.Minute)
		if !holds(s, with(c)) || !holds(s, with(local)) {
			t.Error("signed out after the outage")
		}
	})
}

// A flood of guessed cookies costs at most half as many lookups in the store, and ends no session.
func TestGuessedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		s := newSessions(token, store, auth.NewGuesses())
		good := begin(s, with(&http.Cookie{Name: "x"}))
		var all sync.WaitGroup
		for n := range 1000 {
			all.Go(func() {
				holds(s, with(&http.Cookie{Name: good.Name, Raw: good.Raw, Value: fmt.Sprintf("%04d", n) + good.Value[4:]}))
			})
		}
		all.Wait()
		if store.asked > 500 || !holds(s, with(good)) {
			t.Errorf("%d questions; the good one holds: %v", store.asked, holds(s, with(good)))
		}
	})
}

// A process remembers at most sessionsHeld sessions, however many are opened.
func TestSessionsAreBounded(t *testing.T) {
	s := newSessions(token, newMemory(), auth.NewGuesses())
	at := with(&http.Cookie{Name: "x"})
	first := begin(s, at)
	for range sessionsHeld + 10 {
		begin(s, at)
	}
	if len(s.held) > sessionsHeld || !holds(s, with(first)) {
		t.Errorf("%d are held; the first holds: %v", len(s.held), holds(s, with(first)))
	}
}

// Only a cookie of the length of a session key is read as one.
func FuzzSession(f *testing.F) {
	s := newSessions(token, newMemory(), auth.NewGuesses())
	f.Add(begin(s, with(&http.Cookie{Name: "x"})).Value + "A")
	f.Add("")
	f.Add("AAAA")
	s.held = map[[sha256.Size]byte]cached{}
	f.Fuzz(func(t *testing.T, value string) {
		if _, ok := s.idOf(value); ok && len(value) != 43 {
			t.Errorf("%q is a key", value)
		}
	})
}

// TestAnotherSignIn: a browser that signs in once more has one session, the new one.
func TestAnotherSignIn(t *testing.T) {
	d := newDashboard(t, token)
	first := signInFrom(d, "192.0.2.1:4000", token).Cookies()[0]
	r := httptest.NewRequest("POST", "http://localhost:8081/login", strings.NewReader("token="+url.QueryEscape(token)))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.AddCookie(first)
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	for i, cookie := range []*http.Cookie{first, w.Result().Cookies()[0]} {
		r := httptest.NewRequest("GET", "http://localhost:8081/", nil)
		r.AddCookie(cookie)
		if _, ok := d.CookieSession(r); ok != (i == 1) {
			t.Errorf("session %d is open: %v", i, ok)
		}
	}
}

// slowSignOn notes until when an answer may be written while the provider is asked.
type slowSignOn struct{ until *time.Time }

func (s slowSignOn) Begin(*http.Request) (to, ticket string, err error) { return "", "", s.late() }
func (s slowSignOn) End(*http.Request, string) (operators.Actor, error) {
	return operators.Actor{}, s.late()
}

func (s slowSignOn) late() error {
	if left := time.Until(*s.until); left < SignOnWait+4*time.Second {
		return fmt.Errorf("only %v are left", left)
	}
	return nil
}

// deadlined is a writer with a deadline.
type deadlined struct {
	*httptest.ResponseRecorder
	until *time.Time
}

func (w deadlined) SetWriteDeadline(at time.Time) error {
	*w.until = at
	return nil
}

// TestSlowProvider: the answer can be written after the longest wait for the provider.
func TestSlowProvider(t *testing.T) {
	d := newDashboard(t, token)
	var until time.Time
	d.signOn = slowSignOn{&until}
	for _, path := range []string{SignOnPath, CallbackPath} {
		until = time.Time{}
		w := deadlined{httptest.NewRecorder(), &until}
		d.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code >= http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
