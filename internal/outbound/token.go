package outbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// OAuth2 are the credentials for tokens of an authorization server (RFC 6749, section 4.4).
type OAuth2 struct {
	TokenURL     string
	ClientID     string
	ClientSecret string
	Scopes       []string
	Audience     string // sent as the parameter audience; empty: none
}

const (
	// tokenEarly is how long before its end a token is replaced, at most a tenth of its life.
	tokenEarly = 30 * time.Second
	// Refused tokens are replaced tokenRefusals times at once, and then once in refusalEvery: else
	// an upstream that answers 401 to some requests would make each of them fetch a token.
	tokenRefusals = 3
	refusalEvery  = 10 * time.Second
	// tokenLeast is how long a token is used at least, whatever its server says: one that had ended
	// before it came would be fetched without end.
	tokenLeast = time.Second
	// After a failure the next fetch waits tokenPause, and twice as long after each further one, up
	// to tokenPauseMost.
	tokenPause, tokenPauseMost = time.Second, 30 * time.Second
)

// Tokens fetches one token for all deliveries of a route and keeps it. Many goroutines use it at
// once.
type Tokens struct {
	fetch   func(context.Context) (*oauth2.Token, error)
	timeout time.Duration

	mu       sync.Mutex
	current  token
	fetching chan struct{} // closed when the running fetch has ended; nil: none runs
	err      error         // of the last fetch
	failed   int           // fetches in a row
	retry    time.Time     // no fetch before
	suspect  bool          // the upstream refused the current token
	refusals []time.Time   // of the last tokens that the upstream refused
}

// token is a token as it is sent.
type token struct {
	header string    // value of Authorization; empty: there is none
	renew  time.Time // zero: never
	expiry time.Time // zero: unknown
}

// newTokens returns tokens that are fetched by the client's transport. The authorization server
// gets the credentials in the way that it accepts: both are tried.
func newTokens(o OAuth2, c *Client) *Tokens {
	cfg := &clientcredentials.Config{
		ClientID: o.ClientID, ClientSecret: o.ClientSecret, TokenURL: o.TokenURL, Scopes: o.Scopes,
	}
	if o.Audience != "" {
		cfg.EndpointParams = url.Values{"audience": {o.Audience}}
	}
	client := &http.Client{
		Transport: c.Transport, // by itself it follows no redirect with the secret
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	return &Tokens{timeout: c.timeout, fetch: func(ctx context.Context) (*oauth2.Token, error) {
		return cfg.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	}}
}

// NoToken is why there is no token. Its text is for operators.
type NoToken struct {
	Retry time.Duration // until the next fetch
	cause error
}

func (e NoToken) Error() string { return Cut(e.cause.Error()) }

func (e NoToken) Unwrap() error { return e.cause }

// Get returns the value of Authorization. It waits for a fetch, which goes on for others if ctx
// ends. Errors: that of ctx, or a NoToken.
func (t *Tokens) Get(ctx context.Context) (string, error) { return t.other(ctx, "") }

// Another is Get for a request whose token the upstream refused. It waits for the next token, while
// others go on with this one: one tenant can ask for what is refused to all. It returns an empty
// value if the refusal stands, because others were refused lately or the next token is the same.
func (t *Tokens) Another(ctx context.Context, refused string) (string, error) {
	t.mu.Lock()
	if t.current.header == refused && !t.suspect {
		now := time.Now()
		t.refusals = slices.DeleteFunc(t.refusals, func(at time.Time) bool { return now.Sub(at) >= tokenRefusals*refusalEvery })
		if len(t.refusals) == tokenRefusals {
			t.mu.Unlock()
			return "", nil
		}
		t.suspect, t.refusals = true, append(t.refusals, now)
	}
	t.mu.Unlock()
	return t.other(ctx, refused)
}

// other returns a token that is not refused, or nothing if it is the current one and not suspect.
func (t *Tokens) other(ctx context.Context, refused string) (string, error) {
	for {
		t.mu.Lock()
		now := time.Now()
		have, wait, suspect := t.current, t.retry.Sub(now), t.suspect
		due := have.header == "" || suspect || !have.renew.IsZero() && !now.Before(have.renew)
		if due && t.fetching == nil && wait <= 0 {
			t.fetching = make(chan struct{})
			go t.renew(t.fetching)
		}
		ended, err := t.fetching, t.err
		t.mu.Unlock()
		switch {
		case have.good(now) && have.header != refused:
			return have.header, nil // also while another one is fetched
		case have.good(now) && !suspect:
			return "", nil
		case ended == nil:
			return "", NoToken{wait, err}
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// renew fetches a token.
func (t *Tokens) renew(ended chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	fetched, err := t.fetch(ctx)
	var value string
	if err == nil {
		value = fetched.Type() + " " + fetched.AccessToken
		if !httpguts.ValidHeaderFieldValue(value) {
			err = errors.New("the token is not the value of a header")
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(ended)
	t.fetching = nil
	now := time.Now()
	if err != nil {
		t.err = explainToken(err, ctx.Err() != nil, t.timeout)
		t.retry = now.Add(min(tokenPause<<min(t.failed, 10), tokenPauseMost))
		t.failed++
		return
	}
	t.err, t.failed, t.retry, t.suspect = nil, 0, time.Time{}, false
	next := token{header: value, expiry: fetched.Expiry}
	if !next.expiry.IsZero() {
		left := max(next.expiry.Sub(now), tokenLeast)
		next.expiry = now.Add(left)
		next.renew = next.expiry.Add(-min(tokenEarly, left/10))
	}
	t.current = next
}

// good reports whether a token can be sent.
func (t token) good(now time.Time) bool {
	return t.header != "" && (t.expiry.IsZero() || now.Before(t.expiry))
}

// TokenState is what operators see of the tokens.
type TokenState struct {
	Until   time.Time // when the token ends; zero without one, or if its end is unknown
	Problem string    // why there is none that works; empty: there is one, or none was needed yet
}

// State returns the state of the tokens.
func (t *Tokens) State() TokenState {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := TokenState{Until: t.current.expiry}
	if t.err != nil && (t.suspect || !t.current.good(time.Now())) {
		state.Problem = Cut(t.err.Error())
	}
	return state
}

// tokenErrors are the codes of errors that are shown (RFC 6749, sections 4.1.2.1 and 5.2, and RFC
// 8707).
var tokenErrors = []string{
	"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
	"invalid_scope", "invalid_target", "access_denied", "server_error", "temporarily_unavailable",
}

// explainToken returns why a fetch failed, without what the answer or the request contained: both
// may have secrets.
func explainToken(err error, late bool, timeout time.Duration) error {
	if answer, is := errors.AsType[*oauth2.RetrieveError](err); is {
		text := "the authorization server answered"
		if answer.Response != nil {
			text += fmt.Sprintf(" %d", answer.Response.StatusCode)
		}
		if slices.Contains(tokenErrors, answer.ErrorCode) {
			text += " " + answer.ErrorCode
		}
		return errors.New(strings.TrimSpace(text))
	}
	if late {
		return fmt.Errorf("the authorization server did not answer within %v", timeout)
	}
	if secured, network := ofTLS(err); secured != nil || network != nil {
		return fmt.Errorf("the authorization server cannot be reached: %w", cmp.Or(secured, network))
	}
	if _, is := errors.AsType[*url.Error](err); is { // it may quote the URL, and an answer that repeats the secret
		return errors.New("the authorization server cannot be reached, or its answer is not valid HTTP")
	}
	return errors.New("the authorization server's answer has no token that can be read")
}
