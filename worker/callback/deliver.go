package callback

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/queue/burstlog"
)

// The pauses between attempts: the first one, doubled by each further failure up to the longest.
const (
	firstPause   = 5 * time.Second
	longestPause = 6 * time.Hour
)

// pause is how long a callback waits after a failure; retried is 0 after the first. Up to half of it is added at random, so that what failed
// together does not come back together. The 14 pauses between 15 attempts take 17 to 26 hours.
func pause(retried int) time.Duration {
	wait := firstPause
	for ; retried > 0 && wait < longestPause; retried-- {
		wait = min(2*wait, longestPause)
	}
	return wait + rand.N(wait/2)
}

// Bounds of what is read of a receiver's answer, which may be hostile.
const (
	maxHeaderBytes = 32 << 10 // of all headers together; more is a failed attempt
	maxDrain       = 64 << 10 // of the body, read and thrown away so that the connection can be used again
)

// caller makes requests. It obeys no proxy variable and decompresses nothing; a transport by itself follows no redirect and keeps no cookies.
type caller struct {
	dialer    *net.Dialer
	transport *http.Transport
}

// newCaller makes a caller that dials what the control accepts, everything if it is nil.
func newCaller(cfg Config, control func(network, address string, c syscall.RawConn) error) *caller {
	// Each phase may take all of the timeout; their sum is bounded by the context of the attempt.
	dialer := &net.Dialer{Timeout: cfg.Timeout, KeepAlive: 30 * time.Second, Control: control}
	return &caller{dialer: dialer, transport: &http.Transport{
		Proxy:                  nil,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    cfg.Timeout,
		DisableCompression:     true,
		MaxConnsPerHost:        cfg.Concurrency,
		MaxIdleConns:           cfg.Concurrency,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}}
}

// deliver is asynq's handler: one attempt at a callback. A result with asynq.SkipRetry is archived at once.
func (s *Service) deliver(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	last := retried+1 >= most
	err := s.attempt(ctx, id, task, last)
	if last && err != nil && !isPostponed(err) {
		err = givenUp{err}
	}
	job, _, _ := strings.Cut(id, ":")
	log := s.log.With("job", job, "callback", id, "attempt", retried+1)
	switch {
	case isPostponed(err):
		s.metrics.postponed.Inc()
		log.Debug("a callback was postponed", "error", err)
	case errors.Is(err, errSkipped):
		s.metrics.skipped.Inc()
		log.Debug("a callback is to be tried again", "error", err)
	case err == nil:
		s.metrics.delivered.Inc()
		log.Debug("a callback was delivered")
	case errors.Is(ctx.Err(), context.Canceled):
		// The grace is over, and asynq has put the task back: this was no attempt.
		log.Debug("a callback was put back", "error", err)
	case errors.Is(err, asynq.SkipRetry):
		s.metrics.archived.Inc()
		s.given.Add(burstlog.Key{}, 1, "job", job, "callback", id, "attempt", retried+1, "error", err)
	default:
		s.metrics.failed.Inc()
		log.Debug("a callback is to be tried again", "error", err)
	}
	return err
}

// givenUp is the failure of a last attempt, which asynq archives as it is.
type givenUp struct{ error }

func (givenUp) Is(target error) bool { return target == asynq.SkipRetry }

// attempt makes one request, once there is a slot for it, and judges the answer; last says that the
// callback is given up if it fails. asynq stores its error.
func (s *Service) attempt(ctx context.Context, id string, task *asynq.Task, last bool) error {
	rawURL := task.Headers()[urlHeader]
	listed, err := s.cfg.Guard.judge(rawURL) // once more: the operator may have changed the list
	if err != nil {
		return fmt.Errorf("the callback URL %w: %w", err, asynq.SkipRetry)
	}
	by := s.public
	if listed {
		by = s.listed
	}
	to, tenant := receiverOf(rawURL), task.Headers()[tenantHeader]
	if err := s.slots.take(ctx, to, tenant, last); err != nil {
		return err
	}
	start := time.Now()
	var answered *bool
	defer func() { s.slots.give(to, tenant, start, answered) }()
	limited, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := s.request(limited, id, rawURL, task.Payload())
	if err != nil {
		return err
	}
	resp, err := by.transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, errNotPublic) {
			answered = new(false)
		}
		return s.describe(ctx, limited, err)
	}
	answered = new(true)
	defer resp.Body.Close()
	if resp.StatusCode >= 200 { // what follows 101 is not a body, and may never end
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain) // the status has said it all
	}
	switch status := resp.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusGone:
		return fmt.Errorf("the receiver answered 410 Gone: %w", asynq.SkipRetry)
	default:
		return errors.New(strings.TrimSpace(fmt.Sprintf("the receiver answered %d %s", status, http.StatusText(status))))
	}
}

// receiverOf is the host and port that a URL leads to.
func receiverOf(rawURL string) string {
	t, err := parse(rawURL)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
}

func isPostponed(err error) bool {
	var postponed errPostponed
	return errors.As(err, &postponed)
}

// delay is when asynq brings a task back.
func delay(retried int, err error, _ *asynq.Task) time.Duration {
	var postponed errPostponed
	if errors.As(err, &postponed) {
		return postponed.delay
	}
	return pause(retried)
}

// request is the request of an attempt (Standard Webhooks). It is signed here and not at the hand-over, so that retries use the secrets of today.
func (s *Service) request(ctx context.Context, id, rawURL string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, rawURL, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the callback URL cannot be used") // the cause would quote it
	}
	at := time.Now()
	h := req.Header
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "sluice")
	h.Set(webhooks.HeaderWebhookID, id)
	h.Set(webhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	if len(s.signers) == 0 {
		return req, nil
	}
	signatures := make([]string, len(s.signers))
	for i, signer := range s.signers {
		if signatures[i], err = signer.Sign(id, at, body); err != nil {
			return nil, fmt.Errorf("the request could not be signed: %w", err)
		}
	}
	h.Set(webhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return req, nil
}

// describe says why there was no answer. Errors that may quote what was sent or received are told in words of our own.
func (s *Service) describe(parent, limited context.Context, err error) error {
	var (
		dial    *net.OpError
		cert    *tls.CertificateVerificationError
		alert   tls.AlertError
		timeout net.Error
	)
	switch {
	case errors.Is(err, errNotPublic):
		return fmt.Errorf("%w: %w", errNotPublic, asynq.SkipRetry)
	case errors.Is(parent.Err(), context.Canceled):
		return errors.New("the process stopped before the receiver had answered")
	case limited.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("no answer within %v", s.cfg.Timeout)
	case errors.As(err, &dial):
		return errors.New(dial.Error())
	case errors.As(err, &cert):
		return errors.New(cut(cert.Error())) // lists every name that the receiver put into its certificate
	case errors.As(err, &alert):
		return errors.New(alert.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the receiver closed the connection without an answer")
	}
	return errors.New("the receiver's answer is not valid HTTP, or its headers are too large")
}

// maxMessage bounds what is stored of an error, in bytes.
const maxMessage = 512

// cut shortens a message and drops what is not UTF-8, half a rune at the cut included.
func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "")
}
