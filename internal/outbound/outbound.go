// Package outbound makes the requests of deliveries and callbacks: signed (Standard Webhooks), one
// per attempt, to receivers that may be hostile.
package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/queue"
)

const (
	maxHeaderBytes = 32 << 10 // of all headers of an answer; more is a failed attempt
	maxMessage     = 512      // bytes that are stored of an error
	// MaxBody is the largest part of an answer's body that is stored, MaxStoredHeader that of a
	// header value, in bytes.
	MaxBody, MaxStoredHeader = 4 << 10, 1 << 10
	// MaxDrain is how many bytes of a body are read and discarded, so that the connection can be
	// used again.
	MaxDrain = 64 << 10
	// usualHeaders is for how many headers of a request there is room from the start. Growing costs
	// a delivery with three headers of its route one or two µs more.
	usualHeaders = 14
)

// Values and names of headers that each request has.
var (
	contentJSON, userAgent      = []string{"application/json"}, []string{"sluice"}
	webhookID, webhookTimestamp = http.CanonicalHeaderKey(webhooks.HeaderWebhookID),
		http.CanonicalHeaderKey(webhooks.HeaderWebhookTimestamp)
)

// storedHeaders are the headers of an answer that are stored with the job's result.
var storedHeaders = [...]struct{ canonical, lower string }{
	{"Content-Type", "content-type"}, {"Location", "location"}, {"Retry-After", "retry-after"},
}

// Client calls receivers. It decompresses nothing, follows no redirect and keeps no cookies.
type Client struct {
	Dialer            *net.Dialer     // of Transport; its Control may refuse addresses
	Transport         *http.Transport // sends the requests
	process, receiver string          // the two sides in errors
	signers           []*webhooks.Webhook
	timeout, maxAge   time.Duration
	proxy             Proxy
	shared            atomic.Pointer[generation] // of Transport, with HTTP/2
	lacksCertificate  atomic.Bool                // the receiver asked for one of the client, which has none
}

// Options are the settings of a Client.
type Options struct {
	Timeout     time.Duration // of a request with its answer
	Connections int           // to one host, at most
	IdleTimeout time.Duration // after which a connection that is not used is closed
	MaxAge      time.Duration // after which a connection gets no further request
	Secrets     []string      // each signs the requests of Post; each a ValidSecret
	TLS         *tls.Config   // nil: TLS 1.2 or newer and the authorities of the system
	HTTP2       bool          // where the receiver has it, over TLS
	Proxy       string        // a setting for ParseProxy
	// Egress are link-local and metadata networks that may be called all the same; see EgressRule.
	Egress []netip.Prefix
}

// New returns a client that names process and receiver in errors. It signs with each of the
// secrets, so that receivers can move from one to the next. It panics with one that is no
// ValidSecret, and with a proxy that ParseProxy refuses.
func New(process, receiver string, o Options) *Client {
	// Each phase may take all of the timeout; their sum is bounded by the context of the attempt.
	dialer := &net.Dialer{Timeout: o.Timeout, KeepAlive: 30 * time.Second, Control: egress(o.Egress)}
	c := &Client{process: process, receiver: receiver, timeout: o.Timeout, maxAge: o.MaxAge, Dialer: dialer}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(o.HTTP2)
	c.Transport = &http.Transport{
		DialContext:            dial(dialer),
		DialTLSContext:         c.dialTLS,
		TLSClientConfig:        secure(o.TLS),
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter},
		DisableCompression:     true,
		MaxConnsPerHost:        o.Connections,
		MaxIdleConnsPerHost:    o.Connections,
		IdleConnTimeout:        o.IdleTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	var err error
	if c.proxy, err = ParseProxy(o.Proxy); err != nil {
		panic("outbound: a proxy that was not validated")
	}
	if c.proxy != nil {
		c.Transport.Proxy = c.proxyOfPlain
	}
	for _, secret := range o.Secrets {
		signer, err := webhooks.NewWebhook(secret)
		if err != nil {
			panic("outbound: a secret that was not validated")
		}
		c.signers = append(c.signers, signer)
	}
	if o.HTTP2 {
		c.shared.Store(&generation{c.Transport, time.Now()})
	}
	return c
}

// ValidSecret reports whether the secret is "whsec_" and base64.
func ValidSecret(secret string) bool {
	_, err := webhooks.NewWebhook(secret)
	return err == nil && len(secret) > len("whsec_")
}

// Answer is an answer whose body is still to be read. The caller must call Close.
type Answer struct {
	*http.Response
	c               *Client
	parent, limited context.Context
	cancel          context.CancelFunc
	timer           *time.Timer // ends limited after the client's timeout
}

// Open makes one request with a body, and returns as soon as the headers of its answer are there.
// An error is a NoAnswer.
func (c *Client) Open(req *http.Request, content []byte) (*Answer, error) {
	limited, cancel := context.WithCancel(req.Context())
	a := &Answer{c: c, parent: req.Context(), limited: limited, cancel: cancel, timer: time.AfterFunc(c.timeout, cancel)}
	resp, sent, err := c.roundTrip(limited, req, content)
	if err != nil {
		no := c.explain(a.parent, limited, sent, err)
		a.stop()
		return nil, no
	}
	a.Response = resp
	return a, nil
}

// Within sets how long the rest of the request may take, in place of the client's timeout; 0: as
// long as its context lets it.
func (a *Answer) Within(d time.Duration) {
	if d == 0 {
		a.timer.Stop()
		return
	}
	a.timer.Reset(d)
}

