package queue

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// dial is how a client connects.
type dial func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer dials like go-redis itself.
func dialer(p patience, secure *tls.Config) dial { return plain(p, secure).orUnconnected() }

// plain is a dialer that fails where there is no connection.
func plain(p patience, secure *tls.Config) dial {
	return redis.NewDialer(&redis.Options{DialTimeout: p.dial, TLSConfig: secure})
}

// orUnconnected makes a connection that cannot be had one whose first use fails. Otherwise go-redis stops dialling after as many failures
// as its pool has places, and tries once in a second: a Redis that is back would be away for a second longer.
func (d dial) orUnconnected() dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d(ctx, network, addr)
		if err != nil {
			return unconnected{notConnected{err}}, nil
		}
		return conn, nil
	}
}

// notConnected is why there is no connection. It hides its cause, of which go-redis would show the caller the last part only, without
// the address.
type notConnected struct{ cause error }

func (e notConnected) Error() string { return e.cause.Error() }

// Timeout and Temporary make it a net.Error, which go-redis tells apart from an answer of Redis.
func (e notConnected) Timeout() bool {
	var timed net.Error
	return errors.As(e.cause, &timed) && timed.Timeout()
}

func (e notConnected) Temporary() bool { return true }

// unconnected is a connection that there is none of.
type unconnected struct{ err error }

func (c unconnected) Read([]byte) (int, error)         { return 0, c.err }
func (c unconnected) Write([]byte) (int, error)        { return 0, c.err }
func (c unconnected) Close() error                     { return nil }
func (c unconnected) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c unconnected) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c unconnected) SetDeadline(time.Time) error      { return nil }
func (c unconnected) SetReadDeadline(time.Time) error  { return nil }
func (c unconnected) SetWriteDeadline(time.Time) error { return nil }
