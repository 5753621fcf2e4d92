package outbound

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
)

// NoAnswer is why a receiver gave no answer. Message is a fixed text: the cause may quote data,
// such as a malformed answer that echoes the payload. Detail names hosts, addresses and
// certificates of the operator's network, so clients must not see it.
type NoAnswer struct {
	Message, Detail string
	Timeout         bool // the receiver took too long
	Unsent          bool // the receiver has not seen a byte of the request
	// Shortage means that this machine could not make the connection: it has no file descriptor,
	// port or network, or its resolver does not answer. It says nothing about the receiver.
	Shortage bool
	cause    error
}

// Error returns the most exact text.
func (e NoAnswer) Error() string { return Cut(cmp.Or(e.Detail, e.Message)) }

func (e NoAnswer) Unwrap() error { return e.cause }

// explain returns why a round trip failed. parent is the context of the attempt without its
// timeout. sent is whether a part of the request was written.
func (c *Client) explain(parent, limited context.Context, sent bool, err error) NoAnswer {
	no := NoAnswer{cause: err, Unsent: !sent}
	timeout, isNet := errors.AsType[net.Error](err)
	secured, network := ofTLS(err)
	switch {
	case errors.Is(parent.Err(), context.Canceled):
		no.Message = fmt.Sprintf("the %s stopped before the %s had answered", c.process, c.receiver)
	case no.Unsent && isShortage(err):
		no.Shortage, no.Message, no.Detail = true, "no connection could be made: this machine lacks the means", err.Error()
	case limited.Err() != nil, isNet && timeout.Timeout():
		no.Message, no.Timeout = fmt.Sprintf("no answer within %v", c.timeout), true
		if no.Unsent {
			no.Message = fmt.Sprintf("no connection within %v", c.timeout)
		}
	case secured != nil && no.Unsent:
		no.Message, no.Detail = "TLS handshake failed", secured.Error()
	case secured != nil: // with TLS 1.3 a server may refuse the client's certificate behind the request
		no.Message, no.Detail = fmt.Sprintf("the %s ended the TLS connection without an answer", c.receiver), secured.Error()
	case no.Unsent:
		no.Message, no.Detail = "connection failed", err.Error()
	case network != nil:
		no.Message, no.Detail = fmt.Sprintf("the connection broke before the %s had answered", c.receiver), network.Error()
	case ofHTTP2(err): // without its text, which may quote the receiver
		no.Message = fmt.Sprintf("the connection broke before the %s had answered", c.receiver)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.Contains(err.Error(), "server closed idle connection"):
		no.Message = fmt.Sprintf("the %s closed the connection without an answer", c.receiver)
	default:
		no.Message = fmt.Sprintf("the %s's answer is not valid HTTP, or its headers are too large", c.receiver)
	}
	if c.lacksCertificate.Load() && !no.Timeout && !no.Shortage && parent.Err() == nil {
		// Over HTTP/2 the alert that says so is often lost.
		hint := fmt.Sprintf("the %s asks for a client certificate, and none is set", c.receiver)
		no.Detail = strings.TrimPrefix(no.Detail+"; "+hint, "; ")
	}
	return no
}

// ofTLS returns the part of the error that is about TLS, and the part that is about the network.
// crypto/tls has no type for an alert over TCP: it is a net.OpError with one of two operations.
func ofTLS(err error) (secured, network error) {
	if cert, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return cert, nil
	}
	if plain, is := errors.AsType[tls.RecordHeaderError](err); is {
		return plain, nil
	}
	op, is := errors.AsType[*net.OpError](err)
	switch {
	case !is:
		return nil, nil
	case op.Op == "remote error", op.Op == "local error":
		return op, nil
	}
	return nil, op
}

// ofHTTP2 reports whether a connection with HTTP/2, or a stream of it, has ended before its answer.
// net/http does not export the types of these errors.
func ofHTTP2(err error) bool {
	text := err.Error()
	return slices.ContainsFunc([]string{"http2: ", "stream error: ", "connection error: "}, func(prefix string) bool {
		return strings.Contains(text, prefix)
	})
}

// isShortage reports whether a connection failed for want of something that this machine must have.
func isShortage(err error) bool {
	if name, is := errors.AsType[*net.DNSError](err); is {
		return !name.IsNotFound && (name.IsTemporary || name.IsTimeout)
	}
	for _, number := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ENETUNREACH, syscall.ENETDOWN,
	} {
		if errors.Is(err, number) {
			return true
		}
	}
	return false
}