// TimedOut reports whether the request took too long.
func (a *Answer) TimedOut() bool { return a.limited.Err() != nil && a.parent.Err() == nil }

func (a *Answer) stop() {
	a.timer.Stop()
	a.cancel()
}

// Close ends the request.
func (a *Answer) Close() {
	_ = a.Body.Close()
	a.stop()
}

// All reads the body: at most most bytes of it, and whether there were more. A body that breaks off
// is no answer. An error is a NoAnswer.
func (a *Answer) All(most int64) (body []byte, cut bool, err error) {
	if a.StatusCode < 200 { // 101: what follows is not a body, and may never end
		return nil, false, nil
	}
	body, err = io.ReadAll(io.LimitReader(a.Body, most+1))
	if err != nil {
		return nil, false, a.BrokeOff(err)
	}
	cut = int64(len(body)) > most
	if cut && a.ContentLength-most <= MaxDrain {
		_, _ = io.CopyN(io.Discard, a.Body, MaxDrain)
	}
	return body[:min(int64(len(body)), most)], cut, nil
}

// BrokeOff explains the error of reading the body.
func (a *Answer) BrokeOff(err error) NoAnswer {
	c := a.c
	no := c.explain(a.parent, a.limited, true, err)
	switch {
	case no.Timeout:
		no.Message = fmt.Sprintf("the %s's answer did not end within %v", c.receiver, c.timeout)
	case !errors.Is(a.parent.Err(), context.Canceled):
		no.Message = fmt.Sprintf("the %s's answer broke off", c.receiver)
	}
	return no
}

// Send makes one request with a body, and returns the answer with at most most bytes of its body
// and whether there were more. A body that breaks off is no answer. An error is a NoAnswer.
func (c *Client) Send(
	req *http.Request, content []byte, most int64,
) (resp *http.Response, body []byte, cut bool, err error) {
	a, err := c.Open(req, content)
	if err != nil {
		return nil, nil, false, err
	}
	defer a.Close()
	if body, cut, err = a.All(most); err != nil {
		return nil, nil, false, err
	}
	return a.Response, body, cut, nil
}

// Target parses a URL for Post.
func Target(raw string) (*url.URL, error) {
	req, err := http.NewRequest(http.MethodPost, raw, nil)
	if err != nil {
		return nil, errors.New("the URL cannot be used") // the cause quotes it, with its secrets
	}
	return req.URL, nil
}

// Post makes one request, which edit may change, and returns the parts of the answer that are kept.
// read, if it is not nil, gets the answer first, unless that has no body. It may replace the body.
// A body that breaks off changes nothing: the status alone decides. An error is a NoAnswer.
func (c *Client) Post(
	ctx context.Context, to *url.URL, id string, body []byte, edit func(*http.Request), read func(*http.Response),
) (*queue.Response, error) {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := c.request(to, id, body)
	if err != nil {
		return nil, NoAnswer{Message: err.Error()}
	}
	edit(req)
	resp, sent, err := c.roundTrip(limited, req, body)
	if err != nil {
		return nil, c.explain(ctx, limited, sent, err)
	}
	defer resp.Body.Close()
	a := &queue.Response{Status: resp.StatusCode}
	for _, name := range storedHeaders {
		if v := resp.Header.Get(name.canonical); v != "" {
			if a.Headers == nil {
				a.Headers = make(map[string]string, len(storedHeaders))
			}
			a.Headers[name.lower] = CutTo(v, MaxStoredHeader)
		}
	}
	if resp.StatusCode < 200 {
		return a, nil // 101: what follows is not a body, and may never end
	}
	if read != nil {
		read(resp)
	}
	if size := resp.ContentLength; size >= 0 && size <= MaxBody { // as most are
		a.Body = make([]byte, size)
		var n int
		n, err = io.ReadFull(resp.Body, a.Body)
		a.Body, a.Truncated = a.Body[:n], err != nil
		return a, nil
	}
	a.Body, err = io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	a.Truncated = err != nil || len(a.Body) > MaxBody
	a.Body = a.Body[:min(len(a.Body), MaxBody)]
	if err == nil && a.Truncated && resp.ContentLength <= MaxDrain {
		_, _ = io.CopyN(io.Discard, resp.Body, MaxDrain)
	}
	return a, nil
}

// request returns a POST of JSON, without content for a nil body.
func (c *Client) request(to *url.URL, id string, body []byte) (*http.Request, error) {
	at := time.Now()
	h := make(http.Header, usualHeaders)
	req := &http.Request{
		Method: http.MethodPost, URL: to, Host: to.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if body != nil {
		h["Content-Type"] = contentJSON
	}
	h["User-Agent"] = userAgent
	h[webhookID] = []string{id}
	h[webhookTimestamp] = []string{strconv.FormatInt(at.Unix(), 10)}
	if len(c.signers) == 0 {
		return req, nil
	}
	signatures := make([]string, len(c.signers))
	for i, s := range c.signers {
		var err error
		if signatures[i], err = s.Sign(id, at, body); err != nil {
			return nil, fmt.Errorf("the request could not be signed: %w", err)
		}
	}
	h.Set(webhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return req, nil
}

// Cut shortens a message to the length that is stored.
func Cut(message string) string { return CutTo(message, maxMessage) }

// CutTo shortens s to at most n bytes and drops what is not UTF-8, including half a rune at the
// cut.
func CutTo(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// WholeSeconds rounds up: asynq would cut a fraction off, and less than a second would be no
// timeout.
func WholeSeconds(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }
