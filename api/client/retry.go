package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"time"
)

// Retrying returns a client that repeats a call for up to this time after 429, 502, 503, 504 and
// lost connections, each time after what Retry-After says, else after a random pause that grows to
// five seconds. It repeats what may be sent twice: reads, changes by Put and Patch, and
// submissions. A submission without an idempotency key gets a random one, so a repeated one is the
// same job; those of SubmitRaw are sent as they are, and once. A job that never fits is not sent
// again.
func (c *Client) Retrying(within time.Duration) *Client {
	retrying := *c
	retrying.within = within
	return &retrying
}

// key returns the idempotency key of a submission, which a client that retries makes.
func (c *Client) key(given string) string {
	if given == "" && c.within > 0 {
		return rand.Text()
	}
	return given
}

// repeated makes a call until it succeeds, is refused for good, or the time for it is over. A call
// that must not be sent twice is made once.
func (c *Client) repeated(ctx context.Context, twice bool, call func() error) error {
	const first, longest = 100 * time.Millisecond, 5 * time.Second
	end := time.Now().Add(c.within)
	for pause := first; ; pause = min(2*pause, longest) {
		err := call()
		if err == nil || !twice || !passing(err) || ctx.Err() != nil {
			return err
		}
		wait := pause/2 + mathrand.N(pause/2)
		if e, is := errors.AsType[*Error](err); is && e.RetryAfter > 0 {
			wait = e.RetryAfter
		}
		if time.Now().Add(wait).After(end) {
			return err
		}
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return fmt.Errorf("client: %w, after: %w", context.Cause(ctx), err)
		}
	}
}

// errLost is that no whole answer came: the server may have served the request.
type errLost struct{ error }

func (e errLost) Unwrap() error { return e.error }

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	if _, lost := errors.AsType[errLost](err); lost {
		return true
	}
	e, is := errors.AsType[*Error](err)
	if !is {
		return false
	}
	switch e.Status {
	case http.StatusTooManyRequests:
		return e.Kind() != "never-fits"
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// mayRepeat reports whether a request may be sent twice (RFC 9110, section 9.2.2; PATCH is a merge
// patch). Not so DELETE: a job that was canceled is refused the second time.
func mayRepeat(method string, h http.Header) bool {
	switch method {
	case http.MethodGet, http.MethodPut, http.MethodPatch:
		return true
	}
	return h["Idempotency-Key"] != nil
}
