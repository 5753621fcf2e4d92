package outbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/oauth2"
)

// server is an authorization server.
type server struct {
	mu     sync.Mutex
	issued int
	tried  int
	takes  time.Duration // for a token; 0: a second
	lives  time.Duration // of a token; 0: unknown
	same   bool          // all tokens are the first
	down   error
}

func (s *server) fetch(ctx context.Context) (*oauth2.Token, error) {
	select {
	case <-time.After(cmp.Or(s.takes, time.Second)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tried++; s.down != nil {
		return nil, s.down
	}
	s.issued++
	t := &oauth2.Token{AccessToken: fmt.Sprint("t", s.issued)}
	if s.same {
		t.AccessToken = "t1"
	}
	if s.lives != 0 {
		t.Expiry = time.Now().Add(s.lives)
	}
	return t, nil
}

func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
}

func (s *server) tokens() *Tokens { return &Tokens{fetch: s.fetch, timeout: 10 * time.Second} }

// get returns the tokens that n deliveries get at once.
func get(t *testing.T, tokens *Tokens, n int) map[string]int {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[string]int{}
	for range n {
		wg.Go(func() {
			value, err := tokens.Get(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				value = err.Error()
			}
			got[value]++
		})
	}
	wg.Wait()
	return got
}

// However many deliveries need a token, it is fetched once, and again before it ends.
func TestOneTokenForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{lives: time.Hour}
		tokens := s.tokens()
		if got := get(t, tokens, 60); got["Bearer t1"] != 60 || s.tried != 1 {
			t.Errorf("60 deliveries got %v by %d fetches", got, s.tried)
		}
		time.Sleep(time.Hour - tokenEarly - time.Second)
		if got := get(t, tokens, 5); got["Bearer t1"] != 5 {
			t.Errorf("before the renewal: %v", got)
		}
		time.Sleep(2 * time.Second)
		s.fail(errors.New("away"))
		before := time.Now()
		if got := get(t, tokens, 5); got["Bearer t1"] != 5 || time.Since(before) != 0 {
			t.Errorf("while it is renewed: %v after %v, want the token that is still good at once", got, time.Since(before))
		}
		time.Sleep(1500 * time.Millisecond)
		if got := get(t, tokens, 5); got["Bearer t1"] != 5 || s.tried != 2 || tokens.State().Problem != "" {
			t.Errorf("while it cannot be renewed: %v by %d fetches, want the token that is still good; %+v", got, s.tried, tokens.State())
		}
		s.fail(nil)
		time.Sleep(tokenEarly)
		if got := get(t, tokens, 5); got["Bearer t2"] != 5 || s.issued != 2 {
			t.Errorf("after its end: %v, %d issued", got, s.issued)
		}
	})
}

// A token that has ended before it came is used all the same, and the server is asked once a
// second.
func TestTokenThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{lives: -time.Hour}
		tokens := s.tokens()
		for begin := time.Now(); time.Since(begin) < time.Minute; {
			if got := get(t, tokens, 3); len(got) != 1 || got["Bearer t0"] != 0 {
				t.Fatalf("after %v: %v", time.Since(begin), got)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if s.issued < 20 || s.issued > 40 { // each takes a second
			t.Errorf("%d tokens in a minute", s.issued)
		}
	})
}

// While the server is away no delivery gets a token, each error has the time of the next fetch, and
// the server is asked ever less often.
func TestNoTokenWhileTheServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: errors.New("away")}
		tokens := s.tokens()
		begin := time.Now()
		for time.Since(begin) < 10*time.Minute {
			_, err := tokens.Get(t.Context())
			no, is := errors.AsType[NoToken](err)
			if !is || no.Retry <= 0 || no.Retry > tokenPauseMost {
				t.Fatalf("after %v: %v", time.Since(begin), err)
			}
			time.Sleep(no.Retry)
		}
		if s.tried < 15 || s.tried > 30 || tokens.State().Problem == "" {
			t.Errorf("in ten minutes the server was asked %d times; the state is %+v", s.tried, tokens.State())
		}
		s.fail(nil)
		time.Sleep(tokenPauseMost)
		if got := get(t, tokens, 3); got["Bearer t1"] != 3 || tokens.State().Problem != "" {
			t.Errorf("once the server is back: %v, %+v", got, tokens.State())
		}
	})
}

// A token that several deliveries found refused is replaced by one fetch. An upstream that refuses
// every token does not make each delivery fetch another one.
func TestRefusedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		tokens := s.tokens()
		get(t, tokens, 1)
		var refused sync.WaitGroup
		for range 20 {
			refused.Go(func() {
				if value, err := tokens.Another(t.Context(), "Bearer t1"); value != "Bearer t2" {
					t.Errorf("instead of a token that was refused: %q, %v", value, err)
				}
			})
		}
		refused.Wait()
		if got := get(t, tokens, 20); got["Bearer t2"] != 20 || s.issued != 2 {
			t.Fatalf("after 20 refusals: %v, %d issued", got, s.issued)
		}
		stands := 0
		for range 600 { // for a minute, deliveries are refused one after the other
			value, _ := tokens.Get(t.Context())
			if again, err := tokens.Another(t.Context(), value); err == nil && again == "" {
				stands++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if s.issued > 12 || stands < 500 {
			t.Errorf("600 refusals in a minute made it fetch %d tokens, and %d stand", s.issued, stands)
		}
	})
}

