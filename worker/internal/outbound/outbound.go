// Package outbound makes the POST requests of deliveries and callbacks: signed (Standard Webhooks), one
// per attempt, to receivers that may be hostile.
package outbound

import (
	"bytes"
	"cmp"
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
)

const (
	maxHeaderBytes = 32 << 10 // of all headers of an answer; more is a failed attempt
	maxMessage     = 512      // bytes that are stored of an error
	// MaxDrain is how much of a body is read and discarded so that the connection can be used again.
	MaxDrain = 64 << 10
)

// Client calls receivers. It obeys no proxy variable and decompresses nothing. Its transport, used by
// itself, follows no redirect and keeps no cookies.
type Client struct {
	Dialer    *net.Dialer
	Transport *http.Transport
	signers   []*webhooks.Webhook
	timeout   time.Duration
}

// New returns a client that opens at most connections to a host. It signs with each of the secrets, so
// that receivers can move from one to the next. Without secrets it does not sign.
func New(timeout time.Duration, connections int, secrets []string) (*Client, error) {
	// Each phase may take all of the timeout; their sum is bounded by the context of the attempt.
	dialer := &net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}
	c := &Client{Dialer: dialer, timeout: timeout, Transport: &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    timeout,
		DisableCompression:     true,
		MaxConnsPerHost:        connections,
		MaxIdleConnsPerHost:    connections,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}}
	for i, secret := range secrets {
		signer, err := webhooks.NewWebhook(secret)
		if err != nil {
			return nil, fmt.Errorf("secrets[%d] must be whsec_ and base64", i)
		}
		c.signers = append(c.signers, signer)
	}
	return c, nil
}

// ValidSecret reports whether New accepts the secret.
func ValidSecret(secret string) bool {
	_, err := webhooks.NewWebhook(secret)
	return err == nil && len(secret) > len("whsec_")
}

// Request returns a POST of JSON. Its error does not quote the URL, which may hold secrets.
func (c *Client) Request(ctx context.Context, url, id string, body []byte, at time.Time) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL cannot be used")
	}
	h := req.Header
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "sluice")
	h.Set(webhooks.HeaderWebhookID, id)
	h.Set(webhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	if len(c.signers) == 0 {
		return req, nil
	}
	signatures := make([]string, len(c.signers))
	for i, s := range c.signers {
		if signatures[i], err = s.Sign(id, at, body); err != nil {
			return nil, fmt.Errorf("the request could not be signed: %w", err)
		}
	}
	h.Set(webhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return req, nil
}

// NoAnswer is why a receiver gave no answer. Message is a fixed text: the cause may quote data, such as
// a malformed answer that echoes the payload. Detail names hosts, addresses and certificates of the
// operator's network, so clients must not see it.
type NoAnswer struct{ Message, Detail string }

// Error returns the most exact text.
func (e NoAnswer) Error() string { return Cut(cmp.Or(e.Detail, e.Message)) }

// Explain returns why a round trip failed. parent is the context of the attempt without its timeout,
// limited the one with it; process and receiver name the two sides in the message.
func (c *Client) Explain(parent, limited context.Context, err error, process, receiver string) NoAnswer {
	var (
		timeout net.Error
		dial    *net.OpError
		cert    *tls.CertificateVerificationError
		alert   tls.AlertError
	)
	switch {
	case errors.Is(parent.Err(), context.Canceled):
		return NoAnswer{Message: fmt.Sprintf("the %s stopped before the %s had answered", process, receiver)}
	case limited.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return NoAnswer{Message: fmt.Sprintf("no answer within %v", c.timeout)}
	case errors.As(err, &cert):
		return NoAnswer{"TLS handshake failed", cert.Error()}
	case errors.As(err, &alert):
		return NoAnswer{"TLS handshake failed", alert.Error()}
	case errors.As(err, &dial):
		return NoAnswer{"connection failed", dial.Error()}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return NoAnswer{Message: fmt.Sprintf("the %s closed the connection without an answer", receiver)}
	}
	return NoAnswer{Message: fmt.Sprintf("the %s's answer is not valid HTTP, or its headers are too large", receiver)}
}

// Cut shortens a message to what is stored of it.
func Cut(message string) string { return CutTo(message, maxMessage) }

// CutTo shortens s to at most n bytes and drops what is not UTF-8, including half a rune at the cut.
func CutTo(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// WholeSeconds rounds up: asynq would cut a fraction off, and less than a second would be no timeout.
func WholeSeconds(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }
