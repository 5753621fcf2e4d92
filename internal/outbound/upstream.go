package outbound

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/queue"
)

// Upstream calls the upstream of a route with what the operator set for it. It does not change, but
// for its token and its connections.
type Upstream struct {
	*Client
	tokens  *Tokens // nil: none
	method  string
	header  http.Header
	secrets []string // of header, which an answer may repeat
	of      UpstreamOptions
}

// UpstreamOptions are the settings of an Upstream.
type UpstreamOptions struct {
	Options
	Method  string            // of Post; empty: POST
	Headers map[string]string // set on each request, each CheckSettable of httpmsg
	OAuth2  *OAuth2           // nil: none
}

// NewUpstream returns an upstream. It keeps the connections of the one before, and its token, where
// they are of the same settings. before may be nil.
func NewUpstream(o UpstreamOptions, before *Upstream) *Upstream {
	u := &Upstream{method: o.Method, header: http.Header{}, of: o}
	for name, value := range o.Headers {
		u.header.Set(name, value)
		u.secrets = append(u.secrets, secretsOf(name, value)...)
	}
	same := before != nil && reflect.DeepEqual(before.of.Options, o.Options)
	if same {
		u.Client = before.Client
	} else {
		u.Client = New("worker", "upstream", o.Options)
	}
	if o.OAuth2 != nil {
		if same && reflect.DeepEqual(before.of.OAuth2, o.OAuth2) {
			u.tokens = before.tokens
		} else {
			u.tokens = newTokens(*o.OAuth2, u.Client)
		}
	}
	return u
}

// SendsBody reports whether Post sends a body: content of GET and DELETE has no meaning (RFC 9110,
// sections 9.3.1 and 9.3.5), and some servers refuse it.
func (u *Upstream) SendsBody() bool {
	return u.method != http.MethodGet && u.method != http.MethodDelete
}

// TokenState returns the state of the upstream's token.
func (u *Upstream) TokenState() TokenState {
	if u.tokens == nil {
		return TokenState{}
	}
	return u.tokens.State()
}

// HasTokens reports whether the upstream is called with a token of OAuth2.
func (u *Upstream) HasTokens() bool { return u.tokens != nil }

// CertificateEnd returns when the client certificate ends, zero without one.
func (u *Upstream) CertificateEnd() time.Time {
	t := u.of.TLS
	if t == nil || len(t.Certificates) == 0 || t.Certificates[0].Leaf == nil {
		return time.Time{}
	}
	return t.Certificates[0].Leaf.NotAfter
}

// Post is Client.Post with the upstream's method, headers and token. Errors: a NoAnswer, or a
// NoToken of a request that was not sent.
func (u *Upstream) Post(
	ctx context.Context, to *url.URL, id string, body []byte, edit func(*http.Request), read func(*http.Response),
) (answer *queue.Response, err error) {
	if !u.SendsBody() {
		body = nil
	}
	var sent string
	err = u.authorized(ctx, func(authorization string) (int, error) {
		answer, err = u.Client.Post(ctx, to, id, body, func(req *http.Request) {
			edit(req)
			if u.method != "" {
				req.Method = u.method
			}
			if body == nil {
				delete(req.Header, "Content-Type")
			}
			u.dress(req.Header, authorization)
			if sent = req.Header.Get("Authorization"); sent == u.header.Get("Authorization") {
				sent = "" // u.secrets has it; any other is of a token, or of the user in the URL
			}
		}, read)
		if err != nil {
			return 0, err
		}
		u.hide(answer, sent)
		return answer.Status, nil
	})
	return answer, err
}

// hide replaces secrets in what is kept of an answer, which may repeat the request.
func (u *Upstream) hide(answer *queue.Response, authorization string) {
	secrets := u.secrets
	if authorization != "" {
		secrets = append(secretsOf("Authorization", authorization), secrets...)
	}
	for _, secret := range secrets {
		if bytes.Contains(answer.Body, []byte(secret)) {
			answer.Body = bytes.ReplaceAll(answer.Body, []byte(secret), []byte(hidden))
		}
		for name, kept := range answer.Headers {
			if strings.Contains(kept, secret) {
				answer.Headers[name] = strings.ReplaceAll(kept, secret, hidden)
			}
		}
	}
}

// hidden replaces credentials of at least leastSecret bytes, and other values of at least
// leastLong.
const (
	hidden                 = "(hidden)"
	leastSecret, leastLong = 6, 16
)

// secretsOf returns what is secret of the value of a header: all of it, and what follows Bearer or
// the like. Values of headers that are not named like credentials, such as a version, may be in an
// answer by chance, unless they are long.
func secretsOf(name, value string) (secrets []string) {
	least := leastLong
	if httpmsg.IsCredential(name) {
		least = leastSecret
	}
	_, credential, _ := strings.Cut(value, " ")
	for _, secret := range []string{value, credential} {
		if len(secret) >= least {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}

// Open is Client.Open with the upstream's headers and token, which it sets in the request's.
// Errors: as Post.
func (u *Upstream) Open(req *http.Request, content []byte) (a *Answer, err error) {
	err = u.authorized(req.Context(), func(authorization string) (int, error) {
		if a != nil { // it refused the token
			a.Close()
			a = nil
		}
		u.dress(req.Header, authorization)
		if a, err = u.Client.Open(req, content); err != nil {
			return 0, err
		}
		return a.StatusCode, nil
	})
	if err != nil && a != nil {
		a.Close()
		a = nil
	}
	return a, err
}

// dress sets the upstream's headers.
func (u *Upstream) dress(h http.Header, authorization string) {
	httpmsg.Replace(h, u.header)
	if authorization != "" {
		httpmsg.Replace(h, http.Header{"Authorization": {authorization}})
	}
}

// authorized sends a request with the value of Authorization, which is empty without tokens. A
// request whose token the upstream refused is sent once more with another one: it was not served.
func (u *Upstream) authorized(ctx context.Context, send func(authorization string) (status int, err error)) error {
	if u.tokens == nil {
		_, err := send("")
		return err
	}
	authorization, err := u.tokens.Get(ctx)
	for again := false; ; again = true {
		if err != nil && ctx.Err() != nil {
			return NoAnswer{Message: fmt.Sprintf("the %s stopped before the %s had answered", u.process, u.receiver), Unsent: true, cause: err}
		}
		if err != nil {
			return err
		}
		var status int
		status, err = send(authorization)
		if err != nil || status != http.StatusUnauthorized || again {
			return err
		}
		authorization, err = u.tokens.Another(ctx, authorization)
		if err == nil && authorization == "" {
			return nil
		}
	}
}
