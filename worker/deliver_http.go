package worker

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/queue"
)

// Bounds of what is read of an upstream's answer, which may be hostile.
const (
	maxHeaderBytes = 32 << 10 // of all headers together; more is a failed attempt
	maxBody        = 4 << 10  // kept
	maxDrain       = 64 << 10 // read and thrown away so that the connection can be used again
)

// httpDeliverer sends jobs to one HTTP upstream. It obeys no proxy variable and decompresses nothing; a transport by itself follows no
// redirect, does not even read where one leads, and keeps no cookies. So the upstream gets exactly one request per attempt, and cannot make the
// worker call anything else.
type httpDeliverer struct {
	route     Route
	transport *http.Transport
	signers   []*webhooks.Webhook
	now       func() time.Time // the wall clock, which receivers compare the signature's timestamp with
}

func newHTTPDeliverer(r Route) (*httpDeliverer, error) {
	d := &httpDeliverer{route: r, now: time.Now}
	for i, secret := range r.Secrets {
		signer, err := webhooks.NewWebhook(secret)
		if err != nil {
			return nil, fmt.Errorf("secrets[%d]: %w", i, err)
		}
		d.signers = append(d.signers, signer)
	}
	// Each phase may take all of the timeout; their sum is bounded by the context of the attempt.
	dialer := &net.Dialer{Timeout: r.Timeout, KeepAlive: 30 * time.Second}
	d.transport = &http.Transport{
		Proxy:                  nil,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    r.Timeout,
		DisableCompression:     true,
		MaxConnsPerHost:        r.Connections,
		MaxIdleConnsPerHost:    r.Connections,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	return d, nil
}

func (d *httpDeliverer) close() { d.transport.CloseIdleConnections() }

// Deliver makes one request and judges the answer; see judge for the outcomes.
func (d *httpDeliverer) Deliver(ctx context.Context, l queue.Lease) queue.Settlement {
	limited, cancel := context.WithTimeout(ctx, d.route.Timeout)
	defer cancel()
	req, err := d.request(limited, l)
	if err != nil {
		return d.route.Retry.again(l, err.Error(), 0)
	}
	resp, err := d.transport.RoundTrip(req)
	if err != nil {
		message, detail := d.describe(ctx, limited, err)
		s := d.route.Retry.again(l, message, 0)
		s.Error.Detail = detail
		return s
	}
	answer := readAnswer(resp)
	return d.route.Retry.judge(l, answer, resp.Header.Get("Retry-After"), d.now())
}

// request is the request of an attempt, as the contract with receivers has it.
func (d *httpDeliverer) request(ctx context.Context, l queue.Lease) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.route.URL, bytes.NewReader(l.Payload))
	if err != nil {
		return nil, errors.New("the route's URL cannot be used") // the cause would quote it
	}
	at := d.now()
	h := req.Header
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "sluice")
	h.Set(webhooks.HeaderWebhookID, l.ID)
	h.Set(webhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set("Sluice-Attempt", strconv.Itoa(l.Attempt))
	h.Set("Sluice-Tenant", percentEncode(l.Tenant))
	h.Set("Sluice-Job-Type", percentEncode(l.Type))
	if u := req.URL.User; u != nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
	}
	if l.TraceParent != "" {
		h.Set("traceparent", l.TraceParent)
	}
	if len(d.signers) == 0 {
		return req, nil
	}
	// One signature per secret, so that a receiver may move from one to the next.
	signatures := make([]string, len(d.signers))
	for i, s := range d.signers {
		if signatures[i], err = s.Sign(l.ID, at, l.Payload); err != nil {
			return nil, fmt.Errorf("the request could not be signed: %w", err)
		}
	}
	h.Set(webhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return req, nil
}

// describe returns why there was no answer. The message is a fixed text where the error may quote
// sent or received data, such as a malformed answer that echoes the payload. The detail names
// hosts, addresses and certificates of the operator's network, so clients must not see it.
func (d *httpDeliverer) describe(parent, limited context.Context, err error) (message, detail string) {
	var (
		timeout net.Error
		dial    *net.OpError
		cert    *tls.CertificateVerificationError
		alert   tls.AlertError
	)
	switch {
	case parent.Err() != nil:
		return "the worker stopped before the upstream had answered", ""
	case limited.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no answer within %v", d.route.Timeout), ""
	case errors.As(err, &cert):
		return tlsFailed, cert.Error()
	case errors.As(err, &alert):
		return tlsFailed, alert.Error()
	case errors.As(err, &dial):
		return "connection failed", dial.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the upstream closed the connection without an answer", ""
	}
	return "the upstream's answer is not valid HTTP, or its headers are too large", ""
}

const tlsFailed = "TLS handshake failed"

// keptHeaders are those of an answer that help whoever looks at the job.
var keptHeaders = []string{"Content-Type", "Location", "Retry-After"}

// maxKeptHeader bounds each of them.
const maxKeptHeader = 1 << 10

// readAnswer takes what is kept of an answer and closes its body. A body that breaks off changes nothing: the status has said
// what the upstream did with the job.
func readAnswer(resp *http.Response) *queue.Response {
	defer resp.Body.Close()
	a := &queue.Response{Status: resp.StatusCode}
	for _, name := range keptHeaders {
		if v := resp.Header.Get(name); v != "" {
			if a.Headers == nil {
				a.Headers = make(map[string]string, len(keptHeaders))
			}
			a.Headers[strings.ToLower(name)] = cut(v, maxKeptHeader)
		}
	}
	if resp.StatusCode < 200 {
		return a // 101: what follows is not a body, and may never end
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	a.Truncated = err != nil || len(body) > maxBody
	a.Body = body[:min(len(body), maxBody)]
	if err == nil && a.Truncated && resp.ContentLength <= maxDrain {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	}
	return a
}

const upperhex = "0123456789ABCDEF"

// percentEncode makes client text fit for a header: every byte outside [A-Za-z0-9._:@-] becomes % and two upper-case hex
// digits, so it is reversible and cannot end the line.
func percentEncode(s string) string {
	plain := 0
	for plain < len(s) && unreserved(s[plain]) {
		plain++
	}
	if plain == len(s) {
		return s
	}
	var b strings.Builder
	b.Grow(3 * len(s))
	for i := range len(s) {
		if c := s[i]; unreserved(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperhex[c>>4])
			b.WriteByte(upperhex[c&15])
		}
	}
	return b.String()
}

// unreserved are the bytes of most tenants' names, left readable.
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._:@-", c) >= 0
}