// TestRefusalsOfOne: while the upstream refuses the requests of one tenant, whatever the
// authorization server does, those of others go on with the same token.
func TestRefusalsOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		tokens := s.tokens()
		get(t, tokens, 1)
		s.fail(errors.New("503"))
		var one sync.WaitGroup
		one.Go(func() {
			for range 10 {
				if value, err := tokens.Another(t.Context(), "Bearer t1"); !errors.As(err, new(NoToken)) {
					t.Errorf("the refused one: %q, %v", value, err)
				}
				time.Sleep(time.Second)
			}
		})
		for range 200 {
			began := time.Now()
			if got := get(t, tokens, 1); got["Bearer t1"] != 1 || time.Since(began) > 0 {
				t.Fatalf("another delivery waited %v for %v", time.Since(began), got)
			}
			time.Sleep(50 * time.Millisecond)
		}
		one.Wait()
		if tokens.State().Problem == "" {
			t.Error("operators do not see that no token replaces the refused one")
		}
		s.fail(nil)
		time.Sleep(tokenPauseMost)
		if value, err := tokens.Another(t.Context(), "Bearer t1"); value != "Bearer t2" || tokens.State().Problem != "" {
			t.Errorf("once the server is back: %q, %v, %+v", value, err, tokens.State())
		}
	})
}

// A refused delivery waits for a server that hangs until one of both is cut off; others do not.
func TestRefusedWhileTheServerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		tokens := s.tokens()
		get(t, tokens, 1)
		s.takes = time.Hour
		short, cancel := context.WithTimeout(t.Context(), tokens.timeout/2)
		defer cancel()
		var refused sync.WaitGroup
		refused.Go(func() {
			if _, err := tokens.Another(short, "Bearer t1"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a refused delivery that is cut off: %v", err)
			}
		})
		refused.Go(func() {
			began := time.Now()
			_, err := tokens.Another(t.Context(), "Bearer t1")
			if !errors.As(err, new(NoToken)) || time.Since(began) != tokens.timeout {
				t.Errorf("a refused delivery after %v: %v", time.Since(began), err)
			}
		})
		for began := time.Now(); time.Since(began) < 3*tokens.timeout; time.Sleep(100 * time.Millisecond) {
			before := time.Now()
			if got := get(t, tokens, 1); got["Bearer t1"] != 1 || time.Since(before) != 0 {
				t.Fatalf("another delivery waited %v for %v", time.Since(before), got)
			}
		}
		refused.Wait()
		time.Sleep(tokens.timeout) // for the end of the last fetch
	})
}

// Some servers issue the same token until it ends: to send it again is of no use.
func TestRefusedTokenThatComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{same: true}
		tokens := s.tokens()
		get(t, tokens, 1)
		for range 20 {
			if value, err := tokens.Another(t.Context(), "Bearer t1"); value != "" || err != nil {
				t.Errorf("instead of the refused token: %q, %v", value, err)
			}
		}
		if got := get(t, tokens, 1); got["Bearer t1"] != 1 || s.tried != 1+tokenRefusals {
			t.Errorf("afterwards: %v by %d fetches", got, s.tried)
		}
	})
}

// A delivery that is cut off does not end the fetch for the others.
func TestTokenOutlivesADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		tokens := s.tokens()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := tokens.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a delivery that is cut off: %v", err)
		}
		if got := get(t, tokens, 1); got["Bearer t1"] != 1 || s.tried != 1 {
			t.Errorf("the next one: %v by %d fetches", got, s.tried)
		}
	})
}

// What an answer of the server contains is shown to nobody: it may repeat the secret.
func TestTokenErrorsHaveNoSecrets(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a code":   {&oauth2.RetrieveError{ErrorCode: "invalid_client", ErrorDescription: "s3cret", Body: []byte("s3cret")}, "answered invalid_client"},
		"an echo":  {&oauth2.RetrieveError{ErrorCode: "s3cret", Body: []byte("s3cret")}, "the authorization server answered"},
		"no HTTP":  {&url.Error{Op: "Post", URL: "http://s3cret", Err: errors.New(`malformed HTTP status code "s3cret"`)}, "not valid HTTP"},
		"no JSON":  {errors.New("oauth2: cannot parse json: s3cret"), "no token that can be read"},
		"no token": {errors.New("oauth2: server response missing access_token"), "no token that can be read"},
	} {
		tokens := &Tokens{timeout: time.Second, fetch: func(context.Context) (*oauth2.Token, error) { return nil, c.err }}
		_, err := tokens.Get(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	odd := &Tokens{timeout: time.Second, fetch: func(context.Context) (*oauth2.Token, error) {
		return &oauth2.Token{AccessToken: "a\r\nX-Evil: 1"}, nil
	}}
	if value, err := odd.Get(t.Context()); err == nil || strings.Contains(err.Error(), "Evil") {
		t.Errorf("a token with a line break: %q %v", value, err)
	}
}
